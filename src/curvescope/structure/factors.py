"""Kronecker factors of layer Hessians: output Hessian and input auto-correlation.

The layer Hessian is ``E[M ⊗ x xᵀ]`` (DH eq. 6), and the decoupling conjecture (eq. 7) says that its
large eigenpairs are close to those of ``E[M] ⊗ E[x xᵀ]``. One pass over the data gives both factors
of all layers, exactly: the expectation over labels is a sum over the root of the output Hessian,
not a sample.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError, Inapplicable
from curvescope.layers import as_matrix
from curvescope.operators.kronecker import KroneckerOperator
from curvescope.problem.batches import Batch
from curvescope.problem.losses import LossAt
from curvescope.problem.problem import Problem
from curvescope.record import memory
from curvescope.record.capture import Capture, capture
from curvescope.record.moments import LayerMoments
from curvescope.record.outputs import LossHessian
from curvescope.record.roots import root
from curvescope.record.samples import check_samples, first_samples, pieces
from curvescope.record.selection import layer_of, linear_layers

CACHE = 16 << 20  # bytes of layer inputs and outputs of a piece: about a CPU's last cache


@dataclass(frozen=True)
class KroneckerFactors:
    """The factors of one layer with ``m`` outputs and ``n`` inputs.

    ``output_hessian`` is ``E[M]`` (DH eq. 27), for ``T`` positions ``E[Ñᵀ Ñ / T]`` (eq. 36);
    ``autocorrelation`` is ``E[x xᵀ]`` or ``E[X Xᵀ]``; ``mean_input`` is ``E[x]: [n]`` or
    ``E[X]: [n, T]``. With ``bias`` the input has one more entry, the constant 1 (eq. 41). With
    groups, every group has its own positions: the errors of different groups do not meet in
    ``output_hessian``, and the auto-correlation is that of all groups together.

    ``classes`` are the factors of each label, if requested; ``share`` is the fraction of the
    samples with this label. ``transposed`` says that the weight is stored as ``[n, m]``.
    """

    name: str
    output_hessian: Tensor  # [m, m]
    autocorrelation: Tensor  # [n, n], or [n + 1, n + 1] with the bias
    mean_input: Tensor  # [n] or [n, T], one row more with the bias
    bias: bool
    share: float = 1.0
    classes: tuple[KroneckerFactors, ...] = field(default=())
    transposed: bool = False

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
) -> dict[str, KroneckerFactors]:
    """``E[M]`` and ``E[x xᵀ]`` of linear and convolution layers, in one pass over the data.

    Exact for every convex loss, in expectation over the labels (DH eq. 24, 27; A.2 for
    convolutions). ``E[M]`` is the weighted mean over the loss's terms, ``E[x xᵀ]`` that over the
    samples.

    The product takes the ``T`` positions of a convolution as independent. Where errors and inputs
    agree at all positions, the layer's Hessian is ``T`` times as large as the product (as in DH
    A.2), so that the eigenvalues of the two may be far apart.

    Cost: one forward pass, and as many backward passes without parameter gradients as the output
    Hessian has rank (``C − 1`` for cross-entropy), in all about 3 to 4 gradients for 10 classes.
    Memory: the graph of one batch and the factors.

    Args:
        problem: its model, data, loss and mode.
        layers: names (None: all linear and convolution layers among the variables).
        bias: whether the input is extended by the constant 1, which the bias multiplies.
        by_class: also give the factors for each label.

    Raises:
        CurvescopeError: for a layer without such factors (another kind, shared, used twice, behind
            batch statistics), a loss that is not convex, or ``by_class`` without class labels.

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
    problem.check_unchanged()
    names = linear_layers(problem, layers)
    moments: dict[tuple[str, int], LayerMoments] = {}
    classes = 0
    for batch in problem.batches():
        check_samples(problem, batch, names)
        for piece in pieces(problem, batch, _piece_size(problem, batch, names)):
            record = capture(problem, piece, names)
            loss = problem.loss_at(record.output, piece)
            members: Members = {ALL: (None, record.samples, loss.weight)}
            if by_class:
                members, classes = by_label("kronecker_factors", piece, record.output, loss)
            _check_size(record, len({*members, *(label for _, label in moments)}))
            directions = root(LossHessian(), loss, record.output, piece.index)
            _add_piece(record, directions, members, moments)
        for moment in moments.values():
            moment.end_batch()
    if sum(moment.weight for moment in moments.values()) == 0:
        raise CurvescopeError("Problem(data)", "no target counts (all are ignored)")
    factors = {
        name: _by_class(name, moments, classes, bias, problem.dtype)
        if by_class
        else _factors(name, moments[name, ALL].means(), 1.0, bias, problem.dtype)
        for name in names
    }
    return {
        name: _transposed(factor) if layer_of(problem.model, name).transposed else factor
        for name, factor in factors.items()
    }


def _transposed(factors: KroneckerFactors) -> KroneckerFactors:
    classes = tuple(replace(factor, transposed=True) for factor in factors.classes)
    return replace(factors, transposed=True, classes=classes)


