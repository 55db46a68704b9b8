"""What is stored of a layer, and the products made from it without differentiation.

For one layer the Gauss–Newton matrix is ``Σ_bk g_bk g_bkᵀ`` over samples ``b`` and directions ``k``
of the root ``N = Q G`` (DH eq. 24 and 35), with ``g_bk = vec Σ_t e_bkt x_btᵀ`` (DH eq. 17 and 32).
From errors ``e`` and inputs ``x`` a product takes two matrix products,

    Y = x Vᵀ,    u_bk = Σ_t ⟨e_bkt, Y_bt⟩,    W_bt = Σ_k u_bk e_bkt,    result = Σ_bt W_bt x_btᵀ

Where a layer has more positions than directions, as convolutions have, the vectors ``g_bk``
themselves are fewer numbers and less work, and are kept instead.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from curvescope.engine.squeeze import Pair, Part, Squeeze
from curvescope.record.multiply import add_product, multiply

CHUNK_SAMPLES = {"cpu": 512}  # errors that are read twice stay in cache in between


class Factors(ABC):
    """The recorded numbers of one layer, for some samples and one matrix in output space.

    They are a root ``R: [r, P]`` of the block ``Rᵀ R``, with a row ``g_bk`` for each sample and
    direction.
    """

    rows: int

    @abstractmethod
    def push(self, v: Tensor, part: Part) -> Tensor:
        """``R v`` for each of the rows ``v: [c, P]``, as ``[c, r]``."""

    @abstractmethod
    def pull(self, u: Tensor, part: Part) -> Tensor:
        """``Rᵀ u`` for each of the rows ``u: [c, r]``, as ``[c, P]``."""

    @abstractmethod
    def product(self, v: Tensor, part: Part, columns: int | None) -> Tensor:
        """``Rᵀ R v`` for each of the rows ``v: [c, P]``, ``columns`` at a time."""

    def gather(self, u: Tensor, part: Part) -> Tensor:
        """``Rᵀ u`` in the numbers that are worked with, ``[c, q]``; see :meth:`scatter`."""
        return self.pull(u, part)

    def scatter(self, inside: Tensor, part: Part) -> Tensor:
        """What was gathered, as rows ``[c, P]``; linear, so that it may be combined before."""
        return inside

    def spread(self, inside: Tensor, part: Part) -> Tensor:
        """``R`` times what was gathered, ``[c, r]``: the second half of ``R Rᵀ u``."""
        return self.push(inside, part)

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """What is held: the first arguments of the class."""

    def settings(self) -> tuple[int, ...]:
        """The arguments of the class after the tensors."""
        return ()

    @abstractmethod
    def squeezed(self) -> Factors:
        """The same without what does not matter."""


class Gradients(Factors):
    """The vectors ``g_bk`` themselves, weight and bias side by side: ``[B·K, m·n + m]``."""

    def __init__(self, matrix: Tensor, outputs: int) -> None:
        self._matrix, self.outputs, self.rows = matrix, outputs, matrix.shape[0]

    def _part(self, part: Part) -> Tensor:
        split = self._matrix.shape[1] - self.outputs
        return self._matrix[:, 0 if part.weight else split : None if part.bias else split]

    def push(self, v: Tensor, part: Part) -> Tensor:
        """See :class:`Factors`."""
        return multiply(v, self._part(part).T)

    def pull(self, u: Tensor, part: Part) -> Tensor:
        """See :class:`Factors`."""
        return multiply(u, self._part(part))

    def product(self, v: Tensor, part: Part, columns: int | None) -> Tensor:
        """See :class:`Factors`."""
        size = columns or max(1, budget(v) // (self.rows * v.element_size()))
        return torch.cat([self.pull(self.push(piece, part), part) for piece in v.split(size)])

    def settings(self) -> tuple[int, ...]:
        """See :class:`Factors`."""
        return (self.outputs,)

    def squeezed(self) -> Gradients:
        """The same without rows that do not matter."""
        keep = significant(norms(self._matrix))
        return Gradients(self._matrix if keep is None else self._matrix[keep], self.outputs)

    def tensors(self) -> list[Tensor]:
        """See :class:`Factors`."""
        return [self._matrix]


class Products(Factors):
    """Errors ``[B, K, T, m]`` and inputs ``[B, T, n]``."""

    def __init__(self, errors: Tensor, inputs: Tensor, squeeze: Squeeze | None = None) -> None:
        self._errors, self._inputs = errors, inputs
        self._squeeze = squeeze or Squeeze(errors.shape[3], inputs.shape[2])
        self.rows = errors.shape[0] * errors.shape[1]

    def squeezed(self) -> Products:
        """The same without samples, inputs and outputs that do not matter; errors are changed."""
        e, x = self._errors, self._inputs
        inputs = norms(x) + x.shape[1]  # the bias is fed by a 1 at every position
        keep = significant(norms(e) * inputs)
        e, x = (e, x) if keep is None else (e[keep], x[keep])
        remove_dust(e)
        squeeze = Squeeze.of(e, x)
        return Products(squeeze.errors(e), squeeze.inputs(x), squeeze)

    def _chunks(
        self, columns: int, like: Tensor, *, most: int | None = None
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Errors and inputs of as many samples as keep the intermediate results small."""
        samples, _, positions, m = self._errors.shape
        size = max(1, budget(like) // (positions * m * columns * like.element_size()))
        size = min(size, most or samples)
        for start in range(0, samples, size):
            piece = slice(start, start + size)
            yield piece, self._errors[piece], self._inputs[piece]

    def push(self, v: Tensor, part: Part) -> Tensor:
        """See :class:`Factors`."""
        return self._push(self._squeeze.enter(v, part), v)

    def pull(self, u: Tensor, part: Part) -> Tensor:
        """See :class:`Factors`."""
        return self._squeeze.leave(self._pull(u, part), len(u))

    def gather(self, u: Tensor, part: Part) -> Tensor:
        """See :class:`Factors`: without the inputs and outputs that were left out."""
        pair = self._pull(u, part)
        return torch.cat([t.view(len(u), -1) for t in pair if t is not None], 1)

    def scatter(self, inside: Tensor, part: Part) -> Tensor:
        """See :class:`Factors`."""
        return self._squeeze.leave(self._squeeze.split(inside, part), len(inside))

    def spread(self, inside: Tensor, part: Part) -> Tensor:
        """See :class:`Factors`."""
        return self._push(self._squeeze.through(self._squeeze.split(inside, part)), inside)

    def _push(self, inside: Pair, like: Tensor) -> Tensor:
        count = len(like)
        pieces = [_push(e, x, inside, count) for _, e, x in self._chunks(count, like)]
        return torch.cat(pieces).flatten(0, 1).T

    def _pull(self, u: Tensor, part: Part) -> Pair:
        samples, k = self._errors.shape[:2]
        weights = u.T.reshape(samples, k, len(u))
        total = self._squeeze.zeros(len(u), part, u)
        for piece, e, x in self._chunks(len(u), u):
            _add_pull(e, x, weights[piece], total)
        return total

    def product(self, v: Tensor, part: Part, columns: int | None) -> Tensor:
        """See :class:`Factors`."""
        samples, _, positions, m = self._errors.shape
        vectors = budget(v) // (positions * m * v.element_size())
        together = min(samples, CHUNK_SAMPLES.get(v.device.type, samples))
        size = columns or max(1, vectors // together)
        return torch.cat([self._some(piece, part) for piece in v.split(size)])

    def _some(self, v: Tensor, part: Part) -> Tensor:
        inside = self._squeeze.enter(v, part)
        total = self._squeeze.zeros(len(v), part, v)
        for _, e, x in self._chunks(len(v), v, most=CHUNK_SAMPLES.get(v.device.type)):
            _add_pull(e, x, _push(e, x, inside, len(v)), total)
        return self._squeeze.leave(total, len(v))

    def tensors(self) -> list[Tensor]:
        """See :class:`Factors`."""
        return [self._errors, self._inputs]


def _push(e: Tensor, x: Tensor, inside: Pair, c: int) -> Tensor:
    """``u: [B, K, c]`` of the closed form above, for a weight ``[c m, n]`` and a bias ``[c m]``."""
    samples, _, positions, m = e.shape
    x = x.reshape(samples * positions, -1)
    v, b = inside
    if v is None:
        assert b is not None
        y = b.expand(samples * positions, c * m)
    else:
        y = multiply(x, v.T)
        if b is not None:
            y += b
    return meet(e, y, c)


def _add_pull(e: Tensor, x: Tensor, u: Tensor, total: Pair) -> None:
    """Add the result of the closed form above for ``u: [B, K, c]`` to weight and bias."""
    samples, _, positions, _ = e.shape
    w = answer(e, u)
    weight, bias = total
    if weight is not None:
        add_product(weight, w.T, x.reshape(samples * positions, -1))
    if bias is not None:
        bias += w.sum(0)


def meet(e: Tensor, y: Tensor, c: int) -> Tensor:
    """``u_bk = Σ_t ⟨e_bkt, y_bt⟩: [B, K, c]`` of changes of the output ``y: [B T, c m]``."""
    samples, k, positions, m = e.shape
    # For a single position the change of order moves nothing.
    y = y.view(samples, positions, c, m).transpose(1, 2).reshape(samples, c, positions * m)
    return torch.bmm(e.reshape(samples, k, positions * m), y.mT)


def answer(e: Tensor, u: Tensor) -> Tensor:
    """``w_bt = Σ_k u_bk e_bkt: [B T, c m]`` for ``u: [B, K, c]``."""
    samples, k, positions, m = e.shape
    c = u.shape[2]
    w = torch.bmm(u.mT, e.reshape(samples, k, positions * m)).view(samples, c, positions, m)
    return w.transpose(1, 2).reshape(samples * positions, c * m)


def significant(weights: Tensor) -> Tensor | None:
    """Indices of what contributes to a sum of matrices with these norms; None for all of it.

    A confident network leaves samples whose curvature is many orders below the others'. What is
    left out adds up to a thousandth of the rounding of the largest.
    """
    floor = 1e-3 * torch.finfo(weights.dtype).eps / len(weights) * weights.amax()
    keep = weights > floor
    return None if bool(keep.all()) or not bool(keep.any()) else keep.nonzero()[:, 0]


def remove_dust(e: Tensor) -> None:
    """Entries too small to matter become zeros: their squares are subnormal, which is slow."""
    low, high = e.aminmax()
    floor = torch.maximum(-low, high) * torch.finfo(e.dtype).eps ** 1.5
    for piece in e.split(max(1, budget(e) // (e[0].numel() * e.element_size()))):
        piece.masked_fill_(piece.abs() <= floor, 0.0)


def budget(like: Tensor) -> int:
    """Bytes of intermediate results: on a CPU what stays in cache."""
    return (16 << 20) if like.device.type == "cpu" else (1 << 30)


def merged(pieces: list[Factors]) -> list[Factors]:
    """Batches of equal shape as one, which makes for larger matrix products, and squeezed.

    Takes the pieces out of the list, so that at most twice their memory is held.
    """
    shapes = {(type(piece), *(t.shape[1:] for t in piece.tensors())) for piece in pieces}
    if len(shapes) > 1:
        return list(pieces)
    form, settings = type(pieces[0]), pieces[0].settings()
    columns = [list(parts) for parts in zip(*(p.tensors() for p in pieces), strict=True)]
    pieces.clear()
    return [form(*(_joined(parts) for parts in columns), *settings).squeezed()]


def _joined(parts: list[Tensor]) -> Tensor:
    """The parts one after the other, in new memory; theirs is let go."""
    whole = torch.cat(parts)
    parts.clear()
    return whole


def norms(rows: Tensor) -> Tensor:
    """The squared norm of each row, without another tensor of this size."""
    return torch.linalg.vector_norm(rows.flatten(1), dim=1).square()
