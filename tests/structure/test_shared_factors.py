"""Kronecker factors of layers of every kind, in both conventions of weight sharing."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs
from curvescope.layers import LookupKind, ScaleKind, kind_of
from curvescope.structure.autocorrelation import autocorrelation_structure
from curvescope.structure.factors import kronecker_factors
from curvescope.structure.layer_comparison import compare_layer
from curvescope.structure.layer_pairs import layer_eigenpairs
from tests.cases import convert
from tests.conformance import assert_relative
from tests.reference.curvature import Reference
from tests.reference.losses import CrossEntropy
from tests.tolerances import EXACT, STANDARD_ERRORS
from tests.transformers_of_ours import LAYERS, channels_last_vision, made

RTOL = EXACT[torch.float64]


def moments_of_a_sample(model: nn.Module, x: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """``x_t: [T, n]`` (one-hot for a table) and ``e: [terms · C, T, m]`` of the definition."""
    module = model.get_submodule(layer)
    kind = kind_of(module)
    seen: dict[str, Tensor] = {}

    def note(_: nn.Module, args: Any, y: Tensor) -> None:
        seen.update(x=args[0].detach(), y=y)

    handle = module.register_forward_hook(note)
    z = model(x[None])[0]
    handle.remove()
    errors = []
    for row in z.reshape(-1, z.shape[-1]):
        p = torch.softmax(row.detach(), -1)
        for q in p.sqrt()[:, None] * (torch.eye(len(p)).double() - p):  # DH eq. 28
            (e,) = torch.autograd.grad(row @ q, seen["y"], retain_graph=True)
            errors.append(e[0])
    e, inputs = torch.stack(errors), seen["x"][0]
    channels_second = layer == "groups" or (layer == "norm" and e.ndim == 4)
    if channels_second:
        e, inputs = e.movedim(1, -1), inputs.movedim(0, -1)
    e = e.reshape(len(e), -1, e.shape[-1])
    if isinstance(kind, LookupKind):
        hot = F.one_hot(inputs.flatten(), len(module.weight)).double()
        if module.padding_idx is not None:
            hot[:, module.padding_idx] = 0.0
        return hot, e
    if isinstance(kind, ScaleKind):
        bare = copy.deepcopy(module)
        with torch.no_grad():
            bare.weight.fill_(0.0 if getattr(module, "plus", 0.0) else 1.0)
            if getattr(module, "bias", None) is not None:
                bare.bias.zero_()
            hat = bare(seen["x"])[0]
        hat = hat.movedim(0, -1) if channels_second else hat
        e = e * hat.reshape(1, -1, e.shape[-1])
        return torch.ones(e.shape[1], 1).double(), e
    return inputs.reshape(-1, inputs.shape[-1]), e


def reference_factors(
    model: nn.Module, data: Any, layer: str, sharing: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Eschenhagen et al. 2023, one sample and one direction at a time."""
    M = A = mean = 0
    samples = terms = 0
    for inputs, targets in data:
        for x in inputs:
            rows, e = moments_of_a_sample(model, x, layer)
            T = len(rows)
            if sharing == "expand":
                M = M + torch.einsum("kta,ktb->ab", e, e) / T
                A, mean = A + rows.T @ rows, mean + rows.T
            else:
                summed, average = e.sum(1), rows.mean(0)
                M, A, mean = (
                    M + summed.T @ summed,
                    A + torch.outer(average, average),
                    mean + average,
                )
        samples, terms = samples + len(inputs), terms + targets.numel()
    return M / terms, A / samples, mean / samples


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("pooled", [True, False])
def test_every_kind_in_both_conventions(pooled: bool, sharing: str) -> None:
    model, data = made(pooled=pooled)
    factors = kronecker_factors(cs.Problem(model, data), sharing=sharing)
    assert tuple(factors) == LAYERS
    for layer, ours in factors.items():
        table = layer in ("tokens", "places")
        assert ours.sharing == ("expand" if table else sharing)
        M, A, mean = reference_factors(model, data, layer, ours.sharing)
        assert_relative(ours.output_hessian, M, rtol=RTOL, what=f"E[M] of {layer}")
        if table:
            assert ours.autocorrelation.ndim == 1
            assert torch.equal(A, torch.diag(A.diagonal()))
            A = A.diagonal()
        assert_relative(ours.autocorrelation, A, rtol=RTOL, what=f"E[x xᵀ] of {layer}")
        assert_relative(
            ours.mean_input, mean.reshape(ours.mean_input.shape), rtol=RTOL, what=f"E[x] of {layer}"
        )


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_a_bias_is_one_more_input(sharing: str) -> None:
    model, data = made(pooled=True)
    problem = cs.Problem(model, data)
    plain = kronecker_factors(problem, sharing=sharing)
    extended = kronecker_factors(problem, sharing=sharing, bias=True)
    for layer in ("attend", "out", "down", "head"):
        a, b = plain[layer], extended[layer]
        positions = 1.0 if sharing == "reduce" or layer == "head" else 4.0
        mean = a.mean_input if a.mean_input.ndim == 1 else a.mean_input.sum(1)
        assert_relative(b.output_hessian, a.output_hessian, rtol=RTOL, what="E[M]")
        assert_relative(b.autocorrelation[:-1, :-1], a.autocorrelation, rtol=RTOL, what="E[x xᵀ]")
        assert_relative(b.autocorrelation[-1, :-1], mean, rtol=RTOL, what="E[x]")
        assert float(b.autocorrelation[-1, -1]) == pytest.approx(positions)


