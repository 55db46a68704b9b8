"""Further entries of TR at the smallest scale: the sketch taken apart, data sets, deflation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from curvescope.studies.traces import ENTRIES, anatomy, subjects
from curvescope.studies.traces.anatomy import COLUMNS, C
from tests.studies.smoke import smoke

NAMES, settings, outcome = smoke(ENTRIES)


def value(name: str, start: str) -> float:
    (found,) = outcome(name).values(start)
    return found


# Fig. 1, fig. 2, table 1 -------------------------------------------------------------------------


def test_a_spectrum_without_its_within_part_has_no_bulk() -> None:
    """G is then of rank C² at most: exactly nothing is left."""
    assert value("anatomy", "gradients: bulk of G left") == pytest.approx(0, abs=1e-9)


def test_what_is_left_of_g_against_a_dense_matrix() -> None:
    """Without the class part, by subtraction, from the definition of the class means (TR 6.3)."""
    found = outcome("anatomy").numbers["left"]
    data = anatomy._four(settings(), 8)
    subject = subjects.train_one(
        settings(), "traces-anatomy", "F-24^2", data, subjects.recipe(60, 0.1)
    )  # finished: read from the work folder
    model = subject.model.double()
    parameters = list(model.parameters())
    w, g = np.zeros((len(data), C)), []
    for i, x in enumerate(data.X.double()):
        logits = torch.log_softmax(model(x[None])[0], 0)
        w[i] = logits.detach().exp().numpy() / len(data)
        for c in range(C):
            grads = torch.autograd.grad(-logits[c], parameters, retain_graph=True)
            g.append(torch.cat([part.flatten() for part in grads]).numpy())
    model.float()
    # In a basis of all gradients, outside of which both matrices are zero.
    basis = np.linalg.svd(np.array(g), full_matrices=False)[2]
    rows = (np.array(g) @ basis.T).reshape(len(data), C, -1)
    G = np.einsum("ic,icp,icq->pq", w, rows, rows)
    part = np.zeros_like(G)
    for c in range(C):
        mine = data.y.numpy() == c
        others = [k for k in range(C) if k != c]
        weights = w[mine][:, others]
        mean = np.einsum("ik,ikp->p", weights, rows[mine][:, others]) / weights.sum()
        part += weights.sum() * np.outer(mean, mean)
    whole, left = (np.linalg.eigvalsh(matrix)[::-1] for matrix in (G, G - part))
    assert found["C outliers"]["class"] == pytest.approx(left[:C].sum() / whole[:C].sum(), rel=1e-3)
    several = slice(C, C * C)
    expected = left[several].sum() / whole[several].sum()
    assert found["C² outliers"]["class"] == pytest.approx(expected, rel=1e-3)


def test_the_criterion_of_a_cell_is_the_best_other_part() -> None:
    found = outcome("anatomy").numbers["left"]
    for feature, part in COLUMNS.items():
        (row,) = [r for r in outcome("anatomy").rows if f"{feature} of G left" in r.what]
        others = [x for name, x in found[feature].items() if name != part]
        assert row.high == min(others)
        assert row.agrees == (found[feature][part] <= min(others))


# Fig. 3, 14, 17 ----------------------------------------------------------------------------------


def test_eigenvalues_of_the_hessian_on_each_data_set_by_power_iteration() -> None:
    for name in ("mnist", "fashion-mnist"):
        found = outcome("datasets").numbers[f"{name}, train"]["largest"]
        data = subjects.images(settings(), name, 12)
        subject = subjects.train_one(
            settings(), f"traces-datasets-{name}", "F-24", data, subjects.recipe(20, 0.05)
        )
        loss = torch.nn.functional.cross_entropy(subject.model(data.X), data.y)
        weights = list(subject.model.parameters())
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        v, size = [torch.ones_like(weight) for weight in weights], 0.0
        for _ in range(100):
            size = sum(float((part**2).sum()) for part in v) ** 0.5
            v = [part / size for part in v]
            product = sum((g * part).sum() for g, part in zip(gradients, v, strict=True))
            v = list(torch.autograd.grad(product, weights, retain_graph=True))
        assert found[0] == pytest.approx(size, rel=0.01)
        assert found == sorted(found, reverse=True)


def test_deflation_makes_the_cells_finer_and_keeps_the_outliers() -> None:
    assert value("deflation", "C largest of H against") < 0.05
    assert 0 < value("deflation", "cells of the grid") < 1
    left, right = outcome("deflation").pictures[0].panels
    assert left.linear == right.linear
    assert (left.xscale, right.xscale) == ("symlog", "symlog")


def test_checks_see_the_outcome_alone() -> None:
    """From the rows that were saved, also where they say the opposite."""
    found = outcome("datasets")
    before = list(NAMES["datasets"].checks(found))
    assert [row.ours for row in before] == [r.ours for r in found.rows if "test over" in r.what]
    turned = tuple(replace(r, ours=0.1) if "test over" in r.what else r for r in found.rows)
    after = NAMES["datasets"].checks(replace(found, rows=turned))
    assert [row.agrees for row in after] == [False, False]
