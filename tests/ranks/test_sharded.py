"""Models after ``fully_shard``: exact products and estimates, beside one process with all of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.operators.sharded import ShardedEmpiricalFisher
from curvescope.problem.sharded import ShardedProblem, without_hooks
from tests import transformers_of_ours
from tests.ranks.processes import on_ranks

pytestmark = pytest.mark.ranks
Data = tuple[Tensor, Tensor]


def mlp() -> tuple[nn.Module, Data]:
    """A batch norm in evaluation mode, and a layer with fewer rows than ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 1), nn.Tanh(), nn.Linear(1, 3)
    )
    return model.double(), (torch.randn(10, 6, dtype=torch.float64), torch.arange(10) % 3)


def convolutions() -> tuple[nn.Module, Data]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )
    return model.double(), (torch.randn(10, 1, 6, 6, dtype=torch.float64), torch.arange(10) % 3)


def transformer() -> tuple[nn.Module, Data]:
    """Attention, norms, an embedding that is also the head."""
    model, batches = transformers_of_ours.made(pooled=False, tied=True)
    inputs, targets = zip(*batches, strict=True)
    return model, (torch.cat(inputs), torch.cat(targets))


MODELS: dict[str, Callable[[], tuple[nn.Module, Data]]] = {
    "mlp": mlp, "convolutions": convolutions, "transformer": transformer,
}  # fmt: skip


def sharded(model: nn.Module, size: int, *, each: bool = True) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    if each:
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def share(data: Data, rank: int, size: int) -> list[Data] | None:
    """Two batches on rank 0, none on the last, one on the others: uneven and empty."""
    X, y = data
    if rank == size - 1:
        return None
    if rank == 0:
        cuts = (0, 3, 5) if size > 2 else (0, 6, len(y))
    else:
        cuts = (5, len(y)) if rank == 1 else (len(y),)
    return [(X[a:b], y[a:b]) for a, b in pairwise(cuts)]


def _seed() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _errors(rank: int, size: int, name: str) -> dict[str, float]:
    """The relative error of everything on this rank."""
    whole, data = MODELS[name]()
    tied = name == "transformer"
    model = sharded(MODELS[name]()[0], size, each=not tied)
    weights = [p.to_local().clone() for p in model.parameters()]
    problem, one = ShardedProblem(model, share(data, rank, size)), cs.Problem(whole, data)
    H, G = cs.ShardedHessian(problem), cs.ShardedGaussNewton(problem)
    pairs = {
        "H": (H, cs.Hessian(one)),
        "G": (G, cs.GaussNewton(one)),
        "E": (H - G, cs.Hessian(one) - cs.GaussNewton(one)),
        "empirical": (ShardedEmpiricalFisher(problem), cs.EmpiricalFisher(one)),
    }
    errors = {}
    for key, (ours, theirs) in pairs.items():
        V = torch.randn(ours.shape[0], 2, generator=_seed(), dtype=torch.float64)
        expected = theirs @ V
        errors[key] = float((ours @ V - expected).norm() / expected.norm())
    top, expected = (cs.eigenpairs(A, 2, generator=_seed()) for A in (H, pairs["H"][1]))
    errors["eigenvalues"] = float((top.values - expected.values).abs().max() / expected.values[0])
    traces = [cs.trace(A, probes=4, generator=_seed()).value for A in (G, pairs["G"][1])]
    errors["trace"] = abs(traces[0] - traces[1]) / traces[1]
    held = sum(p.to_local().numel() for p in model.parameters())
    errors["held"] = abs(H.domain.count - held)
    errors["changed"] = sum(
        float((p.to_local() - before).abs().sum())
        for p, before in zip(model.parameters(), weights, strict=True)
    )
    return errors


@pytest.mark.parametrize(
    ("name", "size"), [("mlp", 2), ("convolutions", 2), ("transformer", 2), ("mlp", 3)]
)
def test_everything_is_as_in_one_process(name: str, size: int, tmp_path: Path) -> None:
    for errors in on_ranks(size, tmp_path, _errors, name):
        assert isinstance(errors, dict), errors
        wrong = {key: error for key, error in errors.items() if not error < 1e-10}
        assert not wrong


def _refusals(rank: int, size: int) -> list[str]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    data = share(mlp()[1], rank, size)
    texts = []

    def attempt(make: Callable[[], Any]) -> None:
        try:
            make()
        except cs.CurvescopeError as error:
            texts.append(str(error))

    model = sharded(mlp()[0], size)
    attempt(lambda: cs.Problem(model, data, group=True))
    attempt(lambda: cs.ShardedHessian(mlp()[0], data))
    columns = nn.Linear(6, 4).double()
    mesh = init_device_mesh("cpu", (size,))
    for name, p in list(columns.named_parameters()):
        spread = distribute_tensor(p.detach(), mesh, [Shard(p.ndim - 1)])
        columns.register_parameter(name, nn.Parameter(spread))
    attempt(lambda: cs.ShardedHessian(columns, data))
    H = cs.ShardedHessian(model, data)
    with torch.no_grad():
        next(model.parameters()).to_local().add_(1.0)
    attempt(lambda: H @ torch.zeros(H.shape[0], dtype=torch.float64))
    return texts


def test_what_is_refused(tmp_path: Path) -> None:
    for texts in on_ranks(2, tmp_path, _refusals):
        assert isinstance(texts, list), texts
        problem, whole, columns, changed = texts
        assert "take cs.ShardedHessian(model, data" in problem
        assert "0.weight is not sharded, while others are; call fully_shard on the whole" in whole
        assert "must be split along their first dimension, as fully_shard does" in columns
        assert "the weights have changed since the problem was made" in changed


def test_copies_without_hooks_share_what_was_shared() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    seen: list[int] = []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    twin = without_hooks(model)
    assert twin[0].weight is twin[1].weight is not model[0].weight
    assert twin[0].weight.shape == (3, 3)
    assert twin[0].weight.untyped_storage().nbytes() <= 8
    twin(torch.ones(1, 3))
    assert seen == [1]
    assert model[0].weight.requires_grad
