"""Class structure where labels stand at several positions, and outputs are grouped into classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import curvescope as cs
from curvescope.operators.algebra import knockout
from curvescope.problem.losses import CrossEntropy
from curvescope.record.extended import extended
from curvescope.structure.class_factors import layer_approximations
from curvescope.structure.classes import class_structure
from curvescope.structure.grouping import frequent_classes
from curvescope.structure.knockouts import HOW, class_dual, class_knockouts
from curvescope.structure.layers import layer_statistics
from curvescope.structure.moments import layer_moments
from curvescope.structure.outliers import SHARES, attribute_outliers
from curvescope.structure.traces import class_traces
from tests.cases import tokens
from tests.conformance import assert_relative
from tests.structure.test_classes import BruteForce, check
from tests.structure.test_knockouts import all_values, dense_spectrum
from tests.tolerances import IDENTITY
from tests.transformers_of_ours import VOCABULARY, Mixer

GROUPS = torch.tensor([0, 1, 0, 2, 1, 2])
F64 = torch.float64


def language_model() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A causal language model with a padding that is not predicted."""
    torch.manual_seed(5)
    model = Mixer(VOCABULARY, pooled=False).double()
    data = tokens(VOCABULARY, next_token=True)
    data[0][1][0, 2:] = -100
    data[1][1][3] = -100
    return model, data


def terms_of(problem: cs.Problem) -> tuple[Tensor, Tensor, Tensor]:
    """The Jacobian ``[M, V, P]``, the logits ``[M, V]`` and labels of every term that counts."""
    jacobians, logits, labels = [], [], []
    for batch in problem.batches():
        variables = problem.variables()
        with problem.evaluation():
            z = problem.output(variables, batch)
            for row, label in zip(z.reshape(-1, z.shape[-1]), batch.target.flatten(), strict=True):
                if label < 0:
                    continue
                grads = [
                    torch.autograd.grad(
                        entry, list(variables.values()), retain_graph=True, allow_unused=True,
                        materialize_grads=True,
                    )
                    for entry in row
                ]  # fmt: skip
                jacobians.append(
                    torch.stack([torch.cat([g.flatten() for g in gs]) for gs in grads])
                )
                logits.append(row.detach())
                labels.append(label)
    return torch.stack(jacobians), torch.stack(logits), torch.stack(labels)


@dataclass
class Grouped(BruteForce):
    """Extended gradients of every output, classes of outputs."""

    groups: Tensor

    @property
    def classes(self) -> int:
        return int(self.groups.max()) + 1

    def means(self) -> tuple[Tensor, Tensor]:
        C, P = self.classes, self.g.shape[2]
        means, weights = torch.zeros(C, C, P, dtype=F64), torch.zeros(C, C, dtype=F64)
        for c in range(C):
            for k in range(C):
                own = self.labels == c
                w, g = self.w[own][:, self.groups == k], self.g[own][:, self.groups == k]
                weights[c, k] = w.sum()
                if w.numel():
                    means[c, k] = torch.einsum("iv,ivp->p", w, g) / w.sum()
        return means, weights

    def parts(self) -> dict[str, Tensor]:
        (means, weights), C, P = self.means(), self.classes, self.g.shape[2]
        parts = {n: torch.zeros(P, P, dtype=F64) for n in ("class", "cross", "within", "diagonal")}
        for c in range(C):
            own, others = self.labels == c, [k for k in range(C) if k != c]
            if own.sum() == 0:
                continue
            w_c = weights[c, others].sum()
            g_c = (weights[c, others, None] * means[c, others]).sum(0) / w_c
            parts["class"] += w_c * torch.outer(g_c, g_c)
            parts["diagonal"] += weights[c, c] * torch.outer(means[c, c], means[c, c])
            for k in others:
                z = means[c, k] - g_c
                parts["cross"] += weights[c, k] * torch.outer(z, z)
            z = self.g[own] - means[c][self.groups]
            parts["within"] += torch.einsum("iv,ivp,ivq->pq", self.w[own], z, z)
        return parts


def brute_force(problem: cs.Problem, groups: Tensor | None) -> BruteForce:
    J, z, y = terms_of(problem)
    p = torch.softmax(z, 1)
    slopes = p[:, None] - torch.eye(z.shape[1], dtype=F64)
    g, w = torch.einsum("mkc,mcp->mkp", slopes, J), p / len(p)
    return BruteForce(g, w, y) if groups is None else Grouped(g, w, groups[y], groups)


def test_every_position_is_an_example() -> None:
    model, data = language_model()
    problem = cs.Problem(model, data)
    check(class_structure(problem), brute_force(problem, None))


