"""Where workers run: processes of this machine, Ray, or Slurm by submitit.

Every worker is a process ``curvescope worker`` of its own, whoever starts it, and finds its work in
the queue on the disk. An engine only starts them and says which are still there, by the processes
or futures of the library that it uses.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch

from curvescope._checks import one_of, positive_int
from curvescope.errors import CurvescopeError

ENGINES = ("local", "ray", "slurm", "submitit-local")
_GENERAL = (
    "name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node",
)  # fmt: skip
"""Options of submitit for all kinds of clusters."""
GRACE = 30.0
"""Seconds for a worker to keep its state after ctrl-C, before it is killed."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Engine(Protocol):
    """What starts workers."""

    def start(self, commands: Sequence[Sequence[str]], logs: Path) -> None:
        """Start a worker for each command; what they print beside their runs goes into ``logs``."""

    def left(self) -> int:
        """How many workers are still there or waiting for a place."""

    def stop(self) -> None:
        """End those that are left, after they have kept their state."""


def engine(
    name: str, jobs: int, *, threads: int | None = None, gpus: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Engine:  # fmt: skip
    """The engine of a name.

    Args:
        name: One of :data:`ENGINES`.
        jobs: How many workers there will be.
        threads: Of each worker; a share of the cores if none, one on Ray and Slurm.
        gpus: Of each worker on Ray and Slurm; a local one has its share of what is there.
        options: For Ray those of ``ray.init``, for Slurm those of submitit's executor, with or
            without ``slurm_`` before them.

    Raises:
        CurvescopeError: If there is none, or what it needs is not installed.
    """
    one_of("sweep", "engine", name, ENGINES)
    positive_int("sweep", "jobs", jobs)
    if threads is not None:
        positive_int("sweep", "threads", threads)
    if gpus is not None:
        positive_int("sweep", "gpus", gpus, minimum=0)
    if name == "local":
        if options:
            raise CurvescopeError("sweep", "`engine='local'` has no options", given=dict(options))
        return Local(jobs, threads, gpus)
    if name == "ray":
        return Ray(threads or 1, gpus or 0, options or {})
    return Submitit(name, threads or 1, gpus or 0, options or {})


# Workers -------------------------------------------------------------------------------------


def run_worker(command: Sequence[str], folder: str, threads: int, log: str) -> int:
    """Run a worker to its end, and end it if this process is interrupted.

    Returns:
        Its exit code.

    Raises:
        RuntimeError: If it was killed or failed.
    """
    with _started(command, Path(folder), _environment(threads), Path(log)) as process:
        try:
            code = process.wait()
        except BaseException:
            _end([process])
            raise
    if code not in (0, 130):
        raise RuntimeError(f"a worker ended with exit code {code}; see {log}")
    return code


def _started(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """A worker in a session of its own: ctrl-C reaches it through us alone."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "curvescope", *command], stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, cwd=folder, env=dict(environment),
            start_new_session=True,
        )  # fmt: skip


def _environment(threads: int) -> dict[str, str]:
    return {**os.environ, **{name: str(threads) for name in _THREADS}}


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ctrl-C for each; whoever is not gone in time is killed."""
    for process in processes:
        with suppress(OSError):
            process.send_signal(signal.SIGINT)
    until = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Local:
    """Processes of this machine, each with its share of the cores and GPUs."""

    def __init__(self, jobs: int, threads: int | None, gpus: int | None) -> None:
        there = torch.cuda.device_count()
        if gpus is not None and gpus > there:
            rule = f"`gpus` must be at most {there}, which torch finds here"
            raise CurvescopeError("sweep", rule, given=gpus)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._gpus = visible.split(",")[:there] if visible else [str(i) for i in range(there)]
        self._each = 1 if gpus is None else gpus
        self._threads = threads or max(1, _cores() // jobs)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, commands: Sequence[Sequence[str]], logs: Path) -> None:
        """Start a process for each command."""
        for command in commands:
            index = len(self._processes)
            environment = _environment(self._threads)
            if self._gpus:
                first = index * self._each
                own = [self._gpus[(first + i) % len(self._gpus)] for i in range(self._each)]
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
            log = logs / f"local-{os.getpid()}-{index}.txt"
            self._processes.append(_started(command, Path.cwd(), environment, log))

    def left(self) -> int:
        """How many processes have not ended."""
        return sum(process.poll() is None for process in self._processes)

    def stop(self) -> None:
        """Ctrl-C for those that are left."""
        _end([process for process in self._processes if process.poll() is None])


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Ray:
    """Tasks of a Ray cluster: that of ``RAY_ADDRESS`` or of the options, else one made here."""

    def __init__(self, threads: int, gpus: int, options: Mapping[str, Any]) -> None:
        try:
            import ray
        except ImportError:
            raise _missing("ray", "Ray", "ray") from None
        self._ray, self._threads, self._gpus = ray, threads, gpus
        self._options, self._ours = dict(options), False
        self._futures: list[Any] = []

    def start(self, commands: Sequence[Sequence[str]], logs: Path) -> None:
        """Submit a task for each command; Ray starts it again where its node dies."""
        ray = self._ray
        if not ray.is_initialized():
            usual = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
            ray.init(**{**usual, **self._options})
            self._ours = True
        remote = ray.remote(num_cpus=self._threads, num_gpus=self._gpus, max_retries=3)(run_worker)
        for command in commands:
            log = str(logs / f"ray-{os.getpid()}-{len(self._futures)}.txt")
            task = remote.remote(list(command), os.getcwd(), self._threads, log)
            self._futures.append(task)

    def left(self) -> int:
        """How many tasks have not ended."""
        if not self._futures:
            return 0
        _, left = self._ray.wait(self._futures, num_returns=len(self._futures), timeout=0)
        if not left and self._ours:
            self._ray.shutdown()
            self._futures = []
        return len(left)

    def stop(self) -> None:
        """Cancel what waits for a place; wait for the others, whom the stop file has told."""
        if not self._futures:
            return
        for future in self._futures:
            with suppress(Exception):  # one that has ended cannot be cancelled
                self._ray.cancel(future)
        self._ray.wait(self._futures, num_returns=len(self._futures), timeout=GRACE)
        if self._ours:
            self._ray.shutdown()
        self._futures = []


class Submitted:
    """A worker as submitit takes it; one that Slurm ends for its time is submitted again."""

    def __call__(self, command: Sequence[str], folder: str, threads: int, log: str) -> int:
        """Run the worker to its end."""
        return run_worker(command, folder, threads, log)

    def checkpoint(self, *arguments: Any) -> Any:
        """What submitit submits in our place before the time is over."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, *arguments)


class Submitit:
    """Jobs of Slurm, or of submitit's own local executor, by submitit's futures."""

    def __init__(self, name: str, threads: int, gpus: int, options: Mapping[str, Any]) -> None:
        try:
            import submitit
        except ImportError:
            raise _missing(name, "submitit", "slurm") from None
        self._submitit, self._name, self._threads, self._gpus = submitit, name, threads, gpus
        self._options = dict(options)
        self._jobs: list[Any] = []

    def start(self, commands: Sequence[Sequence[str]], logs: Path) -> None:
        """Submit a job for each command, as one array."""
        cluster = "slurm" if self._name == "slurm" else "local"
        given = {"timeout_min": 24 * 60, "cpus_per_task": self._threads, "tasks_per_node": 1}
        given |= {"gpus_per_node": self._gpus} if self._gpus else {}
        for key, value in self._options.items():
            given[key if key in _GENERAL or key.startswith("slurm_") else f"slurm_{key}"] = value
        try:
            executor = self._submitit.AutoExecutor(folder=logs / "submitit", cluster=cluster)
            executor.update_parameters(**{"name": "curvescope", **given})
            with executor.batch():
                for command in commands:
                    log = str(logs / f"{cluster}-{os.getpid()}-{len(self._jobs)}.txt")
                    arguments = list(command), os.getcwd(), self._threads, log
                    self._jobs.append(executor.submit(Submitted(), *arguments))
        except (RuntimeError, NameError, TypeError, ValueError) as error:
            rule = f"`engine='{self._name}'` cannot be used here: {error}"
            raise CurvescopeError("sweep", " ".join(rule.split())) from None

    def left(self) -> int:
        """How many jobs have not ended."""
        return sum(not job.done() for job in self._jobs)

    def stop(self) -> None:
        """Wait for those whom the stop file has told, then cancel what is left."""
        until = time.monotonic() + GRACE
        for job in self._jobs:
            if job.state in ("PENDING", "UNKNOWN"):
                job.cancel()
        while self.left() and time.monotonic() < until:
            time.sleep(0.2)
        for job in self._jobs:
            if not job.done():
                job.cancel()


def _missing(engine: str, library: str, extra: str) -> CurvescopeError:
    rule = f"`engine='{engine}'` needs {library}, which is not installed"
    return CurvescopeError("sweep", rule, remedy=f"pip install 'curvescope[{extra}]'")
