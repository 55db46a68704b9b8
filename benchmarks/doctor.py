"""The doctor's estimates of time and memory beside what is then measured, for ten models.

    python benchmarks/doctor.py --out benchmarks/results/doctor-cpu.json

Every model is examined in one process and the same work is done in others, one for each: a product
with H, streamed and kept, a density, an analysis (without its report) and a certificate. Seconds
are those of the processor with one thread, or with --wall those of a clock. Bytes are the most
resident memory of the process (VmHWM) beyond what it had before the work, when the same work had
been done for a network with few parameters, and a product with the network on two samples, so that
every library was loaded. Three of the ten
models must be refused, each with the right sentence. Works on Linux.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.certificates import certify
from curvescope.experiments.analyze import analyze
from curvescope.experiments.configuration import Settings
from curvescope.networks import network
from curvescope.problem import Problem

SETTINGS = Settings(steps=30, probes=4, trace_probes=16, layer_pairs=10)
WORK = ("streamed", "kept", "density", "analysis", "certificate")


def _g(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _images(name: str, shape: tuple[int, ...], samples: int, batch: int) -> Problem:
    X = torch.randn(samples, *shape, generator=_g())
    return Problem(network(name, shape, 10, generator=_g(1)), (X, torch.arange(samples) % 10),
                   batch_size=batch)  # fmt: skip


def _digits(name: str, per_class: int, batch: int) -> Problem:
    data = cs.dataset("mnist-6k", per_class=per_class)
    return Problem(network(name, data.input_shape, 10, generator=_g(1)), data, batch_size=batch)


def _text(name: str, samples: int, batch: int) -> Problem:
    data = cs.dataset("python-topics-T16")
    model = network(name, data.input_shape, data.classes, generator=_g(1))
    return Problem(model, (data.X[:samples], data.y[:samples]), batch_size=batch)


class Recurrent(nn.Module):
    """An LSTM whose last state is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 32), nn.Linear(64, 10)
        self.lstm = nn.LSTM(32, 64, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])


def _lstm() -> Problem:
    torch.manual_seed(0)
    X = torch.randint(50, (100, 20), generator=_g())
    return Problem(Recurrent(), (X, torch.arange(100) % 10), batch_size=50)


