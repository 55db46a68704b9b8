"""Progress, ctrl-C, saved state: for every estimator that takes a while."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.spectra import (
    Progress,
    Status,
    block_lanczos,
    diagonal,
    eigenpairs,
    frobenius,
    kpm,
    lanczos,
    logdet,
    spectral_measure,
    subspace_iteration,
    trace,
)
from tests.spectra.matrices import Counting, Interrupting, hessian_like, rotated, seeded

MATRIX = rotated(hessian_like(150))
REPEATED = rotated(torch.tensor([5.0] * 4 + [3.0] * 3 + [0.1] * 60).double())

Run = Callable[..., Any]

#: name -> call
ALL: dict[str, Run] = {
    "lanczos": lambda A, **c: lanczos(A, 30, generator=seeded(), **c),
    "fast_lanczos": lambda A, **c: lanczos(A, 30, generator=seeded(), reorthogonalize=False, **c),
    "block_lanczos": lambda A, **c: block_lanczos(A, 8, block=3, generator=seeded(), **c),
    "eigenpairs": lambda A, **c: eigenpairs(A, 6, generator=seeded(), **c),
    "eigenpairs_restarting": lambda A, **c: eigenpairs(
        A, 6, which="smallest", basis=18, tol=1e-3, generator=seeded(), **c
    ),
    "eigenpairs_block": lambda A, **c: eigenpairs(A, 6, block=3, generator=seeded(), **c),
    "subspace_iteration": lambda A, **c: subspace_iteration(
        A, 3, iterations=20, generator=seeded(), **c
    ),
    "spectral_measure": lambda A, **c: spectral_measure(
        A, steps=20, probes=3, generator=seeded(), **c
    ),
    "deflated_measure": lambda A, **c: spectral_measure(
        A, steps=20, probes=3, deflate=3, generator=seeded(), **c
    ),
    "trace": lambda A, **c: trace(A, probes=30, block=2, generator=seeded(), **c),
    "frobenius": lambda A, **c: frobenius(A, probes=30, block=2, generator=seeded(), **c),
    "diagonal": lambda A, **c: diagonal(A, probes=30, block=2, generator=seeded(), **c),
    "logdet": lambda A, **c: logdet(A, damping=5.0, steps=20, probes=3, generator=seeded(), **c),
    "xtrace": lambda A, **c: trace(A, probes=20, method="xtrace", block=2, generator=seeded(), **c),
    "hutch++": lambda A, **c: frobenius(
        A, probes=30, method="hutch++", block=2, generator=seeded(), **c
    ),
    "kpm": lambda A, **c: kpm(A, degree=20, generator=seeded(), **c),
}


def assert_identical(a: Any, b: Any) -> None:
    """Bit for bit, field by field."""
    assert type(a) is type(b)
    for field in dataclasses.fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, Tensor):
            assert torch.equal(x, y), field.name
        else:
            assert x == y, field.name


@pytest.mark.parametrize("name", ALL)
def test_products_are_counted(name: str) -> None:
    A = Counting(MATRIX)
    assert ALL[name](A).products == A.columns


@pytest.mark.parametrize("name", ALL)
def test_same_seed_same_bits_and_the_global_generator_is_left_alone(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = ALL[name](MATRIX)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert_identical(first, ALL[name](MATRIX))


@pytest.mark.parametrize("name", ALL)
def test_progress_is_told(name: str) -> None:
    told: list[Progress] = []
    result = ALL[name](MATRIX, progress=told.append)
    assert told
    last = [p for p in told if p.task == told[-1].task][-1]
    assert last.done == last.total
    assert last.remaining == 0
    # a deflated measure reports its two parts one after the other
    assert last.products == result.products or name == "deflated_measure"
    assert last.seconds > 0


@pytest.mark.parametrize("name", ALL)
def test_a_killed_run_continues_to_the_same_numbers(name: str, tmp_path: Path) -> None:
    run, path = ALL[name], tmp_path / "state"
    undisturbed = run(MATRIX)
    calls = Counting(MATRIX)
    run(calls)
    for at in (1, calls.calls // 2, calls.calls - 1):
        path.unlink(missing_ok=True)
        for part in ("outliers", "range"):
            Path(f"{path}.{part}").unlink(missing_ok=True)
        broken = Killed(MATRIX, at)
        with pytest.raises(RuntimeError, match="killed"):
            run(broken, checkpoint=path, every=2)
        resumed = Counting(MATRIX)
        result = run(resumed, checkpoint=path, every=2)
        assert_identical(dataclasses.replace(result), undisturbed)
        if at > 3:
            assert resumed.columns < undisturbed.products, "it started again from the beginning"
    assert not list(tmp_path.glob("*.part")), "half-written files are left behind"


class Killed(Interrupting):
    """Dies at the given call without any chance to save."""

    _decided_by = Interrupting._decided_by

    def _matmat(self, X: Tensor) -> Tensor:
        try:
            return super()._matmat(X)
        except KeyboardInterrupt:
            raise RuntimeError("killed") from None


def test_a_killed_examination_continues_too(tmp_path: Path) -> None:
    """Copies make the search examine, find and search again; every call may be the last."""

    def run(A: LinearOperator, **control: Any) -> Any:
        return eigenpairs(A, 6, generator=seeded(), **control)

    undisturbed = run(REPEATED)
    assert undisturbed.values[:4].tolist() == pytest.approx([5.0] * 4)
    for at in range(1, undisturbed.products):
        path = tmp_path / f"{at}"
        with pytest.raises(RuntimeError, match="killed"):
            run(Killed(REPEATED, at), checkpoint=path, every=1)
        assert_identical(run(REPEATED, checkpoint=path, every=1), undisturbed)


@pytest.mark.parametrize("name", ALL)
def test_ctrl_c_returns_what_is_there_when_asked(name: str) -> None:
    at = {"deflated_measure": 25, "kpm": 36}.get(name, 4)
    A = Interrupting(MATRIX, at)
    result = ALL[name](A, on_interrupt="return")
    assert result.status is Status.INTERRUPTED
    assert 0 < result.products <= A.columns
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if isinstance(value, Tensor):
            assert not bool(torch.isnan(value).any()), field.name
    with pytest.raises(KeyboardInterrupt):
        ALL[name](Interrupting(MATRIX, at))


def test_interrupted_results_are_the_shorter_run_s() -> None:
    short = lanczos(MATRIX, 7, generator=seeded())
    cut = lanczos(Interrupting(MATRIX, at=7), 30, generator=seeded(), on_interrupt="return")
    assert torch.equal(short.alphas, cut.alphas)
    pairs = eigenpairs(Interrupting(MATRIX, at=9), 6, generator=seeded(), on_interrupt="return")
    assert not pairs.converged
    true = MATRIX.dense() @ pairs.vectors - pairs.vectors * pairs.values
    assert bool((torch.linalg.vector_norm(true, dim=0) <= pairs.residuals).all())
    few = trace(MATRIX, probes=14, block=2, generator=seeded())
    cut_trace = trace(
        Interrupting(MATRIX, at=7), probes=30, block=2, generator=seeded(), on_interrupt="return"
    )
    assert (few.value, few.stderr) == (cut_trace.value, cut_trace.stderr)


def test_interrupted_before_the_first_product() -> None:
    pairs = eigenpairs(Interrupting(MATRIX, at=0), 3, generator=seeded(), on_interrupt="return")
    assert (len(pairs.values), pairs.converged) == (0, False)
    estimate = trace(Interrupting(MATRIX, at=0), generator=seeded(), on_interrupt="return")
    assert (estimate.value, estimate.stderr) == (0.0, float("inf"))
    for nothing in ("lanczos", "spectral_measure", "deflated_measure", "logdet"):
        with pytest.raises(KeyboardInterrupt):
            ALL[nothing](Interrupting(MATRIX, at=0), on_interrupt="return")


def test_a_real_ctrl_c_finishes_the_step_and_saves(tmp_path: Path) -> None:
    path = tmp_path / "state"

    def press(progress: Progress) -> None:
        if progress.done == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        lanczos(MATRIX, 30, generator=seeded(), progress=press, checkpoint=path, every=1000)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    rest = Counting(MATRIX)
    resumed = lanczos(rest, 30, generator=seeded(), checkpoint=path)
    assert rest.columns == 25
    assert_identical(resumed, lanczos(MATRIX, 30, generator=seeded()))


def test_more_steps_continue_a_finished_run(tmp_path: Path) -> None:
    path = tmp_path / "state"
    lanczos(MATRIX, 20, generator=seeded(), checkpoint=path, every=1)
    more = Counting(MATRIX)
    longer = lanczos(more, 35, generator=seeded(), checkpoint=path)
    assert more.columns == 15
    assert_identical(longer, lanczos(MATRIX, 35, generator=seeded()))
    with pytest.raises(CurvescopeError, match="checkpoint has 30 steps, more than the 10"):
        lanczos(MATRIX, 10, generator=seeded(), checkpoint=path)


def test_foreign_and_broken_checkpoints_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    lanczos(MATRIX, 20, generator=seeded(), checkpoint=path, every=1)
    with pytest.raises(CurvescopeError, match=r"another estimate \(it is one of lanczos\); give"):
        eigenpairs(MATRIX, 3, generator=seeded(), checkpoint=path)
    path.write_bytes(b"not a state")
    with pytest.raises(CurvescopeError, match="is not a complete safetensors file"):
        lanczos(MATRIX, 20, generator=seeded(), checkpoint=path)
    np.savez(f"{path}.npz", identity=np.array([{"a": 1}], dtype=object))
    with pytest.raises(CurvescopeError, match="is not a complete safetensors file"):
        lanczos(MATRIX, 20, generator=seeded(), checkpoint=f"{path}.npz")


def test_misuse() -> None:
    with pytest.raises(CurvescopeError, match="on_interrupt must be one of 'raise', 'return'"):
        lanczos(MATRIX, 3, generator=seeded(), on_interrupt="stop")
    with pytest.raises(CurvescopeError, match="every must be an integer of at least 1, got 0"):
        lanczos(MATRIX, 3, generator=seeded(), every=0)
