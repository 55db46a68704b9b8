"""GPT: a decoder-only transformer on tokens, of the shape of GPT-2 but without dropout.

Queries, keys and values are layers of their own, and the head is not tied to the embedding, so that
each kind of layer has a block of its own in the Hessian. For a vocabulary of characters, tying
would save one weight in sixty.

References:
    GPT-2: Radford, Wu, Child, Luan, Amodei and Sutskever (2019), *Language Models are Unsupervised
    Multitask Learners*.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope.errors import CurvescopeError
from curvescope.networks.spec import NetworkSpec

HEAD_WIDTH = 32
_LAYERS = ("q", "k", "v", "o", "up", "down")


class GPT(nn.Module):
    """Layer norm first, learned positions, heads of 32, an MLP four times as wide with GELU.

    Block ``i`` maps ``x`` to ``x + o(attention(q, k, v))`` of its first norm, then to
    ``x + down(gelu(up))`` of its second. Its layers are ``norm-attention<i>``, ``q<i>``, ``k<i>``,
    ``v<i>``, ``o<i>``, ``norm-mlp<i>``, ``up<i>`` and ``down<i>``; before the blocks are
    ``embedding`` and ``positions``, after them ``norm`` and ``head``.

    With V tokens, sequences of T, L blocks and the width d it has
    ``d (2V + T) + V + L (12 d² + 13 d) + 2d`` parameters.
    """

    def __init__(self, spec: NetworkSpec, *, depth: int, width: int) -> None:
        super().__init__()
        where = f"network({spec.name!r})"
        if width % HEAD_WIDTH:
            rule = f"the width must be a multiple of {HEAD_WIDTH}, the width of a head"
            raise CurvescopeError(where, rule, given=width)
        if len(spec.inputs) != 1:
            rule = "needs sequences of tokens, inputs=(length,)"
            raise CurvescopeError(where, rule, given=spec.inputs)
        self.spec = spec
        self._depth, self._heads = depth, width // HEAD_WIDTH
        self.embedding = nn.Embedding(spec.classes, width)
        self.positions = nn.Embedding(spec.inputs[0], width)
        for block in range(1, depth + 1):
            self.add_module(f"norm-attention{block}", nn.LayerNorm(width))
            for name in "qkvo":
                self.add_module(f"{name}{block}", nn.Linear(width, width))
            self.add_module(f"norm-mlp{block}", nn.LayerNorm(width))
            self.add_module(f"up{block}", nn.Linear(width, 4 * width))
            self.add_module(f"down{block}", nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, spec.classes)

    @property
    def branch_ends(self) -> tuple[str, ...]:
        """The layers that are added to the residual stream; GPT-2 starts them smaller."""
        return tuple(
            f"{name}{block}" for block in range(1, self._depth + 1) for name in ("o", "down")
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``[N, T, V]`` of the next token at each position of sequences ``[N, T]``."""
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)
        for block in range(1, self._depth + 1):
            layer = {name: self.get_submodule(f"{name}{block}") for name in _LAYERS}
            h = self.get_submodule(f"norm-attention{block}")(x)
            q, k, v = (self._split(layer[name](h)) for name in "qkv")
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["o"](mixed.transpose(-3, -2).flatten(-2))
            h = self.get_submodule(f"norm-mlp{block}")(x)
            x = x + layer["down"](F.gelu(layer["up"](h)))
        return self.head(self.norm(x))

    def _split(self, h: Tensor) -> Tensor:
        """``[N, T, width]`` as ``[N, heads, T, 32]``."""
        return h.unflatten(-1, (self._heads, HEAD_WIDTH)).transpose(-3, -2)