def test_channels_second() -> None:
    model, data = channels_last_vision()
    for sharing in ("expand", "reduce"):
        factors = kronecker_factors(cs.Problem(model, data), layers=["norm"], sharing=sharing)
        M, A, _ = reference_factors(model, data, "norm", sharing)
        assert_relative(factors["norm"].output_hessian, M, rtol=RTOL, what="E[M]")
        assert_relative(factors["norm"].autocorrelation, A, rtol=RTOL, what="E[x xᵀ]")


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_linear_layers_against_curvlinops(sharing: str) -> None:
    from curvlinops import KFACLinearOperator

    model, data = made(pooled=True)
    layers = ["out", "down", "head"]
    ours = kronecker_factors(cs.Problem(model, data), layers=layers, sharing=sharing)
    for layer in layers:
        weight = model.get_submodule(layer).weight
        theirs = KFACLinearOperator(
            model, nn.CrossEntropyLoss(), [weight], data, fisher_type="type-2",
            kfac_approx=sharing, check_deterministic=False,
        )  # fmt: skip
        dense = theirs @ torch.eye(weight.numel()).double()
        assert_relative(ours[layer].operator().dense(), dense, rtol=RTOL, what=layer)


def test_reduced_scales_are_their_blocks() -> None:
    """A scale has no inputs: summed over positions, the product is the block itself."""
    model, data = made(pooled=True)
    reference = Reference(model, data, CrossEntropy())
    G = reference.gauss_newton()
    problem = cs.Problem(model, data)
    plain = kronecker_factors(problem, sharing="reduce")
    both = kronecker_factors(problem, sharing="reduce", bias=True)
    for layer in ("ln", "rms", "groups", "final"):
        indices = reference.indices([f"{layer}.weight"])
        block = G[indices][:, indices]
        assert_relative(plain[layer].operator().dense(), block, rtol=RTOL, what=layer)
    for layer in ("ln", "groups"):
        indices = reference.indices([f"{layer}.weight", f"{layer}.bias"])
        block = G[indices][:, indices]
        assert_relative(both[layer].operator().dense(), block, rtol=RTOL, what=layer)
        assert both[layer].bias
    assert not both["tokens"].bias  # a table has none


def test_the_product_is_exact_where_a_position_is_a_sample() -> None:
    """One sample and position: the block is the product, in either convention."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3), nn.LayerNorm(3), nn.Linear(3, 4)).double()
    data = [(torch.tensor([[2]]), torch.tensor([[1]]))]
    problem = cs.Problem(model, data)
    for sharing in ("expand", "reduce"):
        for layer, factors in kronecker_factors(problem, sharing=sharing).items():
            dense = cs.GaussNewton(problem).block(f"{layer}.weight").dense()
            assert_relative(factors.operator().dense(), dense, rtol=RTOL, what=layer)


def test_both_uses_of_a_tied_weight() -> None:
    model, data = made(pooled=False, tied=True)
    tied = kronecker_factors(cs.Problem(model, data))
    untied_model = copy.deepcopy(model)
    untied_model.head.weight = nn.Parameter(untied_model.head.weight.detach().clone())
    untied = kronecker_factors(cs.Problem(untied_model, data))
    assert tied["tokens"].tied == ("head.weight",)
    assert tied["head"].tied == ("tokens.weight",)
    assert untied["head"].tied == ()
    for layer in untied:
        assert_relative(
            tied[layer].output_hessian, untied[layer].output_hessian, rtol=RTOL, what=layer
        )
        assert_relative(
            tied[layer].autocorrelation, untied[layer].autocorrelation, rtol=RTOL, what=layer
        )
    size = model.tokens.weight.numel()
    sums = tied["tokens"].operator() + tied["head"].operator()  # on the one weight
    assert sums.shape == (size, size)


def test_drawn_labels_agree_on_average() -> None:
    model, data = made(pooled=False)
    problem = cs.Problem(model, data)
    exact = kronecker_factors(problem, layers=["up", "final"])
    for layer, factors in exact.items():
        expected = float(factors.output_hessian.diagonal().sum())
        found = []
        for seed in range(40):
            g = torch.Generator().manual_seed(seed)
            drawn = kronecker_factors(problem, layers=[layer], draws=4, generator=g)[layer]
            assert drawn.draws == 4
            found.append(float(drawn.output_hessian.diagonal().sum()))
        values = torch.tensor(found)
        error = float(values.std() / len(values) ** 0.5)
        assert abs(float(values.mean()) - expected) <= STANDARD_ERRORS * error
        torch.testing.assert_close(drawn.autocorrelation, factors.autocorrelation)
    repeated = [
        kronecker_factors(problem, draws=1, generator=torch.Generator().manual_seed(3))["up"]
        for _ in range(2)
    ]
    assert torch.equal(repeated[0].output_hessian, repeated[1].output_hessian)


class Averaged(nn.Module):
    """A linear layer at positions whose number depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.fc(x)).sum(1)


