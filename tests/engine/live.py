"""How much memory tensors take at this moment."""

from __future__ import annotations

import gc

import torch
from torch import Tensor, nn


def live_bytes() -> int:
    """Bytes of all tensors that Python can see, each memory once."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if type(thing) not in (Tensor, nn.Parameter) or thing.layout is not torch.strided:
            continue
        if thing.device.type == "cpu":
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())
