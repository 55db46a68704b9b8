"""What the loops of all recurrent cells have in common."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

States = tuple[Tensor, Tensor, Tensor]  # h', c' (empty where there is none) and gates, at all times


@dataclass(frozen=True)
class Numbers:
    """The recorded numbers of a layer: its weights and first states, and all that came of them."""

    w: Tensor  # [G H, H]
    h0: Tensor  # [B, H]
    c0: Tensor | None
    out: Tensor  # [T, B, H]
    cells: Tensor
    gates: Tensor
    slopes: tuple[Tensor, Tensor] | None = None  # where they are there already


@dataclass
class Sources:
    """What is put onto the adjoint from outside, at all times ``[T, K, B, …]``; None for nothing.

    ``arguments`` and ``hidden`` are put onto the derivatives by ``x`` and by ``W h``; ``first`` and
    ``first_h`` onto those by ``c_0`` and ``h_0``.
    """

    h: Tensor | None
    c: Tensor | None
    arguments: Tensor | None = None
    hidden: Tensor | None = None
    first: Tensor | None = None
    first_h: Tensor | None = None

    @property
    def like(self) -> Tensor:
        """One of those that are there."""
        there = self.h if self.h is not None else self.c
        assert there is not None
        return there

    @property
    def shape(self) -> torch.Size:
        """``T, K, B, H``."""
        return self.like.shape


@dataclass(frozen=True)
class Adjoint:
    """Derivatives by ``x``, by ``W h`` (None: the same), by the first states, and by all states."""

    x: Tensor
    hidden: Tensor | None
    h0: Tensor
    c0: Tensor | None
    totals: Tensor  # by h at all times, [T, K, B, H]
    cells: Tensor | None  # by c at all times


def before(states: Tensor, first: Tensor) -> Tensor:
    """The state that each step began with: ``[T, …]`` from the results and the first one."""
    return torch.cat([first[None], states[:-1]])


def later(onto: Tensor | None, t: int, carry: Tensor | None, out: Tensor) -> None:
    """What comes to a state from outside and from the next step."""
    if onto is None and carry is None:
        out.zero_()
    elif onto is None:
        assert carry is not None
        out.copy_(carry)
    elif carry is None:
        out.copy_(onto[t])
    else:
        torch.add(onto[t], carry, out=out)


def over_columns(t: Tensor) -> Tensor:
    """Numbers ``[T, B, …]`` beside tangents ``[T, K, B, …]``."""
    return t[:, None]