def test_groups_of_a_vocabulary() -> None:
    """The identity to rounding, each part against its definition, one class and pair at a time."""
    model, data = language_model()
    problem = cs.Problem(model, data)
    brute = brute_force(problem, GROUPS)
    structure = class_structure(problem, classes=GROUPS)
    means, weights = brute.means()
    assert structure.classes == 3
    assert structure.counts.tolist() == [int((brute.labels == c).sum()) for c in range(3)]
    assert_relative(structure.weights, weights, rtol=1e-12, what="weights")
    assert_relative(structure.means, means, rtol=1e-10, what="means")
    parts, G = brute.parts(), structure.operator.dense()
    size = float(G.norm())
    assert_relative(G, sum(parts.values()), rtol=IDENTITY, what="G = sum of parts")
    for name, expected in parts.items():
        ours = getattr(structure, f"{name}_part").dense()
        assert_relative(ours, expected, rtol=IDENTITY, what=name, scale=size)
    traces = class_traces(structure)
    assert_relative(traces.total.sum(), G.trace(), rtol=1e-12, what="trace of G")
    for c in range(3):
        own = brute.labels == c
        second = torch.einsum("iv,ivp,ivp->", brute.w[own], brute.g[own], brute.g[own])
        assert float(traces.total[c]) == pytest.approx(float(second), rel=1e-12)
        z = brute.g[own] - means[c][GROUPS]
        pairs = torch.einsum("iv,ivp,ivq->vpq", brute.w[own], z, z)
        ours = structure.within_of(c).dense()
        assert_relative(ours, pairs.sum(0), rtol=IDENTITY, what="within of a class", scale=size)
        for k in range(3):
            ours, expected = structure.within_of(c, k).dense(), pairs[GROUPS == k].sum(0)
            assert_relative(ours, expected, rtol=IDENTITY, what="within of a pair", scale=size)


@pytest.mark.parametrize("layer", [None, "head", "attend"])
def test_knockouts_of_groups_are_those_of_dense_matrices(layer: str | None) -> None:
    model, data = language_model()
    problem = cs.Problem(model, data)
    small = problem if layer is None else problem.restrict(layer)
    structure = class_structure(small, classes=GROUPS)
    dual = class_dual(problem, layer=layer, classes=GROUPS)
    G = structure.operator
    size = float(G.dense().norm())
    n = len(dual.gram)
    for part in ("class", "cross", "diagonal", "between"):
        basis = dual.bases[part]
        eye = torch.eye(basis.shape[1], dtype=F64)
        assert_relative(basis.T @ basis, eye, rtol=1e-12, what=f"{part} is orthonormal")
        for how in HOW:
            expected = dense_spectrum(knockout(G, getattr(structure, f"{part}_part"), how).dense())
            ours = all_values(dual.knocked_out(part, how))
            k = min(n, len(expected))
            assert_relative(ours[:k], expected[:k], rtol=1e-11, what=f"{part}, {how}", scale=size)
    rest = dense_spectrum((G - structure.within_part).dense())
    ours = all_values(dual.knocked_out("within"))
    assert_relative(ours[: len(rest)], rest, rtol=1e-11, what="without within", scale=size)
    knockouts = class_knockouts(problem, layer=layer, classes=GROUPS)
    assert knockouts.classes == 3
    assert knockouts.exact


def test_outliers_of_groups_by_both_ways() -> None:
    model, data = language_model()
    problem = cs.Problem(model, data)
    exact = attribute_outliers(problem, classes=GROUPS)
    g = torch.Generator().manual_seed(0)
    searched = attribute_outliers(problem, classes=GROUPS, limit=0, generator=g)
    assert exact.classes == searched.classes == 3
    assert exact.edge == pytest.approx(searched.edge, rel=1e-5)
    assert exact.outliers == searched.outliers
    k = exact.outliers
    torch.testing.assert_close(exact.values[:k], searched.values[:k])
    torch.testing.assert_close(exact.shares[:k], searched.shares[:k], rtol=1e-5, atol=1e-6)
    assert exact.shares.shape[1] == len(SHARES)


def test_groups_of_one_output_each_change_nothing() -> None:
    model, data = language_model()
    problem = cs.Problem(model, data)
    plain = class_structure(problem)
    same = class_structure(problem, classes=list(range(VOCABULARY)))
    torch.testing.assert_close(same.means, plain.means)
    torch.testing.assert_close(same.log_weights, plain.log_weights)


def test_maps_and_the_most_frequent_tokens() -> None:
    model, data = language_model()
    problem = cs.Problem(model, data)
    labels = torch.cat([y.flatten() for _, y in data])
    counts = labels[labels >= 0].bincount(minlength=VOCABULARY)
    classes = frequent_classes(problem, 2)
    first, second = counts.sort(descending=True, stable=True).indices[:2].tolist()
    assert (int(classes[first]), int(classes[second])) == (0, 1)
    assert int((classes == 2).sum()) == VOCABULARY - 2
    by_map = class_structure(problem, classes={first: 0, second: 1})
    by_tensor = class_structure(problem, classes=classes)
    torch.testing.assert_close(by_map.means, by_tensor.means)
    assert by_map.counts.tolist()[0] == int(counts[first])


