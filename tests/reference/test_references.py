"""The references against each other, without the library."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.cases import BY_NAME, CASES, dense
from tests.conformance import assert_relative, random_block
from tests.reference.curvature import call, concatenate

STOPPED = {"detach", "no-grad-block", "embedding-padding"}


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_sizes_and_symmetry(name: str) -> None:
    """Cases are small, generic (no matrix vanishes) and their Hessians symmetric."""
    H, G, F_ = (dense(name, matrix) for matrix in ("hessian", "gauss_newton", "empirical_fisher"))
    assert 15 <= len(H) <= 300
    assert min(float(M.norm()) for M in (H, G, F_)) > 1e-2
    for M in (H, G, F_):
        assert_relative(M, M.T, rtol=1e-13, what="symmetry")


@pytest.mark.parametrize("name", [case.name for case in CASES if case.name not in STOPPED])
def test_hessian_against_finite_differences(name: str) -> None:
    """See ``operators/test_finite_differences.py`` for the predicted error."""
    reference = BY_NAME[name].reference()
    v = random_block(reference.size, 1, torch.float64, seed=40)[:, 0]
    difference = reference.finite_difference_product(v, 1e-6)
    assert_relative(dense(name, "hessian") @ v, difference, rtol=1e-7, what="finite difference")


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_output_hessians_against_autograd(name: str) -> None:
    """The second derivatives that are written out are those of the terms."""
    case = BY_NAME[name]
    z, y = case.reference().rows()
    for row, label, expected in zip(
        z.detach()[:3], y[:3], case.reference_loss.hessians(z.detach(), y)[:3], strict=True
    ):
        actual = torch.autograd.functional.hessian(
            lambda r, label=label: case.reference_loss.terms(r[None], label[None])[0], row
        )
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "name", [case.name for case in CASES if case.mode == "eval" and not case.per_batch]
)
def test_value_against_torch(name: str) -> None:
    """The mean of the terms is torch's own loss of all data at once."""
    case = BY_NAME[name]
    reference = case.reference()
    ((x, y),) = concatenate(case.data())
    output = call(reference.model, x)
    if case.loss == "cross_entropy":
        axis = case.reference_loss.class_axis
        expected = F.cross_entropy(output.movedim(axis, 1), y)
    elif case.loss == "binary_logistic":
        expected = F.binary_cross_entropy_with_logits(output.reshape(-1), y.reshape(-1).double())
    else:
        expected = (F.mse_loss if case.loss == "mse" else case.loss)(output, y)
    torch.testing.assert_close(reference.value(), expected, rtol=1e-12, atol=0)


def test_the_weight_norm_of_torch_has_a_wrong_second_derivative() -> None:
    """Why that case has a reference model of its own; when this fails, torch has been mended."""
    from tests.case_models import WeightNorm
    from tests.cases import Case

    fused = Case("fused", WeightNorm).reference()
    v = random_block(fused.size, 1, torch.float64, seed=41)[:, 0]
    truth = fused.finite_difference_product(v, 1e-6)
    assert_relative(
        dense("weight-norm", "hessian") @ v, truth, rtol=1e-7, what="elementary operations"
    )
    assert float((fused.hessian() @ v - truth).norm() / truth.norm()) > 1e-2
