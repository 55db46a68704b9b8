"""The class structure against brute force: every extended gradient of every term, by autograd."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from curvescope.errors import CurvescopeError
from curvescope.operators.curvature import Curvature
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.problem import Problem
from curvescope.record.outputs import ClassOuter, Mix
from curvescope.spectra.exact import exact_spectrum
from curvescope.structure.classes import ClassStructure, class_structure
from curvescope.structure.traces import class_traces
from tests.cases import BY_NAME, Case
from tests.conformance import assert_relative, check_operator
from tests.tolerances import IDENTITY

F64 = torch.float64
CASES = [
    "cross_entropy", "cross_entropy-one-sample", "cross_entropy-ignored", "logistic-column",
    "params-list", "loose-parameters", "conv-stride-padding", "batch-norm-train",
    "batch-norm-no-statistics", "logits-object-dict-input", "control-flow", "checkpoint",
]  # fmt: skip


@dataclass
class BruteForce:
    """All extended gradients ``g: [M, C, P]`` with weights ``w: [M, C]`` and labels ``[M]``."""

    g: Tensor
    w: Tensor
    labels: Tensor

    @classmethod
    def of(cls, case: Case) -> BruteForce:
        reference = case.reference()
        z, y = reference.rows()
        J, z = reference.jacobian(), z.detach()
        if z.shape[1] == 1:  # logistic: the two classes have the logits 0 and z
            J, z = torch.cat([torch.zeros_like(J), J], 1), torch.cat([torch.zeros_like(z), z], 1)
        p, C = torch.softmax(z, 1), z.shape[1]
        slopes = p[:, None] - torch.eye(C, dtype=F64)
        return cls(torch.einsum("mkc,mcp->mkp", slopes, J), p / len(p), y.long().flatten())

    @property
    def classes(self) -> int:
        return self.w.shape[1]

    def means(self) -> tuple[Tensor, Tensor]:
        C, P = self.classes, self.g.shape[2]
        means, weights = torch.zeros(C, C, P, dtype=F64), torch.zeros(C, C, dtype=F64)
        for c in range(C):
            for k in range(C):
                w, g = self.w[self.labels == c, k], self.g[self.labels == c, k]
                weights[c, k] = w.sum()
                if len(w):
                    means[c, k] = (w[:, None] * g).sum(0) / w.sum()
        return means, weights

    def parts(self) -> dict[str, Tensor]:
        """The four matrices, term by term."""
        (means, weights), C = self.means(), self.classes
        P = self.g.shape[2]
        parts = {n: torch.zeros(P, P, dtype=F64) for n in ("class", "cross", "within", "diagonal")}
        for c in range(C):
            others = [k for k in range(C) if k != c]
            w_c = weights[c, others].sum()
            own = self.labels == c
            if own.sum() == 0:
                continue
            g_c = (weights[c, others, None] * means[c, others]).sum(0) / w_c
            parts["class"] += w_c * torch.outer(g_c, g_c)
            parts["diagonal"] += weights[c, c] * torch.outer(means[c, c], means[c, c])
            for k in others:
                z = means[c, k] - g_c
                parts["cross"] += weights[c, k] * torch.outer(z, z)
            z = self.g[own] - means[c]
            parts["within"] += torch.einsum("ik,ikp,ikq->pq", self.w[own], z, z)
        return parts


def check(structure: ClassStructure, brute: BruteForce) -> None:
    means, weights = brute.means()
    assert_relative(structure.weights, weights, rtol=1e-12, what="weights")
    assert_relative(structure.means, means, rtol=1e-10, what="means")
    parts = brute.parts()
    G = structure.operator.dense()
    size = float(G.norm())
    total = sum(parts.values())
    assert_relative(G, total, rtol=IDENTITY, what="G = class + cross + within + diagonal")
    for name, expected in parts.items():
        ours = getattr(structure, f"{name}_part").dense()
        assert_relative(ours, expected, rtol=IDENTITY, what=name, scale=size)
        if name != "within":
            dense = torch.linalg.eigvalsh(expected).flip(0)
            values = structure.eigenvalues(name)
            k = min(len(dense), len(values))
            assert_relative(values[:k], dense[:k], rtol=1e-12, what=f"{name}: spectrum", scale=size)
    check_classes(structure, brute, size)
    traces = class_traces(structure)
    assert_relative(traces.total.sum(), G.trace(), rtol=1e-12, what="trace of G")
    for name, ours in (
        ("class", traces.class_part), ("cross", traces.cross), ("within", traces.within),
        ("diagonal", traces.diagonal),
    ):  # fmt: skip
        assert_relative(
            ours.sum(), parts[name].trace(), rtol=1e-12, what=f"trace of {name}", scale=size
        )


def check_classes(structure: ClassStructure, brute: BruteForce, size: float) -> None:
    """The cross and the within part of one class, and of one pair, term by term."""
    (means, weights), C = brute.means(), brute.classes
    for c in range(C):
        others, own = [k for k in range(C) if k != c], brute.labels == c
        if own.sum() == 0:
            assert float(structure.cross_of(c).dense().norm()) == 0.0
            assert float(structure.within_of(c).dense().norm()) == 0.0
            continue
        w_c = weights[c, others].sum()
        g_c = (weights[c, others, None] * means[c, others]).sum(0) / w_c
        z = means[c, others] - g_c
        cross = torch.einsum("k,kp,kq->pq", weights[c, others], z, z)
        ours = structure.cross_of(c).dense()
        assert_relative(ours, cross, rtol=IDENTITY, what="cross of a class", scale=size)
        z = brute.g[own] - means[c]
        pairs = torch.einsum("ik,ikp,ikq->kpq", brute.w[own], z, z)
        ours = structure.within_of(c).dense()
        assert_relative(ours, pairs.sum(0), rtol=IDENTITY, what="within of a class", scale=size)
        for k in range(C):
            ours = structure.within_of(c, k).dense()
            assert_relative(ours, pairs[k], rtol=IDENTITY, what="within of a pair", scale=size)


@pytest.mark.parametrize("name", CASES)
def test_means_parts_and_traces(name: str) -> None:
    case = BY_NAME[name]
    check(class_structure(case.problem()), BruteForce.of(case))


def small(samples: int, classes: int, features: int = 3, seed: int = 0) -> tuple[nn.Module, Tensor]:
    g = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(features, 4), nn.Tanh(), nn.Linear(4, classes)).double()
    return model, torch.randn(samples, features, dtype=F64, generator=g)


def test_balanced_classes_have_the_weights_of_the_paper() -> None:
    model, X = small(12, 3)
    structure = class_structure(Problem(model, (X, torch.arange(12) % 3)))
    p = torch.softmax(model(X), 1)
    expected = torch.stack([p[c::3].sum(0) for c in range(3)]) / (4 * 3)  # p / (nC)
    torch.testing.assert_close(structure.weights, expected)
    torch.testing.assert_close(structure.weights.sum(), torch.tensor(1.0, dtype=F64))


def test_traces_belong_to_their_class() -> None:
    model, X = small(9, 3)
    y = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2])
    traces = class_traces(class_structure(Problem(model, (X, y))))
    for c in range(3):
        own = GaussNewton(Problem(model, (X[y == c], y[y == c]))).dense().trace()
        share = int((y == c).sum()) / 9
        assert float(traces.total[c]) == pytest.approx(share * float(own), rel=1e-12)


@pytest.mark.parametrize("shuffle", [False, True])
def test_small_batches_give_the_same_as_one(shuffle: bool) -> None:
    model, X = small(23, 4)
    y = torch.arange(23) % 4
    whole = class_structure(Problem(model, (X, y)))
    loader = DataLoader(TensorDataset(X, y), batch_size=5, shuffle=shuffle)
    pieces = class_structure(Problem(model, loader))
    assert_relative(pieces.means, whole.means, rtol=1e-13, what="means")
    assert_relative(pieces.weights, whole.weights, rtol=1e-13, what="weights")


def test_every_sample_goes_forward_once_and_backward_as_often_as_there_are_classes() -> None:
    class Counting(nn.Module):
        forwards = backwards = 0

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 5)

        def forward(self, x: Tensor) -> Tensor:
            Counting.forwards += len(x)
            z = self.layer(x)
            if z.requires_grad:
                z.register_hook(lambda g: self._count(len(g)))
            return z

        @staticmethod
        def _count(samples: int) -> None:
            Counting.backwards += samples

    model = Counting().double()
    X = torch.randn(40, 3, dtype=F64)
    class_structure(Problem(model, (X, torch.arange(40) % 5), batch_size=20))
    assert Counting.forwards == 40 + 16 + 3  # once, and the trial of independence
    assert Counting.backwards == 40 * 5


def test_operators_of_classes_add_up_and_are_normalized_as_in_the_paper() -> None:
    model, X = small(13, 3)
    y = torch.tensor([0] * 6 + [1] * 4 + [2] * 3)
    structure = class_structure(Problem(model, (X, y), batch_size=5))
    size = float(structure.operator.dense().norm())
    cross = sum(structure.cross_of(c).dense() for c in range(3))
    within = sum(structure.within_of(c).dense() for c in range(3))
    assert_relative(cross, structure.cross_part.dense(), rtol=1e-13, what="cross", scale=size)
    assert_relative(within, structure.within_part.dense(), rtol=1e-12, what="within", scale=size)
    for c, share in enumerate((6 / 13, 4 / 13, 3 / 13)):
        w_c = float(structure.class_weights[c])
        ours = w_c * structure.cross_of(c, normalized=True).dense()
        assert_relative(ours, structure.cross_of(c).dense(), rtol=1e-12, what="G_cross,c")
        ours = share * structure.within_of(c, normalized=True).dense()
        assert_relative(ours, structure.within_of(c).dense(), rtol=1e-12, what="G_within,c")
        w = float(structure.weights[c, 1])
        ours = w * structure.within_of(c, 1, normalized=True).dense()
        assert_relative(ours, structure.within_of(c, 1).dense(), rtol=1e-12, what="G_within,c,c'")
        check_operator(structure.within_of(c), structure.within_of(c).dense(), rtol=1e-12)
        # the mean eigenvalue that TR fig. 6 draws
        trace = float(structure.within_of(c).dense().trace())
        assert float(class_traces(structure).within[c]) == pytest.approx(trace, rel=1e-10)


def test_the_spectrum_of_one_class_through_its_rows() -> None:
    """The part of ``G`` by one class has a Gram form of its own."""
    model, X = small(4, 3)
    problem = Problem(model, (X, torch.tensor([0, 1, 2, 0])))
    A = Curvature(problem, Mix(0.0, ((ClassOuter(0), 1.0),)))
    own = GaussNewton(Problem(model, (X[[0, 3]], torch.tensor([0, 0])))).dense() / 2
    assert_relative(A.dense(), own, rtol=1e-12, what="G of class 0")
    spectrum = exact_spectrum(A)
    assert spectrum.form == "dual"
    dense = torch.linalg.eigvalsh(own)[-len(spectrum.values) :]
    assert_relative(spectrum.values, dense, rtol=1e-12, what="its spectrum")


# Edges -------------------------------------------------------------------------------------------


def test_a_class_without_examples_and_one_with_a_single_one() -> None:
    model, X = small(5, 4)
    y = torch.tensor([0, 0, 1, 3, 3])  # 2 is empty, 1 has one example
    structure = class_structure(Problem(model, (X, y)))
    assert structure.counts.tolist() == [2, 1, 0, 2]
    assert bool((structure.means[2] == 0).all())
    assert bool((structure.weights[2] == 0).all())
    assert bool(torch.isfinite(structure.global_mean).all())
    total = sum(
        part.dense()
        for part in (
            structure.class_part, structure.cross_part, structure.diagonal_part,
            structure.within_part,
        )
    )  # fmt: skip
    assert_relative(total, structure.operator.dense(), rtol=IDENTITY, what="G")
    traces = class_traces(structure)
    # what a single example varies by is nothing
    assert float(traces.within[1]) < 1e-15 * float(traces.total.sum())
    assert float(traces.total[2]) == 0.0


def test_more_classes_than_features() -> None:
    layer = nn.Linear(2, 7, bias=False).double()
    X = torch.randn(21, 2, dtype=F64)
    structure = class_structure(Problem(layer, (X, torch.arange(21) % 7)))
    values = structure.eigenvalues("class")  # 7 means in a space of 14 dimensions, 12 of them used
    assert len(values) == 7
    dense = torch.linalg.eigvalsh(structure.class_part.dense()).flip(0)[:7]
    torch.testing.assert_close(values, dense, atol=1e-13, rtol=1e-12)
    cross = structure.eigenvalues("cross")
    assert len(cross) == 14  # no more than the space has dimensions


def test_two_classes_agree_with_the_logistic_loss() -> None:
    model = nn.Linear(3, 1).double()
    X, y = torch.randn(8, 3, dtype=F64), torch.tensor([0, 1, 1, 0, 1, 1, 1, 0])

    class TwoLogits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model

        def forward(self, x: Tensor) -> Tensor:
            return F.pad(self.layer(x), (1, 0))  # logits 0 and z

    one = class_structure(Problem(model, (X, y), loss="binary_logistic"))
    two = class_structure(Problem(TwoLogits(), (X, y)))
    torch.testing.assert_close(one.means, two.means, atol=1e-14, rtol=1e-12)
    torch.testing.assert_close(one.weights, two.weights)
    assert len(one.eigenvalues("class")) == 2
    # with two classes there is one other class, so that nothing deviates from its mean
    assert float(one.eigenvalues("cross").max()) < 1e-15


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_that_underflow(dtype: torch.dtype) -> None:
    layer = nn.Linear(2, 3, bias=False).to(dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
    X = torch.tensor([[2000.0, 1.0], [3000.0, 2.0]], dtype=dtype)  # p = (1, e^-2000, e^-4000)
    structure = class_structure(Problem(layer, (X, torch.tensor([0, 0]))))
    assert structure.weights[0].tolist() == [1.0, 0.0, 0.0]
    assert bool(torch.isfinite(structure.means).all())
    # the weight of the first example is e^1000 times that of the second: the mean is its gradient
    g = torch.outer(torch.tensor([1.0, -1.0, 0.0]), torch.tensor([2000.0, 1.0])).flatten()
    torch.testing.assert_close(structure.means[0, 1], g.to(dtype))
    for part in ("class", "cross", "diagonal", "between"):
        assert bool(torch.isfinite(structure.eigenvalues(part)).all())


def test_what_is_refused() -> None:
    model, X = small(6, 3)
    with pytest.raises(CurvescopeError, match=r"needs a loss that tells classes apart"):
        class_structure(Problem(model, (X, torch.randn(6, 3, dtype=F64)), loss="mse"))
    with pytest.raises(CurvescopeError, match="needs at least two classes"):
        class_structure(Problem(nn.Linear(3, 1).double(), (X, torch.zeros(6, dtype=torch.int64))))
    with pytest.raises(CurvescopeError, match=r"no target counts"):
        class_structure(Problem(model, (X, torch.full((6,), -100))))
    structure = class_structure(Problem(model, (X, torch.arange(6) % 3)))
    with pytest.raises(CurvescopeError, match="c must be one of the 3 classes, got 3"):
        structure.cross_of(3)
    with pytest.raises(CurvescopeError, match="cross must be one of the 3 classes, got 4"):
        structure.within_of(0, 4)
    regression = Problem(model, (X, torch.randn(6, 3, dtype=F64)), loss="mse")
    with pytest.raises(CurvescopeError, match="needs a loss that tells classes apart"):
        Curvature(regression, Mix(0.0, ((ClassOuter(0), 1.0),))).dense()
    empty = class_structure(Problem(model, (X, torch.arange(6) % 2)))
    with pytest.raises(CurvescopeError, match="a part of no weight cannot be normalized"):
        empty.within_of(2, normalized=True)
    with pytest.raises(CurvescopeError, match="part must be one of class, cross, diagonal"):
        structure.eigenvalues("within")


def test_means_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from curvescope.record import memory

    model, X = small(6, 3)
    monkeypatch.setattr(memory, "free", lambda device: 1000)
    with pytest.raises(CurvescopeError, match=r"3² means of 31 parameters take .* restrict the"):
        class_structure(Problem(model, (X, torch.arange(6) % 3)))
