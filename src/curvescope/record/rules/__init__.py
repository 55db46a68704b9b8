"""How each ATen operation transforms tangents: the derivative of one operation as a linear step.

A *rule* looks at one executed operation ``out = op(*args)`` and returns a :class:`LinearStep`, the
linear map from the tangents of its active arguments to the tangents of its outputs. The rule keeps
only the numbers that the map needs (for a matrix product the two factors, for a ReLU its output).
The same rules serve the forward pass and the backward pass, because both are recorded as plain ATen
operations; the tangent of the backward pass is the Hessian product.

A step works in two forms. ``single`` maps one tangent per argument, shaped like the argument.
``block`` maps ``K`` tangents at once, with a leading column dimension; where a rule gives none,
``torch.vmap`` makes it from ``single``. Operations without a rule here use forward-mode
differentiation of the operation itself, so that the list below is about speed, not coverage.
"""

# Importing a file of rules registers them.
from curvescope.record.constant import Cache
from curvescope.record.rules import (
    activations,
    attention,
    batch_norm,
    convolution,
    memory,
    norms,
    pointwise,
    products,
    recurrent,
    shapes,
    user_function,
)
from curvescope.record.rules.generic import linear_step
from curvescope.record.rules.step import (
    RULES,
    Call,
    LinearStep,
    Outputs,
    Untraceable,
    flatten,
    lift,
    make_step,
    rule,
    total,
)

__all__ = [
    "RULES", "Cache", "Call", "LinearStep", "Outputs", "Untraceable", "activations", "attention",
    "batch_norm", "convolution", "flatten", "lift", "linear_step", "make_step", "memory", "norms",
    "pointwise", "products", "recurrent", "rule", "shapes", "total", "user_function",
]  # fmt: skip
