"""Networks of today in plain torch: a GPT-2, a Llama, a vision transformer, a ResNet, an LSTM.

Each has the operations of its original (fused attention, grouped queries, rotary positions, RMS
norms, gated units, batch norms with frozen statistics) at a size that a CPU multiplies with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 2000


class Attention(nn.Module):
    """Self-attention by torch's fused function; ``groups`` of query heads share keys and values."""

    def __init__(self, width: int, heads: int, groups: int, *, causal: bool, rotary: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.causal, self.rotary = heads, groups, causal, rotary
        each = width // heads
        self.sizes = [width, each * groups, each * groups]
        self.qkv = nn.Linear(width, sum(self.sizes), bias=not rotary)
        self.out = nn.Linear(width, width, bias=not rotary)

    def forward(self, x: Tensor) -> Tensor:
        """Queries, keys and values from one linear layer."""
        q, k, v = self.qkv(x).split(self.sizes, -1)
        q = q.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.groups, -1)).transpose(1, 2) for t in (k, v))
        if self.rotary:
            q, k = rotated(q), rotated(k)
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, enable_gqa=self.groups < self.heads
        )
        return self.out(y.transpose(1, 2).flatten(2))


def rotated(x: Tensor) -> Tensor:
    """Rotary position embedding."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=x.dtype)[:, None] * rates
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Gated(nn.Module):
    """``W₃ (silu(W₁ x) ⊙ W₂ x)``."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Two linear layers and their product into a third."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm and around a shortcut."""

    def __init__(self, norm: Callable[[], nn.Module], attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = norm(), attention, norm(), mlp

    def forward(self, x: Tensor) -> Tensor:
        """Both parts add to their inputs."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def _perceptron(width: int, gelu: str) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.GELU(approximate=gelu), nn.Linear(4 * width, width)
    )


class Language(nn.Module):
    """Embedding, blocks, norm and head; a GPT-2 learns positions and ties the head."""

    def __init__(
        self, blocks: list[nn.Module], norm: nn.Module, width: int, vocabulary: int, positions: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width) if positions else None
        for table in filter(None, (self.embedding, self.positions)):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks, self.norm = nn.Sequential(*blocks), norm
        self.head = nn.Linear(width, vocabulary, bias=False)
        if positions:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits for the next token at each position."""
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def gpt2(
    vocabulary: int = VOCABULARY, positions: int = 128, layers: int = 6, width: int = 256
) -> nn.Module:
    """GPT-2: layer norms, GELU by tanh, tied embedding and head."""
    norm = lambda: nn.LayerNorm(width)  # noqa: E731
    heads = max(1, width // 64)
    blocks: list[nn.Module] = [
        Block(norm, Attention(width, heads, heads, causal=True, rotary=False),
              _perceptron(width, "tanh"))
        for _ in range(layers)
    ]  # fmt: skip
    return Language(blocks, norm(), width, vocabulary, positions)


def llama(vocabulary: int = VOCABULARY, layers: int = 6, width: int = 256) -> nn.Module:
    """Llama: RMS norms, rotary positions, grouped queries, gated units, a head of its own."""
    norm = lambda: nn.RMSNorm(width, eps=1e-6)  # noqa: E731
    heads = max(2, width // 64)
    blocks: list[nn.Module] = [
        Block(norm, Attention(width, heads, heads // 2, causal=True, rotary=True),
              Gated(width, width * 8 // 3))
        for _ in range(layers)
    ]  # fmt: skip
    return Language(blocks, norm(), width, vocabulary, 0)


class VisionTransformer(nn.Module):
    """Patches, a class token, blocks, a head on the class token."""

    def __init__(self, side: int = 32, patch: int = 4, layers: int = 6, width: int = 192) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (side // patch) ** 2, width))
        norm = lambda: nn.LayerNorm(width)  # noqa: E731
        self.blocks = nn.Sequential(*(
            Block(norm, Attention(width, 3, 3, causal=False, rotary=False),
                  _perceptron(width, "none"))
            for _ in range(layers)
        ))  # fmt: skip
        self.norm, self.head = norm(), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits from the class token."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class Residual(nn.Module):
    """Two 3 × 3 convolutions with batch norms around a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The rest is added to the input."""
        return F.relu(self.body(x) + self.shortcut(x))


def resnet18(width: int = 64) -> nn.Module:
    """ResNet-18 for small images: no pooling behind the first convolution, of size 3."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    ]  # fmt: skip
    before = width
    for stage in range(4):
        after = width << stage
        layers += [Residual(before, after, 1 if stage == 0 else 2), Residual(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


class Recurrent(nn.Module):
    """Embedding, a two-layer LSTM, a head."""

    def __init__(self, vocabulary: int = VOCABULARY, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width // 2)
        self.lstm = nn.LSTM(width // 2, width, 2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits at each position."""
        return self.head(self.lstm(self.embedding(tokens))[0])
