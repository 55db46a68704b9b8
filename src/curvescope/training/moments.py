"""The state of Adam beside the kept weights of a run: its preconditioner at that point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from curvescope.training.optimizers import BETA_2, EPSILON


@dataclass(frozen=True, eq=False)
class Moments:
    """Averages of the gradient and of its squares, by the names of the parameters.

    ``m ← β₁ m + (1−β₁) g`` and ``v ← β₂ v + (1−β₂) g²``, after so many epochs and steps.
    """

    FORMAT: ClassVar[int] = 1

    epoch: int
    steps: int
    mean: dict[str, Tensor]
    square: dict[str, Tensor]

    @classmethod
    def of(cls, epoch: int, names: Sequence[str], state: Mapping[str, Sequence[Tensor]]) -> Moments:
        """The state of an optimizer, copied to the CPU."""
        copied = {
            kind: {name: t.cpu().clone() for name, t in zip(names, state[kind], strict=True)}
            for kind in ("mean", "square")
        }
        return cls(epoch, int(state["steps"][0]), **copied)

    def preconditioner(self) -> dict[str, Tensor]:
        """The diagonal ``P = √(v / (1 − β₂ᵗ)) + ε``: Adam's step is ``−α P⁻¹ m / (1 − β₁ᵗ)``.

        >>> import torch
        >>> moments = Moments(1, 1, {"w": torch.zeros(1)}, {"w": torch.tensor([0.004])})
        >>> moments.preconditioner()["w"].round(decimals=3)
        tensor([2.])
        """
        correction = 1 - BETA_2**self.steps
        return {name: (v / correction).sqrt() + EPSILON for name, v in self.square.items()}
