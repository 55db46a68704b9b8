"""Kinds of layers: one class for each, in one file, with all that the package must know of it.

A layer multiplies by a weight: ``y[t] = W x[t] + b`` at positions ``t``. What is computed layer by
layer (closed forms, Kronecker factors, class structure, certificates, rank bounds, rescaling) asks
its kind, and nothing else asks what a module is. A kind of one's own is registered by
:func:`layer_kind`.
"""

# Importing the file of a kind registers it.
from curvescope.layers.calls import watched_calls
from curvescope.layers.convolution import Convolution, border
from curvescope.layers.kind import LayerKind, kind_of, kinds, layer_kind, registered
from curvescope.layers.linear import Linear
from curvescope.layers.moments import add_gram, mirror
from curvescope.layers.order import as_matrix, as_stored

__all__ = [
    "Convolution", "LayerKind", "Linear", "add_gram", "as_matrix", "as_stored", "border", "kind_of",
    "kinds", "layer_kind", "mirror", "registered", "watched_calls",
]  # fmt: skip
