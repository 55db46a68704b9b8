"""Every estimator on several ranks: the numbers of one process, and a share of its memory."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import curvescope as cs
from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.flatness.measures import estimated_measures
from curvescope.operators.base import LinearOperator
from curvescope.ranks import Group, Traffic, traffic
from curvescope.spectra import (
    block_lanczos,
    diagonal,
    eigenpairs,
    frobenius,
    kpm,
    lanczos,
    logdet,
    normalized,
    spectral_measure,
    subspace_iteration,
    trace,
)
from curvescope.vectors import Space
from tests.extending.conftest import blocks
from tests.ranks.processes import on_ranks
from tests.ranks.shards import Comparison
from tests.ranks.spread import F64, Blocks, Shares
from tests.spectra.matrices import hessian_like, rotated, seeded

pytestmark = pytest.mark.ranks

N = 150
Run = Callable[..., Any]


def _deflated(A: LinearOperator, **c: Any) -> Any:
    pairs = eigenpairs(A, 3, tol=1e-10, generator=seeded())
    rest = cs.deflate(A, pairs)  # a spread matrix less a whole one
    return trace(rest, probes=5, generator=seeded()), spectral_measure(
        A, steps=15, probes=2, deflate=pairs, generator=seeded(), **c
    )


#: name -> call
ALL: dict[str, Run] = {
    "lanczos": lambda A, **c: lanczos(A, 20, generator=seeded(), **c),
    "start": lambda A, **c: lanczos(A, 8, start=torch.ones(N, dtype=A.dtype), **c),
    "fast_lanczos": lambda A, **c: lanczos(A, 9, generator=seeded(), reorthogonalize=False, **c),
    "block_lanczos": lambda A, **c: block_lanczos(A, 8, block=3, generator=seeded(), **c),
    "eigenpairs": lambda A, **c: eigenpairs(A, 4, tol=1e-10, generator=seeded(), **c),
    "restarting": lambda A, **c: eigenpairs(A, 3, basis=16, tol=1e-11, generator=seeded(), **c),
    "in_blocks": lambda A, **c: eigenpairs(
        A, 4, block=3, which="magnitude", tol=1e-10, generator=seeded(), **c
    ),
    "subspace": lambda A, **c: subspace_iteration(A, 3, iterations=20, generator=seeded(), **c),
    "measure": lambda A, **c: spectral_measure(A, steps=15, probes=3, generator=seeded(), **c),
    "outliers": lambda A, **c: spectral_measure(
        A, steps=15, probes=2, deflate=3, generator=seeded(), **c
    ),
    "deflated": _deflated,
    "trace": lambda A, **c: trace(A, probes=30, block=7, generator=seeded(), **c),
    "exact_trace": lambda A, **c: trace(A, probes=N, block=40, generator=seeded(), **c),
    "xtrace": lambda A, **c: trace(A, probes=20, method="xtrace", block=4, generator=seeded(), **c),
    "frobenius": lambda A, **c: frobenius(A, probes=30, block=7, generator=seeded(), **c),
    "hutch++": lambda A, **c: frobenius(
        A, probes=30, method="hutch++", block=4, generator=seeded(), **c
    ),
    "diagonal": lambda A, **c: diagonal(A, probes=30, block=7, generator=seeded(), **c),
    "logdet": lambda A, **c: logdet(A, damping=5.0, steps=15, probes=3, generator=seeded(), **c),
    "kpm": lambda A, **c: kpm(A, degree=12, generator=seeded(), **c),
    "normalized": lambda A, **c: trace(
        normalized(A, steps=12, generator=seeded()).operator, probes=5, generator=seeded(), **c
    ),
    "measures": lambda A, **c: estimated_measures(
        A, generator=seeded(), probes=8, steps=15, tol=1e-10
    ),
}
#: those that are cut and go on elsewhere, and after how many steps
CUT = {"lanczos": 7, "block_lanczos": 3, "in_blocks": 4, "restarting": 18, "subspace": 6,
       "outliers": 30, "xtrace": 3, "hutch++": 4, "diagonal": 2, "logdet": 7, "kpm": 35,
       "trace": 2}  # fmt: skip


#: those that take the sum of the ranks' matrices; the others, rows of one
SUMMED = {"start", "eigenpairs", "outliers", "deflated", "trace", "exact_trace", "frobenius"}


class Cut(Exception):
    """As a kill, on all ranks."""


def _numbers(result: Any, at: str = "") -> dict[str, Any]:
    """All numbers of a result by name; vectors whole."""
    if isinstance(result, tuple):
        return {k: v for i, r in enumerate(result) for k, v in _numbers(r, f"{at}{i}").items()}
    if not dataclasses.is_dataclass(result):
        return {at: result}
    names = {field.name for field in dataclasses.fields(result)} - {"local", "domain"}
    names |= {"vectors", "basis", "residual"} & set(dir(result))
    return {
        k: v for n in sorted(names) for k, v in _numbers(getattr(result, n), f"{at}.{n}").items()
    }


def _same(name: str, result: Any, expected: Any) -> None:
    ours, theirs = _numbers(result), _numbers(expected)
    assert set(ours) == set(theirs)
    for key, x in theirs.items():
        if isinstance(x, str | bool | int) or x is None:
            assert ours[key] == x, (name, key)
        elif key.endswith("missed"):  # the probability amplifies roundings of tiny residuals
            assert ours[key] == pytest.approx(x, rel=1e-3), name
        else:
            if key.endswith("vectors"):  # of which rounding decides the sign after a restart
                x = x * (x * ours[key]).sum(0).sign()
            torch.testing.assert_close(
                torch.as_tensor(ours[key]), torch.as_tensor(x), rtol=1e-12, atol=2e-12,
                msg=lambda text, key=key: f"{name}{key}: {text}",
            )  # fmt: skip


def _everything(rank: int, size: int, folder: str) -> dict[str, int]:
    group, matrix = Group.of("world"), rotated(hessian_like(N))
    dense = matrix.dense()
    with io.written_by(rank == 0):  # as the command line has it: pieces come from all
        _checkpoints(group, dense, Path(folder))
    for name, call in ALL.items():
        if name in ("measures", "deflated", "normalized") and size != 3:
            continue  # made of the others
        A = Shares(dense, group) if name in SUMMED else Blocks(dense, group)
        _same(f"{type(A).__name__} {name}", call(A), call(matrix))
    _extension(Shares(dense, group), matrix, Path(folder, f"own{size}"), rank)
    _of_data(rank, size)
    _refusals(Shares(dense, group), group)
    return _memory(group)


def _checkpoints(group: Group, dense: Tensor, folder: Path) -> None:
    """Four ranks are cut, and others go on, some of which are cut too."""
    for name, steps in CUT.items():
        if group.size == 3 and name not in ("block_lanczos", "outliers", "hutch++"):
            continue
        for size in (4, 2) if group.size < 4 else ():
            if (path := folder / f"{name}-{size}").exists() and size != group.size:
                _goes_on(name, Blocks(dense, group), path)
        if group.size != 4 and (group.size != 2 or name not in ("lanczos", "outliers", "xtrace")):
            continue
        told: list[int] = []

        def cut(_: Any, told: list[int] = told, steps: int = steps) -> None:
            told.append(0)
            if len(told) == steps:
                raise Cut

        path = folder / f"{name}-{group.size}"
        with pytest.raises(Cut):
            ALL[name](Shares(dense, group), progress=cut, checkpoint=path, every=steps)
        group.agree(True)


def _goes_on(name: str, A: LinearOperator, path: Path) -> None:
    """From a copy, to the numbers of a run that nothing disturbed, in fewer steps."""
    group = A.domain.group
    taken = path.parent / f"{path.name}to{group.size}" / path.name
    if group.rank == 0:
        taken.parent.mkdir()
        for file in [path, *path.parent.glob(f"{path.name}.*.piece")]:
            shutil.copy(file, taken.parent)
    group.agree(True)
    steps: list[int] = []
    every = 1 if group.alone else 1000  # one process removes the pieces when it saves
    told = {"progress": lambda p: steps.append(p.products)}
    result = ALL[name](A, checkpoint=taken, every=every, **told)
    assert steps[0] > 1, "it began anew"
    whole = rotated(hessian_like(N))
    _same(f"{name} from {path.name} on {group.size}", result, ALL[name](whole))


def _extension(A: LinearOperator, matrix: LinearOperator, folder: Path, rank: int) -> None:
    """The estimator of docs/extending, one file outside the package."""
    if rank == 0:
        folder.mkdir()
        (folder / "power.py").write_text(blocks("estimator")[0], encoding="utf-8")
    A.domain.group.agree(True)
    sys.path.insert(0, str(folder))
    power: Any = __import__("power").power
    path = folder / "state"
    ours = power(A, 40, generator=seeded(), checkpoint=path, every=7)
    _same("power", ours, power(matrix, 40, generator=seeded()))
    assert len(list(folder.glob("state.*.piece"))) == A.domain.group.size


def _of_data(rank: int, size: int) -> None:
    """Curvature of data on all ranks: whole rows gathered, their sum scattered."""
    problem = Comparison(rank, size).begin("cross_entropy")
    group, H, G = problem.group, cs.Hessian(problem), cs.GaussNewton(problem)
    shifted = H + cs.Identity(H.shape[0], dtype=F64, device="cpu")
    for A in (H, G, H - G, shifted):
        space = A.domain
        assert space.counts == [len(range(r, space.size, size)) for r in range(size)]
        rows = space.random(3, generator=seeded())
        for block in (rows, rows[:1]):
            whole = A @ space.gather(block).T
            torch.testing.assert_close(space.gather(A.on_rows(block)).T, whole)
        before = copy(group.traffic)
        A.on_rows(rows)
        gathers = 2 if A is shifted else 1  # a part that is whole on every rank has one of its own
        sent = gathers * traffic.all_gather(size, 24 * max(space.counts))
        sent += 24 * (space.size - space.count)
        assert group.traffic.since(before) == Traffic(gathers + 1, sent)
    assert H.block("fc1").domain.size == H.block("fc1").shape[0]


def _refusals(A: LinearOperator, group: Group) -> None:
    with pytest.raises(CurvescopeError, match="has another estimate to make, or a generator in an"):
        trace(A, generator=seeded(group.rank))
    space = A.domain
    assert [len(part) for part in (space.of_ranks, space.counts)] == [group.size] * 2
    with pytest.raises(CurvescopeError, match=r"needs a block of rows \[k, "):
        A.on_rows(torch.zeros(1, N, dtype=A.dtype))
    if group.size == 3:
        with pytest.raises(CurvescopeError, match="parts must have every index below 4 once, got"):
            Space(4, dtype=A.dtype, device="cpu", group=group, parts=[[(0, 2)], [(1, 4)], []])


def _memory(group: Group) -> dict[str, int]:
    """Bytes of what a rank keeps of some long vectors."""
    n = 1 << 18
    A = cs.Diagonal(torch.linspace(0, 1, n, dtype=torch.float64).square())
    pairs = eigenpairs(_Spread(A, group), 2, tol=1e-2, overlook=1.0, generator=seeded())
    T = block_lanczos(_Spread(A, group), 3, block=2, generator=seeded())
    return {
        "pairs": pairs.local.untyped_storage().nbytes(),
        "basis": T.local.untyped_storage().nbytes(),
    }


class _Spread(LinearOperator):
    """A diagonal matrix, each rank's entries of it."""

    def __init__(self, A: cs.Diagonal, group: Group) -> None:
        super().__init__(A.shape, dtype=A.dtype, device=A.device, symmetric=True)
        self._group, self._original = group, A

    def _layout(self) -> Space:
        return Space(self.shape[0], dtype=self.dtype, device=self.device, group=self._group)

    def _matmat(self, X: Tensor) -> Tensor:
        return self._original._matmat(X)

    def _on_rows(self, rows: Tensor) -> Tensor:
        return self.domain.local(self._original.entries[None])[0] * rows


def test_every_estimator_on_one_to_four_ranks(tmp_path: Path) -> None:
    n = 1 << 18
    for size in (4, 3, 2):
        held = on_ranks(size, tmp_path, _everything, str(tmp_path), seconds=250.0)
        for rank, share in enumerate(held):
            assert isinstance(share, dict), f"rank {rank} of {size}: {share}"
            count = n // size + (rank < n % size)
            assert share == {"pairs": 2 * count * 8, "basis": 8 * count * 8}
    alone = Group.of(None)
    _checkpoints(alone, rotated(hessian_like(N)).dense(), tmp_path)
    assert os.listdir(tmp_path / "kpm-4to1") == ["kpm-4"], "pieces are left behind"
