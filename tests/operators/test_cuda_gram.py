"""The Gram form and the class structure on a GPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.gram import GramForm
from curvescope.problem import Problem
from curvescope.structure.classes import class_structure
from curvescope.structure.outliers import attribute_outliers
from curvescope.structure.traces import class_traces
from tests.conformance import assert_relative

pytestmark = [
    pytest.mark.gpu,
    # torch says so once, when a backward pass is the first to use cuBLAS in its thread
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]


def convolutional() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3),
        nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    ).eval()  # fmt: skip
    return model, torch.randn(20, 3, 8, 8), torch.arange(20) % 4


def problems(dtype: torch.dtype) -> tuple[Problem, Problem]:
    """The reference in float64 on the CPU, and the same on the GPU."""
    model, X, y = convolutional()
    there = copy.deepcopy(model).to("cuda", dtype)
    return Problem(model.double(), (X.double(), y)), Problem(there, (X.to(dtype), y), batch_size=7)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_gram_matrix(dtype: torch.dtype, rtol: float) -> None:
    here, there = (GaussNewton(p).dual() for p in problems(dtype))
    assert isinstance(here, GramForm)
    assert isinstance(there, GramForm)
    before = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    K = there.matrix()
    assert torch.backends.cudnn.conv.fp32_precision == before  # type: ignore[attr-defined]
    assert K.device.type == "cuda"
    # TF32 convolutions, torch's default, would be off by 1e-4
    assert_relative(K, here.matrix(), rtol=rtol, what="K")
    assert_relative(there.diagonal(), K.diagonal().cpu(), rtol=1e-6, what="diagonal")


def test_class_structure() -> None:
    here, there = problems(torch.float64)
    a, b = class_structure(here), class_structure(there)
    assert_relative(b.means, a.means, rtol=1e-10, what="means")
    assert_relative(b.weights, a.weights, rtol=1e-12, what="weights")
    assert_relative(class_traces(b).within, class_traces(a).within, rtol=1e-10, what="traces")
    assert_relative(b.eigenvalues("cross"), a.eigenvalues("cross"), rtol=1e-10, what="cross")
    x, y = attribute_outliers(here), attribute_outliers(there)
    assert x.groups == y.groups
    generator = torch.Generator().manual_seed(0)
    assert attribute_outliers(there, limit=1, generator=generator).outliers == x.outliers
