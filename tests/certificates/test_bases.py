"""Layouts and bases against dense matrices."""

import pytest
import torch
from torch import nn

from curvescope.certificates.bases import Bases, Eigenbases
from curvescope.certificates.blocks import Layout
from curvescope.certificates.curvature import CurvatureBases
from curvescope.certificates.posterior import Posterior
from curvescope.errors import CurvescopeError, ModelError
from tests.certificates.models import blobs, convnet, mlp, normal, random_bases, state_of


def dense(bases: Bases, block: int) -> torch.Tensor:
    """The columns of ``U ⊗ V``: the basis of one block in its row-major coordinates."""
    pair = bases.pairs[block]
    assert pair is not None
    return torch.kron(pair[0], pair[1])


def test_a_layout_holds_every_trainable_parameter_once() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))
    model[3].bias.requires_grad_(False)
    layout = Layout.of(model)
    assert [(b.name, b.rows, b.columns, b.layer) for b in layout.blocks] == [
        ("0", 3, 19, True),
        ("1.weight", 1, 3, False),
        ("1.bias", 1, 3, False),
        ("3", 4, 12, True),
    ]
    assert layout.size == sum(p.numel() for p in model.parameters() if p.requires_grad)
    state = layout.state(layout.flatten(model.state_dict()))
    assert set(state) == {n for n, p in model.named_parameters() if p.requires_grad}
    assert all(torch.equal(state[n], p) for n, p in model.named_parameters() if p.requires_grad)


