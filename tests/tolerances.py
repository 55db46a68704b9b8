"""Every tolerance of the tests, by dtype. A failing test is a finding: never widen these."""

from __future__ import annotations

import torch

#: ``‖op V − dense V‖ / ‖dense V‖`` against the float64 reference.
EXACT = {torch.float64: 1e-10, torch.float32: 1e-4}

#: ``‖(H − G − E) v‖ / ‖H v‖`` in float64.
IDENTITY = 1e-12

#: Two routes to the same product whose sums may run in a different order (chunks, linearity).
REORDERED = {torch.float64: 1e-12, torch.float32: 1e-5}

#: How many standard errors a Monte-Carlo mean may be away from its expectation.
STANDARD_ERRORS = 4.0