class Own(nn.Module):
    """A model with a loss of its own, which is not the one that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        """Logits, and a loss where there are labels."""
        z = self.layer(x)
        if labels is None:
            return {"logits": z}
        return {
            "loss": nn.functional.cross_entropy(z, labels) + 0.1 * z.square().mean(),
            "logits": z,
        }


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0].exp()


class Once(nn.Module):
    """An operation whose derivative has no derivative."""

    def forward(self, x: Tensor) -> Tensor:
        """``exp x``."""
        return _Once.apply(x)


class Noisy(nn.Module):
    """A random forward."""

    def forward(self, x: Tensor) -> Tensor:
        """A twentieth of noise."""
        return x + 0.05 * torch.randn_like(x)


def _small(*middle: nn.Module, model: nn.Module | None = None) -> Problem:
    X = torch.randn(40, 6, generator=_g())
    model = nn.Sequential(nn.Linear(6, 8), *middle, nn.Linear(8, 3)) if model is None else model
    return Problem(model, (X, torch.arange(40) % 3))


MODELS: dict[str, Callable[[], Problem]] = {
    "F-200^2": lambda: _digits("F-200^2", 50, 500),
    "F-600": lambda: _digits("F-600", 100, 500),
    "LeNet5": lambda: _digits("LeNet5", 30, 300),
    "VGG11-W8": lambda: _images("VGG11-W8", (3, 32, 32), 100, 50),
    "ResNet18-W8-BN": lambda: _images("ResNet18-W8-BN", (3, 32, 32), 40, 20),
    "GPT-2x64": lambda: _text("GPT-2x64", 32, 16),
    "LSTM": _lstm,
    "another loss": lambda: _small(model=Own()),
    "no second derivative": lambda: _small(Once()),
    "a random forward": lambda: _small(Noisy()),
}
REFUSED = {
    "another loss": "the model's own loss is",
    "no second derivative": "has no second derivative",
    "a random forward": "draws random numbers|the model's output is random",
}


# The work -----------------------------------------------------------------------------------


def do(problem: Problem, work: str) -> Callable[[], object]:
    """The work as a call; what comes before it and is no part of it is done here."""
    H = cs.Hessian(problem, keep=work == "kept")
    if work in ("streamed", "kept"):
        v = torch.randn(problem.params.size, generator=_g())
        return lambda: H @ v
    if work == "density":
        H = cs.Hessian(problem)
        return lambda: cs.spectral_measure(
            H, steps=SETTINGS.steps, probes=SETTINGS.probes, generator=_g()
        )
    if work == "analysis":
        return lambda: analyze(problem, tempfile.mkdtemp(), seed=0, settings=SETTINGS)
    pairs = [(batch.inputs, batch.target) for batch in problem.data]
    data = tuple(torch.cat(parts) for parts in zip(*pairs, strict=True))
    initial = {name: 0.9 * p.detach() for name, p in problem.model.named_parameters()}
    return lambda: certify(problem.model, initial, data, generator=_g())


def measured(name: str, work: str) -> dict[str, float]:
    """Seconds and bytes of one piece of work, in this process."""
    problem = MODELS[name]()
    first = next(iter(problem.data))
    few = Problem(problem.model, [(first.inputs[:2], first.target[:2])], loss=problem.loss)
    cs.Hessian(few) @ torch.ones(few.params.size)
    do(_warm(), work)()
    act = do(problem, work)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what these have left goes back to the system
    before = _reset()
    began = _clock()
    act()
    seconds, peak = _clock() - began, _status("VmHWM") - before
    if work in ("streamed", "kept"):  # one of many
        times = []
        for _ in range(5):
            began = _clock()
            act()
            times.append(_clock() - began)
        seconds = sorted(times)[2]
    return {"seconds": seconds, "bytes": peak}


def _warm() -> Problem:
    """A network with few parameters: what is done for it loads every library."""
    X = torch.randn(60, 6, generator=_g())
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return Problem(model, (X, torch.arange(60) % 3))


def _clock() -> float:
    return time.perf_counter()


def _reset() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


def estimated(name: str) -> dict[str, Any]:
    """What the doctor says, in this process."""
    began = time.perf_counter()
    diagnosis = cs.doctor(MODELS[name](), settings=SETTINGS)
    took = time.perf_counter() - began
    result: dict[str, Any] = {"refusal": diagnosis.refusal, "seconds": took, "work": {}}
    if diagnosis.measured is not None:
        for kept in (False, True):
            product = diagnosis.measured.product("H", kept=kept)
            if product is not None:
                result["work"]["kept" if kept else "streamed"] = {
                    "seconds": product.one, "bytes": product.peak_one
                }  # fmt: skip
        for each in diagnosis.forecasts:
            if each.seconds is not None:
                result["work"][each.what] = {
                    "seconds": each.seconds - dict(each.steps).get("report", 0.0),
                    "bytes": each.bytes, "steps": dict(each.steps),
                }  # fmt: skip
    return result


def _elsewhere(*arguments: str) -> Any:
    run = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise RuntimeError(run.stderr[-2000:])
    return json.loads(run.stdout.splitlines()[-1])


def main() -> None:
    """Examine and measure; print a line for each piece of work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", nargs=2, metavar=("MODEL", "WORK"))
    parser.add_argument("--wall", action="store_true", help="Count the time that passes.")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--work", nargs="*", default=list(WORK))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not arguments.wall:
        torch.set_num_threads(1)
        time.perf_counter = time.process_time
    if arguments.run:
        name, work = arguments.run
        print(json.dumps(estimated(name) if work == "doctor" else measured(name, work)))
        return
    results, clock = {}, ["--wall"] if arguments.wall else []
    for name in arguments.models:
        diagnosis = results[name] = _elsewhere("--run", name, "doctor", *clock)
        print(
            f"{name}: doctor took {diagnosis['seconds']:.1f} s {diagnosis['refusal']}", flush=True
        )
        for work, estimate in diagnosis["work"].items():
            if work not in arguments.work:
                continue
            estimate["measured"] = actual = _elsewhere("--run", name, work, *clock)
            print(
                f"  {work:<12} {estimate['seconds']:8.3g} s of {actual['seconds']:8.3g} "
                f"({estimate['seconds'] / actual['seconds']:.2f})   "
                f"{estimate['bytes'] / 2**20:7.0f} MiB of {actual['bytes'] / 2**20:7.0f} "
                f"({estimate['bytes'] / actual['bytes']:.2f})",
                flush=True,
            )
    if arguments.out:
        notes = {
            "clock": "wall" if arguments.wall else "processor, one thread",
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }
        arguments.out.write_text(json.dumps({**notes, "models": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
