"""``Problem.check()``: two passes must agree, and the message names the likely cause."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import curvescope as cs
from tests import case_models
from tests.cases import BY_NAME, CASES, build, classes, convert
from tests.reference.curvature import concatenate


class RandomOutput(nn.Module):
    """Noise in the forward pass, in any mode."""

    def __init__(self, *, dropout: bool) -> None:
        super().__init__()
        self.fc, self.dropout = nn.Linear(4, 3), dropout

    def forward(self, x: Tensor) -> Tensor:
        z = self.fc(x)
        return F.dropout(z, 0.5, training=True) if self.dropout else z + 0.1 * torch.randn_like(z)


def shuffling_loader() -> DataLoader:
    dataset = TensorDataset(*concatenate(convert(classes(4), torch.float64))[0])
    return DataLoader(
        dataset, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(0)
    )


@pytest.mark.parametrize("dropout", [True, False], ids=["functional-dropout", "noise"])
def test_a_model_with_random_output(dropout: bool) -> None:
    model = build(lambda: RandomOutput(dropout=dropout), torch.float64)
    problem = cs.Problem(model, convert(classes(4), torch.float64))
    with pytest.raises(
        cs.CurvescopeError, match=r"(?i)(?=.*(random|disagree|differ|determin))(?=.*dropout)"
    ) as error:
        problem.check()
    assert "\n" not in str(error.value)


def test_the_seed_does_not_hide_randomness() -> None:
    """A check that resets the generator between its passes would see nothing."""
    model = build(lambda: RandomOutput(dropout=False), torch.float64)
    problem = cs.Problem(model, convert(classes(4), torch.float64))
    for seed in range(3):
        torch.manual_seed(seed)
        with pytest.raises(cs.CurvescopeError, match=r"(?i)(random|disagree|differ|determin)"):
            problem.check()


def test_a_shuffling_loader_in_train_mode() -> None:
    problem = cs.Problem(
        build(case_models.batch_norm_mlp, torch.float64), shuffling_loader(), mode="train"
    )
    with pytest.raises(cs.CurvescopeError, match=r"(?i)(?=.*shuffl)(?=.*batch.?norm)"):
        problem.check()


def test_a_loader_with_random_augmentation() -> None:
    """Data that changes from pass to pass."""

    class Noisy(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            return torch.randn(4, dtype=torch.float64), i % 3

    problem = cs.Problem(build(case_models.mlp, torch.float64), DataLoader(Noisy(), batch_size=4))
    with pytest.raises(cs.CurvescopeError, match=r"(?i)(loader|data|augment)"):
        problem.check()


def test_a_shuffling_loader_in_eval_mode_is_fine() -> None:
    cs.Problem(build(case_models.mlp, torch.float64), shuffling_loader()).check()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_every_case_is_deterministic(name: str, dtype: torch.dtype) -> None:
    """No false alarm, dropout modules included."""
    BY_NAME[name].problem(dtype).check()


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_dropout_is_off_in_both_modes(mode: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(4, 6), nn.AlphaDropout(0.5), nn.Dropout(0.9), nn.Linear(6, 3)
        ).double()
    problem = cs.Problem(model.train(), convert(classes(4), torch.float64), mode=mode)
    problem.check()
    plain = cs.Problem(nn.Sequential(model[0], model[3]), convert(classes(4), torch.float64))
    torch.testing.assert_close(problem.gradient(), plain.gradient())
