"""An estimator from one file outside the package: what is around every estimator is around it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.errors import CurvescopeError
from curvescope.operators.base import LinearOperator
from curvescope.spectra import Progress, Status
from tests.spectra.matrices import Counting, Interrupting, hessian_like, rotated, seeded

MATRIX = rotated(hessian_like(60))

ALONE = """
import os, signal, sys
import torch
import curvescope as cs
from power import power

def told(progress):
    print(progress.done, flush=True)
    if progress.done == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)

A = cs.Diagonal(torch.linspace(-1, 3, 50, dtype=torch.float64))
g = torch.Generator().manual_seed(5)
print(power(A, 30, generator=g, progress=told, checkpoint="state", every=4))
print(int(g.get_state().sum()))
"""


@pytest.fixture
def module(written: Callable[[str], Path]) -> Any:
    written("estimator")
    return import_module("power")


def test_it_finds_the_eigenvalue(module: Any) -> None:
    found = module.power(MATRIX, 300, generator=seeded())
    assert found.value == pytest.approx(10.0, abs=1e-12)
    assert found.residual < 1e-10
    assert (found.products, found.status) == (300, Status.DONE)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    X = torch.randn(40, 3, generator=seeded(), dtype=torch.float64)
    H = cs.Hessian(cs.Problem(model, (X, (X[:, 0] > 0).long())))
    values = torch.linalg.eigvalsh(H.dense())
    best = float(values[values.abs().argmax()])
    found = module.power(H, 400, generator=seeded())
    assert abs(found.value - best) <= found.residual + 1e-12


def test_progress_and_products(module: Any) -> None:
    A, told = Counting(MATRIX), list[Progress]()
    found = module.power(A, 7, generator=seeded(), progress=told.append)
    assert [p.done for p in told] == [p.products for p in told] == list(range(1, 8))
    assert {(p.task, p.total) for p in told} == {("power", 7)}
    assert found.products == A.columns == 7


def test_ctrl_c(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "state"
    cut = module.power(Interrupting(MATRIX, 4), 9, generator=seeded(), on_interrupt="return")
    assert cut.status is Status.INTERRUPTED
    assert cut == module.Largest(
        **{**vars(module.power(MATRIX, 4, generator=seeded())), "status": Status.INTERRUPTED}
    )

    def press(progress: Progress) -> None:
        if progress.done == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        module.power(MATRIX, 9, generator=seeded(), progress=press, checkpoint=path, every=100)
    rest = Counting(MATRIX)
    again = module.power(rest, 9, generator=seeded(), checkpoint=path)
    assert rest.columns == 4
    assert again == module.power(MATRIX, 9, generator=seeded())


@pytest.mark.usefixtures("module")
def test_killed_and_called_again_in_another_process(tmp_path: Path) -> None:
    def alone(stop: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", ALONE, str(stop)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    undisturbed = alone(-1)
    assert undisturbed.returncode == 0, undisturbed.stderr
    (tmp_path / "state").unlink()
    assert alone(14).returncode == -signal.SIGKILL
    resumed = alone(-1)
    assert resumed.returncode == 0, resumed.stderr
    lines = resumed.stdout.splitlines()
    assert lines[0] == "13", "it did not go on from the twelfth step"
    assert lines[-2:] == undisturbed.stdout.splitlines()[-2:]


def test_what_a_checkpoint_belongs_to(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "state"
    module.power(MATRIX, 9, generator=seeded(), checkpoint=path, every=1)

    def refused(words: str, A: LinearOperator = MATRIX, steps: int = 9, seed: int = 0) -> None:
        with pytest.raises(CurvescopeError, match=rf"another estimate \({words}"):
            module.power(A, steps, generator=seeded(seed), checkpoint=path)

    refused("steps is 9 there and 10 here", steps=10)
    refused("the generator began in another state", seed=1)
    refused("the matrix is another one", A=7 * MATRIX)

    def step(self: Any) -> None:
        self.state = {**self.state, "done": self.state["done"] + 1}

    module.Power.step = step
    refused("the code of the estimator is another one")
    with pytest.raises(CurvescopeError, match=r"another estimate \(it is one of power\)"):
        cs.trace(MATRIX, generator=seeded(), checkpoint=path)


def test_more_steps_where_the_class_says_so(module: Any, tmp_path: Path) -> None:
    module.Power.free = ("steps",)
    path, more = tmp_path / "state", Counting(MATRIX)
    module.power(MATRIX, 9, generator=seeded(), checkpoint=path, every=1)
    longer = module.power(more, 20, generator=seeded(), checkpoint=path)
    assert more.columns == 11
    assert longer == module.power(MATRIX, 20, generator=seeded())
    with pytest.raises(CurvescopeError, match="checkpoint has 19 steps, more than the 5 asked for"):
        module.power(MATRIX, 5, generator=seeded(), checkpoint=path)


def test_what_would_be_lost_is_refused(module: Any) -> None:
    class Forgetful(module.Power):  # type: ignore[misc, name-defined]
        def step(self) -> None:
            super().step()
            self.last = self.state["v"]

    class Hasty(module.Power):  # type: ignore[misc, name-defined]
        def __init__(self, A: LinearOperator, steps: int, *, generator: torch.Generator) -> None:
            super().__init__(A, steps, generator=generator)
            self.image: Tensor = A.on_rows(self.state["v"])

    for kind, words in (
        (Forgetful, "a step sets 'last', which is no part of its state; keep it there"),
        (Hasty, "takes products in its constructor, which are lost when its steps go on"),
    ):
        with pytest.raises(CurvescopeError, match=words):
            cs.spectra.run(kind, MATRIX, {}, 5, generator=seeded())


def test_other_keywords_are_refused(module: Any) -> None:
    with pytest.raises(CurvescopeError, match="power: unknown keyword 'nonsense'; besides "):
        module.power(MATRIX, 5, generator=seeded(), nonsense=1)
    with pytest.raises(CurvescopeError, match=r"power: needs an operator, got Tensor; wrap"):
        module.power(torch.eye(3), 5, generator=seeded())
