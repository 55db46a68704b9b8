"""Clustering of logit gradients by logit and by class, with pictures by t-SNE (DH F.1).

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.problem.batches import Batch
from curvescope.problem.problem import Problem
from curvescope.record.capture import Capture, capture
from curvescope.record.samples import check_samples
from curvescope.record.selection import linear_layers


@dataclass(frozen=True)
class Clusters:
    """Mean logit gradients ``Δ_{i,j}`` for class ``i`` and logit ``j``.

    ``points: [c, c, r]`` are their coordinates in an orthonormal basis of their common span, which
    keeps all distances. ``logit_share`` is the part of their variance that the logit centers
    explain, ``class_share`` that of the class centers: near 1 where the points cluster so.
    """

    points: Tensor
    present: Tensor  # [c]: whether the class has samples

    @property
    def logit_centers(self) -> Tensor:
        """The mean over classes, ``[c, r]``, one for each logit."""
        return self.points[self.present].mean(0)

    @property
    def class_centers(self) -> Tensor:
        """The mean over logits, ``[c, r]``, one for each class; zero for one without samples."""
        return self.points.mean(1)

    @property
    def logit_share(self) -> float:
        """Between-logit variance over total variance."""
        return self._share(self.logit_centers[None].expand_as(self.points))

    @property
    def class_share(self) -> float:
        """Between-class variance over total variance."""
        return self._share(self.class_centers[:, None].expand_as(self.points))

    def _share(self, centers: Tensor) -> float:
        points, centers = (
            self.points[self.present].flatten(0, 1),
            centers[self.present].flatten(0, 1),
        )
        middle = points.mean(0)
        total = (points - middle).square().sum()
        return float((centers - middle).square().sum() / total) if total > 0 else 0.0


@dataclass(frozen=True)
class LogitClusters:
    """``Δ`` by the layer's weight (DH eq. 53) and ``Γ`` by its output (eq. 54)."""

    name: str
    weight: Clusters
    output: Clusters


def logit_clusters(problem: Problem, layer: str) -> LogitClusters:
    """``Δ_{i,j} = E[(Q ∂z/∂w)_j | y = i]`` and ``Γ_{i,j} = E[(Q ∂z/∂z^(p))_j | y = i]``.

    ``Q = diag(√p)(I − 1 pᵀ)`` (DH eq. 28). At initialization the points cluster by logit, at a
    minimum they may cluster by class.

    Cost: a forward and ``c`` backward passes without parameter gradients, and ``c`` weight
    gradients of the layer; memory ``c²·m·n`` numbers while it runs.

    Raises:
        CurvescopeError: unless the loss is cross-entropy with one label for each sample.

    >>> model = torch.nn.Linear(1, 2, bias=False).double()
    >>> with torch.no_grad():
    ...     _ = model.weight.zero_()
    >>> problem = Problem(model, (torch.tensor([[1.0], [2.0]]).double(), torch.tensor([0, 1])))
    >>> clusters = logit_clusters(problem, "").output  # Q does not depend on the sample here
    >>> round(clusters.logit_share, 6), round(clusters.class_share, 6)
    (1.0, 0.0)
    """
    means = logit_means(problem, layer)
    present = means.counts > 0
    return LogitClusters(
        means.name, _clusters(means.weight, present), _clusters(means.output, present)
    )


@dataclass(frozen=True)
class LogitMeans:
    """Means over the samples of each class; zero for a class without samples.

    ``weight[i, j]`` is ``Δ_{i,j}`` over the weight as ``[m, n]``, ``output[i, j]`` is ``Γ_{i,j}``.
    """

    name: str
    counts: Tensor  # [c]
    weight: Tensor  # [c, c, m·n]
    output: Tensor  # [c, c, T·m]
    roots: Tensor  # [c, c, c]: Q
    inputs: Tensor  # [c, n]: x, its sum over the positions


def logit_means(problem: Problem, layer: str) -> LogitMeans:
    """``Δ`` and ``Γ`` of :func:`logit_clusters` themselves, with the means of ``Q`` and ``x``.

    >>> model = torch.nn.Linear(1, 2, bias=False).double()
    >>> with torch.no_grad():
    ...     _ = model.weight.zero_()
    >>> problem = Problem(model, (torch.tensor([[1.0], [3.0]]).double(), torch.tensor([0, 0])))
    >>> means = logit_means(problem, "")
    >>> means.inputs[0], means.roots[0]  # √½ (I − ½)
    (tensor([2.], dtype=torch.float64), tensor([[ 0.3536, -0.3536],
            [-0.3536,  0.3536]], dtype=torch.float64))
    """
    problem.check_unchanged()
    (name,) = linear_layers(problem, layer)
    sums: LogitMeans | None = None
    for batch in problem.batches():
        check_samples(problem, batch, [name])
        record = capture(problem, batch, [name])
        labels = _labels(problem, batch, record)
        sums = sums or _zeros(name, record)
        _add_batch(record, labels, sums)
    assert sums is not None, "a problem has at least one batch"
    for total in (sums.counts, sums.weight, sums.output, sums.roots, sums.inputs):
        problem.sum_(total)
    each = sums.counts.clamp_min(1)[:, None, None]
    return LogitMeans(
        name, sums.counts, sums.weight / each, sums.output / each, sums.roots / each,
        sums.inputs / each[:, 0],
    )  # fmt: skip


