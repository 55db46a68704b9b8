"""``torchrun … -m curvescope analyze``: as one process, begun by some ranks and ended by fewer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from curvescope.experiments.stages.spectra import spectra_of
from curvescope.experiments.store import RunDirectory

pytestmark = pytest.mark.ranks

CODE = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()

def load():
    X = torch.randn(50, 6, generator=torch.Generator().manual_seed(1)).double()
    return X, X[:, :3].argmax(1)

def broken():
    X, y = load()
    y[-1] = 7
    return X, y
"""


def _command(folder: Path, out: str, ranks: int, data: str = "load") -> list[str]:
    (folder / "mine.py").write_text(CODE)
    several = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    return [
        sys.executable, *several, "-m", "curvescope", "analyze", "--model", "mine.py:build",
        "--data", f"mine.py:{data}", "--out", out, "--steps", "12", "--probes", "4",
        "--no-figures", "--no-classes", "--batch-size", "8", "--quiet",
    ]  # fmt: skip


def _run(folder: Path, out: str, ranks: int, data: str = "load") -> tuple[int, str, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        _command(folder, out, ranks, data), cwd=folder, env=environment, timeout=240,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if line.startswith("curvescope:")]
    return done.returncode, done.stdout, "\n".join(ours)


def _until(file: Path, running: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 200
    while not file.exists():
        assert running.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)


def _workers(torchrun: int) -> list[int]:
    children = Path(f"/proc/{torchrun}/task/{torchrun}/children")
    return [int(pid) for pid in children.read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_begun_by_three_ranks_one_of_which_is_killed_and_ended_by_one(tmp_path: Path) -> None:
    running = subprocess.Popen(
        _command(tmp_path, "out", 3), cwd=tmp_path, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    _until(tmp_path / "out" / "stages" / "overview" / "result.json", running)
    os.kill(_workers(running.pid)[-1], signal.SIGKILL)
    _, said = running.communicate(timeout=100)
    assert running.returncode != 0
    begun = (tmp_path / "out" / "stages" / "overview" / "result.json").read_bytes()

    code, _, errors = _run(tmp_path, "out", 1)
    assert (code, errors) == (0, ""), said
    assert (tmp_path / "out" / "stages" / "overview" / "result.json").read_bytes() == begun
    code, _, errors = _run(tmp_path, "alone", 1)
    assert (code, errors) == (0, "")
    _same(RunDirectory(tmp_path / "out"), RunDirectory(tmp_path / "alone"))
    assert (tmp_path / "out" / "report.html").exists()


def test_two_ranks_write_and_speak_once(tmp_path: Path) -> None:
    code, printed, errors = _run(tmp_path, "out", 2)
    assert (code, errors) == (0, "")
    assert printed.count("self-checks:") == 1
    code, _, errors = _run(tmp_path, "broken", 2, "broken")
    assert code != 0
    assert errors.startswith("curvescope: rank 1 of 2: cross_entropy: labels must lie in 0 … 2")
    assert not (tmp_path / "broken").exists()


def _same(one: RunDirectory, other: RunDirectory) -> None:
    assert one.complete
    for name, spectrum in spectra_of(one).items():
        reference = spectra_of(other)[name]
        assert abs(spectrum.trace.value - reference.trace.value) < 1e-10
        assert abs(spectrum.frobenius.value - reference.frobenius.value) < 1e-10
        assert torch.allclose(spectrum.residuals, reference.residuals, atol=1e-6)
