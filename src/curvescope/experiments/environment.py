"""The environment of a result: versions, device and threads, and nothing about the user."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import torch

_PACKAGES = ("curvescope", "torch", "numpy", "scipy", "safetensors")


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Versions of Python and of the packages, system, device and number of threads.

    >>> sorted(environment())[:4]
    ['cpus', 'curvescope', 'device', 'machine']
    """
    device = torch.device(device)
    entries: dict[str, Any] = {"python": platform.python_version()}
    entries.update({package: _version(package) for package in _PACKAGES})
    entries["system"] = platform.system()
    entries["machine"] = platform.machine()
    entries["cpus"] = os.cpu_count()
    entries["threads"] = torch.get_num_threads()
    entries["device"] = str(device)
    if device.type == "cuda":
        entries["device"] = torch.cuda.get_device_name(device)
        entries["cuda"] = torch.version.cuda
        entries["tf32"] = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return entries


def _version(package: str) -> str:
    """The version of the installed package; a source tree on the path has none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
