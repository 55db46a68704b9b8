"""Kinds of layers: one class for each, in one file, with all that the package must know of it.

A layer multiplies by a weight: ``y[t] = W x[t] + b`` at positions ``t``. What is computed layer by
layer (closed forms, Kronecker factors, class structure, certificates, rank bounds, rescaling) asks
its kind, and nothing else asks what a module is. Tables and scales are kinds, too, for which some
of this is defined. A kind of one's own is registered by :func:`layer_kind`.
"""

# Importing the file of a kind registers it.
from curvescope.layers.calls import watched_calls
from curvescope.layers.convolution import Convolution, border
from curvescope.layers.embedding import Embedding, LookupKind
from curvescope.layers.kind import (
    Kind,
    LayerKind,
    class_names,
    kinds,
    layer_kind,
    registered,
    registered_kind,
)
from curvescope.layers.linear import Linear, TransposedLinear
from curvescope.layers.moments import add_gram, mirror
from curvescope.layers.order import as_matrix, as_stored
from curvescope.layers.recognition import kind_of, matrix_kind
from curvescope.layers.scale import ScaleKind

__all__ = [
    "Convolution", "Embedding", "Kind", "LayerKind", "Linear", "LookupKind", "ScaleKind",
    "TransposedLinear", "add_gram", "as_matrix", "as_stored", "border", "class_names",
    "kind_of", "kinds", "layer_kind", "matrix_kind", "mirror", "registered", "registered_kind",
    "watched_calls",
]  # fmt: skip
