"""Which modules count as layers: linear ones and convolutions. The one list of the package."""

from __future__ import annotations

from torch import nn

CONVOLUTIONS: tuple[type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LAYERS: tuple[type[nn.Module], ...] = (nn.Linear, *CONVOLUTIONS)
"""They act on rows: ``y[t] = W x[t] + b`` at each position ``t``."""
