"""Networks as people write them with torch alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence


class Speech(nn.Module):
    """Dilated causal convolutions over time with gates, as in WaveNet, and a mean at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 6, 3, stride=2)
        self.gated = nn.ModuleList(nn.Conv1d(6, 12, 2, dilation=2**i) for i in range(2))
        self.skip = nn.ModuleList(nn.Conv1d(6, 6, 1) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.first(x), 0.0
        for i, (gated, skip) in enumerate(zip(self.gated, self.skip, strict=True)):
            h = F.glu(gated(F.pad(x, (2**i, 0))), 1)
            x, total = x + h, total + skip(h).mean(-1)
        return self.head(torch.relu(total))


class UNet(nn.Module):
    """Down, up, and what was there before beside it; a class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU())
        self.deep = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.GELU())
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        low = self.deep(F.max_pool2d(high, 2))
        return self.head(torch.cat([high, self.up(low)], 1))


class Sequences(nn.Module):
    """A recurrent layer over embedded tokens, packed by length or not, and a class at the end."""

    def __init__(self, layer: nn.Module, width: int, *, packed: bool = False) -> None:
        super().__init__()
        self.embed, self.layer, self.packed = nn.Embedding(7, 4), layer, packed
        self.head = nn.Linear(width, 3)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.packed:
            x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, state = self.layer(x)
        last = state[0] if isinstance(state, tuple) else state
        return self.head(last.transpose(0, 1).flatten(1))


class FilledRowByRow(nn.Module):
    """A loop that writes its results into a buffer and reads what it wrote before."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.head = nn.Linear(5, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        states = x.new_zeros(x.shape[0], x.shape[1] + 1, 3)
        for t in range(x.shape[1]):
            states[:, t + 1] = torch.tanh(self.step(torch.cat([x[:, t], states[:, t]], 1)))
        states[:, :, 0].mul_(2.0)
        return self.head(states[:, 1:].sum(1))


class _Bounded(torch.autograd.Function):
    """``x³`` whose derivative its author wrote."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return g * 3 * x**2


class OwnFunction(nn.Module):
    """A layer around a ``torch.autograd.Function``."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(_Bounded.apply(torch.sin(self.fc1(x))))