def test_tied_and_grouped_layers_keep_the_standard_basis() -> None:
    model = nn.ModuleDict(
        {"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "c": nn.Conv1d(4, 4, 1, groups=2)}
    )
    model["b"].weight = model["a"].weight
    assert not any(block.layer for block in Layout.of(model).blocks)


def test_missing_and_misshapen_weights_are_refused() -> None:
    layout = Layout.of(nn.Linear(2, 1))
    with pytest.raises(CurvescopeError, match=r"'bias' of shape \[1\], got nothing"):
        layout.flatten({"weight": torch.zeros(1, 2)})
    with pytest.raises(CurvescopeError, match=r"'weight' of shape \[1, 2\], got \[2, 2\]"):
        layout.flatten({"weight": torch.zeros(2, 2), "bias": torch.zeros(1)})
    with pytest.raises(CurvescopeError, match="nothing to certify"):
        Layout.of(nn.Linear(1, 1).requires_grad_(False))


def test_rotating_is_multiplication_by_the_kronecker_basis(generator) -> None:
    layout = Layout.of(mlp(3, 4, 2))
    bases, flat = random_bases(layout, generator), normal(layout.size, generator)
    torch.testing.assert_close(bases.restore(bases.rotate(flat)), flat)
    pieces = zip(flat.split(layout.sizes), bases.rotate(flat).split(layout.sizes), strict=True)
    for i, (before, after) in enumerate(pieces):
        torch.testing.assert_close(after, dense(bases, i).T @ before)


def test_variances_follow_the_diagonal_of_the_covariance(generator) -> None:
    layout = Layout.of(mlp(3, 4, 2))
    old, new = random_bases(layout, generator), random_bases(layout, generator)
    s = normal(layout.size, generator).exp()
    for before, after in ((old, new), (Bases.standard(layout), new), (old, Bases.standard(layout))):
        carried = after.carry(s, before).split(layout.sizes)
        for i, piece in enumerate(s.split(layout.sizes)):
            B = torch.eye(len(piece)).double() if before.pairs[i] is None else dense(before, i)
            A = torch.eye(len(piece)).double() if after.pairs[i] is None else dense(after, i)
            covariance = A.T @ B @ torch.diag(piece) @ B.T @ A
            torch.testing.assert_close(carried[i], covariance.diagonal())
    torch.testing.assert_close(new.carry(s, new), s)


def test_eigenbases_diagonalize_the_kronecker_product(generator) -> None:
    layout = Layout.of(nn.Linear(3, 2).double())
    roots = [torch.randn(n, n, generator=generator, dtype=torch.float64) for n in (2, 4)]
    A, B = (root @ root.T for root in roots)
    bases, values = Eigenbases(layout)([(A, B)], like=A.new_zeros(1))
    Q = dense(bases, 0)
    torch.testing.assert_close(Q.T @ torch.kron(A, B) @ Q, torch.diag(values))
    matrix = values.view(2, 4)
    assert (matrix.diff(dim=0) <= 0).all()
    assert (matrix.diff(dim=1) <= 0).all()


def test_an_unchanged_factor_is_not_decomposed_again(monkeypatch, generator) -> None:
    layout = Layout.of(nn.Linear(3, 2, bias=False).double())
    decompose, calls = torch.linalg.eigh, []
    monkeypatch.setattr(torch.linalg, "eigh", lambda m: calls.append(len(m)) or decompose(m))
    again = Eigenbases(layout)
    A, B = torch.eye(2).double(), torch.eye(3).double()
    again([(A, B)], like=A)
    again([(2 * A, B)], like=A)
    assert calls == [2, 3, 2]


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_bases_of_a_network_diagonalize_its_factors(outputs: int, generator) -> None:
    """``E[M]`` and ``E[x̃x̃ᵀ]`` of a two-layer network by hand."""
    model = mlp(5, 4, outputs)
    X, y = blobs(60, generator, max(outputs, 2))
    layout = Layout.of(model)
    bases, curvature = CurvatureBases(model, layout, (X, y))(layout.flatten(state_of(model)))
    with torch.no_grad():
        h = torch.relu(model[0](X))
        z = model[2](h)
        p = torch.sigmoid(z) if outputs == 1 else torch.softmax(z, 1)
        W = model[2].weight
        second = torch.zeros(outputs, outputs).double()
        first = torch.zeros(4, 4).double()
        for pi, hi in zip(p, h, strict=True):
            A = (pi * (1 - pi)).reshape(1, 1) if outputs == 1 else pi.diag() - torch.outer(pi, pi)
            D = W * (hi > 0)
            second += A / len(X)
            first += D.T @ A @ D / len(X)
    ones = torch.ones(len(X), 1).double()
    inputs = [torch.cat([t, ones], 1) for t in (X, h)]
    for i, (M, x) in enumerate(zip((first, second), inputs, strict=True)):
        Q, full = dense(bases, i), torch.kron(M, x.T @ x / len(x))
        values = curvature.split(layout.sizes)[i]
        torch.testing.assert_close(Q.T @ full @ Q, torch.diag(values), atol=1e-9, rtol=1e-7)


def test_the_closed_form_is_that_of_the_paper(generator) -> None:
    """DH eq. 56: ``4^{−(L−p)} Sᵀ A S`` with the weights behind the layer."""
    model = mlp(5, 4, 3, 3)
    X, y = blobs(60, generator, 3)
    layout = Layout.of(model)
    flat = layout.flatten(state_of(model))
    bases, curvature = CurvatureBases(model, layout, (X, y), closed=True)(flat)
    with torch.no_grad():
        p = torch.softmax(model(X), 1)
    A = p.mean(0).diag() - p.T @ p / len(p)
    S = model[4].weight.detach() @ model[2].weight.detach()
    M = S.T @ A @ S / 16
    pair = bases.pairs[0]
    assert pair is not None
    rotated = pair[0].T @ M @ pair[0]
    torch.testing.assert_close(rotated, rotated.diagonal().diag(), atol=1e-12, rtol=0)
    top = curvature.view(-1)[0]
    inputs = torch.cat([X, torch.ones(60, 1).double()], 1)
    expected = torch.linalg.eigvalsh(M)[-1] * torch.linalg.eigvalsh(inputs.T @ inputs / 60)[-1]
    torch.testing.assert_close(top, expected)


def test_the_closed_form_needs_a_chain(generator) -> None:
    model = convnet()
    data = (torch.zeros(4, 1, 6, 6).double(), torch.tensor([0, 1, 2, 0]))
    with pytest.raises(ModelError, match="chain of trainable linear layers"):
        CurvatureBases(model, Layout.of(model), data, closed=True)


def test_the_divergence_is_that_of_the_full_gaussian(generator) -> None:
    layout = Layout.of(nn.Linear(3, 2).double())
    bases = random_bases(layout, generator)
    mean, center = normal(8, generator), normal(8, generator)
    s = normal(8, generator).exp()
    posterior = Posterior(mean, center, s, bases, torch.zeros(8))
    Q = dense(bases, 0)
    full = torch.distributions.MultivariateNormal(mean, Q @ s.diag() @ Q.T)
    prior = torch.distributions.MultivariateNormal(center, 0.3 * torch.eye(8).double())
    expected = torch.distributions.kl_divergence(full, prior).item()
    assert posterior.kl(0, 0.3) == pytest.approx(expected, rel=1e-10)


def test_a_rounded_basis_costs_a_little_divergence_and_a_wrong_one_is_refused(generator) -> None:
    layout = Layout.of(nn.Linear(20, 10).double())
    bases, flat = random_bases(layout, generator), normal(210, generator)
    s = normal(210, generator).exp()
    exact = Posterior(flat, 0 * flat, s, bases, 0 * flat)
    rounded = Posterior(flat, 0 * flat, s, bases.to("cpu", torch.float32), 0 * flat)
    Q = dense(rounded.bases, 0).double()
    full = torch.distributions.MultivariateNormal(flat, Q @ s.diag() @ Q.T)
    prior = torch.distributions.MultivariateNormal(0 * flat, torch.eye(210).double())
    truth = torch.distributions.kl_divergence(full, prior).item()
    assert truth <= rounded.kl(0, 1.0) <= exact.kl(0, 1.0) + 0.01
    pair = bases.pairs[0]
    assert pair is not None
    wrong = Posterior(flat, flat, s, Bases(layout, ((2 * pair[0], pair[1]),)), flat)
    with pytest.raises(CurvescopeError, match="not orthonormal"):
        wrong.kl(0, 1.0)


def test_a_posterior_survives_its_tensors(generator) -> None:
    layout = Layout.of(mlp(3, 4, 1))
    flat = [normal(layout.size, generator) for _ in range(4)]
    bases = random_bases(layout, generator)
    posterior = Posterior(flat[0], flat[1], flat[2].exp(), bases, flat[3])
    back = Posterior.from_tensors(layout, posterior.tensors())
    noise = normal(layout.size, generator)
    torch.testing.assert_close(back.sample(noise), posterior.sample(noise), rtol=0, atol=0)
    broken = {**posterior.tensors(), "mean": torch.zeros(3)}
    with pytest.raises(CurvescopeError, match="variance and curvature of 21 numbers"):
        Posterior.from_tensors(layout, broken)
    twisted = {**posterior.tensors(), "0.U": torch.eye(2)}
    with pytest.raises(CurvescopeError, match="a pair U, V for each basis"):
        Posterior.from_tensors(layout, twisted)


def test_directions_without_curvature_keep_their_basis(generator) -> None:
    """Two slightly different factors of rank 1: the null space's basis hardly turns."""
    layout = Layout.of(nn.Linear(2, 6, bias=False).double())
    a = normal(6, generator)
    turned = a + 1e-3 * normal(6, generator)
    B = torch.diag(torch.tensor([2.0, 1.0]).double())
    again = Eigenbases(layout)
    first, _ = again([(torch.outer(a, a), B)], like=B)
    second, values = again([(torch.outer(turned, turned), B)], like=B)
    assert first.pairs[0] is not None
    assert second.pairs[0] is not None
    U, V = first.pairs[0][0], second.pairs[0][0]
    torch.testing.assert_close(V.T @ V, torch.eye(6).double())
    apart = U[:, 1:].abs().max(0).values  # beside the one vector, close to the units themselves
    assert (apart > 0.5).all()
    assert (U - V).abs().max() < 0.01
    torch.testing.assert_close(V[:, 0].abs(), turned.abs() / turned.norm())
    torch.testing.assert_close(values[0], 2 * turned @ turned)
