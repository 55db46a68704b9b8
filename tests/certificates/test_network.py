"""The stochastic network: local noise has the distribution that drawn weights would give."""

import pytest
import torch
from torch import Tensor, nn

from curvescope.certificates.bases import Bases
from curvescope.certificates.blocks import Layout
from curvescope.certificates.losses import error_rate, margins, surrogate
from curvescope.certificates.network import StochasticNetwork
from curvescope.certificates.posterior import Posterior
from curvescope.errors import ModelError
from tests.certificates.models import blobs, convnet, mlp, normal, random_bases, state_of


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rotated", [True, False])
def test_one_layer_s_output_has_the_exact_covariance(bias: bool, rotated: bool, generator) -> None:
    """Feeding unit vectors as noise reads off a root of the covariance, no sampling needed."""
    model = nn.Linear(3, 4, bias=bias).double()
    layout = Layout.of(model)
    bases, x = random_bases(layout, generator), normal(3, generator)
    mean, sigma = layout.flatten(state_of(model)), normal(layout.size, generator).exp()
    network = StochasticNetwork(model, layout, x[None])
    assert network.independent
    given = bases.rotate(mean) if rotated else mean
    silence = torch.zeros(4).double()
    still = network(x[None], given, sigma, bases, silence, rotated=rotated)
    torch.testing.assert_close(still, model(x[None]))
    units = torch.eye(4).double()
    root = torch.stack(
        [network(x[None], given, sigma, bases, e, rotated=rotated)[0] - still[0] for e in units], 1
    )
    pair = bases.pairs[0]
    assert pair is not None
    extended = torch.cat([x, torch.ones(1).double()]) if bias else x
    Q = torch.kron(*pair)
    apply = torch.kron(torch.eye(4).double(), extended[None])  # vec(W) -> W x
    covariance = apply @ Q @ sigma.square().diag() @ Q.T @ apply.T
    torch.testing.assert_close(root @ root.T, covariance)


@pytest.mark.parametrize("make", [lambda: mlp(5, 4, 3), lambda: convnet()], ids=["mlp", "convnet"])
@pytest.mark.parametrize("rotated", [True, False])
def test_shared_noise_is_a_draw_of_the_weights(make, rotated: bool, generator) -> None:
    model = make()
    x = normal(6 * 36, generator).view(6, 1, 6, 6) if len(model) == 5 else blobs(6, generator)[0]
    layout = Layout.of(model)
    bases, mean = random_bases(layout, generator), layout.flatten(state_of(model))
    sigma, noise = normal(layout.size, generator).exp(), normal(layout.size, generator)
    network = StochasticNetwork(model, layout, x, local=False)
    assert network.noise_size(6) == layout.size
    assert not network.independent
    given = bases.rotate(mean) if rotated else mean
    ours = network(x, given, sigma, bases, noise, rotated=rotated)
    posterior = Posterior(mean, mean, sigma.square(), bases, mean)
    weights = layout.state(posterior.sample(noise))
    torch.testing.assert_close(ours, torch.func.functional_call(model, weights, (x,)))


def test_local_and_shared_noise_agree_in_the_error(generator) -> None:
    """The error of a two-layer network under both schemes, within four standard errors."""
    model = mlp(5, 6, 1)
    X, y = blobs(40, generator)
    layout = Layout.of(model)
    bases, mean = random_bases(layout, generator), layout.flatten(state_of(model))
    sigma = torch.full((layout.size,), 0.4).double()
    local = StochasticNetwork(model, layout, X)
    shared = StochasticNetwork(model, layout, X, local=False)
    draws = 400
    errors = [
        torch.stack(
            [
                error_rate(net(X, mean, sigma, bases, normal(net.noise_size(40), generator)), y)
                for _ in range(draws)
            ]
        )
        for net in (local, shared)
    ]
    # Shared draws: one mean per set of weights; local ones: all independent.
    spread = errors[1].mean(1).std() / draws**0.5 + errors[0].std() / (40 * draws) ** 0.5
    assert abs(errors[0].mean() - errors[1].mean()) <= 4 * spread
    assert errors[0].mean() > 0.05  # the noise does something


def test_gradients_of_both_schemes(generator) -> None:
    model = mlp(5, 3, 1)
    X, y = blobs(7, generator)
    layout = Layout.of(model)
    bases = random_bases(layout, generator)
    mean = layout.flatten(state_of(model)).requires_grad_()
    rho = (0.3 * normal(layout.size, generator)).requires_grad_()
    for local in (True, False):
        network = StochasticNetwork(model, layout, X, local=local)
        noise = normal(network.noise_size(7), generator)

        def value(m: Tensor, r: Tensor, network=network, noise=noise) -> Tensor:
            z = network(X, m, r.exp(), bases, noise, rotated=True)
            return surrogate(z, y, kind="sigmoid", temperature=0.7)

        assert torch.autograd.gradcheck(value, (mean, rho))


