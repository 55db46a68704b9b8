"""Spectra with a part knocked out: which part causes which feature (TR sec. 3, 5, 6.1).

On the rows ``R`` with ``G = Rᵀ R``, one row ``√w_{icc'} g_{icc'}`` for each term and would-be
class, the decomposition of :mod:`curvescope.structure.classes` is a resolution of the identity.
With the orthonormal vectors over rows

    a_{cc'}[i, c'] = √(w_{icc'} / w_{cc'})   for i in class c, else 0
    b_c = Σ_{c'≠c} √(w_{cc'} / w_c) a_{cc'}

one has ``√w_{cc'} g_{cc'} = Rᵀ a_{cc'}`` and ``√w_c g_c = Rᵀ b_c``, hence

    G_class = Rᵀ P_class R,  G_cross = Rᵀ P_cross R,  G_diagonal = Rᵀ P_diagonal R,
    G_within = Rᵀ P_within R,    P_class + P_cross + P_diagonal + P_within = I,

where ``P_class`` projects on the ``b_c``, ``P_diagonal`` on the ``a_{cc}``, ``P_cross`` on the rest
of the ``a_{cc'}`` with ``c' ≠ c``, and ``P_within`` on the complement of all ``a``. Every knockout
is then a matrix of the size of ``K = R Rᵀ``. With an orthonormal basis ``X`` of ``P``:

    G ⊖ part = Rᵀ (I − P) R             has the spectrum of   (I − P) K (I − P)
    G ⫽ part = (I − Q Qᵀ) G (I − Q Qᵀ)   has the spectrum of   K − K X (Xᵀ K X)⁺ Xᵀ K,

since the part's range is spanned by ``Rᵀ X`` and ``Q Qᵀ = Rᵀ X (Xᵀ K X)⁺ Xᵀ R``. Neither needs
anything in parameter space, and a layer needs only its own ``K``.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.operators.algebra import knockout
from curvescope.operators.base import LinearOperator
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.gram import GramForm
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.problem.losses import Groups
from curvescope.record.extended import class_directions
from curvescope.spectra.exact import ExactSpectrum, exact_spectrum
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.structure.classes import class_structure, groups_of
from curvescope.structure.traces import outputs_of

Spectrum = ExactSpectrum | SpectralMeasure
PARTS = ("global", "class", "cross", "diagonal", "between")
HOW = ("subtract", "project")


@dataclass(frozen=True)
class ClassDual:
    """``G`` (or a layer of it) on its rows, with the class structure of the rows.

    ``gram`` is ``K``; ``bases`` holds an orthonormal basis ``[rows, r]`` for each of ``"global"``
    (the direction of the global mean, inside the class part), ``"class"``, ``"cross"``,
    ``"diagonal"`` and ``"between"``, which is the last three together.
    """

    gram: Tensor  # [rows, rows], float64
    bases: Mapping[str, Tensor]
    classes: int
    dimension: int  # parameters

    def spectrum(self) -> ExactSpectrum:
        """The exact spectrum of ``G``."""
        return ExactSpectrum.of_gram(self.gram, self.dimension)

    def knocked_out(self, part: str | Sequence[str], how: str = "subtract") -> ExactSpectrum:
        """The exact spectrum of ``G`` without a part, or without several parts together.

        ``part="within"`` leaves the other three (by subtraction only: its span is nearly the whole
        space). Cost: the eigenvalues of a matrix of the size of ``gram``.
        """
        where = "ClassDual.knocked_out"
        names = [part] if isinstance(part, str) else list(part)
        for name in names:
            _checks.one_of(where, "part", name, (*PARTS, "within"))
        _checks.one_of(where, "how", how, HOW)
        if "within" in names:
            if names != ["within"] or how == "project":
                rule = "the within part spans nearly everything"
                remedy = "knock it out alone and with `how='subtract'`"
                raise CurvescopeError(where, rule, remedy=remedy)
            X = self.bases["between"]
            return ExactSpectrum.of_gram(X.T @ self.gram @ X, self.dimension)
        X = torch.cat([self.bases[name] for name in names], 1)
        matrix = _subtracted(self.gram, X) if how == "subtract" else projected(self.gram, X)
        return ExactSpectrum.of_gram(matrix, self.dimension)


def _subtracted(K: Tensor, X: Tensor) -> Tensor:
    """``(I − X Xᵀ) K (I − X Xᵀ)``."""
    KX = K @ X
    half = X @ (KX.T - 0.5 * (X.T @ KX) @ X.T)
    return K - half - half.T


def projected(K: Tensor, X: Tensor) -> Tensor:
    """``K − K X (Xᵀ K X)⁺ Xᵀ K``; eigenvalues of ``Xᵀ K X`` within rounding count as zero.

    >>> projected(torch.diag(torch.tensor([4.0, 2.0])), torch.tensor([[1.0], [0.0]]))
    tensor([[0., 0.],
            [0., 2.]])
    """
    if X.shape[1] == 0:  # the cross part of two classes
        return K
    vectors, values = spanned(K, X)
    half = K @ (X @ vectors) / values.sqrt()
    return K - half @ half.T


def spanned(K: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvectors ``[r, r']`` and eigenvalues of ``Xᵀ K X`` that exceed its rounding.

    >>> spanned(torch.diag(torch.tensor([4.0, 0.0])), torch.eye(2))[1]
    tensor([4.])
    """
    inner = X.T @ (K @ X)
    values, vectors = torch.linalg.eigh((inner + inner.T) / 2)
    eps = torch.finfo(K.dtype).eps
    nonzero = values > len(values) * eps * values.amax(0) + 4 * eps * K.diagonal().max()
    return vectors[:, nonzero], values[nonzero]


