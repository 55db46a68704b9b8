"""The share of eigenvalues at zero: measured (FF App. D) and bounded (FF §3.2).

References:
    FF: Granziol (2020), *Flatness is a False Friend*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from curvescope import _checks
from curvescope._state import held
from curvescope.errors import CurvescopeError
from curvescope.layers import registered, watched_calls
from curvescope.spectra.estimate import Estimate, Samples
from curvescope.spectra.measure import SpectralMeasure


@dataclass(frozen=True)
class RankDegeneracy:
    """The mass of the Ritz value nearest zero, and of the two nearest together.

    ``nearest`` and ``pair`` are shares of the dimension (FF's "degeneracy"); ``nearest_value`` and
    ``pair_value`` are the positions of these masses, the second a weighted mean. The pair is the
    remedy of FF App. D for an indefinite spectrum, whose mass at zero splits between two of them.
    """

    nearest: Estimate[float]
    nearest_value: float
    pair: Estimate[float]
    pair_value: float


def rank_degeneracy(measure: SpectralMeasure) -> RankDegeneracy:
    """The spectral mass at zero, read off a quadrature, averaged over its probes (FF App. D).

    ``1 − nearest.value`` times the dimension is the rank that the probes see. The papers take 100
    steps; with more of them the mass may split among several Ritz values.

    >>> from curvescope.operators.simple import Diagonal
    >>> from curvescope.spectra.measure import spectral_measure
    >>> A = Diagonal(torch.cat([torch.zeros(900), torch.linspace(1, 2, 100)]).double())
    >>> measure = spectral_measure(A, steps=20, generator=torch.Generator().manual_seed(0))
    >>> abs(rank_degeneracy(measure).nearest.value - 0.9) < 0.05
    True
    """
    one, two = Samples(()), Samples(())
    places = torch.zeros(2, 2, dtype=torch.float64)  # mass and mass · value, for one and two
    for nodes, weights in zip(measure.nodes, measure.weights, strict=True):
        theta, mass = without_ghosts(nodes, weights)
        order = torch.argsort(theta.abs(), stable=True)
        for row, (samples, count) in enumerate(((one, 1), (two, 2))):
            chosen = order[:count]
            samples.add(mass[chosen].sum()[None])
            places[row, 0] += mass[chosen].sum()
            places[row, 1] += (mass[chosen] * theta[chosen]).sum()
    values = places[:, 1] / places[:, 0].clamp(min=torch.finfo(torch.float64).tiny)
    return RankDegeneracy(
        one.estimate(measure.products, measure.status),
        float(values[0]),
        two.estimate(measure.products, measure.status),
        float(values[1]),
    )


def without_ghosts(nodes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Ritz values and masses with rounding removed.

    Once a Ritz value has converged, rounding lets copies of it appear: values that agree to 1e-8 of
    the largest are one, and a mass below 1e-12, less than one eigenvalue has, is none.

    >>> without_ghosts(torch.tensor([1.0, 1.0, 3.0]), torch.tensor([0.25, 0.5, 0.25]))[1]
    tensor([0.7500, 0.2500])
    """
    first = torch.ones_like(nodes, dtype=torch.bool)  # nodes ascend
    first[1:] = nodes.diff() > 1e-8 * nodes.abs().max()
    group = torch.cumsum(first, 0) - 1
    mass = torch.zeros(int(group[-1]) + 1, dtype=weights.dtype).index_add_(0, group, weights)
    center = torch.zeros_like(mass).index_add_(0, group, weights * nodes)
    real = mass > 1e-12
    return center[real] / mass[real], mass[real]


def neuron_rank_bound(neurons: Sequence[int], inputs: int, classes: int) -> int:
    """``4 d_y (Σ_l N_l + d_x)``: bound of the rank of one sample's Hessian (Granziol 2020, eq. 11).

    The paper takes it for the Hessian of all samples, whose parts have other directions: in the
    study ``granziol2020/small-networks`` a thousand samples have a rank above it. Its VGG-16 counts
    a neuron per channel and 1024 inputs:

    >>> neuron_rank_bound([13416], inputs=1024, classes=10)
    577600
    """
    where = "neuron_rank_bound(neurons, inputs, classes)"
    classes = _checks.positive_int(where, "classes", classes)
    return 2 * classes * path_rank_bound(neurons, inputs)


def path_rank_bound(neurons: Sequence[int], inputs: int) -> int:
    """``2 (Σ_l N_l + d_x)``: bound of the rank of eq. 10, of one sample and one output.

    Eq. 10 is the second derivative of one output and the outer product of its gradients. The
    gradient for the weights of a layer is ``b aᵀ``, with what comes back to the layer and what goes
    into it; its changes are ``db aᵀ + b daᵀ``, of at most ``N_l + N_{l−1}`` dimensions, and layers
    add up to the bound.

    >>> path_rank_bound([3, 2], inputs=4)
    18
    """
    where = "path_rank_bound(neurons, inputs)"
    counts = [_checks.positive_int(where, "every entry of neurons", n) for n in neurons]
    return 2 * (sum(counts) + _checks.positive_int(where, "inputs", inputs))


def rank_bound(
    model: nn.Module, input_shape: Sequence[int], classes: int, *, count: str = "channels"
) -> int:
    """:func:`neuron_rank_bound` for a model, its neurons counted in one forward pass.

    Every layer of a known kind that the pass reaches counts once: ``count="channels"`` by
    its output features or channels, as FF does; ``"activations"`` by its output entries for one
    sample, which the argument of §3.2 (paths through neurons) needs where weights are shared over
    positions. ``d_x`` is the number of entries of ``input_shape``, without the batch. It is argued
    for plain feed-forward networks and one sample; above the number of parameters it says nothing.
    A module with other weights (a recurrent one, attention with a weight of its own) is refused.

    >>> mlp = nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    >>> rank_bound(mlp, (784,), 10)         # 4 · 10 · (100 + 10 + 784)
    35760
    """
    where = "rank_bound(model, input_shape, classes)"
    _checks.one_of(where, "count", count, ("channels", "activations"))
    shape = [_checks.positive_int(where, "every entry of input_shape", n) for n in input_shape]
    _check_kinds(where, model)
    neurons = _neurons(model, shape, count)
    if not neurons:
        rule = "no linear or convolutional layer was reached"
        raise CurvescopeError(where, rule, remedy="use neuron_rank_bound")
    return neuron_rank_bound(neurons, math.prod(shape), classes)


def _neurons(model: nn.Module, shape: list[int], count: str) -> list[int]:
    """Neurons of every layer that one sample passes, in order; the model is left as it was."""
    layers = {
        name: kind for name, m in model.named_modules() if (kind := registered(m)) is not None
    }
    neurons: dict[str, int] = {}

    def see(name: str, _: Tensor, y: Tensor) -> None:
        neurons[name] = layers[name].neurons(y) if count == "channels" else y.numel()

    parameter = next(model.parameters(), torch.empty(0))
    modules = {name: layer.module for name, layer in layers.items()}
    with held(model, "eval"), torch.no_grad(), watched_calls(modules, see):
        model(torch.zeros(1, *shape, dtype=parameter.dtype, device=parameter.device))
    return list(neurons.values())


def _check_kinds(where: str, model: nn.Module) -> None:
    """Refuse weights whose neurons would not be counted, which would make the bound too small."""
    covered: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if registered(module) is not None:
            covered += (f"{name}." if name else "",)  # what computes its weight lies there
            continue
        matrices = [p for p in module._parameters.values() if p is not None and p.ndim > 1]
        if matrices and not name.startswith(covered):
            raise CurvescopeError(
                where,
                f"the neurons of {name!r} ({type(module).__name__}) cannot be counted",
                remedy="use neuron_rank_bound, or register its kind by layer_kind",
            )
