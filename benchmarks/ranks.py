"""Weak scaling over ranks: two processes against one with half of the data, in one run.

    python benchmarks/ranks.py [--json FILE]

Each process has one thread. A round times a kept product of the Hessian with a block of columns by
one process alone, on its shard, and then by both together on both shards, which adds the exchange;
rounds alternate, and medians are compared. On a machine that others use, wall time says little:
the time of the processor is given beside it. The efficiency is alone / together.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed, multiprocessing, nn

from curvescope.networks import network
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.ranks import Group
from curvescope.ranks.traffic import all_reduce

ROUNDS, COLUMNS, RANKS = 15, 4, 2


class _GPT(nn.Module):
    """A small causal transformer: two blocks of width 64 over 64 tokens of 256."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(256, 64), nn.Embedding(64, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.embedding(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.blocks(x, mask=mask, is_causal=True))


def _mlp(seed: int) -> tuple[nn.Module, Any]:
    g = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
                          nn.Linear(256, 10))  # fmt: skip
    return model, (torch.randn(2000, 784, generator=g), torch.randint(10, (2000,), generator=g))


def _lenet(seed: int) -> tuple[nn.Module, Any]:
    g = torch.Generator().manual_seed(seed)
    X, y = torch.randn(500, 1, 28, 28, generator=g), torch.randint(10, (500,), generator=g)
    return network("LeNet5", (1, 28, 28), 10), (X, y)


def _gpt(seed: int) -> tuple[nn.Module, Any]:
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(256, (16, 65), generator=g)
    return _GPT().eval(), (tokens[:, :-1], tokens[:, 1:])


MODELS: dict[str, Callable[[int], tuple[nn.Module, Any]]] = {
    "MLP": _mlp, "LeNet5": _lenet, "GPT": _gpt,
}  # fmt: skip


def _measure(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = Path(folder, "store").as_uri()
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    group, rows = Group.of("world"), {}
    for name, make in MODELS.items():
        torch.manual_seed(0)
        model, data = make(rank)
        rows[name] = _row(group, model, data)
    if rank == 0:
        Path(folder, "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    distributed.barrier()
    os._exit(0)


def _row(group: Group, model: nn.Module, data: Any) -> dict[str, float]:
    alone = Hessian(Problem(model, data), keep=True)
    shared = Hessian(Problem(model, data, group=group), keep=True)
    V = torch.randn(alone.shape[0], COLUMNS)
    seconds: dict[str, list[tuple[float, float]]] = {"alone": [], "together": []}
    _ = alone @ V, shared @ V  # records what is kept
    sent = 0
    for _ in range(ROUNDS):
        group.agree(True)
        if group.rank == 0:
            seconds["alone"].append(_timed(lambda: alone @ V))
        group.agree(True)
        before = group.traffic.sent
        seconds["together"].append(_timed(lambda: shared @ V))
        sent = group.traffic.sent - before
    formula = all_reduce(group.size, V.nbytes)
    assert sent == formula, (sent, formula)
    if group.rank:
        return {}
    (wall, cpu), (wall2, cpu2) = (
        (statistics.median(each) for each in zip(*seconds[kind], strict=True))
        for kind in ("alone", "together")
    )
    return {
        "parameters": alone.shape[0], "bytes": sent,
        "alone": wall, "together": wall2, "alone_cpu": cpu, "together_cpu": cpu2,
        "efficiency": wall / wall2, "efficiency_cpu": cpu / cpu2,
    }  # fmt: skip


def _timed(act: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    file = parser.parse_args().json
    with TemporaryDirectory() as folder:
        multiprocessing.spawn(_measure, (folder,), RANKS)
        rows = json.loads(Path(folder, "rows.json").read_text(encoding="utf-8"))
    print(f"{'':8} parameters   sent MB   alone ms  together ms  efficiency  of CPU time")
    for name, row in rows.items():
        alone, together = 1e3 * row["alone"], 1e3 * row["together"]
        print(
            f"{name:8} {row['parameters']:10,} {row['bytes'] / 1e6:9.2f} {alone:10.1f}"
            f" {together:12.1f} {row['efficiency']:11.2f} {row['efficiency_cpu']:12.2f}"
        )
    if file is not None:
        file.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
