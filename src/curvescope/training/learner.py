"""One network in training: the steps that change its parameters, and the totals of an epoch.

Everything that a step reads or writes has a fixed place in memory for the whole training, and no
step waits for the device; that is what a CUDA graph needs, and it costs nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from curvescope.errors import CurvescopeError
from curvescope.monitor import Monitor
from curvescope.problem.losses import Loss
from curvescope.training.moments import Moments
from curvescope.training.objective import Penalty, outputs_and_penalty, right_answers
from curvescope.training.optimizers import IterateAverage, Optimizer
from curvescope.training.recipe import Recipe


@dataclass(frozen=True)
class Steps:
    """A few consecutive steps: their batch sizes, also as numbers on the device."""

    sizes: tuple[int, ...]
    counts: Tensor  # [steps], float64

    @property
    def samples(self) -> int:
        """The number of samples of all steps together."""
        return sum(self.sizes)


class Learner:
    """A model, the optimizer of its trainable parameters, and the average of them if asked for."""

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        penalty: Penalty | None = None,
        *,
        loss: Loss | None = None,
    ) -> None:
        self.model, self.recipe, self._penalty = model, recipe, penalty
        self.loss = recipe.minimized("train") if loss is None else loss
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not trainable:
            rule = "no parameter of the model requires a gradient"
            raise CurvescopeError("train", rule, remedy="there is nothing to train")
        self._names, self.parameters = list(trainable), list(trainable.values())
        self.optimizer = Optimizer(recipe, self.parameters)
        averages = recipe.average_from is not None
        self.monitor: Monitor | None = None
        self.average = IterateAverage(self.parameters) if averages else None
        device = self.parameters[0].device
        self.totals = torch.zeros(2, dtype=torch.float64, device=device)
        self._changing = [*self.parameters, *model.buffers()]

    def moments(self, epoch: int) -> Moments | None:
        """A copy of the optimizer's state after an epoch; None for SGD."""
        if self.recipe.optimizer == "sgd":
            return None
        return Moments.of(epoch, self._names, self.optimizer.moments)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training changes, by name: the tensors themselves, not copies."""
        lists: dict[str, Sequence[Tensor]] = {"parameter": self.parameters}
        lists |= {f"optimizer.{name}": state for name, state in self.optimizer.moments.items()}
        if self.average is not None:
            lists["average"] = self.average.mean
        drawn = getattr(self._penalty, "tensors", None)
        penalty_state = {} if drawn is None else drawn(self.totals.device)
        return {
            **{f"penalty.{name}": tensor for name, tensor in penalty_state.items()},
            **{f"buffer.{name}": tensor for name, tensor in self.model.named_buffers()},
            **{
                f"{kind}.{name}": tensor.detach()
                for kind, tensors in lists.items()
                for name, tensor in zip(self._names, tensors, strict=True)
            },
            **({} if self.average is None else {"averaged": self.average.count}),
        }

    def advance(self, X: Tensor, y: Tensor, rows: Tensor, steps: Steps, rates: Tensor) -> None:
        """Take the steps: the samples ``rows`` in turn, each step at its learning rate.

        The sum of the losses and the number of right answers are added to ``totals``.
        """
        inputs, targets = X.index_select(0, rows), y.index_select(0, rows)
        outputs, losses = [], []
        sizes = list(steps.sizes)
        pieces = zip(inputs.split(sizes), targets.split(sizes), rates, strict=True)
        for x, t, rate in pieces:
            self.optimizer.rate.copy_(rate)
            output, penalty = outputs_and_penalty(self.model, self._penalty, x, t)
            loss = self.loss.mean(output, t)
            objective = loss if penalty is None else loss + penalty
            gradients = torch.autograd.grad(objective, self.parameters, materialize_grads=True)
            if self.monitor is None:
                self.optimizer.step(gradients)
            else:
                self._monitored(self.monitor, gradients, loss)
            outputs.append(output.detach())
            losses.append(loss.detach())
        self.totals[0] += (torch.stack(losses) * steps.counts).sum()
        self.totals[1] += right_answers(self.loss, torch.cat(outputs), targets)

    def _monitored(self, monitor: Monitor, gradients: Sequence[Tensor], loss: Tensor) -> None:
        """A step that the monitor looks at, before and after."""
        monitor.before_step()
        self.optimizer.step(gradients)
        self.count_change()
        monitor.step(loss=loss if loss.device.type == "cpu" else None)

    def count_change(self) -> None:
        """Tell autograd that the tensors have changed: fused kernels and graphs do not say so."""
        torch.autograd.graph.increment_version(self._changing)
