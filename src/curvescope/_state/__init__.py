"""A model's flags and torch's switches: set for a while, for one thread at a time, and put back.

Nothing else in the package sets them; ``tests/test_architecture.py`` holds the code to that.
"""

from curvescope._state.guards import exclusive
from curvescope._state.modes import Above, forward_mode, watching
from curvescope._state.modules import Mode, copied, evaluated, held, in_training
from curvescope._state.switches import (
    differentiable,
    fast_precision,
    full_precision,
    refuse_inference_mode,
    strict_precision,
    tuned_kernels,
    without_autocast,
    without_gradients,
)
from curvescope._state.undo import undone, uninterrupted

__all__ = [
    "Above", "Mode", "copied", "differentiable", "evaluated", "exclusive", "fast_precision",
    "forward_mode", "full_precision", "held", "in_training", "refuse_inference_mode",
    "strict_precision", "tuned_kernels", "undone", "uninterrupted", "watching", "without_autocast",
    "without_gradients",
]  # fmt: skip