def _zeros(name: str, record: Capture) -> LogitMeans:
    c, (m, n) = record.output.shape[1], record.layers[name].matrix_shape
    zeros, T = record.output.new_zeros, record.positions[name]
    counts = torch.zeros(c, dtype=torch.long, device=record.output.device)
    return LogitMeans(
        name, counts, zeros(c, c, m * n), zeros(c, c, T * m), zeros(c, c, c), zeros(c, n)
    )


def _labels(problem: Problem, batch: Batch, record: Capture) -> Tensor:
    where, z = "logit_clusters(problem)", record.output
    classes = problem.loss.at(z.detach(), batch.target).classes(where)
    if classes is None or z.ndim != 2 or z.shape[1] < 2 or bool((classes.labels < 0).any()):
        raise CurvescopeError(where, "needs cross-entropy with one class label for each sample")
    return classes.labels


@torch.no_grad()
def _add_batch(record: Capture, labels: Tensor, sums: LogitMeans) -> None:
    p = torch.softmax(record.output.detach(), 1)
    c = p.shape[1]
    x = record.rows(sums.name)
    members = [(labels == i).nonzero()[:, 0] for i in range(c)]
    for i, index in enumerate(members):
        sums.counts[i] += len(index)
        sums.inputs[i] += x[index].sum((0, 1))
    for j in range(c):
        q = -p * p[:, j : j + 1].sqrt()
        q[:, j] += p[:, j].sqrt()
        e = record.errors(sums.name, record.pull_back(q, last=j == c - 1)[sums.name])  # [B, T, m]
        for i, index in enumerate(members):
            errors = e[index]
            sums.weight[i, j] += torch.einsum("btm,btn->mn", errors, x[index]).flatten()
            sums.output[i, j] += errors.sum(0).flatten()
            sums.roots[i, j] += q[index].sum(0)


def _clusters(points: Tensor, present: Tensor) -> Clusters:
    """Coordinates ``Y`` with ``Y Yᵀ = X Xᵀ``: the same inner products in at most ``c²`` numbers."""
    c = points.shape[0]
    flat = points.flatten(0, 1).double()
    values, vectors = torch.linalg.eigh(flat @ flat.T)
    keep = values > len(values) * torch.finfo(values.dtype).eps * values[-1].clamp_min(0)
    coordinates = (vectors * values.clamp_min(0).sqrt())[:, keep].flip(1)
    return Clusters(coordinates.reshape(c, c, -1).cpu(), present.cpu())


@dataclass(frozen=True)
class Embedding:
    """Two coordinates for every point and center (DH fig. 20, 21)."""

    points: Tensor  # [c, c, 2]
    logit_centers: Tensor  # [c, 2]
    class_centers: Tensor  # [c, 2]


def tsne(clusters: Clusters, *, generator: torch.Generator, perplexity: float = 10.0) -> Embedding:
    """A t-SNE picture of the points and their centers (van der Maaten and Hinton 2008).

    Args:
        clusters: one of the two parts of :func:`logit_clusters`.
        generator: the source of scikit-learn's random start.
        perplexity: the effective number of neighbors, below the number of points.

    Raises:
        CurvescopeError: when scikit-learn is not installed, or there are too few points.
    """
    generator = _checks.generator("tsne", generator)
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        remedy = "install it with pip install 'curvescope[plots]'"
        raise CurvescopeError("tsne", "needs scikit-learn", remedy=remedy) from error
    c = clusters.points.shape[0]
    points = torch.cat(
        [clusters.points.flatten(0, 1), clusters.logit_centers, clusters.class_centers]
    )
    if not 0 < perplexity < len(points):
        rule = f"`perplexity` must lie between 0 and the {len(points)} points"
        raise CurvescopeError("tsne", rule, given=perplexity)
    seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator.device))
    method = TSNE(
        n_components=2, perplexity=perplexity, init="random", random_state=seed, method="exact"
    )
    plane = torch.from_numpy(method.fit_transform(points.numpy())).double()
    points, logits, classes = plane.split([c * c, c, c])
    return Embedding(points.reshape(c, c, 2), logits, classes)
