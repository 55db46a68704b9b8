"""KFAC and CFAC of the whole network, with the blocks between layers (TR def. 7.1, 7.2).

The inputs of all layers side by side, ``h``, and the errors of all layers side by side, ``δ``, make
the gradients by the Khatri–Rao product, ``g_{icc'} = h_{ic} ⊙ δ_{icc'}`` (TR 7.5): in each layer's
part the Kronecker product of the layer's parts. Taken as independent, their second moments give

    KFAC   H ⊙ Δ                     over all examples       (def. 7.1)
    CFAC   Σ_c (n_c/N) H_c ⊙ Δ_c     within each class       (def. 7.2),

matrices of all parameters whose diagonal blocks are those of
:mod:`curvescope.structure.class_factors` and whose other blocks tie the layers together. TR writes
the layer's output ``h^l`` in def. 7.1 where its input ``h^{l−1}`` is meant, and has a further
``1/N`` beside the weights of ``Δ_c`` (7.7); here ``Δ_c`` is the mean over the class, and CFAC is
exact where inputs do not vary within classes. Weights are row-major here, and the factors change
places: ``Δ ⊙ H``.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.layers import as_matrix
from curvescope.operators.khatri_rao import KhatriRaoOperator, LayerPlace
from curvescope.problem.problem import Problem
from curvescope.record import memory
from curvescope.record.capture import Capture, capture
from curvescope.record.outputs import LossHessian
from curvescope.record.roots import root
from curvescope.record.samples import check_samples
from curvescope.record.selection import join, linear_layers, matrix_layer
from curvescope.structure.classes import class_structure
from curvescope.structure.factor_sums import ALL, Members, by_label
from curvescope.structure.full_hessian import check_plain
from curvescope.structure.moments import layer_moments


def network_kfac(
    problem: Problem, *, layers: str | Iterable[str] | None = None
) -> KhatriRaoOperator:
    """``H ⊙ Δ`` over the weights of several fully connected layers (TR def. 7.1).

    To be compared with ``GaussNewton(problem.restrict([f"{name}.weight", …]))``, whose order of
    parameters it has; biases have no part in it. ``exact_spectrum`` takes its Gram form where the
    ranks of ``H`` and ``Δ`` are low, that is, where there are few samples.

    Cost: that of :func:`kronecker_factors`; memory ``(Σ m_l)² + (Σ n_l)²`` numbers.

    Args:
        problem: its model, data and loss; any convex loss.
        layers: names (None: all layers of a known kind among the variables).

    Raises:
        CurvescopeError: for a layer that is applied at several positions of a sample (a
            convolution): two layers with different positions have no common second moment.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    >>> with torch.no_grad():
    ...     _ = model[0].weight.fill_(2.0), model[1].weight.fill_(3.0)
    >>> X, y = torch.ones(1, 1).double(), torch.zeros(1, 1).double()
    >>> problem = Problem(model, X, y, loss="mse")
    >>> network_kfac(problem).dense().round(decimals=9).tolist()  # 2 (3, 2)ᵀ (3, 2)
    [[18.0, 12.0], [12.0, 8.0]]
    """
    moments, places = _network_moments("network_kfac", problem, layers, by_class=False)
    return KhatriRaoOperator([m.term(problem, 1.0) for m in moments], places)


def network_cfac(
    problem: Problem, *, layers: str | Iterable[str] | None = None
) -> KhatriRaoOperator:
    """``Σ_c (n_c/N) H_c ⊙ Δ_c`` over the weights of fully connected layers (TR def. 7.2).

    As :func:`network_kfac`, with ``C`` terms; needs one class label for each sample. It is the
    Gauss–Newton matrix itself where inputs do not vary within a class.

    >>> from torch import nn
    >>> from curvescope.operators.gauss_newton import GaussNewton
    >>> model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2, bias=False)).double()
    >>> X, y = torch.tensor([[1.0], [1.0], [3.0]]).double(), torch.tensor([0, 0, 1])
    >>> problem = Problem(model, (X, y))
    >>> error = network_cfac(problem).dense() - GaussNewton(problem).dense()
    >>> float(error.abs().max()) < 1e-12
    True
    """
    moments, places = _network_moments("network_cfac", problem, layers, by_class=True)
    samples = sum(m.samples for m in moments)
    return KhatriRaoOperator([m.term(problem, m.samples / samples) for m in moments], places)


@dataclass
class _Moments:
    """Sums over some samples: ``Σ h hᵀ`` and ``Σ δ δᵀ`` over all layers side by side, float64."""

    inputs: Tensor
    errors: Tensor
    samples: int = 0
    weight: float = 0.0

    def term(self, problem: Problem, share: float) -> tuple[float, Tensor, Tensor]:
        errors, inputs = self.errors / self.weight, self.inputs / self.samples
        return share, errors.to(problem.dtype), inputs.to(problem.dtype)


def _network_moments(
    where: str, problem: Problem, layers: str | Iterable[str] | None, *, by_class: bool
) -> tuple[list[_Moments], list[LayerPlace]]:
    """The moments of all samples, or of each label that occurs; and the layers."""
    problem.check_unchanged()
    names = _in_order(problem, linear_layers(problem, layers))
    kinds = [matrix_layer(problem.model, name) for name in names]
    places = [
        LayerPlace(name, *kind.matrix_shape, transposed=kind.transposed)
        for name, kind in zip(names, kinds, strict=True)
    ]
    m, n = sum(p.outputs for p in places), sum(p.inputs for p in places)
    moments: dict[int, _Moments] = {}
    for batch in problem.batches():
        check_samples(problem, batch, names)
        record = capture(problem, batch, names)
        check_plain(where, record)
        loss = problem.loss_at(record.output, batch)
        members: Members = {ALL: (None, record.samples, loss.weight)}
        if by_class:
            members, _ = by_label(where, batch, record.output, loss)
        _check_size(where, problem, len({*members, *moments}), m, n)
        for label in members:
            if label not in moments:
                moments[label] = _no_moments(problem, m, n)
        directions = root(LossHessian(), loss, record.output, batch.index)
        _add_batch(record, names, directions, members, moments)
    labels = sorted({label for each in problem.group.plain_of_all([*moments]) for label in each})
    shared = [_shared(problem, moments.get(label), m, n) for label in labels]
    problem.whole_weight(sum(moment.weight for moment in moments.values()))
    return [moment for moment in shared if moment.samples], places


def _shared(problem: Problem, moments: _Moments | None, m: int, n: int) -> _Moments:
    """The sums over all ranks."""
    moments = moments or _no_moments(problem, m, n)
    return _Moments(
        problem.sum_(moments.inputs),
        problem.sum_(moments.errors),
        int(problem.count(moments.samples)),
        problem.count(moments.weight),
    )


def _no_moments(problem: Problem, m: int, n: int) -> _Moments:
    inputs, errors = (
        torch.zeros(size, size, dtype=torch.float64, device=problem.device) for size in (n, m)
    )
    return _Moments(inputs, errors)


def _in_order(problem: Problem, names: Sequence[str]) -> list[str]:
    """Layers in the order of the flat parameter vector."""
    place = {name: i for i, (name, _) in enumerate(problem.model.named_parameters())}
    return sorted(names, key=lambda name: place[join(name, "weight")])


def _check_size(where: str, problem: Problem, labels: int, m: int, n: int) -> None:
    memory.need(
        where,
        f"the moments of {n:,} inputs and {m:,} outputs of all layers for {labels} label(s)",
        2 * 8 * labels * (m * m + n * n),
        problem.device,
        "name some of the layers in `layers`",
    )


@torch.no_grad()
def _add_batch(
    record: Capture,
    names: Sequence[str],
    directions: Tensor,
    members: Members,
    moments: dict[int, _Moments],
) -> None:
    x = torch.cat([record.rows(name)[:, 0] for name in names], 1).double()  # [B, Σn]
    for label, (index, samples, weight) in members.items():
        rows = x if index is None else x[index]
        moments[label].inputs.addmm_(rows.T, rows)
        moments[label].samples += samples
        moments[label].weight += weight
    last = directions.shape[1] - 1
    with record.backward() as pull_back:
        for k in range(last + 1):
            pulled = pull_back(directions[:, k], k == last)
            e = torch.cat([record.errors(name, pulled[name])[:, 0] for name in names], 1).double()
            for label, (index, _, _) in members.items():
                rows = e if index is None else e[index]
                moments[label].errors.addmm_(rows.T, rows)


@dataclass(frozen=True)
class MeanCosines:
    """How well the means of gradients are products of means, all layers together (TR 7.12).

    ``classes[c]`` is the cosine between ``g_c`` and ``δ_c ⊙ h_c``, ``cross[c, c']`` that between
    ``g_{cc'}`` and ``δ_{cc'} ⊙ h_c``; NaN for a class without examples.
    """

    classes: Tensor  # [C]
    cross: Tensor  # [C, C]


def mean_cosines(problem: Problem, *, layers: str | Iterable[str] | None = None) -> MeanCosines:
    """The cosines of TR 7.12 over the weights of several layers side by side.

    For one layer each, see :func:`layer_approximations`. Where a layer has positions, its inputs
    are averaged and its errors summed over them, as in :func:`layer_statistics`.

    Cost: that of :func:`class_structure` and of :func:`layer_statistics`.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2, bias=False)).double()
    >>> X, y = torch.tensor([[1.0], [1.0], [3.0]]).double(), torch.tensor([0, 0, 1])
    >>> mean_cosines(Problem(model, (X, y))).classes.round(decimals=9)  # one input a class
    tensor([1., 1.], dtype=torch.float64)
    """
    names = linear_layers(problem, layers)
    moments = layer_moments(problem, layers=names)
    weights = [join(name, "weight") for name in names]
    structure = class_structure(problem.restrict(weights))
    space, C = structure.problem.params, structure.classes
    eye = torch.eye(C, dtype=torch.bool, device=problem.device)
    inner = {"classes": torch.zeros(C), "cross": torch.zeros(C, C)}
    inner = {part: t.double().to(problem.device) for part, t in inner.items()}
    products = {part: torch.zeros_like(t) for part, t in inner.items()}  # ‖δ ⊙ h‖²
    gradients = {part: torch.zeros_like(t) for part, t in inner.items()}  # ‖g‖²
    for name, weight in zip(names, weights, strict=True):
        kind, moment = matrix_layer(problem.model, name), moments[name]
        h = moment.feature_means  # [C, n]
        shares = torch.softmax(moment.log_weights.masked_fill(eye, -torch.inf), 1).nan_to_num(0.0)
        errors = {
            "classes": torch.einsum("cd,cdm->cm", shares, moment.error_means),
            "cross": moment.error_means,
        }
        for part, means in (("classes", structure.class_means), ("cross", structure.means)):
            g = means[..., space.slice(weight)].double()
            g = as_matrix(g, kind.matrix_shape[0], transposed=kind.transposed)
            delta = errors[part]
            x = h if part == "classes" else h[:, None].expand(C, C, -1)
            inner[part] += torch.einsum("...mn,...m,...n->...", g, delta, x)
            products[part] += delta.square().sum(-1) * x.square().sum(-1)
            gradients[part] += g.square().sum((-2, -1))
    cosines = {
        part: (inner[part] / (products[part] * gradients[part]).sqrt()).cpu() for part in inner
    }
    return MeanCosines(cosines["classes"], cosines["cross"])
