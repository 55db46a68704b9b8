"""Traces of the Gauss–Newton matrix and its parts, class by class (TR fig. 6).

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.operators.gram import GramForm
from curvescope.problem.losses import Classes
from curvescope.record.extended import class_directions, extended
from curvescope.structure.classes import ClassStructure


@dataclass(frozen=True)
class ClassTraces:
    """Traces of ``G`` and its parts, class by class: ``[C]`` each, float64; they sum to those of G.

    ``within[c] = Σ_{i,c'} w_{icc'} ‖g_{icc'} − g_{cc'}‖²``. TR fig. 6 draws the mean eigenvalue
    ``Tr(G_within,c) / n`` of each class: ``within / counts``.
    """

    counts: Tensor
    total: Tensor
    class_part: Tensor
    cross: Tensor
    diagonal: Tensor
    within: Tensor


def class_traces(structure: ClassStructure) -> ClassTraces:
    """The exact trace that every class contributes to ``G`` and to each of its parts.

    Needs the norms ``‖g_{icc'}‖²`` of all extended gradients, which linear and convolution layers
    give from inputs and errors without forming a gradient. Cost: ``C`` backward passes over the
    data, and one more backward pass per term and class for the parameters of other layers.

    >>> from torch import nn
    >>> from curvescope.problem import Problem
    >>> from curvescope.structure.classes import class_structure
    >>> model = nn.Linear(1, 2, bias=False).double()
    >>> with torch.no_grad():
    ...     _ = model.weight.zero_()
    >>> X, y = torch.tensor([[1.0], [3.0], [4.0]]).double(), torch.tensor([0, 0, 1])
    >>> traces = class_traces(class_structure(Problem(model, (X, y))))
    >>> [round(float(3 * x), 6) for x in traces.total]  # Σ x² / 2
    [5.0, 8.0]
    >>> [round(float(3 * x), 6) for x in traces.within]  # Σ (x − x̄)² / 2
    [1.0, 0.0]
    """
    form = GramForm(structure.problem, class_directions)
    norms = form.diagonal()
    labels = torch.cat([e.labels for e in outputs_of(form)])
    if structure.groups is not None:
        labels = structure.groups.labels(labels)
    total = norms.new_zeros(structure.classes)
    shares = norms.reshape(len(labels), -1).sum(1)
    total.index_add_(0, labels.clamp(min=0), shares * (labels >= 0))
    squares = _squared_norms(structure.means)
    w = structure.weights
    between = (w * squares).sum(1)
    diagonal = (w * squares).diagonal()
    class_part = structure.class_weights * _squared_norms(structure.class_means)
    cross, within = (between - diagonal - class_part).clamp(min=0), (total - between).clamp(min=0)
    return ClassTraces(structure.counts, total, class_part, cross, diagonal, within)


def outputs_of(form: GramForm) -> Iterator[Classes]:
    """The extended gradients in output space behind the rows of a Gram form, in its order."""
    problem = form.source.problem
    for batch in form.source.batches:
        with problem.evaluation():
            z = problem.output(problem.variables(), batch).detach()
        yield extended(problem.loss, z, batch.target)


def _squared_norms(vectors: Tensor) -> Tensor:
    """``‖v‖²`` along the last dimension, in float64 without a float64 copy of everything."""
    flat = vectors.reshape(-1, vectors.shape[-1])
    return torch.stack([v.double().square().sum() for v in flat]).reshape(vectors.shape[:-1])
