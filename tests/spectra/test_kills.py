"""Estimators killed at some step and called again: the bits of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.identity import digest
from curvescope.record import memory


def problem(activation: type[nn.Module] = nn.Tanh) -> cs.Problem:
    """Three batches, with inputs that never vary: kept products are condensed."""
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 24), activation(), nn.Linear(24, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=g) / 4)
    data = []
    for _ in range(3):
        x = torch.randn(8, 40, generator=g)
        x[:, 10:] = 0.5
        data.append((x, torch.randint(3, (8,), generator=g)))
    return cs.Problem(model, data)


def _seed() -> torch.Generator:
    return torch.Generator().manual_seed(5)


Estimate = Callable[..., Any]
ESTIMATES: dict[str, Estimate] = {
    "eigenpairs": lambda A, **c: cs.eigenpairs(A, 4, generator=_seed(), tol=1e-3, **c),
    "lanczos": lambda A, **c: cs.lanczos(A, 12, generator=_seed(), **c),
    "spectral_measure": lambda A, **c: cs.spectral_measure(
        A, probes=3, steps=6, generator=_seed(), **c
    ),
    "trace": lambda A, **c: cs.trace(A, probes=12, block=2, generator=_seed(), **c),
    "xtrace": lambda A, **c: cs.trace(
        A, probes=12, block=2, method="xtrace", generator=_seed(), **c
    ),
    "frobenius": lambda A, **c: cs.frobenius(A, probes=12, block=2, generator=_seed(), **c),
    "diagonal": lambda A, **c: cs.diagonal(A, probes=12, block=2, generator=_seed(), **c),
    "subspace_iteration": lambda A, **c: cs.subspace_iteration(A, 3, generator=_seed(), **c),
}


def child(work: Callable[[], None]) -> int:
    """Do something in a process of its own; the signal that ended it, or 0."""
    process = os.fork()
    if process == 0:
        try:
            torch.set_num_threads(1)
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def run(name: str, keep: Any, out: Path, matrix: str = "hessian", **control: Any) -> None:
    own = problem(nn.ReLU if matrix == "block" else nn.Tanh)
    A = cs.GaussNewton(own, keep=keep) if matrix == "gauss_newton" else cs.Hessian(own, keep=keep)
    A = A.block("0") if matrix == "block" else A
    out.write_text(digest(ESTIMATES[name](A, **control)))


def killed_and_resumed(name: str, keep: Any, tmp_path: Path, matrix: str, times: int) -> None:
    steps: list[int] = []
    whole, again = tmp_path / "whole", tmp_path / "again"
    count = tmp_path / "steps"

    def undisturbed() -> None:
        run(name, keep, whole, matrix, progress=steps.append)
        count.write_text(str(len(steps)))

    assert child(undisturbed) == 0
    total = int(count.read_text())
    for stop in random.Random(name + matrix).sample(range(1, total), min(times, total - 1)):
        path = tmp_path / f"{stop}.safetensors"
        saving = {"checkpoint": path, "every": 1}
        assert child(partial(run, name, keep, again, matrix, progress=Killer(stop), **saving)) == 9
        assert path.exists()
        assert child(partial(run, name, keep, again, matrix, **saving)) == 0
        assert again.read_text() == whole.read_text(), f"{name}, {matrix}, stopped at step {stop}"


class Killer:
    """Kills its process at one step."""

    def __init__(self, step: int) -> None:
        self._left = step

    def __call__(self, progress: Any) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("name", list(ESTIMATES))
def test_resumed_estimates_have_the_same_bits(name: str, tmp_path: Path) -> None:
    killed_and_resumed(name, "auto", tmp_path, "hessian", 1 + (name == "eigenpairs"))


@pytest.mark.parametrize("matrix", ["hessian", "dense"])
@pytest.mark.parametrize("name", list(ESTIMATES))
def test_finished_estimates_have_the_same_bits(name: str, matrix: str, tmp_path: Path) -> None:
    """Their last state is all that is left; a dense matrix gives rows in another layout."""
    H = cs.Hessian(problem(), keep=False)
    A = cs.Dense((H.dense() + H.dense().T) / 2, symmetric=True) if matrix == "dense" else H
    whole = ESTIMATES[name](A, checkpoint=tmp_path / "state", every=1)
    assert digest(ESTIMATES[name](A, checkpoint=tmp_path / "state", every=1)) == digest(whole)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", ["eigenpairs", "xtrace"])
def test_other_ways_of_keeping(name: str, keep: bool, tmp_path: Path) -> None:
    killed_and_resumed(name, keep, tmp_path, "hessian", 1)


@pytest.mark.parametrize("matrix", ["gauss_newton", "block"])
@pytest.mark.parametrize("name", ["eigenpairs", "trace"])
def test_other_matrices(name: str, matrix: str, tmp_path: Path) -> None:
    killed_and_resumed(name, "auto", tmp_path, matrix, 1)


@pytest.mark.parametrize("name", list(ESTIMATES))
def test_earlier_products_do_not_matter(name: str) -> None:
    """What was done with an operator before an estimate does not change the estimate."""

    def value(products: int) -> str:
        A = cs.Hessian(problem())
        for _ in range(products):
            A @ torch.ones(A.shape[1])
        return digest(ESTIMATES[name](A))

    assert value(0) == value(1) == value(3)


def test_another_plan_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    cs.lanczos(cs.Hessian(problem()), 6, generator=_seed(), checkpoint=path, every=1)
    monkeypatch.setattr(memory, "free", lambda device: 1000)
    with pytest.raises(cs.CurvescopeError, match="products are kept there and streamed here"):
        cs.lanczos(cs.Hessian(problem()), 6, generator=_seed(), checkpoint=path, every=1)
    other = tmp_path / "other"
    cs.lanczos(cs.Hessian(problem()), 6, generator=_seed(), checkpoint=other, every=1)
    monkeypatch.undo()
    with pytest.raises(cs.CurvescopeError, match=r"streamed there and kept here.*keep=False"):
        cs.lanczos(cs.Hessian(problem()), 6, generator=_seed(), checkpoint=other, every=1)
    H = cs.Hessian(problem(), keep=False)
    cs.lanczos(H, 6, generator=_seed(), checkpoint=other, every=1)


def test_what_many_products_do_is_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    own = problem()
    own.model.register_forward_pre_hook(lambda *_: passes.append(1))
    H = cs.Hessian(own)
    assert H.for_many().keeping == H.for_many().keeping == "kept"
    assert (H - cs.GaussNewton(own)).for_many().keeping == "kept"
    assert len(passes) == 4  # each batch once, the first one too, and a few samples to measure
    small = problem()
    monkeypatch.setattr(memory, "free", lambda device: 1000)
    A = cs.Hessian(small).for_many()
    v: Tensor = torch.ones(A.shape[1])
    assert A.keeping == "streamed"
    first = A @ v
    monkeypatch.undo()  # what is free later does not matter
    assert A.for_many() is A
    assert torch.equal(A @ v, first)
    assert A.plan.held == 0
    mixed = cs.Diagonal(v) @ cs.Hessian(own)
    mixed = mixed + 2 * cs.Identity(len(v), dtype=v.dtype, device="cpu")
    assert mixed.keeping == "streamed"
    assert mixed.for_many().keeping == "kept"
    assert cs.Diagonal(v).keeping == ""
    assert cs.Diagonal(v).for_many().plan.strategy == "direct"
