"""A model's flags and torch's switches: set for a while, for one thread at a time, and put back.

Nothing else in the package sets them; ``tests/test_architecture.py`` holds the code to that.
"""

from curvescope._state.guards import exclusive
from curvescope._state.modules import Mode, evaluated, held, in_training
from curvescope._state.switches import (
    differentiable,
    fast_precision,
    full_precision,
    strict_precision,
    tuned_kernels,
)

__all__ = [
    "Mode", "differentiable", "evaluated", "exclusive", "fast_precision", "full_precision", "held",
    "in_training", "strict_precision", "tuned_kernels",
]  # fmt: skip
