"""Square roots of the matrices in output space: ``B_n = Σ_k q_nk q_nkᵀ`` for every sample.

A Gauss–Newton matrix is ``Jᵀ B J = Σ_k (Jᵀ q_k)(Jᵀ q_k)ᵀ``, so that its rows ``N = Q G`` (DH A.1,
eq. 28 and 35) are what comes back to a layer from the directions ``q_k``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from curvescope.linearisation.layers import UnsupportedLayer
from curvescope.linearisation.outputs import GradientOuter, LossHessian, OutputMatrix
from curvescope.problem.losses import CrossEntropyAt, LossAt, MeanSquareAt


def root(matrix: OutputMatrix, loss: LossAt, z: Tensor, batch: int) -> Tensor:
    """``[B, K, *z.shape[1:]]``: directions whose outer products sum to each sample's matrix.

    ``K`` is ``C − 1`` for cross-entropy with one label per sample, the number of outputs for a
    squared error, 1 for the logistic loss and the empirical Fisher, the number of draws for the
    Monte-Carlo Fisher. A sample of several terms (a label at each position) has as many times more,
    each of which lives on one term.

    Raises:
        UnsupportedLayer: the loss is not convex at this output.
    """
    vectors = _by_term(matrix, loss, z, batch)  # [s, terms, c]
    s, terms, c = vectors.shape
    each = terms // z.shape[0]
    if each > 1:
        apart = torch.eye(each, dtype=z.dtype, device=z.device)[:, None, :, None]
        vectors = (vectors.reshape(s, 1, -1, each, c) * apart).reshape(s * each, terms, c)
    like = z.detach()[None].expand(vectors.shape[0], *z.shape)
    return loss.scatter(vectors, like).transpose(0, 1)


def _by_term(matrix: OutputMatrix, loss: LossAt, z: Tensor, batch: int) -> Tensor:
    """``[s, terms, c]``: the root of every term's matrix, column by column."""
    if isinstance(matrix, LossHessian):
        return _hessian_root(loss, z)
    if isinstance(matrix, GradientOuter):
        return loss.terms(loss.gradient()[None])
    matrix.apply(loss, batch, torch.zeros_like(z)[None])  # draws the samples and leaves them there
    return loss.draws[matrix] / matrix.samples**0.5


def _hessian_root(loss: LossAt, z: Tensor) -> Tensor:
    if isinstance(loss, CrossEntropyAt):
        p = torch.softmax(loss.terms(z.detach()[None])[0], -1)
        # The gradient vanishes at an ignored position, and else only where the Hessian does.
        counted = (loss.terms(loss.gradient()[None])[0] != 0).any(-1, keepdim=True)
        return multinomial_root(p * counted)
    entries = loss.terms(z.detach()[None]).shape[-1]
    if isinstance(loss, MeanSquareAt) or entries == 1:
        curvature = loss.terms(loss.hessian(torch.ones_like(z)[None]))[0]
        if bool((curvature < 0).any()):
            raise UnsupportedLayer(_INDEFINITE)
        return torch.diag_embed(curvature.sqrt()).movedim(-1, 0)
    return _eigen_root(loss, z, entries)


def multinomial_root(p: Tensor) -> Tensor:
    """``[C − 1, N, C]`` with ``Σ_k q_k q_kᵀ = diag(p) − p pᵀ`` for probabilities ``p: [N, C]``.

    This is its Cholesky factor (Tanabe and Sagae 1992): with the tail sums ``t_j = Σ_{i>j} p_i``,
    ``q_j = √(p_j t_j / (p_j + t_j)) · (e_j − p_{>j} / t_j)``, class ``j`` against the later ones.
    Unlike DH eq. 28 it has no superfluous row, and it is exact to rounding for confident outputs.

    >>> q = multinomial_root(torch.tensor([[0.5, 0.25, 0.25]]))
    >>> torch.einsum("knc,knd->ncd", q, q)[0, 0]  # p_0 (e_0 − p)
    tensor([ 0.2500, -0.1250, -0.1250])
    """
    classes = p.shape[-1]
    if classes == 1:
        return torch.zeros_like(p)[None]
    tail = (p.flip(-1).cumsum(-1).flip(-1))[:, 1:]  # t_j for j < C − 1
    head = p[:, :-1]
    tiny = torch.finfo(p.dtype).tiny
    scale = (head * (tail / (head + tail).clamp_min(tiny))).sqrt()  # [N, C − 1]
    later = torch.ones(classes - 1, classes, dtype=p.dtype, device=p.device).triu(1)
    against = p[:, None] / tail.clamp_min(tiny)[..., None] * later
    first = torch.eye(classes - 1, classes, dtype=p.dtype, device=p.device)
    return (scale[..., None] * (first - against)).transpose(0, 1)


_INDEFINITE = (
    "layers: the loss is not convex in the output, so that its Hessian has no real root; use "
    "cs.GaussNewton(problem) without the closed form"
)


def _eigen_root(loss: LossAt, z: Tensor, entries: int) -> Tensor:
    """Any other loss: the eigendecomposition of every term's Hessian."""
    units = torch.eye(entries, dtype=z.dtype, device=z.device)
    terms = loss.terms(z.detach()[None]).shape[1]
    like = z.detach()[None].expand(entries, *z.shape)
    t = loss.scatter(units[:, None].expand(entries, terms, entries).contiguous(), like)
    hessian = loss.terms(loss.hessian(t)).movedim(0, -1)  # [terms, entries, entries]
    values, vectors = torch.linalg.eigh((hessian + hessian.mT) / 2)
    slack = 100 * entries * torch.finfo(z.dtype).eps * values.abs().amax()
    if bool((values < -slack).any()):
        raise UnsupportedLayer(_INDEFINITE)
    columns = (values.clamp_min(0).sqrt()[:, None] * vectors).movedim(-1, 0)
    alive = (values > slack).any(0)
    return columns[alive] if bool(alive.any()) else columns[-1:]