def class_dual(problem: Problem, *, layer: str | None = None, classes: Any = None) -> ClassDual:
    """The Gram matrix of ``G`` or of one layer's block, with the class structure of its rows.

    Cost: ``C`` backward passes over the data and the Gram matrix, ``(N·C)²`` numbers; see
    :class:`curvescope.operators.gram.GramForm`, which also says how large it will be.

    >>> from torch import nn
    >>> model = nn.Linear(1, 2, bias=False).double()
    >>> with torch.no_grad():
    ...     _ = model.weight.zero_()
    >>> X, y = torch.tensor([[1.0], [3.0], [4.0]]).double(), torch.tensor([0, 0, 1])
    >>> dual = class_dual(Problem(model, (X, y)))
    >>> round(float(dual.spectrum().values[-1]), 6)  # Σ x² / 6, in the direction (1, −1)
    4.333333
    >>> round(float(dual.knocked_out("within").values[-1]), 6)  # less Σ (x − x̄)² / 6
    4.0
    """
    form = GramForm(problem, class_directions)
    return dual_of_form(form if layer is None else form.restrict(layer), classes=classes)


def dual_of_form(form: GramForm, *, classes: Any = None) -> ClassDual:
    """:func:`class_dual` from a Gram form that exists already (several layers can share one)."""
    outputs = list(outputs_of(form))
    labels = torch.cat([e.labels for e in outputs])
    log_w = torch.cat([e.log_p for e in outputs])  # up to the common 1/N
    groups = groups_of(classes, log_w.shape[1], "class_dual(problem)")
    bases = row_bases(labels, log_w, groups)
    count = log_w.shape[1] if groups is None else groups.count
    return ClassDual(form.matrix(), bases, count, form.source.space.size)


def row_bases(labels: Tensor, log_w: Tensor, groups: Groups | None = None) -> dict[str, Tensor]:
    """The bases of :class:`ClassDual` for terms with ``labels: [t]`` and ``log w: [t, V]``.

    Every output is a class of its own unless there are ``groups`` of them.
    """
    t, V = log_w.shape
    groups = groups or Groups(tuple(range(V)))
    labels, members, C = groups.labels(labels), groups.tensor(log_w.device), groups.count
    of_class = torch.nn.functional.one_hot(labels.clamp(min=0), C).bool() & (labels >= 0)[:, None]
    masked = log_w[:, None].expand(t, C, V)  # [term, c, v]
    masked = masked.masked_fill(~of_class[..., None], -torch.inf)
    log_cc = groups.log_sums(torch.logsumexp(masked, 0))  # [c, c']
    entries = torch.exp(0.5 * (masked - log_cc[:, members])).nan_to_num(0.0)
    a = log_w.new_zeros(t, V, C, C)  # row (term, v) of the vector (c, c')
    a[:, torch.arange(V), :, members] = entries.permute(2, 0, 1)
    a = a.reshape(t * V, C, C)
    alive = of_class.any(0)
    eye = torch.eye(C, dtype=torch.bool, device=log_w.device)
    others = log_cc.masked_fill(eye, -torch.inf)
    log_c = torch.logsumexp(others, 1)
    beta = torch.exp(0.5 * (others - log_c[:, None])).nan_to_num(0.0)  # [c, c']
    gamma = torch.exp(0.5 * (log_c - torch.logsumexp(log_c, 0)))
    b = torch.einsum("rcd,cd->rc", a, beta)
    cross = [
        a[:, c, ~eye[c]] @ _complement(beta[c, ~eye[c]]) for c in alive.nonzero().flatten().tolist()
    ]
    bases = {
        "global": (b @ gamma)[:, None],
        "class": b[:, alive],
        "cross": torch.cat(cross, 1),
        "diagonal": a.diagonal(dim1=1, dim2=2)[:, alive],
    }
    bases["between"] = torch.cat([bases["class"], bases["cross"], bases["diagonal"]], 1)
    return bases


