"""Problems whose data lie on several ranks, beside the same problem in one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from curvescope.operators.base import LinearOperator
from curvescope.problem import Problem
from tests.cases import BY_NAME

EXACT = 1e-12


def share(batches: Sequence[Any], rank: int, size: int) -> list[Any]:
    """Consecutive batches for each rank: uneven, and none for the last ranks if there are few."""
    each = -(-len(batches) // size)
    return list(batches[rank * each : (rank + 1) * each])


def block(problem: Problem, columns: int) -> Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.randn(problem.params.size, columns, generator=g, dtype=problem.dtype)


class Comparison:
    """A case with its data on all ranks; rank 0 compares with the same in one process.

    ``lines`` are the differences beyond rounding, ``numbers`` all results, which must have the same
    bits on every rank.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self.lines: list[str] = []
        self.numbers: list[float] = []

    def begin(self, name: str) -> Problem:
        """The shared problem of a case."""
        self._name, case = name, BY_NAME[name]
        model, data = case.model(), case.data()

        def problem(batches: Sequence[Any], group: Any) -> Problem:
            return Problem(
                model, batches, loss=case.loss, params=case.params, mode=case.mode, group=group
            )

        self._alone = problem(data, None)
        self._shared = problem(share(data, self._rank, self._size), "world")
        return self._shared

    def check(self, what: str, act: Callable[[Problem], Any]) -> None:
        """Whether ``act`` has the same result for both problems."""
        try:
            mine = act(self._shared)
            alone = act(self._alone) if self._rank == 0 else mine
        except Exception as error:
            raise RuntimeError(f"{self._name} {what}") from error
        self._compare(f"{self._name} {what}", mine, alone, 0.0)

    @property
    def outcome(self) -> tuple[list[str], list[float]]:
        return self.lines, self.numbers

    def _compare(self, what: str, mine: Any, alone: Any, scale: float) -> None:
        if isinstance(alone, LinearOperator):
            dense = mine.dense()  # of a group, on all ranks as often
            mine, alone = dense, dense if alone is mine else alone.dense()
        if dataclasses.is_dataclass(alone) and not isinstance(alone, type):
            scale = max(scale, _size(alone))
            for field in dataclasses.fields(alone):
                parts = (getattr(each, field.name) for each in (mine, alone))
                self._compare(f"{what}.{field.name}", *parts, scale)
        elif isinstance(alone, dict):
            self._same(what, list(mine), list(alone))
            for key in alone:
                self._compare(f"{what}[{key!r}]", mine.get(key), alone[key], scale)
        elif isinstance(alone, list | tuple):
            self._same(f"{what}: length", len(mine), len(alone))
            for i, (a, b) in enumerate(zip(mine, alone, strict=False)):
                self._compare(f"{what}[{i}]", a, b, scale)
        elif isinstance(alone, Tensor | float | int) and not isinstance(alone, bool):
            self._number(what, _tensor(mine), _tensor(alone), scale)
        elif isinstance(alone, str | bool | None):
            self._same(what, mine, alone)

    def _same(self, what: str, mine: Any, alone: Any) -> None:
        if mine != alone:
            self.lines.append(f"{what}: {mine!r}, not {alone!r}")

    def _number(self, what: str, mine: Tensor, alone: Tensor, scale: float) -> None:
        if mine.shape != alone.shape:
            self.lines.append(f"{what}: shape {tuple(mine.shape)}, not {tuple(alone.shape)}")
            return
        if not mine.numel():
            return
        mine, alone = (each.double().nan_to_num() for each in (mine, alone))
        self.numbers.append(float(mine.sum()))
        scale = max(scale, float(alone.abs().max()))
        error = float((mine - alone).abs().max())
        if not error <= EXACT * scale:
            self.lines.append(f"{what}: relative error {error / scale:.1e}")


def _tensor(number: Any) -> Tensor:
    return number if isinstance(number, Tensor) else torch.tensor(number, dtype=torch.float64)


def _size(result: Any) -> float:
    """What the parts of a result are measured by: some of them may be rounding alone."""
    total, value = getattr(result, "total", None), getattr(result, "value", None)
    if isinstance(total, Tensor):  # the spectrum of which others are parts
        return float(total.abs().max())
    largest = getattr(result, "largest", None)
    value = getattr(largest, "value", value)
    return abs(value) if isinstance(value, float) and value == value else 0.0


def agreeing(outcomes: list[Any]) -> None:
    """All ranks have the numbers of rank 0, which are those of one process."""
    for outcome in outcomes:
        assert isinstance(outcome, tuple | list), outcome
        assert outcome == ([], outcomes[0][1])
    assert len(outcomes[0][1]) > 10
