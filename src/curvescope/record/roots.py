"""Square roots of the matrices in output space: ``B_n = Σ_k q_nk q_nkᵀ`` for every sample.

A Gauss–Newton matrix is ``Jᵀ B J = Σ_k (Jᵀ q_k)(Jᵀ q_k)ᵀ``, so that its rows ``N = Q G`` (DH A.1,
eq. 28 and 35) are what comes back to a layer from the directions ``q_k``.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from curvescope.problem.losses import LossAt
from curvescope.record.outputs import ClassOuter, GradientOuter, LossHessian, OutputMatrix
from curvescope.record.selection import UnsupportedLayer


def root(
    matrix: OutputMatrix, loss: LossAt, z: Tensor, batch: int, *, by_term: bool = False
) -> Tensor:
    """``[B, K, *z.shape[1:]]``: directions whose outer products sum to each sample's matrix.

    ``K`` is ``C − 1`` for cross-entropy with one label per sample, the number of outputs for a
    squared error, 1 for the logistic loss and the empirical Fisher, the number of draws for the
    Monte-Carlo Fisher, ``C`` for the part of one class. A sample of several terms (a label at each
    position) has as many times more, each of which lives on one term: term by term. With
    ``by_term`` those of all terms lie in one direction, of which each term's part is a row.

    Raises:
        UnsupportedLayer: the loss is not convex at this output.
    """
    vectors = _of_terms(matrix, loss, z, batch)  # [s, terms, c]
    s, terms, c = vectors.shape
    each = terms // z.shape[0]
    if each > 1 and not by_term:
        apart = torch.eye(each, dtype=z.dtype, device=z.device)[:, None, None, :, None]
        vectors = (vectors.reshape(s, -1, each, c) * apart).reshape(each * s, terms, c)
    like = z.detach()[None].expand(vectors.shape[0], *z.shape)
    return loss.scatter(vectors, like).transpose(0, 1)


def one_by_one(
    matrix: OutputMatrix, loss: LossAt, z: Tensor, batch: int, *, by_term: bool = False
) -> Iterator[tuple[Tensor, bool]]:
    """The directions of :func:`root`, each as ``[B, *z.shape[1:]]``, and whether it is the last.

    With many terms in a sample they are too many to be held together.
    """
    vectors = _of_terms(matrix, loss, z, batch)
    s, terms, c = vectors.shape
    each = 1 if by_term else terms // z.shape[0]
    like = z.detach()[None]
    for t in range(each):
        for k in range(s):
            direction = vectors[k]
            if each > 1:
                part = direction.view(-1, each, c)
                direction = torch.zeros_like(part)
                direction[:, t] = part[:, t]
            u = loss.scatter(direction.reshape(1, terms, c), like)[0]
            yield u, t == each - 1 and k == s - 1


def directions_of(matrix: OutputMatrix, loss: LossAt) -> int:
    """How many vectors the matrix of a term is the sum of, without making them; at most."""
    if isinstance(matrix, LossHessian):
        return loss.rank
    if isinstance(matrix, GradientOuter):
        return 1
    if isinstance(matrix, ClassOuter):
        return matrix.vectors(loss).shape[0]
    return matrix.samples


def _of_terms(matrix: OutputMatrix, loss: LossAt, z: Tensor, batch: int) -> Tensor:
    """``[s, terms, c]``: the root of every term's matrix, column by column."""
    if isinstance(matrix, LossHessian):
        root_vectors = loss.root()
        if root_vectors is None:
            raise UnsupportedLayer(
                "layers",
                "the loss is not convex in the output, so that its Hessian has no real root",
                remedy="use cs.GaussNewton(problem) without the closed form",
            )
        return root_vectors
    if isinstance(matrix, GradientOuter):
        return loss.slopes()
    if isinstance(matrix, ClassOuter):
        return matrix.vectors(loss)
    matrix.apply(loss, batch, torch.zeros_like(z)[None])  # draws the samples and leaves them there
    return loss.draws[matrix] / matrix.samples**0.5
