"""A small problem that the tests of training share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from curvescope.networks import network

SAMPLES, FEATURES, CLASSES = 50, 6, 3


def data(
    samples: int = SAMPLES, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Three noisy clusters."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(samples) % CLASSES
    X = torch.randn(samples, FEATURES, generator=generator, dtype=dtype)
    return X + 2 * torch.eye(FEATURES, dtype=dtype)[y], y


def model(name: str = "F-8", *, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    return network(name, FEATURES, CLASSES, generator=generator).to(dtype)


def flat(network: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()])


# Kills ----------------------------------------------------------------------------------------


def wait_to_be_killed(folder: str) -> Callable[[object], None]:
    """For ``tell``: after twelve epochs, in the middle of one, say so and do nothing any more."""
    log = Path(folder) / "metrics.jsonl"

    def tell(progress: object) -> None:
        time.sleep(0.01)  # so that there are several states
        if log.exists() and log.read_bytes().count(b"\n") >= 12:
            print("killable", flush=True)
            time.sleep(600)

    return tell


def kill_when_it_waits(script: str, *arguments: str) -> None:
    """Run a script that trains with :func:`wait_to_be_killed`, and kill it when it waits."""
    root = Path(__file__).parents[2]
    path = f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=root, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "killable\n"
        process.kill()
