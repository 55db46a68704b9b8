"""Outliers counted and attributed: how many, and which part of ``G`` makes each (TR 1.6).

**What is an outlier.** The bulk is the spectrum of ``G`` after the span of all ``C²`` cross-class
means is projected out; its edge is the largest eigenvalue of ``G ⫽ (class + cross + diagonal)``. An
eigenvalue of ``G`` above that edge is an outlier. By interlacing there are at most ``C²`` of them.
For a matrix without such parts :func:`widest_gap` offers a rule that looks at the values alone.

**Who makes it.** For a unit eigenvector ``v`` with ``G v = λ v`` the parts of ``G`` share ``λ``:

    λ = vᵀ G_global v + vᵀ G_class' v + vᵀ G_cross v + vᵀ G_diagonal v + vᵀ G_within v,

with the class part split once more into the global mean (rank 1) and the deviations from it (rank
``C − 1``). No summand is negative, so that the shares are a decomposition, not a projection. The
knockouts count the same thing by removal: how many outliers are gone without each part.

**How knockouts are counted.** On the Gram matrix ``K`` (:mod:`curvescope.structure.knockouts`) with
orthonormal ``X: [n, r]`` spanning a part, Sylvester's law of inertia gives, for ``μ > 0`` that is
no eigenvalue and ``W = Xᵀ (K − μ)⁻¹ X``,

    #{λ(G ⊖ part) > μ} = #{λ(K) > μ} − r + #{eigenvalues of −W that are positive}
    #{λ(G ⫽ part) > μ} = #{λ(K) > μ} − r' + #{eigenvalues of −(I + μ W) that are positive},

the latter with ``X`` cut down to the ``r'`` directions on which ``K`` does not vanish: both are
Schur complements of bordered matrices. One factorization of ``K − μ`` serves all eight knockouts.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.operators.algebra import Projected
from curvescope.operators.base import LinearOperator
from curvescope.operators.gram import GramForm
from curvescope.operators.simple import Dense, LowRank
from curvescope.problem import Problem
from curvescope.record.extended import class_directions
from curvescope.structure.classes import ClassStructure, class_structure
from curvescope.structure.knockouts import HOW, ClassDual, dual_of_form, projected, spanned
from curvescope.structure.outlier_search import above_edge, bulk_edge, leading, span

SHARES = ("global", "class", "cross", "diagonal", "within")
_DENSE = 1024  # rows of a Gram matrix up to which ``eigh`` is used instead of a search
# The parts that are knocked out together, step by step.
_CHAIN = (("global",), ("class",), ("class", "cross"), ("class", "cross", "diagonal"))


@dataclass(frozen=True)
class Group:
    """One line of the attribution table.

    ``expected`` is TR's number of outliers of this kind (1, C − 1, C(C − 1); the cross part has the
    rank C(C − 2)). ``outliers`` counts those whose largest share is this part's. ``subtracted`` and
    ``projected`` count those that disappear when it is knocked out, after the groups above it.
    """

    name: str
    expected: int
    outliers: int
    subtracted: int
    projected: int


@dataclass(frozen=True)
class Attribution:
    """The largest eigenvalues of ``G``, the edge of its bulk, and the parts' shares in them."""

    classes: int
    edge: float
    values: Tensor  # [k], descending, float64
    shares: Tensor  # [k, 5], in the order of SHARES; each row sums to 1
    groups: tuple[Group, ...]  # global, class, cross, diagonal, within
    exact: bool

    @property
    def outliers(self) -> int:
        """How many eigenvalues lie above the edge."""
        return int((self.values > self.edge).sum())

    @property
    def maker(self) -> tuple[str, ...]:
        """For each of ``values`` the part with the largest share."""
        return tuple(SHARES[i] for i in self.shares.argmax(1).tolist())


