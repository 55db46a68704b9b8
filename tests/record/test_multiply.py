"""Products by oneDNN: the same numbers in every layout, and only where they are meant."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import curvescope as cs
from curvescope.data import dataset
from curvescope.networks import network
from curvescope.record import multiply
from curvescope.record.multiply import add_product, affine, amd_family, by_onednn


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor that gains by it, and from small sizes on."""
    monkeypatch.setattr(multiply, "wide_processor", lambda: True)
    monkeypatch.setattr(multiply, "SMALLEST", 1)
    monkeypatch.setattr(multiply, "NARROWEST", 1)


def matrix(rows: int, columns: int, layout: str, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    if layout == "rows":
        return torch.randn(rows, columns, generator=g)
    if layout == "columns":
        return torch.randn(columns, rows, generator=g).T
    return torch.randn(rows, 2 * columns + 3, generator=g)[:, 1 : 2 * columns + 1 : 2]


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("left", ["rows", "columns", "every second"])
@pytest.mark.parametrize("right", ["rows", "columns", "every second"])
@pytest.mark.parametrize("shape", [(7, 5, 3), (3, 5, 7), (130, 64, 66), (1, 1, 1)])
def test_the_same_product_in_every_layout(
    left: str, right: str, shape: tuple[int, int, int]
) -> None:
    m, k, n = shape
    a, b = matrix(m, k, left, 0), matrix(k, n, right, 1)
    assert by_onednn(a, b)
    exact = a.double() @ b.double()
    torch.testing.assert_close(multiply.multiply(a, b).double(), exact, atol=1e-5, rtol=1e-5)
    total = torch.ones(m, n)
    add_product(total, a, b)
    torch.testing.assert_close(total.double(), 1 + exact, atol=1e-5, rtol=1e-5)
    fresh = affine(torch.ones(m, n), a, b)
    torch.testing.assert_close(fresh.double(), 1 + exact, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("left", "right"),
    [((4, 6, 5), (5, 3)), ((6, 5), (4, 5, 3)), ((4, 6, 5), (4, 5, 3))],
    ids=["one right factor", "one left factor", "both several"],
)
def test_several_products_at_once(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(left, generator=g), torch.randn(right, generator=g)
    found = multiply.multiply(a, b)
    torch.testing.assert_close(found.double(), a.double() @ b.double(), atol=1e-5, rtol=1e-5)
    found.zero_()  # memory of its own
    assert float(a.abs().min()) > 0
    assert float(b.abs().min()) > 0


@pytest.mark.usefixtures("wide")
@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")  # said by torch's flags
def test_only_float32_in_full_precision() -> None:
    a = torch.ones(2, 2)
    assert by_onednn(a, a)
    assert not by_onednn(a.double(), a.double())
    with torch.backends.mkldnn.flags(enabled=False):
        assert not by_onednn(a, a)
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        assert not by_onednn(a, a)
    finally:
        matmul.fp32_precision = before


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("name", ["F-12^2", "LeNet5-(conv1-3)-(conv2-4)-(fc1-9)-(fc2-7)"])
def test_operators_and_blocks_are_the_same_this_way(name: str) -> None:
    """All products of a network in float32 against torch's own in float64."""
    data = dataset("mnist-6k", per_class=3)
    model = network(name, data.input_shape, 10, generator=torch.Generator().manual_seed(0))
    double = copy.deepcopy(model).double()
    own, exact = (
        cs.Problem(m, (data.X.to(dtype), data.y))
        for m, dtype in ((model, torch.float32), (double, torch.float64))
    )
    V = torch.randn(own.params.size, 3, generator=torch.Generator().manual_seed(1))
    for kind in (cs.Hessian, cs.GaussNewton):
        found, expected = kind(own) @ V, kind(exact) @ V.double()
        assert float((found - expected).norm() / expected.norm()) < 1e-5
    W = V[own.params.slice("fc1.weight")]
    found = cs.Hessian(own).block("fc1.weight") @ W
    expected = cs.Hessian(exact).block("fc1.weight") @ W.double()
    assert float((found - expected).norm() / expected.norm()) < 1e-5


def test_small_and_narrow_products_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiply, "wide_processor", lambda: True)
    large = torch.empty(1, 1).expand(4096, 4096)
    assert by_onednn(large, large)
    assert not by_onednn(large[:15], large)
    assert not by_onednn(large[:, :15], large[:15])
    assert not by_onednn(large[:127, :128], large[:128, :128])
    assert not by_onednn(large[:2, :2], large[:2, :2])


@pytest.mark.parametrize(
    ("description", "family"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2", 26),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17", 25),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207", 0),
        ("AMD64 Family 26 Model 68 Stepping 0, AuthenticAMD", 26),
        ("arm", 0),
        ("", 0),
    ],
)
def test_family_of_a_processor(description: str, family: int) -> None:
    assert amd_family(description) == family
