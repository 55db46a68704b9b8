"""Rank degeneracy (FF App. D) and the neuron bound (FF §3.2)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from curvescope.errors import CurvescopeError
from curvescope.spectra import neuron_rank_bound, rank_bound, rank_degeneracy, spectral_measure
from tests.spectra.matrices import F64, rotated, seeded
from tests.tolerances import STANDARD_ERRORS


def test_mass_at_zero_of_a_low_rank_matrix() -> None:
    values = torch.cat([torch.zeros(450), torch.linspace(1, 3, 50)]).double()
    measure = spectral_measure(rotated(values), steps=30, probes=20, generator=seeded())
    found = rank_degeneracy(measure)
    assert abs(found.nearest.value - 0.9) <= STANDARD_ERRORS * found.nearest.stderr
    assert found.nearest.stderr < 0.02
    assert abs(found.nearest_value) < 1e-10
    assert found.pair.value > found.nearest.value
    assert found.nearest.products == 600


def test_a_split_peak_is_put_together_by_the_pair() -> None:
    """Eigenvalues ±δ around zero: half the mass at each, all of it in the pair, centered at 0."""
    split = torch.cat([torch.full((200,), 1e-3), torch.full((200,), -1e-3)])
    values = torch.cat([split, torch.linspace(1, 3, 100)]).double()
    measure = spectral_measure(rotated(values), steps=40, probes=10, generator=seeded())
    found = rank_degeneracy(measure)
    assert found.nearest.value == pytest.approx(0.4, abs=0.05)
    assert found.pair.value == pytest.approx(0.8, abs=0.05)
    assert abs(found.pair_value) < 0.2e-3
    assert abs(abs(found.nearest_value)) < 1.1e-3


def test_padding_after_a_breakdown_has_no_say() -> None:
    """Spectrum {2, 5}: two nodes, and no invented one at zero."""
    values = torch.tensor([2.0] * 30 + [5.0] * 10, dtype=F64)
    found = rank_degeneracy(spectral_measure(rotated(values), steps=20, generator=seeded()))
    assert found.nearest_value == pytest.approx(2.0)
    assert found.pair.value == pytest.approx(1.0)


def vgg16_of_the_paper() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 1
    plan = [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0]
    for width in plan:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
    head = [nn.Flatten(), nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, *head, nn.Linear(4096, 1000))


def test_the_paper_s_vgg16() -> None:
    """13,416 neurons and 1024 inputs: FF prints 577,600."""
    with torch.device("meta"):
        model = vgg16_of_the_paper()
    assert rank_bound(model, (1, 32, 32), 10) == 577_600
    assert neuron_rank_bound([13_416], 1024, 10) == 577_600


def test_counting_activations_and_leaving_the_model_alone() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(), nn.Flatten(), nn.Linear(4 * 36, 7))
    model.train()
    model[1].eval()
    assert rank_bound(model, (3, 8, 8), 7) == 4 * 7 * (4 + 7 + 192)
    assert rank_bound(model, (3, 8, 8), 7, count="activations") == 4 * 7 * (144 + 7 + 192)
    assert (model.training, model[1].training, model[3].training) == (True, False, True)
    assert not model[0]._forward_hooks


def test_weights_whose_neurons_are_not_counted_are_refused() -> None:
    """They would make the bound too small."""
    for layer in (nn.Bilinear(3, 3, 2), nn.LSTM(3, 2), nn.Embedding(4, 3)):
        with pytest.raises(CurvescopeError, match=f"neurons of '1' .{type(layer).__name__}"):
            rank_bound(nn.Sequential(nn.Linear(3, 3), layer), (3,), 2)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 5))
    assert rank_bound(nn.Sequential(normed, nn.BatchNorm1d(5)), (3,), 2) == 4 * 2 * (5 + 3)
    assert rank_bound(normed, (3,), 2) == 4 * 2 * (5 + 3)


def test_misuse() -> None:
    with pytest.raises(CurvescopeError, match="no linear or convolutional layer was reached"):
        rank_bound(nn.ReLU(), (3,), 2)
    with pytest.raises(CurvescopeError, match="count must be one of 'channels', 'activations'"):
        rank_bound(nn.Linear(2, 2), (2,), 2, count="weights")
    with pytest.raises(CurvescopeError, match="classes must be an integer of at least 1"):
        neuron_rank_bound([3], 2, 0)
