"""Second moments of a layer's features and errors, with the means of all classes (TR 7.4, 7.7).

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from curvescope._state import full_precision
from curvescope.errors import CurvescopeError, Inapplicable
from curvescope.problem import Problem
from curvescope.problem.batches import Batch
from curvescope.problem.losses import Classes, Groups
from curvescope.record import memory, samples
from curvescope.record.extended import extended, merge, scatter
from curvescope.record.layers import LayerRecord, record_layers
from curvescope.record.selection import linear_layers, matrix_layer
from curvescope.structure.classes import groups_of, shared_means

_CHUNK = 256 << 20  # bytes: inputs and errors of all layers that are recorded at a time


class LayerMoments:
    """Running moments of one layer with ``n`` inputs, ``m`` outputs and ``T`` positions, float64.

    Replications are (sample, position) pairs. Features weigh ``1/(N T)``; ``second_features``
    is ``H``. The error ``δ_{icc't}`` weighs ``w_{icc'}``, so that ``second_errors`` is ``Δ`` with
    positions summed. Weights are carried as logarithms (:func:`merge`). With ``groups`` a class is
    a group of outputs: errors are recorded for every output, and averaged within a group.
    """

    def __init__(self, record: LayerRecord, classes: int, groups: Groups | None = None) -> None:
        self._groups = groups or Groups(tuple(range(classes)))
        classes = self._groups.count
        _, T, n = record.inputs.shape
        m = record.errors.shape[3]
        device = record.inputs.device

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self.classes, self.positions = classes, T
        self._eps = torch.finfo(record.errors.dtype).eps
        self.counts = zeros(classes)
        self._features, self._feature_sums = zeros(n, n), zeros(classes, n)
        self._errors, self._label_sums = zeros(m, m), zeros(classes, m)
        self.error_means = zeros(classes, classes, m)  # δ_{cc'}
        self._logs = torch.full_like(zeros(classes, classes), -torch.inf)

    def add(self, record: LayerRecord, e: Classes) -> None:
        """Add a batch, recorded with the directions ``∂ℓ(z, y_v)/∂z`` in the order of outputs."""
        X, E = record.inputs.double(), record.errors.double()  # [B, T, n], [B, V, T, m]
        labels, members = self._groups.labels(e.labels), self._groups.tensor(X.device)
        member = torch.nn.functional.one_hot(labels.clamp(min=0), self.classes).double()
        member = member * (labels >= 0)[:, None]
        counted = member.sum(1)
        flat = (X * counted[:, None, None]).flatten(0, 1)
        self._features.addmm_(flat.T, X.flatten(0, 1))
        self.counts += member.sum(0)
        self._feature_sums += member.T @ X.mean(1)
        rooted = (E * torch.exp(0.5 * e.log_p)[..., None, None]).flatten(0, 2)
        self._errors.addmm_(rooted.T, rooted)
        middle = E.mean(2)  # over positions: [B, V, m]
        at_label = middle[torch.arange(len(X), device=X.device), e.labels.clamp(min=0)]
        self._label_sums += member.T @ at_label
        logs = e.log_p[:, None].masked_fill(member[..., None] == 0, -torch.inf)  # [B, c, v]
        batch = self._groups.log_sums(torch.logsumexp(logs, 0))  # [c, c']
        shares = torch.exp(logs - batch[:, members]).nan_to_num(0.0)
        self._logs, keep, new = merge(self._logs, batch)
        sums = torch.einsum("bcv,bvm->cvm", shares, middle)
        means = torch.zeros_like(self.error_means).index_add_(1, members, sums)
        self.error_means = keep[..., None] * self.error_means + new[..., None] * means

    def share(self, problem: Problem) -> None:
        """Make the sums over this rank's data those over all data."""
        sums = (self.counts, self._features, self._feature_sums, self._errors, self._label_sums)
        for total in sums:
            problem.sum_(total)
        self._logs, self.error_means = shared_means(problem, self._logs, self.error_means)

    @property
    def rounding(self) -> float:
        """The eigenvalue that rounding may leave, over the largest one.

        Moments are sums in float64; features and errors have the relative error of their own type,
        some tens of its ``eps`` after the layers they came through, whose square enters.
        """
        return max(1000 * torch.finfo(torch.float64).eps, (32 * self._eps) ** 2)

    # Features -----------------------------------------------------------------------------------

    @property
    def _total(self) -> Tensor:
        return self.counts.sum()

    @property
    def second_features(self) -> Tensor:
        """``H: [n, n]``."""
        return self._features / (self._total * self.positions)

    @property
    def feature_means(self) -> Tensor:
        """``h_c: [C, n]``; 0 for a class without examples."""
        return self._feature_sums / self.counts.clamp(min=1)[:, None]

    @property
    def class_shares(self) -> Tensor:
        """``n_c / N: [C]``, the weights of the feature means."""
        return self.counts / self._total

    # Errors -------------------------------------------------------------------------------------

    @property
    def second_errors(self) -> Tensor:
        """``Δ: [m, m]``."""
        return self._errors / self._total

    @property
    def log_weights(self) -> Tensor:
        """``log(T w_{cc'}): [C, C]``, of the cross-class means of the errors."""
        return self._logs - self._total.log() + math.log(self.positions)

    @property
    def label_errors(self) -> Tensor:
        """``δ̄_cc: [C, m]``: the mean error at the true label over class ``c`` and positions."""
        return self._label_sums / self.counts.clamp(min=1)[:, None]

    def weight_class(self) -> Tensor:
        """``η W_class = −Σ_c (n_c/N) (Σ_t δ̄_cc) h_cᵀ: [m, n]`` (TR 7.13)."""
        left, right = self.weight_factors()
        return left @ right

    def weight_factors(self) -> tuple[Tensor, Tensor]:
        """The same as a product ``[m, C] [C, n]``: its rank is at most ``C``."""
        weighted = self.class_shares[:, None] * self.label_errors * self.positions
        return -weighted.T, self.feature_means


