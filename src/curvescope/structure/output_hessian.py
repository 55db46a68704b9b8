"""The output Hessian ``E[M]`` of a layer at initialization (DH 4.4, F.1, App. H).

For a ReLU network at random initialization each gate is open half of the time, which leaves of
``M = Gᵀ A G`` on average ``4^{−(L−p)} Sᵀ A S`` with the product ``S`` of the later weights. ``A``
has the all-one vector in its null space, so the top eigenspace has ``c − 1`` dimensions and is
spanned by the differences of rows of ``S``.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from curvescope import _checks
from curvescope._random import gaussian
from curvescope.errors import CurvescopeError
from curvescope.layers import matrix_kind
from curvescope.operators.base import LinearOperator
from curvescope.problem.problem import Problem
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.structure.factors import KroneckerFactors
from curvescope.structure.overlaps import overlap


def later_product(later: Sequence[Tensor], classes: int) -> Tensor:
    """``S = W^(L) ⋯ W^(p+1): [c, m]`` from the weights after a layer, the next one first.

    >>> later_product([torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0, 4.0]])], 1)
    tensor([[11.]], dtype=torch.float64)
    """
    S = None
    for W in reversed(later):
        if W.ndim != 2 or (S is not None and S.shape[1] != W.shape[0]):
            shapes = " · ".join(str(list(w.shape)) for w in reversed(later))
            rule = "the weights must chain as matrices"
            raise CurvescopeError("later_product(later)", rule, given=shapes)
        S = W if S is None else S @ W
    if S is None:
        return torch.eye(classes, dtype=torch.float64)
    if S.shape[0] != classes:
        rule = f"the last weight needs {classes} rows"
        raise CurvescopeError("later_product(later)", rule, given=S.shape[0])
    return S.double()


def class_subspace(later: Sequence[Tensor], classes: int) -> Tensor:
    """An orthonormal basis of ``R(S) ∖ {S·1}``: the vectors ``Sᵀ a`` with ``a ⊥ 1`` (DH thm 4.1).

    This is exactly the range of ``Sᵀ A S`` for an ``A`` whose null space is the all-one vector.

    Args:
        later: the weights after the layer, the next one first; none for the last layer.
        classes: ``c``.

    Returns:
        ``[m, r]`` in float64, ``r = c − 1`` unless the layer is narrower.

    >>> class_subspace([torch.tensor([[1.0, 0.0], [0.0, 1.0]])], 2).abs()
    tensor([[0.7071],
            [0.7071]], dtype=torch.float64)
    """
    classes = _checks.positive_int("class_subspace", "classes", classes, minimum=2)
    S = later_product(later, classes)
    centered = S - S.mean(0)  # rows Sᵀ(e_i − 1/c) span Sᵀ a for a ⊥ 1
    u, s, _ = torch.linalg.svd(centered.T, full_matrices=False)
    rank = int((s > len(s) * torch.finfo(s.dtype).eps * s[0]).sum())
    return u[:, : min(rank, classes - 1)]


def closed_output_hessian(later: Sequence[Tensor], mean_hessian: Tensor) -> Tensor:
    """``M̃ = 4^{−(L−p)} Sᵀ A S`` (DH eq. 56), ``A`` the mean output Hessian of the last layer.

    >>> closed_output_hessian([torch.eye(2)], torch.eye(2))[0, 0]
    tensor(0.2500, dtype=torch.float64)
    """
    S = later_product(later, mean_hessian.shape[0]).to(mean_hessian.device)
    return S.T @ mean_hessian.double() @ S / 4.0 ** len(later)


def independent_output_hessian(later: Sequence[Tensor], mean_hessian: Tensor) -> Tensor:
    """``M*``: the output Hessian if every gate were open half of the time, for itself (DH H.1).

    With ``T = Wᵀ A W`` of the next weight, ``E[D T D] = (T + diag T) / 4`` (DH eq. 72), exactly for
    gates ``D`` that are independent of each other and of ``A``; from the last layer backwards,
    each such matrix is the next layer's ``A``. Its off-diagonal part is what
    :func:`closed_output_hessian` has of the last step; ``diag T`` has the same trace as ``T`` and
    nearly full rank, and is the long tail of the spectrum.

    Args:
        later: the weights after the layer, the next one first; none for the last layer.
        mean_hessian: ``E[A]``, the mean output Hessian of the last layer.

    >>> independent_output_hessian([torch.tensor([[1.0, 2.0]])], torch.ones(1, 1))
    tensor([[0.5000, 0.5000],
            [0.5000, 2.0000]], dtype=torch.float64)
    """
    later_product(later, len(mean_hessian))  # refuses weights that do not chain
    M = mean_hessian.double()
    for W in reversed(later):
        T = W.to(M).T @ M @ W.to(M)
        M = (T + torch.diag(T.diagonal())) / 4
    return M


@dataclass(frozen=True)
class OutputTheory:
    """The output Hessian of one layer beside its closed form.

    ``overlap`` is that of its top ``dimension`` eigenspace with ``R(S) ∖ {S·1}`` (DH table 10),
    ``eigenvalues`` and ``predicted`` are those of ``E[M]`` and of eq. 56, largest first.
    """

    name: str
    dimension: int
    overlap: float
    eigenvalues: Tensor
    predicted: Tensor


def output_hessian_theory(
    problem: Problem, factors: Mapping[str, KroneckerFactors]
) -> dict[str, OutputTheory]:
    """Table 10 and eq. 56 for the fully connected layers at the end of a network.

    A layer takes part when it and all after it are plain matrices that fit together (in LeNet5:
    fc1, fc2, fc3); layers are taken in the order of the model's modules.

    Args:
        problem: the one that the factors come from; only its weights are read.
        factors: ``kronecker_factors(problem)``, which must include the last layer.

    Raises:
        CurvescopeError: when the last layer is missing, or no layer qualifies.

    >>> from curvescope.structure.factors import kronecker_factors
    >>> problem = Problem(nn.Linear(2, 3), (torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1])))
    >>> theory = output_hessian_theory(problem, kronecker_factors(problem))[""]
    >>> theory.dimension, round(theory.overlap, 4)  # the last layer: all but the vector 1
    (2, 1.0)
    """
    weights = later_weights(problem)
    last = next(iter(weights), None)
    if last is not None and last not in factors:
        rule = f"the last layer {last!r} must be among them"
        raise CurvescopeError("output_hessian_theory(factors)", rule)
    if last is None or len(factors[last].output_hessian) < 2:
        rule = "needs a linear last layer with at least two outputs"
        raise CurvescopeError("output_hessian_theory(problem)", rule)
    hessians = {
        name: factors[name].output_hessian.double().cpu() for name in weights if name in factors
    }
    return {
        name: _theory(name, hessians[name], weights[name], hessians[last])
        for name in reversed(weights)
        if name in hessians
    }


def later_weights(problem: Problem) -> dict[str, list[Tensor]]:
    """The weights after each layer, the next one first, for the plain matrices at the end.

    A layer is there if it and all after it are plain matrices that fit together, taken in the order
    of the model's modules, variables of the problem or not; the last one comes first and has none.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> problem = Problem(model, (torch.randn(5, 4), torch.tensor([0, 1, 1, 0, 1])))
    >>> {name: [list(W.shape) for W in later] for name, later in later_weights(problem).items()}
    {'2': [], '0': [[2, 3]]}
    """
    later: list[Tensor] = []
    weights: dict[str, list[Tensor]] = {}
    kinds = {name: matrix_kind(module) for name, module in problem.model.named_modules()}
    layers = [(name, layer) for name, layer in kinds.items() if layer is not None]
    for name, layer in reversed(layers):
        if layer.weight.ndim != 2 or (later and later[0].shape[1] != layer.matrix_shape[0]):
            break
        weights[name] = list(later)
        later.insert(0, layer.matrix.detach().cpu())
    return weights


def _theory(name: str, M: Tensor, later: list[Tensor], A: Tensor) -> OutputTheory:
    subspace = class_subspace(later, A.shape[0])
    values, vectors = torch.linalg.eigh(M)
    r = subspace.shape[1]
    predicted = torch.linalg.eigvalsh(closed_output_hessian(later, A)).flip(0)
    share = overlap(vectors.flip(1)[:, :r].contiguous(), subspace)[-1]
    return OutputTheory(name, r, float(share), values.flip(0), predicted)


# The random two-layer network of Theorem H.1 ------------------------------------------------------


@dataclass(frozen=True)
class RandomNetwork:
    """One random network: ``ratio = λ_c / λ_{c−1}`` of ``M`` and the overlap of eq. 69."""

    width: int
    ratio: float
    overlap: float
    eigenvalues: Tensor  # [c], largest first


class _TwoLayer(LinearOperator):
    """``(1/N) Σ_i D_i Wᵀ A_i W D_i`` (DH eq. 67) without forming it."""

    def __init__(self, gates: Tensor, W: Tensor, p: Tensor) -> None:
        n = W.shape[1]
        super().__init__((n, n), dtype=W.dtype, device=W.device, psd=True)
        self._gates, self._W, self._p = gates, W, p

    def _decided_by(self) -> tuple[object, ...]:
        return "two layers", self._gates, self._W, self._p

    def _matmat(self, X: Tensor) -> Tensor:
        columns = []
        for v in X.T:
            t = self._gates @ (self._W * v).T  # W D v of every sample, [N, c]
            pt = self._p * t
            At = pt - self._p * pt.sum(1, keepdim=True)
            columns.append(((self._gates.T @ At).T * self._W).sum(0))
        return torch.stack(columns, 1) / len(self._gates)


def random_two_layer(
    width: int, *, inputs: int, classes: int, samples: int, generator: torch.Generator
) -> RandomNetwork:
    """Theorem H.1 on one random two-layer ReLU network with Gaussian inputs.

    Both weights are Gaussian with rows of norm 1. As the width grows, ``λ_c / λ_{c−1}`` of the
    first layer's output Hessian ``M = E[D Wᵀ A W D]`` tends to 0, and its top ``c − 1`` eigenspace
    to ``R(W) ∖ {W·1}``. The mean over inputs is one over ``samples``; memory ``samples · width``.

    Args:
        width: ``n``, the number of hidden neurons.
        inputs: ``d``; the theorem lets it grow first.
        classes: ``c``.
        samples: how many inputs are drawn.
        generator: the source of weights and inputs.

    >>> generator = torch.Generator().manual_seed(0)
    >>> net = random_two_layer(400, inputs=400, classes=3, samples=500, generator=generator)
    >>> net.overlap > 0.95, net.ratio < 0.2
    (True, True)
    """
    for name, value in (("width", width), ("inputs", inputs), ("samples", samples)):
        _checks.positive_int("random_two_layer", name, value)
    _checks.positive_int("random_two_layer", "classes", classes, minimum=2)
    if width < classes:
        rule = f"`width` must be at least the {classes} classes"
        raise CurvescopeError("random_two_layer", rule, given=width)
    _checks.generator("random_two_layer", generator)

    def draw(*shape: int) -> Tensor:
        return gaussian(shape, generator, torch.float32, torch.device("cpu"))

    W1, W2 = (nn.functional.normalize(w) for w in (draw(width, inputs), draw(classes, width)))
    hidden = torch.relu(draw(samples, inputs) @ W1.T)
    p = torch.softmax(hidden @ W2.T, 1)
    M = _TwoLayer((hidden > 0).to(W2), W2, p)
    pairs = eigenpairs(M, classes, tol=1e-4, generator=generator)
    values = pairs.values.double()
    share = overlap(pairs.vectors[:, : classes - 1].double(), class_subspace([W2], classes))[-1]
    return RandomNetwork(width, float(values[-1] / values[-2]), float(share), values)