def _complement(v: Tensor) -> Tensor:
    """An orthonormal basis ``[n, n − 1]`` of the orthogonal complement of a unit vector."""
    full: Tensor = torch.linalg.qr(v[:, None], mode="complete").Q
    return full[:, 1:]


# Everything at once -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Knockouts:
    """The spectrum of ``G`` and of ``G`` without each part, exact or by Lanczos.

    ``without[part, how]`` for the parts ``"class"``, ``"cross"``, ``"diagonal"``, ``"between"``
    (all three) and both ways, and ``"within"`` by subtraction: the panels of TR fig. 5.
    """

    classes: int
    whole: Spectrum
    without: Mapping[tuple[str, str], Spectrum]

    @property
    def exact(self) -> bool:
        """Whether the spectra are exact."""
        return isinstance(self.whole, ExactSpectrum)


def class_knockouts(
    problem: Problem,
    *,
    layer: str | None = None,
    classes: Any = None,
    limit: int = 16384,
    steps: int = 128,
    probes: int = 1,
    generator: torch.Generator | None = None,
) -> Knockouts:
    """Spectra of ``G`` without its class, cross-class, diagonal and within part (TR fig. 5).

    Exact through the Gram matrix while it has at most ``limit`` rows (``N·C``); else by Lanczos,
    ``steps · probes`` products for each spectrum, for which ``generator`` is needed.

    Args:
        problem: cross-entropy or logistic loss.
        layer: one layer's block instead of the whole matrix.
        classes: groups of outputs, as for :func:`class_structure`.
        limit: rows of the Gram matrix up to which it is used.
        steps: Lanczos steps.
        probes: Lanczos probes.
        generator: the source of the probes.
    """
    form = GramForm(problem, class_directions)
    ways = [(part, how) for part in PARTS[1:] for how in HOW] + [("within", "subtract")]
    if form.size <= limit:
        dual = dual_of_form(form if layer is None else form.restrict(layer), classes=classes)
        exact = {way: dual.knocked_out(*way) for way in ways}
        return Knockouts(dual.classes, dual.spectrum(), exact)
    if generator is None:
        rule = f"the Gram matrix has {form.size} rows, more than `limit={limit}`"
        remedy = "Lanczos needs a generator, or raise `limit`"
        raise CurvescopeError("class_knockouts(problem)", rule, remedy=remedy)
    smaller = problem if layer is None else problem.restrict(layer)
    structure = class_structure(smaller, classes=classes)
    G = structure.operator

    def measured(A: LinearOperator) -> SpectralMeasure:
        return spectral_measure(A, steps=steps, probes=probes, generator=generator)

    without: dict[tuple[str, str], Spectrum] = {}
    for part, how in ways:
        if part == "within":
            without[part, how] = exact_spectrum(structure.between_part)
        else:
            without[part, how] = measured(knockout(G, getattr(structure, f"{part}_part"), how))
    return Knockouts(structure.classes, measured(G), without)


@dataclass(frozen=True)
class HessianSplit:
    """The spectra of ``H = G + E`` and of its two components (TR 5.1, 5.2, fig. 4)."""

    hessian: Spectrum
    gauss_newton: Spectrum
    residual: Spectrum


def hessian_split(
    problem: Problem,
    *,
    generator: torch.Generator,
    limit: int = 2048,
    steps: int = 128,
    probes: int = 1,
    deflate: int = 0,
) -> HessianSplit:
    """Spectra of the Hessian and of its two summands, ``G`` and ``E = H − G``.

    Up to ``limit`` parameters they are exact; beyond, ``G`` is exact while its Gram matrix has at
    most ``limit`` rows, and the others come from Lanczos, ``steps · probes`` products each.
    The ``deflate`` largest eigenpairs of ``H`` and of ``G`` are computed separately first; TR takes
    ``C`` of them.
    """
    H, G = Hessian(problem), GaussNewton(problem)

    def spectrum(A: LinearOperator, take_out: int) -> Spectrum:
        dual = A.dual()
        if min(A.shape[0], A.shape[0] if dual is None else dual.size) <= limit:
            return exact_spectrum(A, limit=limit)
        return spectral_measure(
            A, steps=steps, probes=probes, deflate=take_out, generator=generator
        )

    return HessianSplit(spectrum(H, deflate), spectrum(G, deflate), spectrum(H - G, 0))
