"""Models of Hugging Face at toy size, made from configurations: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers.utils import import_utils

# Language models need no torchvision, and the one that is installed may not fit a torch for CPUs.
transformers.utils.is_torchvision_available = lambda: False
import_utils.is_torchvision_available = lambda: False

transformers.logging.set_verbosity_error()

VOCABULARY = 11
SIZES: dict[str, dict[str, Any]] = {
    "GPT2": dict(n_positions=8, n_embd=8, n_layer=1, n_head=2),
    "Llama": dict(
        max_position_embeddings=8, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
        num_attention_heads=2,
    ),
    "Bert": dict(
        max_position_embeddings=8, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
        num_attention_heads=2,
    ),
    "Qwen2": dict(
        max_position_embeddings=8, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1,
    ),
    "Gemma": dict(
        max_position_embeddings=8, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=4,
    ),
    "Mamba": dict(hidden_size=6, state_size=3, num_hidden_layers=1, conv_kernel=3),
    "ViT": dict(
        image_size=8, patch_size=4, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
        num_attention_heads=2,
    ),
    "T5": dict(d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, decoder_start_token_id=0),
}  # fmt: skip


def model(name: str, *, seed: int = 0, **settings: Any) -> nn.Module:
    """``"GPT2LMHeadModel"`` and the like, in float64, with weights large enough to matter.

    >>> type(model("BertForMaskedLM")).__name__
    'BertForMaskedLM'
    """
    family = next(f for f in SIZES if name.startswith(f))
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY, bos_token_id=None, eos_token_id=None, pad_token_id=0,
        **SIZES[family] | settings,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: nn.Module = getattr(transformers, name)(config)
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(5 if p.ndim > 1 else 1)
    return made.double()