ALL = -1
Members = dict[int, tuple[Tensor | None, int, float]]  # label -> samples; how many; loss weight


def _piece_size(problem: Problem, batch: Batch, names: Sequence[str]) -> int:
    """The number of samples whose layer inputs and outputs fit into :data:`CACHE`."""
    if problem.device.type != "cpu":
        return 1 << 30
    few = capture(problem, first_samples(batch), names)
    outputs = sum(few.positions[name] * few.layers[name].matrix_shape[0] for name in names)
    numbers = outputs + sum(x.numel() for x in few.inputs.values()) / few.samples
    return max(16, int(CACHE / few.output.element_size() / numbers))


def _check_size(record: Capture, labels: int) -> None:
    """Refuse what does not fit into memory: directions, and three copies of all moments."""
    classes, item = record.output[0].numel(), record.output.element_size()
    moments = 0
    for name, layer in record.layers.items():
        m, n = layer.matrix_shape
        moments += m * m + n * n + n * record.positions[name]
    memory.need(
        "kronecker_factors",
        f"{classes:,} outputs of {record.samples} samples and the factors of {labels} label(s)",
        item * (2 * record.samples * classes**2 + 3 * labels * moments),
        record.output.device,
        "use fewer layers, smaller batches or fewer classes",
    )


def _add_piece(
    record: Capture,
    directions: Tensor,
    members: Members,
    moments: dict[tuple[str, int], LayerMoments],
) -> None:
    """Add some samples of a batch to the moments of every layer and label."""
    for name in record.layers:
        for label, (index, samples, weight) in members.items():
            moment = moments.setdefault((name, label), LayerMoments(record, name))
            if moment.positions != record.positions[name]:
                rule = f"layer {name!r} needs the same number of positions in all batches"
                raise Inapplicable(
                    "kronecker_factors",
                    rule,
                    given=f"{moment.positions} and {record.positions[name]}",
                )
            moment.add_inputs(_some(record.inputs[name], index, record.samples), samples, weight)
    last = directions.shape[1] - 1
    with record.backward() as pull_back:
        for k in range(last + 1):
            for name, e in pull_back(directions[:, k], k == last).items():
                for label, (index, samples, _) in members.items():
                    moments[name, label].add_errors(_some(e, index, record.samples), samples)


def _some(t: Tensor, index: Tensor | None, samples: int) -> Tensor:
    """The samples of one label; positions may be folded into the first dimension."""
    if index is None:
        return t
    return t.reshape(samples, -1, *t.shape[1:])[index].flatten(0, 1)


def by_label(where: str, batch: Batch, z: Tensor, loss: LossAt) -> tuple[Members, int]:
    """The samples of each label, and the number of classes; ``where`` is the caller, for errors.

    >>> from curvescope.problem.losses import as_loss
    >>> batch, z = Batch(torch.zeros(3, 1), torch.tensor([2, 0, 2]), 0), torch.zeros(3, 4)
    >>> loss = as_loss("cross_entropy").at(z, batch.target)
    >>> by_label("doctest", batch, z, loss)
    ({0: (tensor([1]), 1, 1.0), 2: (tensor([0, 2]), 2, 2.0)}, 4)
    """
    y, outputs = batch.target, z[0].numel()
    labels = isinstance(y, Tensor) and not y.is_floating_point() and y.numel() == z.shape[0]
    if not labels or not loss.count == loss.weight == z.shape[0]:
        rule = "needs one class label for each sample, all of the same weight"
        raise CurvescopeError(f"{where}, by class", rule)
    members: Members = {}
    for label in y.unique().tolist():
        index = (y.flatten() == label).nonzero()[:, 0]
        members[label] = (index, len(index), float(len(index)))
    return members, max(outputs, 2)


def _by_class(
    name: str,
    moments: dict[tuple[str, int], LayerMoments],
    classes: int,
    bias: bool,
    dtype: torch.dtype,
) -> KroneckerFactors:
    """The factors of each label, and of all samples as their mean."""
    by_label = [moments.get((name, label)) for label in range(classes)]
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
        _factors(name, mean, share, bias, dtype) for mean, share in zip(means, shares, strict=True)
    )
    return replace(_factors(name, total, 1.0, bias, dtype), classes=parts)


def _factors(
    name: str, means: Sequence[Tensor], share: float, bias: bool, dtype: torch.dtype
) -> KroneckerFactors:
    errors, inputs, mean = means
    if bias:  # the input (x, 1) at every position
        ones = mean.new_ones(1, mean.shape[1])
        edge = mean.sum(1, keepdim=True)
        corner = mean.new_full((1, 1), mean.shape[1])
        inputs = torch.cat([torch.cat([inputs, edge], 1), torch.cat([edge.T, corner], 1)])
        mean = torch.cat([mean, ones])
    mean = mean[:, 0] if mean.shape[1] == 1 else mean
    _checks.all_finite(f"kronecker_factors, layer {name!r}", errors, inputs, mean)
    return KroneckerFactors(name, errors.to(dtype), inputs.to(dtype), mean.to(dtype), bias, share)
