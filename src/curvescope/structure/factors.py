"""Kronecker factors of layer Hessians: output Hessian and input auto-correlation.

The layer Hessian is ``E[M ⊗ x xᵀ]`` (DH eq. 6), and the decoupling conjecture (eq. 7) says that its
large eigenpairs are close to those of ``E[M] ⊗ E[x xᵀ]``. One pass over the data gives both factors
of all layers, exactly: the expectation over labels is a sum over the root of the output Hessian,
not a sample. Where there are too many terms and classes for that, labels are drawn.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
    Eschenhagen, Immer, Turner, Schneider, Hennig (2023), *Kronecker-Factored Approximate Curvature
    for Modern Neural Network Architectures*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from curvescope import _checks
from curvescope._state import exclusive
from curvescope.errors import CurvescopeError
from curvescope.layers import LayerKind, LookupKind, as_matrix
from curvescope.operators.kronecker import Eigen, KroneckerOperator
from curvescope.problem.problem import Problem
from curvescope.record.moments import SHARING, LayerMoments
from curvescope.record.samples import check_samples, first_samples, pieces, terms_apart
from curvescope.record.selection import layer_of, layers_of_any_kind, users_of
from curvescope.structure.factor_sums import ALL, Pass, piece_size


@dataclass(frozen=True)
class KroneckerFactors:
    """The factors of one layer with ``m`` outputs and ``n`` inputs.

    ``output_hessian`` is ``E[M]`` (DH eq. 27), for ``T`` positions ``E[Ñᵀ Ñ / T]`` (eq. 36);
    ``autocorrelation`` is ``E[x xᵀ]`` or ``E[X Xᵀ]``; ``mean_input`` is ``E[x]: [n]`` or
    ``E[X]: [n, T]``. With ``bias`` the input has one more entry, the constant 1 (eq. 41). With
    groups, every group has its own positions: the errors of different groups do not meet in
    ``output_hessian``, and the auto-correlation is that of all groups together.

    That is the convention *expand* for weights that positions share. With *reduce*, ``sharing``
    says which, they are ``E[(Σ_t e_t)(Σ_t e_t)ᵀ]``, ``E[x̄ x̄ᵀ]`` and ``E[x̄]`` of the mean over
    positions (Eschenhagen et al. 2023, sec. 3.2 and 3.3).

    The inputs of an embedding are one-hot: ``autocorrelation: [n]`` is the diagonal, how often each
    row is looked up. The scale of a norm has one input, the constant 1 (``n = 1``), and with
    ``bias`` the shift beside it: ``m`` is then twice the channels. Where positions are summed up,
    the product is the exact block.

    ``classes`` are the factors of each label, if requested; ``share`` is the fraction of the
    samples with this label. ``transposed`` says that the weight is stored as ``[n, m]``; ``tied``
    are the other names of a weight that is shared, whose block has also the parts of its other
    uses. ``draws`` is the number of labels that were drawn at each output; None: none were.
    """

    name: str
    output_hessian: Tensor  # [m, m]
    autocorrelation: Tensor  # [n, n], or [n + 1, n + 1] with the bias; [n]: its diagonal
    mean_input: Tensor  # [n] or [n, T], one row more with the bias
    bias: bool
    share: float = 1.0
    classes: tuple[KroneckerFactors, ...] = field(default=())
    transposed: bool = False
    sharing: str = "expand"
    tied: tuple[str, ...] = ()
    draws: int | None = None

    def operator(self) -> KroneckerOperator:
        """``E[M] ⊗ E[x xᵀ]`` on the flat weight; with the bias on ``[W, b]``, row by row.

        For a transposed weight the two change places: ``E[x xᵀ] ⊗ E[M]`` on its ``[n, m]``.
        """
        M, A = self.output_hessian, self.autocorrelation
        if self.transposed and not self.bias:
            return KroneckerOperator(A, M, psd=True)
        return KroneckerOperator(M, A, psd=True)

    def by_outputs(self, vectors: Tensor) -> Tensor:
        """Columns over the flat weight in the order ``[m, n]`` that :func:`matricize` takes.

        The same columns, unless the weight is transposed.
        """
        m = len(self.output_hessian)
        return as_matrix(vectors.T, m, transposed=self.transposed).flatten(1).T

    def eigen(self, side: str) -> Eigen:
        """The eigenpairs of ``E[x xᵀ]`` (``"input"``) or ``E[M]`` (``"output"``), largest first.

        >>> eye = torch.eye(2)
        >>> table = KroneckerFactors("wte", eye, torch.tensor([1.0, 4.0]), eye[0], bias=False)
        >>> table.eigen("input").values, table.eigen("input").first(1)[:, 0]
        (tensor([4., 1.], dtype=torch.float64), tensor([0., 1.], dtype=torch.float64))
        """
        _checks.one_of("KroneckerFactors.eigen", "side", side, ("input", "output"))
        return Eigen.of(self.autocorrelation if side == "input" else self.output_hessian, psd=True)

    @property
    def mean_direction(self) -> Tensor:
        """``Ê[x]: [n]``, normalized; the first left singular vector of ``E[X]`` (DH E.1)."""
        if self.mean_input.ndim == 1:
            norm = self.mean_input.norm()
            return self.mean_input / norm if norm > 0 else self.mean_input
        return torch.linalg.svd(self.mean_input, full_matrices=False)[0][:, 0]


def kronecker_factors(
    problem: Problem,
    *,
    layers: str | Iterable[str] | None = None,
    bias: bool = False,
    by_class: bool = False,
    sharing: str = "expand",
    draws: int | None = None,
    generator: torch.Generator | None = None,
) -> dict[str, KroneckerFactors]:
    """``E[M]`` and ``E[x xᵀ]`` of layers of every kind, in one pass over the data.

    Exact for every convex loss, in expectation over the labels (DH eq. 24, 27; A.2 for
    convolutions). ``E[M]`` is the weighted mean over the loss's terms, ``E[x xᵀ]`` that over the
    samples. Both are sums over terms and positions: a sample with a label at each position has as
    many terms, each with its root.

    Where a layer is applied at ``T`` positions, *expand* takes them as independent. Where errors
    and inputs agree at all positions, the layer's Hessian is then ``T`` times as large as the
    product (as in DH A.2), so that the eigenvalues of the two may be far apart. *reduce* sums them
    up first, which is exact for a linear network that averages over positions.

    Cost: one forward pass, and as many backward passes without parameter gradients as the output
    Hessian of a sample has rank: ``C − 1`` for cross-entropy, in all about 3 to 4 gradients for 10
    classes; with a label at each of ``T`` positions ``T (C − 1)``, but still ``C − 1`` for layers
    behind which positions do not meet (the head of a language model). With ``draws`` it is as many
    as labels are drawn. Memory: the graph of one batch and the factors.

    Args:
        problem: its model, data, loss and mode.
        layers: names (None: all layers of some kind among the variables, a shared weight once for
            each of its uses).
        bias: whether the input is extended by the constant 1, which the bias multiplies.
        by_class: also give the factors for each label.
        sharing: ``"expand"`` or ``"reduce"``; embeddings are always expanded.
        draws: draw so many labels from the model at every output, in place of the exact
            expectation; ``E[M]`` then has an error of the order ``1/√(draws · terms)``.
        generator: the source of the draws.

    Raises:
        CurvescopeError: for a layer without such factors (another kind, used twice, behind batch
            statistics), a loss that is not convex, or ``by_class`` without class labels.

    >>> from torch import nn
    >>> model = nn.Linear(1, 2, bias=False).double()
    >>> with torch.no_grad():
    ...     _ = model.weight.zero_()
    >>> problem = Problem(model, (torch.tensor([[2.0], [4.0]]).double(), torch.tensor([0, 1])))
    >>> factors = kronecker_factors(problem)[""]
    >>> factors.output_hessian, factors.autocorrelation, factors.mean_input
    (tensor([[ 0.2500, -0.2500],
             [-0.2500,  0.2500]], dtype=torch.float64),
     tensor([[10.]], dtype=torch.float64), tensor([3.], dtype=torch.float64))
    """
    where = "kronecker_factors"
    _checks.one_of(where, "sharing", sharing, SHARING)
    seed = None
    if draws is not None:
        _checks.positive_int(where, "draws", draws)
        source = _checks.generator(where, generator)
        seed = int(torch.randint(2**62, (), generator=source, device=source.device))
    problem.check_unchanged()
    names = layers_of_any_kind(problem, layers, shared=True)
    sums = Pass(sharing=sharing, bias=bias, by_class=by_class, draws=draws, seed=seed)
    for batch in problem.batches():
        sums.begin_batch(batch)
        check_samples(problem, batch, names, shared=True)
        apart = frozenset() if draws else terms_apart(problem, batch, names, shared=True)
        groups = [[n for n in names if (n in apart) is each] for each in (False, True)]
        for piece in pieces(problem, batch, piece_size(problem, batch, names)):
            for by_term, group in zip((False, True), groups, strict=True):
                if group:
                    sums.add(problem, piece, group, by_term=by_term)
        sums.end_batch()
    sums.share(problem)
    if sum(moment.weight for moment in sums.moments.values()) == 0:
        raise CurvescopeError("Problem(data)", "no target counts (all are ignored)")
    return {name: _result(problem, name, sums) for name in names}


def exact_passes(problem: Problem) -> int:
    """How many backward passes the exact ``E[M]`` takes, tried on a few samples.

    >>> from torch import nn
    >>> X, y = torch.randn(6, 4), torch.arange(6) % 3
    >>> exact_passes(Problem(nn.Linear(4, 3), (X, y)))
    2
    """
    few = first_samples(next(iter(problem.data)))
    with problem.evaluation():
        z = problem.output(problem.variables(), few).detach()
    loss = problem.loss_at(z, few)
    return loss.rank * (loss.terms(z[None]).shape[1] // len(z))


def _result(problem: Problem, name: str, sums: Pass) -> KroneckerFactors:
    kind = layer_of(problem.model, name)
    some = next(moment for (layer, _), moment in sums.moments.items() if layer == name)
    with exclusive(problem.model):
        users = users_of(problem.model, kind.module, "weight")
    extended = sums.bias and isinstance(kind, LayerKind)
    like = KroneckerFactors(
        name=name,
        output_hessian=torch.empty(0),
        autocorrelation=torch.empty(0),
        mean_input=torch.empty(0),
        bias=sums.bias and not isinstance(kind, LookupKind),
        transposed=kind.transposed,
        sharing=some.sharing,
        tied=tuple(user for user in users if user.rpartition(".")[0] != name),
        draws=sums.draws,
    )
    if not sums.by_class:
        return _with(like, sums.moments[name, ALL].means(), some, extended, problem.dtype)
    return _by_class(like, sums.moments, sums.classes, extended, problem.dtype)


def _by_class(
    like: KroneckerFactors,
    moments: Mapping[tuple[str, int], LayerMoments],
    classes: int,
    extended: bool,
    dtype: torch.dtype,
) -> KroneckerFactors:
    """The factors of each label, and of all samples as their mean."""
    by_label = [moments.get((like.name, label)) for label in range(classes)]
    samples = sum(m.samples for m in by_label if m is not None)
    shares = [0.0 if m is None else m.samples / samples for m in by_label]
    some = next(m for m in by_label if m is not None)
    means = [
        tuple(map(torch.zeros_like, some.means())) if m is None else m.means() for m in by_label
    ]
    total = [
        torch.stack([s * t for s, t in zip(shares, parts, strict=True)]).sum(0)
        for parts in zip(*means, strict=True)
    ]
    parts = tuple(
        replace(_with(like, mean, some, extended, dtype), share=share)
        for mean, share in zip(means, shares, strict=True)
    )
    return replace(_with(like, total, some, extended, dtype), classes=parts)


def _with(
    like: KroneckerFactors,
    means: Sequence[Tensor],
    moment: LayerMoments,
    extended: bool,
    dtype: torch.dtype,
) -> KroneckerFactors:
    errors, inputs, mean = means
    if extended:  # the input (x, 1) at every position
        ones = mean.new_ones(1, mean.shape[1])
        edge = mean.sum(1, keepdim=True)
        corner = mean.new_full((1, 1), moment.positions)
        inputs = torch.cat([torch.cat([inputs, edge], 1), torch.cat([edge.T, corner], 1)])
        mean = torch.cat([mean, ones])
    mean = mean[:, 0] if mean.shape[1] == 1 else mean
    _checks.all_finite(f"kronecker_factors, layer {like.name!r}", errors, inputs, mean)
    return replace(
        like,
        output_hessian=errors.to(dtype),
        autocorrelation=inputs.to(dtype),
        mean_input=mean.to(dtype),
    )
