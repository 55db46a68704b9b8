"""Small networks in which weights are shared over positions, with every kind of layer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.cases import classes, convert, tokens

VOCABULARY, LENGTH, WIDTH, CLASSES = 6, 4, 4, 3


class Transposed(nn.Module):
    """What GPT-2 calls ``Conv1D``: recognized by what it computes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.4 * torch.randn(inputs, outputs))
        self.bias = nn.Parameter(0.1 * torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class RootMeanSquare(nn.Module):
    """The norm of Llama (``plus`` 0) and of Gemma (``plus`` 1)."""

    def __init__(self, width: int, plus: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))
        self.plus = plus

    def forward(self, x: Tensor) -> Tensor:
        return (self.plus + self.weight) * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3)


class Mixer(nn.Module):
    """A transformer of one block, with a layer of every kind."""

    def __init__(self, outputs: int, *, pooled: bool, tied: bool = False) -> None:
        super().__init__()
        self.pooled = pooled
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.ln = nn.LayerNorm(WIDTH)
        self.attend = Transposed(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.rms = RootMeanSquare(WIDTH, plus=1.0)
        self.up = Transposed(WIDTH, 5)
        self.groups = nn.GroupNorm(1, 5)
        self.down = nn.Linear(5, WIDTH)
        self.final = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY if tied else outputs, bias=not tied)
        for norm in (self.ln, self.groups, self.final):
            nn.init.normal_(norm.weight)
        nn.init.normal_(self.ln.bias)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)[None]
        h = self.tokens(x) + self.places(places)
        q, k, v = self.attend(self.ln(h)).chunk(3, -1)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        weights = torch.softmax((q @ k.mT).masked_fill(~mask, -1e9), -1)
        h = h + self.out(weights @ v)
        up = self.groups(torch.relu(self.up(self.rms(h))).mT).mT
        h = self.final(h + self.down(up))
        return self.head(h.mean(1) if self.pooled else h)


LAYERS = (
    "tokens", "places", "ln", "attend", "out", "rms", "up", "groups", "down", "final", "head",
)  # fmt: skip


def made(*, pooled: bool, tied: bool = False) -> tuple[nn.Module, Any]:
    """A model in float64 and its batches: a label for each sample, or at every position."""
    torch.manual_seed(5)
    model = Mixer(CLASSES, pooled=pooled, tied=tied).double()
    if tied:
        return model, tokens(VOCABULARY, LENGTH, next_token=True)
    if pooled:
        return model, tokens(VOCABULARY, LENGTH, classes=CLASSES)
    data = tokens(VOCABULARY, LENGTH, next_token=True)
    return model, [(x, y % CLASSES) for x, y in data]


def channels_last_vision() -> tuple[nn.Module, Any]:
    """Patches, a layer norm with the channels second, and a convolution of width one."""

    class ChannelNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            y = F.layer_norm(x.movedim(1, -1), self.normalized_shape, self.weight, self.bias)
            return y.movedim(-1, 1)

    torch.manual_seed(6)
    model = nn.Sequential()
    model.add_module("patches", nn.Conv2d(2, 4, 2, stride=2))
    model.add_module("norm", ChannelNorm(4))
    model.add_module("prelu", nn.PReLU(4))
    model.add_module("mix", nn.Conv2d(4, 3, 1))
    model.add_module("pool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flat", nn.Flatten())
    nn.init.normal_(model.norm.weight)
    return model.double(), convert(classes(2, 6, 6), torch.float64)
