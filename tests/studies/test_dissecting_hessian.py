"""The entries of DH at smoke scale: sound outcomes, and numbers against references."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from curvescope import io
from curvescope.studies.dissecting_hessian import families, layer_study
from curvescope.studies.dissecting_hessian.batch_norm import after_pooling
from curvescope.studies.entry import Settings
from tests.studies.dissecting import NAMES, outcome, row, settings
from tests.studies.soundness import assert_sound

OTHERS = {"table-9"}  # has tests of its own


@cache
def digits() -> families.Group:
    return families.group(settings(), families.MNIST)


@pytest.mark.parametrize("name", sorted(NAMES.keys() - OTHERS))
def test_an_outcome_is_finite_and_can_be_saved(name: str) -> None:
    if name == "clustering":
        pytest.importorskip("sklearn")
    found = outcome(name)
    assert NAMES[name].scales == ("smoke", "small", "paper")
    assert_sound(found)
    assert all(note.endswith(".") for note in found.notes)


# A layer against dense references ---------------------------------------------------------------


def test_a_layer_against_its_dense_hessian_and_its_inputs() -> None:
    outcome("overlap-mnist")
    group = digits()
    study = layer_study.layer_study(settings(), "mnist", group, "fc2", 40)
    tops = []
    for place, model in enumerate(group.models):
        rows, x = dense_rows(model, group.data.X)
        values, vectors = np.linalg.eigh(rows.T @ rows)
        ours = study.true[place].numpy()
        np.testing.assert_allclose(ours, values[::-1][:40], rtol=2e-3, atol=1e-4 * values[-1])
        moment = x.T @ x / len(x)
        gamma, t = np.linalg.eigh(moment)
        mean = x.mean(0)
        found = study.structures[place]
        assert found.alignment == pytest.approx((t[:, -1] @ mean) ** 2 / (mean @ mean), abs=1e-5)
        assert found.spectral_ratio == pytest.approx(gamma[-1] / gamma[-2], rel=1e-4)
        tops.append(vectors[:, ::-1])
    for k in (1, 9, 24):
        expected = np.square(tops[0][:, :k].T @ tops[1][:, :k]).sum() / k
        assert float(study.between.curves[0, k - 1]) == pytest.approx(expected, abs=0.02)


def dense_rows(model: nn.Module, X: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose Gram matrix is the GGN by fc2.weight, from one backward pass a logit."""
    children = dict(model.double().named_children())
    flat = children["fc1"](X.double().flatten(1)).relu()
    weight = children["fc2"].weight
    rows = []
    for x in flat.detach():
        z = children["fc3"]((weight @ x + children["fc2"].bias).relu())
        J = torch.stack(
            [torch.autograd.grad(out, weight, retain_graph=True)[0].flatten() for out in z]
        )
        p = torch.softmax(z.detach(), 0)
        rows.append(p.sqrt()[:, None] * (J - p @ J))
    x = flat.detach().numpy()
    model.float()
    return (torch.cat(rows) / len(X) ** 0.5).detach().numpy(), x


def test_finished_parts_are_not_computed_again() -> None:
    outcome("overlap-mnist")
    told: list[str] = []
    again = NAMES["overlap-mnist"].run(replace(settings(), tell=told.append))
    assert told == []
    assert again == outcome("overlap-mnist")


# What the entries say ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "move"),
    [
        ("[−1, 1]", lambda x: 2 * x - 1),
        ("[0, 1]", lambda x: x),
    ],
)
def test_the_first_layer_of_digits(what: str, move: object) -> None:
    assert callable(move)
    X = families.scaled(settings(), "mnist-6k", "unit").X[:300].flatten(1).double().numpy()
    x = move(X)
    mean = x.mean(0)
    covariance = np.linalg.eigvalsh(np.cov(x.T, bias=True))[-1]
    found = row("input-scaling", f"‖E[x]E[x]ᵀ‖/‖Σ‖, first layer, mnist, pixels in {what}")
    assert found.ours == pytest.approx(mean @ mean / covariance, rel=1e-4)


def test_wider_random_networks_have_rank_c_minus_one() -> None:
    assert row("random-two-layer", "largest step up").agrees
    assert row("random-two-layer", "overlap with R(W)").agrees


def test_the_last_layer_is_exact() -> None:
    """For the last layer R(S)∖{S·1} is all but the vector 1."""
    assert row("overlap-cifar", "overlap with R(S)∖{S·1}, fc3").ours == pytest.approx(1, abs=1e-5)


def test_logit_gradients_cluster_by_logit_at_the_start() -> None:
    pytest.importorskip("sklearn")
    by_logit, by_class = (
        row("clustering", f"Γ at initialization: variance between {kind}").ours
        for kind in ("logits", "classes")
    )
    assert by_logit > 0.5 > by_class


def test_batch_norm_takes_the_mean_away_and_pooling_brings_it_back() -> None:
    group = families.group(settings(), families.CIFAR_BN)
    model, X = group.models[0], group.data.X
    moved = after_pooling(model, X)
    names = [name for name, _ in moved.named_children()]
    assert names.index("maxpool1") < names.index("bn-conv1") < names.index("conv2")
    with torch.no_grad():
        pooled = nn.Sequential(*list(model.children())[:4])(X)
        normal = nn.Sequential(*list(moved.children())[:4])(X)
    torch.testing.assert_close(normal.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    assert float(pooled.mean((0, 2, 3)).min()) > 0.1
    assert [name for name, _ in model.named_children()] != names


def test_overlap_pictures_mark_the_outputs() -> None:
    (picture, *_) = outcome("overlap-cifar").pictures
    by_title = {panel.title: panel for panel in picture.panels}
    assert by_title["fc1"].lines == {"m = 16": 16}
    assert [curve.label for curve in by_title["fc1"].curves] == [
        "between models",
        "expected from the factors",
    ]


def test_small_scale_does_not_depend_on_what_the_folder_holds(tmp_path: Path) -> None:
    small = Settings("small", tmp_path)
    family = families.CIFAR.at(small)
    assert (family.key, family.recipe.epochs) == ("small-cifar-10", 3)
    io.write_tensors(tmp_path / "cifar-10.safetensors", {"seed0.x": torch.zeros(1)})
    assert families.CIFAR.at(small) == family


def test_symmetric_inputs() -> None:
    data = families.scaled(settings(), "mnist-6k", "symmetric")
    unit = families.scaled(settings(), "mnist-6k", "unit")
    assert (float(data.X.min()), float(data.X.max())) == (-1.0, 1.0)
    torch.testing.assert_close(data.normalization.undo(data.X), unit.X)


def test_training_learns_and_is_not_repeated() -> None:
    found = outcome("training")
    (picture,) = found.pictures
    losses = [curve for curve in picture.panels[0].curves if curve.color == 0]
    assert len(losses) == 2
    assert all(curve.y[-1] < curve.y[0] for curve in losses)
    assert all(0.1 <= row.ours <= 1 for row in found.rows if row.what.startswith("F-200^2"))
    folders = sorted((settings().work / "training").glob("F-24*"))
    before = [(folder / "weights" / "final.safetensors").stat().st_mtime_ns for folder in folders]
    assert NAMES["training"].run(settings()) == found
    after = [(folder / "weights" / "final.safetensors").stat().st_mtime_ns for folder in folders]
    assert before == after
    assert len(before) == 2
