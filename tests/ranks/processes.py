"""Processes for tests of several ranks: forked from a server that has torch and us imported."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["pytest", "torch.distributed", "torch.func", "curvescope.certificates", "curvescope.flatness"]
)


def on_ranks(
    size: int, folder: Path, function: Callable[..., Any], *args: Any, seconds: float = 60.0
) -> list[Any]:
    """``function(rank, size, *args)`` on so many processes with gloo between them.

    What each rank returned; the text of the exception where it raised one, None where it was
    killed. No process is left after ``seconds``.
    """
    pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(size)]
    processes = [
        _CONTEXT.Process(
            target=_rank, args=(rank, size, str(folder), pipes[rank][1], function, args)
        )
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for _, sender in pipes:
        sender.close()
    until = time.monotonic() + seconds
    results = [_received(receiver, until) for receiver, _ in pipes]
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        alive = process.is_alive()
        process.kill()
        process.join()
        assert not alive, f"a rank was still there after {seconds} s; results {results}"
    return results


def _received(receiver: Connection, until: float) -> Any:
    try:
        return receiver.recv() if receiver.poll(max(0.0, until - time.monotonic())) else None
    except EOFError:
        return None


def _rank(
    rank: int, size: int, folder: str, sender: Connection, function: Callable[..., Any], args: Any
) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    place = Path(folder, f"store-{size}-{os.getppid()}-{function.__name__}").as_uri()
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=size)
    try:
        result = function(rank, size, *args)
    except BaseException:
        result = traceback.format_exc()
    if "RANKS_CPU" in os.environ:
        print("CPU", rank, function.__name__, time.process_time(), file=sys.stderr)
    sender.send(result)
    sender.close()
    os._exit(0)  # without waiting for ranks that have ended
