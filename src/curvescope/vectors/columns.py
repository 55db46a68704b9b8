"""Vectors as columns in results: what a rank holds of them, and the whole."""

from __future__ import annotations

from torch import Tensor

from curvescope.vectors.space import Space


def spread(space: Space) -> Space | None:
    """The space, if its vectors are spread over ranks; None where everything is here."""
    return None if space.alone else space


def whole_columns(local: Tensor, space: Space | None) -> Tensor:
    """Whole columns ``[n, k]`` from this rank's part ``[count, k]``; see :meth:`Space.gather`."""
    return local if space is None else space.gather(local.T).T


def columns_in(space: Space, local: Tensor, other: Space | None) -> Tensor:
    """Columns that lie as in the ``other`` space (None: whole), as they lie in this one."""
    if (spread(space) is None and other is None) or (other is not None and other.like(space)):
        return local
    return space.local(whole_columns(local, other).T).T
