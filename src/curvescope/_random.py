"""Random numbers come from an explicit generator, never from torch's global one."""

from __future__ import annotations

import torch
from torch import Tensor


def child(generator: torch.Generator) -> torch.Generator:
    """A new CPU generator, seeded by the next draw of its parent."""
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.Generator().manual_seed(seed)


def gaussian(
    shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Standard normal numbers, drawn where the generator lives so that devices agree on a seed."""
    return torch.randn(shape, generator=generator, dtype=dtype, device=generator.device).to(device)


def rademacher(
    shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Independent signs ±1."""
    bits = torch.randint(0, 2, shape, generator=generator, device=generator.device)
    return (2 * bits - 1).to(device=device, dtype=dtype)
