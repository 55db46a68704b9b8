"""A notice that fused attention is replaced while derivatives are taken."""

from __future__ import annotations

import logging

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

log = logging.getLogger("curvescope")


class AttentionNotice(TorchFunctionMode):
    """Warns once per process when a model calls fused attention, which has no second derivative."""

    said = False

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is F.scaled_dot_product_attention and not AttentionNotice.said:
            AttentionNotice.said = True
            log.warning(
                "scaled_dot_product_attention runs on its unfused path here: the fused kernels "
                "have no second derivative"
            )
        return func(*args, **(kwargs or {}))
