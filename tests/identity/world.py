"""A small task with everything that decides its numbers, and ways of being another one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem

Loss = Callable[[Tensor, Tensor], Tensor]


def smoothed(share: float) -> Loss:
    """Losses that all have one name and one source, and capture another number."""
    return lambda z, y: F.cross_entropy(z, y, label_smoothing=share)


def network(seed: int = 0, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), activation(), nn.Linear(5, 3))
    return model.double().eval()


def samples(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    return X, torch.arange(12) % 3


@dataclass(frozen=True)
class World:
    model: nn.Sequential
    data: Any
    loss: Loss
    matrix: type[Hessian | GaussNewton] = Hessian
    factor: float = 1.0
    seed: int = 0
    drawn: int = 0  # numbers that the generator has given before
    setting: int = 6  # of whatever is done: products, steps, epochs
    batch_size: int | None = None

    def problem(self) -> Problem:
        return Problem(self.model, self.data, loss=self.loss, batch_size=self.batch_size)

    def operator(self) -> LinearOperator:
        A = self.matrix(self.problem(), keep=False)
        return A if self.factor == 1.0 else self.factor * A

    def generator(self) -> torch.Generator:
        generator = torch.Generator().manual_seed(self.seed)
        torch.rand(self.drawn, generator=generator)
        return generator


def first() -> World:
    """Every call makes all of it anew."""
    return World(network(), samples(), smoothed(0.1))


def with_model(world: World, change: Callable[[nn.Sequential], object]) -> World:
    model = copy.deepcopy(world.model)
    change(model)
    return replace(world, model=model)


# Changes of a model, by every road ----------------------------------------------------------------


def weight(model: nn.Module) -> Tensor:
    return next(model.parameters())


def through_data(model: nn.Module) -> None:
    weight(model).data[0, 0] += 1e-3


def last_bit(model: nn.Module) -> None:
    one = weight(model).data[1, 2]
    one.copy_(torch.nextafter(one, one + 1))


def swapped(model: nn.Module) -> None:
    w = weight(model).data
    w[0, 0], w[2, 1] = w[2, 1].clone(), w[0, 0].clone()


def two_signs(model: nn.Module) -> None:
    weight(model).data[:2, 0] *= -1


def all_signs(model: nn.Module) -> None:
    for p in model.parameters():
        p.data.neg_()


def sign_of_zero(model: nn.Module) -> None:
    bias = model.get_parameter("1.bias").data
    assert bool((bias == 0).all())
    bias[0] = -0.0


def rows_exchanged(model: nn.Module) -> None:
    w = weight(model).data
    w.copy_(w.roll(1, 0))


def buffer(model: nn.Module) -> None:
    model.get_buffer("1.running_mean")[0] += 1e-12


MODELS: dict[str, Callable[[nn.Module], object]] = {
    "a weight through .data": through_data,
    "a weight's last bit": last_bit,
    "two weights exchanged": swapped,
    "two signs": two_signs,
    "all signs": all_signs,
    "the sign of a zero": sign_of_zero,
    "rows exchanged": rows_exchanged,
    "a buffer": buffer,
}


def setting(model: nn.Module) -> None:
    norm = model.get_submodule("1")
    assert isinstance(norm, nn.BatchNorm1d)
    norm.eps = 0.5


def hook(model: nn.Module) -> None:
    model.get_submodule("0").register_forward_hook(lambda module, inputs, output: 3 * output)


def child(model: nn.Module) -> None:
    model.set_submodule("2", nn.Sigmoid())


def forward(model: nn.Module) -> None:
    last = model.get_submodule("3")
    assert isinstance(last, nn.Linear)
    last.forward = lambda x: 5 * F.linear(x, last.weight, last.bias)  # type: ignore[method-assign]


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def kind(model: nn.Module) -> None:
    model.get_submodule("0").__class__ = Doubled


SETTINGS: dict[str, Callable[[nn.Module], object]] = {
    "a module's setting": setting,
    "a hook": hook,
    "another child": child,
    "another forward": forward,
    "another class": kind,
}


# Other worlds, and the same one -------------------------------------------------------------------


def other_data(world: World) -> World:
    X, y = samples()
    X[3, 1] = torch.nextafter(X[3, 1], X[3, 1] + 1)
    return replace(world, data=(X, y))


def labels_exchanged(world: World) -> World:
    X, y = samples()
    y[0], y[1] = y[1].clone(), y[0].clone()
    return replace(world, data=(X, y))


OTHER: dict[str, Callable[[World], World]] = {
    "another matrix of its shape": lambda w: replace(w, matrix=GaussNewton),
    "seven times the matrix": lambda w: replace(w, factor=7.0),
    "another network": lambda w: replace(w, model=network(1)),
    "another activation": lambda w: replace(w, model=network(activation=nn.Sigmoid)),
    "another loss of its name": lambda w: replace(w, loss=smoothed(0.2)),
    "one input's last bit": other_data,
    "labels exchanged": labels_exchanged,
    "two samples twice": lambda w: replace(w, data=tuple(torch.cat([t, t[:2]]) for t in samples())),
    "another seed": lambda w: replace(w, seed=1),
    "a generator that went on": lambda w: replace(w, drawn=1),
    "another setting": lambda w: replace(w, setting=7),
    **{name: lambda w, c=c: with_model(w, c) for name, c in {**MODELS, **SETTINGS}.items()},
}


def reordered(world: World) -> World:
    order = torch.randperm(12, generator=torch.Generator().manual_seed(5))
    X, y = samples()
    return replace(world, data=(X[order], y[order]))


def loaded(world: World) -> World:
    return replace(world, data=DataLoader(TensorDataset(*samples()), batch_size=5, shuffle=True))


SAME: dict[str, Callable[[World], World]] = {
    "the same again": lambda w: w,
    "the model moved in memory": lambda w: with_model(w, lambda model: None),
    "the model in training mode": lambda w: with_model(w, lambda model: model.train()),
    "samples in another order": reordered,
    "samples cut into batches": lambda w: replace(w, batch_size=5),
    "a loader that shuffles": loaded,
}
