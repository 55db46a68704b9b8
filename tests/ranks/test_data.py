"""Data on several ranks: samplers that pad, ranks without any, models that differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from curvescope.errors import CurvescopeError
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from tests.ranks.processes import on_ranks

pytestmark = pytest.mark.ranks


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def _data(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(samples)
    return torch.randn(samples, 3, generator=g, dtype=torch.float64), torch.arange(samples) % 2


def _loader(samples: int, rank: int, size: int, **settings: Any) -> Any:
    shuffle, drops = settings.pop("shuffle", False), settings.pop("drop_last", False)
    whole = TensorDataset(*_data(samples))
    sampler = DistributedSampler(whole, size, rank, shuffle=shuffle, drop_last=drops)
    return DataLoader(whole, sampler=sampler, **settings)


def _padded(rank: int, size: int) -> None:
    model, alone = DistributedDataParallel(_model()), _model()
    x = torch.ones(sum(p.numel() for p in alone.parameters()), 1, dtype=torch.float64)
    for samples in (1, 2, 7, 8, 9):  # fewer than ranks, uneven, even
        whole = Problem(alone, _data(samples))
        for settings in ({"batch_size": 2}, {"batch_size": 3, "shuffle": True}, {"batch_size": 1}):
            shared = Problem(model, _loader(samples, rank, size, **settings), group="world")
            assert torch.allclose(shared.value(), whole.value(), rtol=1e-13, atol=0)
            error = (Hessian(shared) @ x - Hessian(whole) @ x).abs().max()
            assert error <= 1e-13 * (Hessian(whole) @ x).abs().max()
            assert shared.data_identity == whole.data_identity
            assert shared.count(sum(len(b.target) for b in shared.batches())) == samples
    drops = Problem(model, _loader(7, rank, size, batch_size=2, drop_last=True), group="world")
    assert drops.count(sum(len(b.target) for b in drops.batches())) == 7 - 7 % size
    with pytest.raises(CurvescopeError, match="must share the data among the 3 ranks"):
        Problem(model, _loader(7, 0, 2, batch_size=2), group="world")


def _refused(rank: int, size: int) -> None:
    model, (X, y) = _model(), _data(6)
    with pytest.raises(CurvescopeError, match="the data is empty"):
        Problem(model, [], group="world")
    for nothing in (None, [], (X[:0], y[:0])):
        problem = Problem(model, (X, y) if rank == 1 else nothing, group="world")
        assert torch.allclose(problem.value(), Problem(model, (X, y)).value(), rtol=1e-13)
    assert f"data over {size} ranks" in str(Hessian(problem).plan)
    with pytest.raises(CurvescopeError, match="same settings; that of rank 1 is another one"):
        Problem(model, (X, y), mode="train" if rank == 1 else "eval", group="world")
    if rank == 1:
        model[0].weight.data[0, 0] += 1
    with pytest.raises(CurvescopeError, match="same model; that of rank 1 is another one"):
        Problem(model, (X, y), group="world")


@pytest.mark.parametrize("check", [_padded, _refused])
def test_data_on_three_ranks(check: Any, tmp_path: Path) -> None:
    assert on_ranks(3, tmp_path, check) == [None] * 3
