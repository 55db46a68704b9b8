"""Image classifiers of timm, at toy size and with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

if not hasattr(torch.ops.torchvision, "nms"):
    # timm imports torchvision, whose kernels may be built for another torch and not load. They are
    # needed for boxes around objects only; naming them is enough for the import.
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        _names = torch.library.Library("torchvision", "FRAGMENT")
        for _name in ("nms", "qnms"):
            _names.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import timm

CLASSES = 3


def model(name: str, *, seed: int = 0, **settings: Any) -> nn.Module:
    """A model of timm in float64, with running statistics as after some training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: nn.Module = timm.create_model(name, num_classes=CLASSES, **settings)
        with torch.no_grad():
            for module in made.modules():
                if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
                    module.running_mean.normal_(0, 0.1)
                    module.running_var.uniform_(0.5, 1.5)
    return made.double()