def attribute_outliers(
    problem: Problem,
    *,
    layer: str | None = None,
    classes: Any = None,
    limit: int = 16384,
    generator: torch.Generator | None = None,
) -> Attribution:
    """Count the outliers of ``G`` and say which part makes each.

    Exact through the Gram matrix in float64 while it has at most ``limit`` rows (``N·C``): its
    eigenvectors, the largest eigenvalue of one knockout and one factorization for the others. With
    a ``generator``, a search finds the leading eigenvectors of a Gram matrix of more than 1024
    rows, which is several times faster than all of them. Beyond ``limit`` the outliers are found by
    ``eigenpairs`` of ``G`` itself, with the same rule; ``generator`` is then needed.

    Args:
        problem: cross-entropy or logistic loss.
        layer: one layer's block instead of the whole matrix.
        classes: groups of outputs, as for :func:`class_structure`.
        limit: rows of the Gram matrix up to which it is used.
        generator: the source of the start vectors of a search.

    >>> from torch import nn
    >>> model = nn.Linear(2, 2, bias=False).double()
    >>> with torch.no_grad():
    ...     _ = model.weight.copy_(0.5 * torch.eye(2))
    >>> X = torch.tensor([[9.0, 0.1], [9.0, -0.1], [0.1, 5.0], [-0.1, 5.0]]).double()
    >>> attribution = attribute_outliers(Problem(model, (X, torch.tensor([0, 0, 1, 1]))))
    >>> attribution.outliers, attribution.maker[:2]  # two class means; their scatter is the bulk
    (2, ('global', 'class'))
    """
    form = GramForm(problem, class_directions)
    if form.size <= limit:
        dual = dual_of_form(form if layer is None else form.restrict(layer), classes=classes)
        return outliers_of(dual, generator=generator)
    if generator is None:
        rule = f"the Gram matrix has {form.size} rows, more than `limit={limit}`"
        remedy = "the search needs a generator, or raise `limit`"
        raise CurvescopeError("attribute_outliers(problem)", rule, remedy=remedy)
    smaller = problem if layer is None else problem.restrict(layer)
    structure = class_structure(smaller, classes=classes)
    return _by_search(structure, generator)


# On the Gram matrix ------------------------------------------------------------------------------


def outliers_of(dual: ClassDual, *, generator: torch.Generator | None = None) -> Attribution:
    """:func:`attribute_outliers` from a Gram matrix that is computed already.

    >>> from torch import nn
    >>> from curvescope.structure.knockouts import class_dual
    >>> model = nn.Linear(2, 2, bias=False).double()
    >>> with torch.no_grad():
    ...     _ = model.weight.copy_(0.5 * torch.eye(2))
    >>> X = torch.tensor([[9.0, 0.1], [9.0, -0.1], [0.1, 5.0], [-0.1, 5.0]]).double()
    >>> outliers_of(class_dual(Problem(model, (X, torch.tensor([0, 0, 1, 1]))))).outliers
    2
    """
    K, X = dual.gram, dual.bases
    small = generator is None or len(K) <= _DENSE
    left = projected(K, X["between"])
    if small:
        top = float(torch.linalg.eigvalsh(left)[-1])
        values, vectors = torch.linalg.eigh(K)
        values, vectors = values.flip(0), vectors.flip(1)
        edge = bulk_edge(top, float(values[0]), K.dtype)
    else:
        assert generator is not None
        top = float(leading(Dense(left, symmetric=True), 1, generator)[0])
        values, vectors, edge = above_edge(Dense(K, symmetric=True), top, dual.classes, generator)
    part = {n: (basis.T @ vectors).square().sum(0).cpu() for n, basis in X.items()}
    part["class"] = (part["class"] - part["global"]).clamp(min=0)
    part["within"] = (1 - part["between"]).clamp(min=0)
    shares = torch.stack([part[n] for n in SHARES], 1)
    values = values.cpu()
    counts = _left_over(dual, edge, int((values > edge).sum()))
    return _table(dual.classes, edge, values, shares, counts, exact=True)


def _left_over(dual: ClassDual, edge: float, outliers: int) -> dict[str, list[int]]:
    """How many eigenvalues stay above the edge after each knockout of the chain."""
    K = dual.gram
    bases = [torch.cat([dual.bases[name] for name in names], 1) for names in _CHAIN]
    shifted = K - edge * torch.eye(len(K), dtype=K.dtype, device=K.device)
    solved = torch.linalg.solve(shifted, torch.cat(bases, 1)).split([b.shape[1] for b in bases], 1)
    counts: dict[str, list[int]] = {how: [] for how in HOW}
    for X, Z in zip(bases, solved, strict=True):
        W = X.T @ Z
        basis, _ = spanned(K, X)
        within = basis.T @ W @ basis
        within = torch.eye(len(within), dtype=K.dtype, device=K.device) + edge * within
        counts["subtract"].append(outliers - _not_negative(W))
        counts["project"].append(outliers - _not_negative(within))
    return counts