def layer_moments(
    problem: Problem, *, layers: str | Iterable[str] | None = None, classes: Any = None
) -> dict[str, LayerMoments]:
    """The second moments and class means of every layer, as matrices; one pass over the data."""
    problem.check_unchanged()
    names = linear_layers(problem, layers, shared=True)
    moments: dict[str, LayerMoments] = {}
    current: list[Classes] = []

    def directions(z: Tensor, target: Any) -> Tensor:
        _check_size(problem, names, z, target)
        at = problem.loss.at(z, target)
        current[:] = [extended(problem.loss, z, target, "layer_statistics(problem)")]
        return scatter(at, current[0].directions.movedim(1, 0), z).transpose(0, 1)

    groups: Groups | None = None
    size = 0
    for batch in problem.batches():
        by_term = _by_term(problem, batch, names)

        def record(piece: Batch, by_term: bool = by_term) -> dict[str, LayerRecord]:
            return record_layers(problem, piece, names, directions, shared=True, by_term=by_term)

        with full_precision(problem.device):
            if not size:
                records = record(next(samples.pieces(problem, batch, 1)))
                groups = groups_of(classes, current[0].classes, "layer_statistics(problem)")
                each = sum(r.inputs.nbytes + r.errors.nbytes for r in records.values())
                size = max(1, _CHUNK // each)
            for piece in samples.pieces(problem, batch, size):
                for name, layer in record(piece).items():
                    if name not in moments:
                        moments[name] = LayerMoments(layer, current[0].classes, groups)
                    moments[name].add(layer, current[0])
    for moment in moments.values():
        moment.share(problem)
    if not any(bool(moment.counts.any()) for moment in moments.values()):
        raise CurvescopeError("Problem(data)", "no target counts (all are ignored)")
    return moments


def _by_term(problem: Problem, batch: Batch, names: Sequence[str]) -> bool:
    """Whether a sample has several labels, one at each position; refused where these meet."""
    few = samples.first_samples(batch)
    with problem.evaluation():
        z = problem.output(problem.variables(), few).detach()
    each = problem.loss_at(z, few).terms(z[None]).shape[1] // len(z)
    if each == 1:
        return False
    samples.check_samples(problem, batch, names, shared=True)
    apart = samples.terms_apart(problem, batch, names, shared=True)
    for name in names:
        if name not in apart:
            rule = (
                f"the {each} labels of a sample meet at layer {name!r}, whose errors belong to no "
                "class then"
            )
            remedy = f"such layers are {', '.join(sorted(apart))}" if apart else None
            raise Inapplicable("layer_statistics(problem)", rule, remedy=remedy)
    return True


def _check_size(problem: Problem, names: Sequence[str], z: Tensor, target: Any) -> None:
    """Refuse what does not fit into memory: directions, and means of all pairs of classes."""
    classes = max(2, problem.loss.outputs(z, target))
    rows = [matrix_layer(problem.model, name).matrix_shape[0] for name in names]
    each = 8 * (sum(rows) + 3 * max(rows)) + 2 * z.element_size() * z.numel() // classes
    memory.need(
        "layer_statistics(problem)",
        f"means of {classes:,}² pairs of classes for {len(names)} layer(s)",
        each * classes**2,
        problem.device,
        "use fewer layers, or samples of fewer classes",
    )
