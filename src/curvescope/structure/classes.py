"""Class and cross-class structure of the Gauss–Newton matrix (TR sec. 6).

Every term ``i`` of class ``c`` has an extended gradient ``g_{icc'} = ∂ℓ(f(x_i), y_c')/∂θ`` for each
would-be class ``c'`` and a weight ``w_{icc'} = p_{icc'} / N``; ``N`` counts all terms, so that with
``n`` examples in each of ``C`` classes it is TR's ``p / (nC)``, and without balance every class
weighs what its share of the data weighs. With the weighted means

    w_{cc'} = Σ_i w_{icc'}      g_{cc'} = Σ_i w_{icc'} g_{icc'} / w_{cc'}
    w_c = Σ_{c'≠c} w_{cc'}      g_c = Σ_{c'≠c} w_{cc'} g_{cc'} / w_c

the mean–variance decomposition, applied twice, is an identity for any weights (TR 6.4, A.1):

    G = Σ_c w_c g_c g_cᵀ                                          class part
      + Σ_{c'≠c} w_{cc'} (g_{cc'} − g_c)(g_{cc'} − g_c)ᵀ           cross part
      + Σ_{i,c,c'} w_{icc'} (g_{icc'} − g_{cc'})(…)ᵀ               within part
      + Σ_c w_{cc} g_{cc} g_{cc}ᵀ                                  diagonal part

(TR prints ``g_c'`` in its per-class cross part; only ``g_c`` makes the sum come out.)

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from curvescope import _checks
from curvescope._state import full_precision
from curvescope.errors import CurvescopeError, MemoryLimitError
from curvescope.operators.base import LinearOperator
from curvescope.operators.curvature import Curvature
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.simple import LowRank
from curvescope.problem import Problem
from curvescope.problem.batches import Batch
from curvescope.problem.losses import Classes, Groups
from curvescope.record import memory, samples
from curvescope.record.extended import extended, merge, scatter
from curvescope.record.outputs import ClassOuter, Mix
from curvescope.spectra.exact import exact_spectrum

PARTS = ("class", "cross", "diagonal", "between")


@dataclass(frozen=True)
class ClassStructure:
    """The ``C²`` cross-class means of the extended gradients and the parts of ``G`` they make.

    ``log_weights`` are the logarithms of ``w_{cc'}``, because probabilities of a trained network
    underflow: the means are right where the weights are 0. A class without examples has
    weight 0 and zero means, and takes no part in any sum.
    """

    problem: Problem
    operator: LinearOperator  # G
    counts: Tensor  # [C], terms of each class
    log_weights: Tensor  # [C, C], float64
    means: Tensor  # [C, C, P]: g_{cc'}
    groups: Groups | None = None  # the class of every output, where several are of one

    @property
    def classes(self) -> int:
        """``C``, the number of classes."""
        return len(self.counts)

    @property
    def weights(self) -> Tensor:
        """``w_{cc'}``: ``[C, C]``, float64; they sum to 1."""
        return self.log_weights.exp()

    @property
    def _log_others(self) -> Tensor:
        """``log w_{cc'}`` with the diagonal taken out."""
        return self.log_weights.clone().fill_diagonal_(-torch.inf)

    @property
    def class_weights(self) -> Tensor:
        """``w_c``: ``[C]``, float64; the probability of being wrong that falls on class ``c``."""
        return torch.logsumexp(self._log_others, 1).exp()

    @cached_property
    def class_means(self) -> Tensor:
        """``g_c``: ``[C, P]``."""
        shares = torch.softmax(self._log_others, 1).nan_to_num(0.0)  # 0/0 where a class is empty
        return torch.einsum("cd,cdp->cp", shares.to(self.means), self.means)

    @property
    def global_mean(self) -> Tensor:
        """``g_G = Σ_c w_c g_c / Σ_c w_c``: ``[P]``."""
        shares = torch.softmax(torch.logsumexp(self._log_others, 1), 0)
        return shares.to(self.means) @ self.class_means

    # Parts --------------------------------------------------------------------------------------

    @property
    def class_part(self) -> LowRank:
        """``Σ_c w_c g_c g_cᵀ``, rank at most ``C``."""
        return LowRank(self.class_means.T, self.class_weights.to(self.means))

    @cached_property
    def cross_part(self) -> LowRank:
        """``Σ_{c'≠c} w_{cc'} (g_{cc'} − g_c)(g_{cc'} − g_c)ᵀ``, rank at most ``C(C − 2)``."""
        off = ~torch.eye(self.classes, dtype=torch.bool, device=self.means.device)
        deviations = (self.means - self.class_means[:, None])[off]
        return LowRank(deviations.T, self.weights[off].to(self.means))

    @property
    def diagonal_part(self) -> LowRank:
        """``Σ_c w_{cc} g_{cc} g_{cc}ᵀ``, rank at most ``C``: ordinary gradient means."""
        means = self.means.diagonal(dim1=0, dim2=1)  # [P, C]
        return LowRank(means, self.weights.diagonal().to(self.means))

    @property
    def between_part(self) -> LowRank:
        """``Σ_{c,c'} w_{cc'} g_{cc'} g_{cc'}ᵀ``: class, cross and diagonal part together."""
        return LowRank(self.means.flatten(0, 1).T, self.weights.flatten().to(self.means))

    @property
    def within_part(self) -> LinearOperator:
        """``G`` less the three others: the covariance of the replications (TR 6.3)."""
        return self.operator - self.between_part

    # One class ----------------------------------------------------------------------------------

    def cross_of(self, c: int, *, normalized: bool = False) -> LowRank:
        """``Σ_{c'≠c} w_{cc'} (g_{cc'} − g_c)(…)ᵀ`` of one class; :attr:`cross_part` is their sum.

        ``normalized`` takes ``w_{cc'} / w_c`` for ``w_{cc'}``, which is TR's ``G_cross,c``.
        """
        c = self._class("cross_of", "c", c)
        others = torch.arange(self.classes, device=self.means.device) != c
        weights = self.weights[c, others]
        if normalized:
            weights = torch.softmax(self._log_others[c], 0)[others].nan_to_num(0.0)
        deviations = self.means[c, others] - self.class_means[c]
        return LowRank(deviations.T, weights.to(self.means))

    def within_of(
        self, c: int, cross: int | None = None, *, normalized: bool = False
    ) -> LinearOperator:
        """``Σ_{i,c'} w_{icc'} (g_{icc'} − g_{cc'})(…)ᵀ`` of one class.

        :attr:`within_part` is their sum. With ``cross`` it is the summand of one pair of classes.
        ``normalized`` divides by the sum of the weights: ``w_{cc'}`` for a pair, which is TR's
        ``G_within,c,c'``, the share of the class for all of them.

        Cost of a product: that of one with ``G``.

        Raises:
            CurvescopeError: for another class; for a normalized one of no weight.
        """
        c = self._class("within_of", "c", c)
        weights, means = self.weights[c], self.means[c]
        if cross is not None:
            cross = self._class("within_of", "cross", cross)
            weights, means = weights[cross : cross + 1], means[cross : cross + 1]
        second = Curvature(self.problem, Mix(0.0, ((ClassOuter(c, cross, self.groups), 1.0),)))
        part = second - LowRank(means.T, weights.to(self.means))
        if not normalized:
            return part
        total = float(weights.sum())
        if not total > 0:
            rule = "a part of no weight cannot be normalized"
            raise CurvescopeError("ClassStructure.within_of", rule)
        return part / total

    def _class(self, method: str, name: str, c: int) -> int:
        where = f"ClassStructure.{method}"
        c = _checks.positive_int(where, name, c, minimum=0)
        if c >= self.classes:
            rule = f"`{name}` must be one of the {self.classes} classes"
            raise CurvescopeError(where, rule, given=c)
        return c

    def eigenvalues(self, part: str) -> Tensor:
        """All eigenvalues of a low-rank part that are not zero by its form, descending, float64.

        They are those of the Gram matrix of its at most ``C²`` vectors: exact at any number of
        parameters. ``part`` is ``"class"``, ``"cross"``, ``"diagonal"`` or ``"between"``, the sum
        of the three, which is what TR fig. 6 draws.
        """
        if part not in PARTS:
            names = ", ".join(PARTS)
            rule = f"`part` must be one of {names}"
            raise CurvescopeError("ClassStructure.eigenvalues", rule, given=repr(part))
        operator: LowRank = getattr(self, f"{part}_part")
        return exact_spectrum(operator).values.flip(0)


def class_structure(problem: Problem, *, classes: Any = None) -> ClassStructure:
    """All cross-class means of the extended gradients, and with them the parts of ``G`` (TR 6.4).

    Samples are gathered by class; on the samples of one class, ``C`` weighted directions are pulled
    back. Every sample goes forward once and backward ``C`` times: about ``(1 + 2C)/3`` gradients
    over the data, never ``C²`` (which it takes where samples cannot be separated: batch norm with
    batch statistics, a label at every position). Any model that autograd can differentiate will do.

    A label may stand at every position of a sample: every position is then an example, of the
    class of its label. Where there are very many outputs, such as the tokens of a language model,
    ``classes`` makes groups of them: with the class ``κ(v)`` of an output, ``w_{cc'}`` and
    ``g_{cc'}`` are sums over all examples with ``κ(y_i) = c`` and all outputs with ``κ(v) = c'``,
    and the identity holds as before; the within part has also the scatter within a group.

    Memory: ``C² P`` numbers.

    Args:
        problem: cross-entropy with class labels, or the logistic loss as two classes.
        classes: the class ``0, 1, …`` of every output, ``[V]``, or a map from outputs to classes;
            those that it leaves out are one more class. See :func:`frequent_classes`.

    Raises:
        CurvescopeError: another loss; a single class; means that do not fit into memory.

    >>> from torch import nn
    >>> model = nn.Linear(1, 2, bias=False).double()
    >>> with torch.no_grad():
    ...     _ = model.weight.zero_()
    >>> X, y = torch.tensor([[1.0], [3.0], [4.0]]).double(), torch.tensor([0, 0, 1])
    >>> structure = class_structure(Problem(model, (X, y)))
    >>> structure.counts, structure.means[0, 1]  # p − e_1 = (½, −½), times the mean 2 of x
    (tensor([2, 1]), tensor([ 1., -1.], dtype=torch.float64))
    >>> structure.eigenvalues("class")
    tensor([2., 0.], dtype=torch.float64)
    """
    problem.check_unchanged()
    sums: _Means | None = None
    for batch in _by_class(problem):
        variables = problem.variables()
        with full_precision(problem.device):
            with problem.evaluation():
                z = problem.output(variables, batch)
            e = extended(problem.loss, z.detach(), batch.target, "class_structure(problem)")
            problem.loss_at(z, batch)  # refuses infinite losses
            if sums is None:
                groups = groups_of(classes, e.classes, "class_structure(problem)")
                sums = _Means(problem, e.classes if groups is None else groups.count, groups)
            e = e if sums.groups is None else e.grouped(sums.groups)
            sums.add(z, variables, batch, e)
    assert sums is not None, "a problem has at least one batch"
    return sums.result()


class _Means:
    """Running weighted means; weights are carried as logarithms, so that none underflows."""

    def __init__(self, problem: Problem, classes: int, groups: Groups | None) -> None:
        self._problem, P = problem, problem.params.size
        self.groups = groups
        item = torch.empty(0, dtype=problem.dtype).element_size()
        needed, free = classes**2 * P * item, memory.free(problem.device)
        if not problem.group.agree(needed <= 0.8 * free):
            raise MemoryLimitError(
                "class_structure(problem)",
                f"{classes}² means of {P} parameters take {memory.readable(needed)}, "
                f"{memory.readable(free)} are free",
                remedy="restrict the problem to a layer with problem.restrict(name)",
            )
        device = problem.device
        self._means = torch.zeros(classes, classes, P, dtype=problem.dtype, device=device)
        self._logs = torch.full((classes, classes), -torch.inf, dtype=torch.float64, device=device)
        self._counts = torch.zeros(classes, dtype=torch.int64, device=device)

    def add(self, z: Tensor, variables: dict[str, Tensor], batch: Batch, e: Classes) -> None:
        """Pull back the weighted directions of every class that the batch contains."""
        at = self._problem.loss.at(z.detach(), batch.target)
        present = [c for c in e.labels.unique().tolist() if c >= 0]
        for c in present:
            mask = e.labels == c
            log_p = e.log_p.masked_fill(~mask[:, None], -torch.inf)
            logs = torch.logsumexp(log_p, 0)
            total, keep, new = merge(self._logs[c], logs)
            shares = torch.exp(log_p - logs).nan_to_num(0.0).to(z.dtype)  # [terms, C]
            self._means[c] *= keep[:, None].to(z.dtype)
            for k in range(e.classes):
                u = scatter(at, (shares[:, k, None] * e.direction(k))[None], z)[0]
                last = c == present[-1] and k == e.classes - 1
                pieces = torch.autograd.grad(
                    z, list(variables.values()), u, retain_graph=not last, allow_unused=True
                )
                for name, g in zip(variables, pieces, strict=True):
                    if g is not None:
                        where = self._problem.params.slice(name)
                        self._means[c, k, where] += new[k].to(z.dtype) * g.flatten()
            self._logs[c] = total
            self._counts[c] += mask.sum()

    def result(self) -> ClassStructure:
        """The means with their weights, over the data of all ranks."""
        self._logs, self._means = shared_means(self._problem, self._logs, self._means)
        self._problem.sum_(self._counts)
        terms = int(self._counts.sum())
        if terms == 0:
            raise CurvescopeError("Problem(data)", "no target counts (all are ignored)")
        log_weights = self._logs - torch.tensor(terms, dtype=torch.float64).log()
        G = GaussNewton(self._problem)
        return ClassStructure(self._problem, G, self._counts, log_weights, self._means, self.groups)


def shared_means(problem: Problem, logs: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Weights ``[C, C]`` as logarithms and means ``[C, C, …]`` over all ranks, from this rank's."""
    if problem.group.alone:
        return logs, means
    total = torch.logsumexp(problem.concatenate(logs[None]), 0)
    share = torch.exp(logs - total).nan_to_num(0.0)
    return total, problem.sum_(means.mul_(share[..., None].to(means)))


def groups_of(classes: Any, outputs: int, where: str) -> Groups | None:
    """The groups that a user named, or None."""
    return None if classes is None else Groups.of(classes, outputs, where)


def _by_class(problem: Problem) -> Iterator[Batch]:
    """The samples regrouped by label, or the data's batches where samples cannot be separated.

    The new batches hold one label each and are about as large as those of the data.
    """
    waiting: dict[object, list[Batch]] = {}
    sizes: dict[object, int] = {}
    full = 1
    for batch in problem.batches():
        y = batch.target
        if not isinstance(y, Tensor) or y.ndim == 0 or y.numel() != y.shape[0] or not (
            problem.samples_apart(batch)
        ):  # fmt: skip
            yield batch
            continue
        full = max(full, y.shape[0])
        for label in y.unique().tolist():
            part = samples.choose(batch, y.flatten() == label)
            waiting.setdefault(label, []).append(part)
            sizes[label] = sizes.get(label, 0) + part.target.shape[0]
            if sizes[label] >= full:
                yield samples.join(waiting.pop(label))
                del sizes[label]
    for parts in waiting.values():
        yield samples.join(parts)
