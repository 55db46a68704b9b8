"""Blocks of long vectors, in one process or spread over many.

A block of ``k`` vectors of length ``n`` is a plain tensor of rows ``[k, m]`` with the ``m`` numbers
of each that this rank holds: all of them in one process. Linear combinations are ordinary tensor
operations. Whatever sums over the numbers of a vector, or has to know all of it, is asked of its
:class:`Space`: inner products, norms, orthonormal bases, random numbers.
"""

from curvescope.vectors.columns import columns_in, spread, whole_columns
from curvescope.vectors.pieces import read_pieces, remove_pieces, write_pieces
from curvescope.vectors.space import Space
from curvescope.vectors.sums import reject

__all__ = [
    "Space",
    "columns_in",
    "read_pieces",
    "reject",
    "remove_pieces",
    "spread",
    "whole_columns",
    "write_pieces",
]
