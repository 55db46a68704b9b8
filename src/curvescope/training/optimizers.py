"""Torch's optimizers on the model's own parameters, and the average of their iterates.

These are the functions behind ``torch.optim.SGD``, ``Adam`` and ``AdamW``, with torch's fused
kernels: one pass over a parameter, its gradient and its moments. On one thread an update of F-200²
takes 63 µs with SGD and momentum, and 150 µs with AdamW; 222 and 551 µs with ``foreach``; 95 and
184 µs when the classes call the same kernels (``benchmarks/training.py``), and the classes also
load torch's compiler at their first step, which takes a second. The functions leave ``p.grad``
alone, too.

The learning rate is a number on the device, so that a step can be captured in a CUDA graph and
never waits; the kernels on a GPU want it in single precision.

References:
    FF: Granziol (2020), *Flatness is a False Friend*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from curvescope.training.recipe import Recipe

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # of Adam
_IN_TORCH = {
    "momentum": "momentum_buffer",
    "mean": "exp_avg",
    "square": "exp_avg_sq",
    "steps": "step",
}


class Optimizer:
    """One step of all parameters at a time, with ``moments``: a tensor for each parameter.

    ``param_groups`` and ``state`` show the same as torch's optimizers do, for those who read them.

    SGD: ``m ← μ m + (g + γ w)``, ``w ← w − α m``. Adam: ``m ← β₁ m + (1−β₁) g``,
    ``v ← β₂ v + (1−β₂) g²``, ``w ← w − α m / (1−β₁ᵗ) / (√(v / (1−β₂ᵗ)) + ε)``, where γ w has been
    added to ``g``, or, in the decoupled form of AdamW, ``w`` has been multiplied by ``1 − α γ``.
    """

    def __init__(self, recipe: Recipe, parameters: Sequence[Tensor]) -> None:
        self._recipe, self._parameters = recipe, list(parameters)
        device = self._parameters[0].device
        precision = torch.float64 if device.type == "cpu" else torch.float32
        self.rate = torch.tensor(recipe.lr, dtype=precision, device=device)
        moments = ("mean", "square") if recipe.optimizer != "sgd" else ("momentum",)
        self.moments = {name: [torch.zeros_like(p) for p in self._parameters] for name in moments}
        if recipe.optimizer != "sgd":
            count = torch.zeros((), dtype=torch.float32, device=device)
            self.moments["steps"] = [count.clone() for _ in self._parameters]
        elif not recipe.momentum:
            self.moments = {}
        # A fused kernel walks through memory from end to end, without a look at the strides.
        self._fused = all(torch.empty_like(p).stride() == p.stride() for p in self._parameters)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The one group of parameters, with the names of ``torch.optim``."""
        group = {
            "params": self._parameters,
            "lr": self.rate,
            "weight_decay": self._recipe.weight_decay,
            "maximize": False,
        }
        if self._recipe.optimizer == "sgd":
            return [group | {"momentum": self._recipe.momentum, "dampening": 0, "nesterov": False}]
        decoupled = self._recipe.optimizer != "adam"
        group |= {"betas": (BETA_1, BETA_2), "eps": EPSILON, "amsgrad": False}
        return [group | {"decoupled_weight_decay": decoupled}]

    @property
    def state(self) -> Mapping[Tensor, Mapping[str, Tensor]]:
        """The moments of each parameter, with the names of ``torch.optim``."""
        names = [(_IN_TORCH[name], tensors) for name, tensors in self.moments.items()]
        return {
            p: {name: tensors[i] for name, tensors in names} for i, p in enumerate(self._parameters)
        }

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Change the parameters in place, given a gradient for each."""
        pairs = zip(self._parameters, gradients, strict=True)
        laid_out = [g if g.stride() == p.stride() else _laid_out_like(p, g) for p, g in pairs]
        settings: dict[str, Any] = {
            "lr": self.rate,
            "weight_decay": self._recipe.weight_decay,
            "maximize": False,
            "foreach": False,
            "fused": self._fused,
        }
        if self._recipe.optimizer == "sgd":
            momenta: list[Tensor | None] = [*self.moments.get("momentum", [None] * len(laid_out))]
            settings |= {"momentum": self._recipe.momentum, "dampening": 0.0, "nesterov": False}
            sgd(self._parameters, laid_out, momenta, **settings)
        else:
            mean, square, steps = (
                self.moments["mean"],
                self.moments["square"],
                self.moments["steps"],
            )
            settings |= {"beta1": BETA_1, "beta2": BETA_2, "eps": EPSILON, "amsgrad": False}
            settings["decoupled_weight_decay"] = self._recipe.optimizer != "adam"
            adam(self._parameters, laid_out, mean, square, [], steps, **settings)


def _laid_out_like(parameter: Tensor, gradient: Tensor) -> Tensor:
    return torch.empty_like(parameter).copy_(gradient.to_dense())


class IterateAverage:
    """The mean of the weights at the ends of some epochs: with AdamW, this is Gadam (FF §5)."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)
        self.mean = [torch.zeros_like(p) for p in self._parameters]
        self.count = torch.tensor(0)

    @torch.no_grad()
    def add(self) -> None:
        """Take in the parameters as they are."""
        self.count += 1
        torch._foreach_lerp_(self.mean, self._parameters, 1 / int(self.count))

    @torch.no_grad()
    def put(self) -> None:
        """Give the parameters the values of the mean."""
        torch._foreach_copy_(self._parameters, self.mean)
