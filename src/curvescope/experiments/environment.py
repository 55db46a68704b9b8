"""What a result was computed with: versions, device and threads, and nothing about the user."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import torch

_PACKAGES = ("curvescope", "torch", "numpy", "scipy", "safetensors")


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Versions of what computes, and on which device with how many threads.

    >>> sorted(environment())[:4]
    ['cpus', 'curvescope', 'device', 'machine']
    """
    device = torch.device(device)
    found: dict[str, Any] = {"python": platform.python_version()}
    found.update({package: _version(package) for package in _PACKAGES})
    found["system"] = platform.system()
    found["machine"] = platform.machine()
    found["cpus"] = os.cpu_count()
    found["threads"] = torch.get_num_threads()
    found["device"] = str(device)
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
        found["tf32"] = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return found


def _version(package: str) -> str:
    """Of the installed package; a source tree on the path has none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