def test_the_last_layer_s_noise_is_integrated_out(generator) -> None:
    """One linear layer: Φ(−margin/deviation), whatever the noise; two: the mean over draws."""
    single = nn.Linear(5, 1).double()
    X, y = blobs(40, generator)
    layout = Layout.of(single)
    bases, mean = random_bases(layout, generator), layout.flatten(state_of(single))
    sigma = normal(layout.size, generator).exp()
    network = StochasticNetwork(single, layout, X)
    assert network.integrable
    z = network(X, mean, sigma, bases, normal(network.noise_size(40), generator))
    extended = torch.cat([X, torch.ones(40, 1).double()], 1)
    pair = bases.pairs[0]
    assert pair is not None
    deviation = ((extended @ pair[1]).square() @ sigma.square()).sqrt()
    exact = torch.special.ndtr(-(extended @ mean) * (2 * y - 1) / deviation).mean()
    torch.testing.assert_close(network.expected_error(z, y), exact)

    deep = mlp(5, 6, 1)
    layout = Layout.of(deep)
    bases, mean = random_bases(layout, generator), layout.flatten(state_of(deep))
    sigma = torch.full((layout.size,), 0.4).double()
    network = StochasticNetwork(deep, layout, X)
    integrated, counted = [], []
    for _ in range(300):
        z = network(X, mean, sigma, bases, normal(network.noise_size(40), generator))
        integrated.append(network.expected_error(z, y))
        counted.append(error_rate(z, y).mean())
        network.release()
    gap = torch.stack(integrated).mean() - torch.stack(counted).mean()
    assert abs(gap) <= 4 * 0.5 / (40 * 300) ** 0.5
    assert torch.stack(integrated).std() < torch.stack(counted).std()


def test_only_one_output_of_the_last_layer_can_be_integrated(generator) -> None:
    X = blobs(4, generator)[0]
    doubled = nn.Sequential(nn.Linear(5, 1), nn.Softplus()).double()
    for model in (mlp(5, 4, 3), doubled):
        assert not StochasticNetwork(model, Layout.of(model), X).integrable
    bent = nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)).double()
    assert StochasticNetwork(bent, Layout.of(bent), X).integrable


class Twice(nn.Module):
    """Uses one layer twice and another along a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.along, self.once = nn.Linear(4, 4), nn.Linear(2, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.again(torch.relu(self.again(x))))
        return self.once(self.along(x.view(-1, 2, 2)).flatten(1))


def test_only_layers_used_once_on_vectors_are_local(generator) -> None:
    model = Twice().double()
    x = normal(20, generator).view(5, 4)
    layout = Layout.of(model)
    network = StochasticNetwork(model, layout, x)
    assert not network.independent
    assert network.noise_size(5) == (16 + 4) + (4 + 2) + 5 * 3
    mean = layout.flatten(state_of(model))
    silence = torch.zeros(network.noise_size(5)).double()
    z = network(x, mean, 0 * mean, Bases.standard(layout), silence)
    torch.testing.assert_close(z, model(x))


def test_a_frozen_bias_stays_a_constant(generator) -> None:
    model = mlp(5, 3, 1)
    model[0].bias.requires_grad_(False)
    X, _ = blobs(4, generator)
    layout = Layout.of(model)
    network = StochasticNetwork(model, layout, X)
    mean = layout.flatten(state_of(model))
    silence = torch.zeros(network.noise_size(4)).double()
    z = network(X, mean, 0 * mean, random_bases(layout, generator), silence)
    torch.testing.assert_close(z, model(X))


def test_the_model_is_left_alone(generator) -> None:
    model = mlp(5, 3, 1).train()
    before = state_of(model)
    StochasticNetwork(model, Layout.of(model), blobs(4, generator)[0])
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert isinstance(model[0], nn.Linear)
    assert all(torch.equal(before[n], v) for n, v in model.state_dict().items())


class Peeks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + 0 * self.fc.weight.sum()


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + torch.rand(len(x), 1)


def batch_statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 1), nn.BatchNorm1d(1, track_running_stats=False))


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (batch_statistics(), "depend on the rest of its batch"),
        (Peeks(), "looks into a layer"),
        (Random(), "must not depend on the rest"),
        (nn.Sequential(nn.Linear(5, 4), nn.Unflatten(1, (2, 2))), r"got \[4, 2, 2\]"),
    ],
)
def test_models_that_are_no_function_of_their_weights_are_refused(model, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        StochasticNetwork(model, Layout.of(model), torch.randn(4, 5))


def test_errors_margins_and_surrogates() -> None:
    z, y = (
        torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 1.5, 0.5]]),
        torch.tensor([0, 1, 2]),
    )
    assert error_rate(z, y).tolist() == [0.0, 0.0, 1.0]
    assert margins(z, y).tolist() == [1.0, 2.0, -1.0]
    nan = torch.tensor([[float("nan"), 1.0]])
    assert error_rate(nan, torch.tensor([1])).tolist() == [1.0]
    assert error_rate(nan[:, :1], torch.tensor([0])).tolist() == [1.0]
    # The logistic surrogate bounds the error; the sigmoid tends to it.
    assert surrogate(z, y, kind="logistic", temperature=1.0) >= error_rate(z, y).mean()
    entropy = surrogate(z, y, kind="cross_entropy", temperature=1.0)
    torch.testing.assert_close(entropy, torch.nn.functional.cross_entropy(z, y))
    cold = surrogate(z, y, kind="sigmoid", temperature=1e-3)
    torch.testing.assert_close(cold, error_rate(z, y).mean())
    one = torch.tensor([[1.0], [-2.0]])
    two = torch.cat([torch.zeros(2, 1), one], 1)  # the same as a softmax over two outputs
    labels = torch.tensor([1, 1])
    for kind in ("cross_entropy", "logistic", "sigmoid"):
        torch.testing.assert_close(
            surrogate(one, labels, kind=kind, temperature=2.0),
            surrogate(two, labels, kind=kind, temperature=2.0),
        )