def _not_negative(matrix: Tensor) -> int:
    """``r`` less the number of positive eigenvalues of ``−matrix: [r, r]``."""
    if len(matrix) == 0:
        return 0
    return int((torch.linalg.eigvalsh((matrix + matrix.T) / 2) >= 0).sum())


# By search ---------------------------------------------------------------------------------------


def _by_search(structure: ClassStructure, generator: torch.Generator) -> Attribution:
    G = structure.operator
    chain = [_joined(structure, names) for names in _CHAIN]
    spans = [span(part) for part in chain]
    top = float(leading(Projected(G, spans[-1]), 1, generator)[0])
    values, vectors, edge = above_edge(G, top, structure.classes, generator)
    count = int((values > edge).sum())

    def above(knocked_out: list[LinearOperator]) -> list[int]:
        counts, at_most = [], count
        for A in knocked_out:
            if at_most:
                at_most = int((leading(A, at_most, generator) > edge).sum())
            counts.append(at_most)
        return counts

    counts = {
        "subtract": above([G - part for part in chain]),
        "project": above([Projected(G, span) for span in spans]),
    }
    shares = _shares(structure, values, vectors)
    values = values.double().cpu()
    return _table(structure.classes, edge, values, shares, counts, exact=False)


def _joined(structure: ClassStructure, names: tuple[str, ...]) -> LowRank:
    """Several parts as one low-rank matrix."""
    parts = [
        _global(structure) if n == "global" else getattr(structure, f"{n}_part") for n in names
    ]
    return LowRank(torch.cat([p.left for p in parts], 1), torch.cat([p.scales for p in parts]))


def _global(structure: ClassStructure) -> LowRank:
    weight = structure.class_weights.sum().to(structure.means)
    return LowRank(structure.global_mean[:, None], weight[None])


def _shares(structure: ClassStructure, values: Tensor, vectors: Tensor) -> Tensor:
    """``vᵀ G_part v / λ`` of the low-rank parts; the rest of 1 is the within part's."""

    def share(part: LowRank) -> Tensor:
        return (part.scales[:, None] * (part.left.T @ vectors).square()).sum(0) / values

    first, whole = share(_global(structure)), share(structure.class_part)
    cross, diagonal = share(structure.cross_part), share(structure.diagonal_part)
    within = 1 - whole - cross - diagonal
    rows = torch.stack([first, whole - first, cross, diagonal, within], 1)
    return rows.double().cpu().clamp(min=0)


def _table(
    C: int,
    edge: float,
    values: Tensor,
    shares: Tensor,
    counts: dict[str, list[int]],
    *,
    exact: bool,
) -> Attribution:
    outliers = int((values > edge).sum())
    makers = shares[:outliers].argmax(1).tolist()
    expected = (1, C - 1, C * (C - 1), 0, 0)
    gone: dict[str, list[int]] = {}
    for how, left in counts.items():
        steps = [outliers, *left]
        # the outliers that remain after the last knockout belong to the within part
        gone[how] = [a - b for a, b in zip(steps, left, strict=False)] + [left[-1]]
    groups = tuple(
        Group(name, expected[i], makers.count(i), gone["subtract"][i], gone["project"][i])
        for i, name in enumerate(SHARES)
    )
    return Attribution(C, edge, values, shares, groups, exact)


@dataclass(frozen=True)
class Gap:
    """A gap after the ``count`` largest values, ``ratio = λ_count / λ_{count+1}``."""

    count: int
    edge: float
    ratio: float


def widest_gap(values: Tensor, *, most: int) -> Gap:
    """The widest gap on a logarithmic axis among the ``most`` largest values.

    A rule for spectra without a class decomposition (the Hessian, features, weights): the outliers
    are the first ``k ≤ most`` values with the largest ``ratio = λ_k / λ_{k+1}``; a ``ratio`` near 1
    means that there is no clear gap. ``edge`` is ``λ_{k+1}``. Values that are not positive
    count as the bulk.

    >>> widest_gap(torch.tensor([100.0, 90.0, 5.0, 4.0, 3.0]), most=3)
    Gap(count=2, edge=5.0, ratio=18.0)
    """
    most = _checks.positive_int("widest_gap", "most", most)
    positive = values[values > 0].double().sort(descending=True).values
    if len(positive) < 2:
        return Gap(len(positive), 0.0, float("inf") if len(positive) else 1.0)
    ratios = positive[:-1] / positive[1:]
    k = int(ratios[:most].argmax())
    return Gap(k + 1, float(positive[k + 1]), float(ratios[k]))