def test_a_confident_model_of_many_tokens() -> None:
    """Means are right where the probability of a whole group underflows."""
    z = torch.tensor([[2000.0, 0.0, -1000.0, -1000.0]], dtype=F64)
    e = extended(CrossEntropy(), z, torch.tensor([0]), "test").grouped(
        cs.losses.Groups.of([0, 0, 1, 1], 4, "test")
    )
    assert e.log_p[0].tolist() == pytest.approx([0.0, -3000 + torch.log(torch.tensor(2.0)).item()])
    torch.testing.assert_close(e.direction(1)[0], torch.tensor([1.0, 0.0, -0.5, -0.5]).double())
    assert float(e.direction(0).abs().max()) < 1e-300


def test_statistics_of_a_layer_where_a_position_is_an_example() -> None:
    """The head of a language model is a layer of its own on all positions as samples."""
    model, data = language_model()
    problem = cs.Problem(model, data)
    features: list[Tensor] = []
    hook = model.head.register_forward_hook(lambda _, args, out: features.append(args[0].detach()))
    for x, _ in data:
        model(x)
    hook.remove()
    X = torch.cat([f.flatten(0, 1) for f in features])
    y = torch.cat([t.flatten() for _, t in data])
    head = nn.Linear(4, VOCABULARY).double()
    head.load_state_dict(model.head.state_dict())
    alone = cs.Problem(head, (X[y >= 0], y[y >= 0]))
    for classes in (None, GROUPS):
        ours = layer_statistics(problem, layers="head", classes=classes)["head"]
        theirs = layer_statistics(alone, classes=classes)[""]
        for moment in ("features", "errors"):
            for spectrum in ("total", "class_part", "class_and_cross", "diagonal", "within"):
                a, b = (getattr(getattr(s, moment), spectrum) for s in (ours, theirs))
                assert_relative(a, b, rtol=1e-10, what=spectrum, scale=float(b.norm()) + 1e-9)
        assert ours.classes == (VOCABULARY if classes is None else 3)


def test_groups_in_the_moments_of_a_layer() -> None:
    """Against sums over outputs, written out."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, VOCABULARY)).double()
    X, y = torch.randn(14, 4, dtype=F64), torch.arange(14) % VOCABULARY
    problem = cs.Problem(model, (X, y))
    moment = layer_moments(problem, layers="0", classes=GROUPS)["0"]
    h = torch.tanh(model[0](X))
    p = torch.softmax(model(X), 1).detach()
    slopes = p[:, None] - torch.eye(VOCABULARY, dtype=F64)
    delta = (slopes @ model[2].weight * (1 - h**2)[:, None]).detach()  # [N, V, m]
    w = p / len(X)
    total = torch.einsum("iv,ivm,ivn->mn", w, delta, delta)
    assert_relative(moment.second_errors, total, rtol=1e-12, what="Δ")
    for c in range(3):
        own = GROUPS[y] == c
        for k in range(3):
            weight, d = w[own][:, GROUPS == k], delta[own][:, GROUPS == k]
            mean = torch.einsum("iv,ivm->m", weight, d) / weight.sum()
            assert_relative(moment.error_means[c, k], mean, rtol=1e-12, what="δ_cc'")
            assert float(moment.log_weights[c, k].exp()) == pytest.approx(float(weight.sum()))
        assert_relative(moment.feature_means[c], X[own].mean(0), rtol=1e-12, what="h_c")


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([0, 1, 0], r"must give each of the 6 outputs a class 0, 1, …, got torch.int64 \[3\]"),
        ([0.5] * 6, "must give each of the 6 outputs"),
        ([0, 1, 0, -1, 0, 0], "got the class -1"),
        ([0] * 6, "at least two classes, and each from 0 to the largest, got a single class"),
        ([0, 2, 0, 0, 0, 0], "got no output of class 1"),
        ({9: 0, 1: 1}, "got a class for output 9"),
        ("most", "must give each of the 6 outputs a class 0, 1, …, got str"),
    ],
)
def test_what_is_no_grouping(classes: Any, message: str) -> None:
    model, data = language_model()
    with pytest.raises(cs.CurvescopeError, match=message):
        class_structure(cs.Problem(model, data), classes=classes)


def test_what_makes_no_sense_at_positions_that_meet() -> None:
    model, data = language_model()
    problem = cs.Problem(model, data)
    with pytest.raises(
        cs.CurvescopeError, match=r"the 4 labels of a sample meet at layer 'attend'.*class then"
    ):
        layer_statistics(problem, layers=["attend", "head"])
    with pytest.raises(cs.CurvescopeError, match="needs one class label for each sample"):
        layer_approximations(problem, layers="head", generator=torch.Generator())
    with pytest.raises(cs.CurvescopeError, match="k must be smaller than the 6 outputs"):
        frequent_classes(problem, VOCABULARY)
