"""One network in training: its weights as one flat vector, and the steps that change it.

Everything that a step reads or writes has a fixed place in memory for the whole training, and no
step waits for the device; that is what a CUDA graph needs, and it costs nothing elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from curvescope._checks import CurvescopeError
from curvescope.training import optimizers
from curvescope.training.objective import Penalty, mean_loss, outputs_and_penalty, right_answers
from curvescope.training.recipe import Recipe


@dataclass(frozen=True)
class Steps:
    """A few consecutive steps: their batch sizes, also as numbers on the device."""

    sizes: tuple[int, ...]
    counts: Tensor  # [steps], float64

    @property
    def samples(self) -> int:
        """How many samples they take together."""
        return sum(self.sizes)


def _room(parameter: Tensor) -> int:
    """Numbers that a parameter takes up in a flat vector: whole 64s, so that each is aligned.

    Matrix products on a GPU fall back to slower kernels where a weight begins at an odd address.
    """
    return -(-parameter.numel() // 64) * 64


class Learner:
    """A model whose trainable parameters are views of one flat vector until :meth:`release`."""

    def __init__(self, model: nn.Module, recipe: Recipe, penalty: Penalty | None = None) -> None:
        self.model, self.recipe, self._penalty = model, recipe, penalty
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            msg = "train: no parameter of the model requires a gradient; there is nothing to train"
            raise CurvescopeError(msg)
        self._own = [p.data for p in self.parameters]
        size = sum(_room(p) for p in self.parameters)
        self.weights = self._own[0].new_zeros(size)
        self._gradient = torch.zeros_like(self.weights)
        self._gradients = self._shaped(self._gradient)
        for p, own, view in zip(
            self.parameters, self._own, self._shaped(self.weights), strict=True
        ):
            p.data = view.copy_(own)
        self.optimizer = optimizers.make(recipe, self.weights)
        self.totals = torch.zeros(2, dtype=torch.float64, device=self.weights.device)

    def _shaped(self, vector: Tensor) -> list[Tensor]:
        """The parts of a flat vector that belong to the parameters, in their shapes."""
        parts = vector.split([_room(p) for p in self.parameters])
        pairs = zip(parts, self.parameters, strict=True)
        return [part[: p.numel()].view(p.shape) for part, p in pairs]

    def release(self) -> None:
        """Give the model its own tensors back, with the present values."""
        for p, own in zip(self.parameters, self._own, strict=True):
            own.copy_(p.data)
            p.data = own

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training changes, by name: the tensors themselves, not copies."""
        drawn = getattr(self._penalty, "tensors", None)
        kept = {} if drawn is None else drawn(self.weights.device)
        return {
            "weights": self.weights,
            **{f"penalty.{name}": tensor for name, tensor in kept.items()},
            **{f"optimizer.{name}": tensor for name, tensor in self.optimizer.state.items()},
            **{f"buffer.{name}": tensor for name, tensor in self.model.named_buffers()},
        }

    def advance(self, X: Tensor, y: Tensor, rows: Tensor, table: Tensor, steps: Steps) -> None:
        """Take the steps: the samples ``rows`` in turn, the optimiser's numbers from ``table``.

        The sum of the losses and the number of right answers are added to ``totals``.
        """
        inputs, targets = X.index_select(0, rows), y.index_select(0, rows)
        outputs, losses = [], []
        sizes = list(steps.sizes)
        for x, t, row in zip(inputs.split(sizes), targets.split(sizes), table, strict=True):
            output, penalty = outputs_and_penalty(self.model, self._penalty, x, t)
            loss = mean_loss(self.recipe.loss, output, t)
            objective = loss if penalty is None else loss + penalty
            gradient = torch.autograd.grad(objective, self.parameters, materialize_grads=True)
            with torch.no_grad():
                torch._foreach_copy_(self._gradients, gradient)
                self.optimizer.step(self.weights, self._gradient, row)
            outputs.append(output.detach())
            losses.append(loss.detach())
        self.totals[0] += (torch.stack(losses) * steps.counts).sum()
        self.totals[1] += right_answers(self.recipe.loss, torch.cat(outputs), targets)