def test_lengths_may_differ_between_batches() -> None:
    """The factors are those of all samples, with the mean number of positions."""
    torch.manual_seed(1)
    model = Averaged().double()
    data = convert([(torch.randn(2, t, 4), torch.tensor([0, 2])) for t in (2, 5, 3)], torch.float64)
    ours = kronecker_factors(cs.Problem(model, data))["fc"]
    parts = [kronecker_factors(cs.Problem(model, [batch]))["fc"] for batch in data]
    positions = [2, 5, 3]
    sums = [p.output_hessian * t for p, t in zip(parts, positions, strict=True)]
    torch.testing.assert_close(ours.output_hessian, sum(sums) / 10)  # type: ignore[operator]
    torch.testing.assert_close(ours.autocorrelation, sum(p.autocorrelation for p in parts) / 3)
    assert ours.mean_input.shape == (4, 5)
    torch.testing.assert_close(ours.mean_input.sum(1), sum(p.mean_input.sum(1) for p in parts) / 3)
    extended = kronecker_factors(cs.Problem(model, data), bias=True)["fc"]
    assert float(extended.autocorrelation[-1, -1]) == pytest.approx(10 / 3)


def test_all_of_the_layers_theory_runs_on_an_embedding() -> None:
    """With the diagonal as with the matrix that it stands for."""
    model, data = made(pooled=True)
    problem = cs.Problem(model, data)
    for layer in ("tokens", "places", "attend", "ln"):
        factors = kronecker_factors(problem, layers=layer)[layer]
        g = torch.Generator().manual_seed(0)
        pairs = layer_eigenpairs(
            cs.GaussNewton(problem).block(f"{layer}.weight"), 3, tol=1e-9, generator=g
        )
        ours = compare_layer(factors, pairs)
        assert all(bool(c.isfinite().all()) for c in ours.correspondences.values())
        if factors.autocorrelation.ndim == 1:
            full = replace(factors, autocorrelation=torch.diag(factors.autocorrelation))
            dense = compare_layer(full, pairs)
            torch.testing.assert_close(ours.approximate, dense.approximate)
            if len(factors.autocorrelation.unique()) == len(factors.autocorrelation):
                torch.testing.assert_close(ours.overlap, dense.overlap)  # else of many bases one
            a, b = autocorrelation_structure(factors), autocorrelation_structure(full)
            assert a.spectral_ratio == pytest.approx(b.spectral_ratio, rel=1e-12)
            assert a.dominance == pytest.approx(b.dominance, rel=1e-10)
            if layer == "tokens":  # all places are equally frequent
                assert a.alignment == pytest.approx(b.alignment, abs=1e-12)


def test_classes_of_samples() -> None:
    model, data = made(pooled=True)
    problem = cs.Problem(model, data)
    for sharing in ("expand", "reduce"):
        whole = kronecker_factors(problem, sharing=sharing)
        split = kronecker_factors(problem, sharing=sharing, by_class=True)
        for layer in LAYERS:
            parts = split[layer].classes
            mean = sum(part.share * part.output_hessian for part in parts)
            assert_relative(mean, whole[layer].output_hessian, rtol=RTOL, what=layer)
            mean = sum(part.share * part.autocorrelation for part in parts)
            assert_relative(mean, whole[layer].autocorrelation, rtol=RTOL, what=layer)


def test_a_vocabulary_that_is_too_large_to_square() -> None:
    """One number for each token, never a matrix of them: 40,000² would take 6 GB."""

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(40_000, 2), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.table(x).mean(1)))

    torch.manual_seed(0)
    x = torch.randint(40_000, (6, 3))
    problem = cs.Problem(Bag(), [(x, torch.arange(6) % 3)])
    factors = kronecker_factors(problem, layers="table")["table"]
    assert factors.autocorrelation.shape == (40_000,)
    assert autocorrelation_structure(factors).dominance > 0
    G = cs.GaussNewton(problem, keep=True).block("table")
    g = torch.Generator().manual_seed(0)
    top = layer_eigenpairs(G, 2, tol=1e-5, generator=g)
    assert compare_layer(factors, top).correspondences["true input"].shape == (40, 2)
