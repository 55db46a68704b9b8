"""Models of Hugging Face at toy size, made from configurations: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.utils import import_utils

# No model here needs torchvision, and the one that is installed may not fit a torch for CPUs.
transformers.utils.is_torchvision_available = lambda: False
import_utils.is_torchvision_available = lambda: False

transformers.logging.set_verbosity_error()

VOCABULARY = 11
SAMPLES, LENGTH = 3, 5

_TEXT: dict[str, Any] = dict(
    hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=8,
)  # fmt: skip
_GROUPED = _TEXT | dict(num_key_value_heads=1)
_GEMMA = _GROUPED | dict(head_dim=4)
_BART: dict[str, Any] = dict(
    d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=12, decoder_ffn_dim=12, decoder_start_token_id=0,
)  # fmt: skip
_PATCHES = _TEXT | dict(image_size=8, patch_size=4)
_WAVES = _TEXT | dict(
    conv_dim=(6, 8), conv_stride=(3, 2), conv_kernel=(4, 3), num_feat_extract_layers=2,
    num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, classifier_proj_size=6,
)  # fmt: skip

SIZES: dict[str, dict[str, Any]] = {
    # decoders
    "GPT2": dict(n_positions=8, n_embd=8, n_layer=1, n_head=2),
    "GPTNeoX": _TEXT,
    "GPTJ": dict(n_positions=8, n_embd=8, n_layer=1, n_head=2, rotary_dim=4),
    "OPT": _TEXT | dict(ffn_dim=12, word_embed_proj_dim=8),
    "Bloom": dict(hidden_size=8, n_layer=1, n_head=2),
    "Falcon": _TEXT,
    "Llama": _TEXT,
    "Mistral": _GROUPED | dict(sliding_window=3),
    "Qwen2": _GROUPED,
    "Qwen3": _GEMMA,
    "Gemma": _GEMMA,
    "Gemma2": _GEMMA | dict(sliding_window=3),
    "Phi": _TEXT,
    "Olmo2": _TEXT,
    "Cohere": _TEXT,
    "Lfm2": _GROUPED | dict(
        num_hidden_layers=2, layer_types=["conv", "full_attention"], block_ff_dim=12,
        block_multiple_of=4,
    ),
    # mixtures of experts
    "Mixtral": _GROUPED | dict(num_local_experts=3, num_experts_per_tok=2),
    "Qwen3Moe": _GEMMA | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8),
    "DeepseekV3": _TEXT | dict(
        num_hidden_layers=2, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
        moe_intermediate_size=6, kv_lora_rank=4, q_lora_rank=4, qk_rope_head_dim=4, v_head_dim=4,
        qk_nope_head_dim=4, first_k_dense_replace=1, num_key_value_heads=2,
    ),
    # states
    "Mamba": dict(hidden_size=6, state_size=3, num_hidden_layers=1, conv_kernel=3),
    "Mamba2": dict(
        hidden_size=8, state_size=3, num_hidden_layers=1, conv_kernel=3, num_heads=2, head_dim=8,
        n_groups=1, chunk_size=4,
    ),
    "RecurrentGemma": _GROUPED | dict(num_hidden_layers=3, lru_width=8, attention_window_size=4),
    "Rwkv": dict(
        hidden_size=8, attention_hidden_size=8, num_hidden_layers=2, context_length=8,
        intermediate_size=12,
    ),
    # encoders
    "Bert": _TEXT,
    "Roberta": _TEXT | dict(max_position_embeddings=10),
    "Albert": _TEXT | dict(embedding_size=6, num_hidden_layers=2),
    "DistilBert": dict(dim=8, hidden_dim=12, n_layers=1, n_heads=2, max_position_embeddings=8),
    "DebertaV2": _TEXT | dict(
        relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=4
    ),
    "ModernBert": _TEXT | dict(num_hidden_layers=2, local_attention=4),
    "FNet": _TEXT | dict(use_tpu_fourier_optimizations=False),
    "Funnel": dict(block_sizes=[1, 1], d_model=8, n_head=2, d_head=4, d_inner=12),
    # encoders and decoders
    "T5": dict(d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, decoder_start_token_id=0),
    "SwitchTransformers": dict(
        d_model=8, d_kv=4, d_ff=12, num_layers=2, num_decoder_layers=2, num_heads=2,
        num_experts=3, expert_capacity=32, decoder_start_token_id=0,
    ),
    "Bart": _BART | dict(max_position_embeddings=8),
    "Whisper": _BART | dict(num_mel_bins=4, max_source_positions=6, max_target_positions=8),
    # images
    "ViT": _PATCHES,
    "Dinov2": _PATCHES,
    "Beit": _PATCHES,
    "ConvNext": dict(hidden_sizes=[4, 6], depths=[1, 1], num_stages=2, patch_size=2),
    "Swin": dict(
        image_size=16, patch_size=2, embed_dim=4, depths=[2, 1], num_heads=[1, 2], window_size=4
    ),
    "ResNet": dict(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic"),
    "MobileViT": dict(
        image_size=32, hidden_sizes=[8, 8, 8], neck_hidden_sizes=[4, 4, 4, 4, 4, 4, 8],
        num_attention_heads=2,
    ),
    "Segformer": dict(
        hidden_sizes=[4, 4, 8, 8], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2]
    ),
    "Levit": dict(
        image_size=32, hidden_sizes=[8, 8, 8], num_attention_heads=[2, 2, 2], depths=[1, 1, 1],
        key_dim=[4, 4, 4],
    ),
    # sounds
    "Wav2Vec2": _WAVES,
    "Hubert": _WAVES,
    "ASTForAudio": _TEXT | dict(
        patch_size=4, frequency_stride=4, time_stride=4, max_length=12, num_mel_bins=8
    ),
}  # fmt: skip


def config(name: str, **settings: Any) -> Any:
    """The configuration of a class such as ``"GPT2LMHeadModel"`` at toy size."""
    family = max((f for f in SIZES if name.startswith(f)), key=len)
    given: dict[str, Any] = SIZES[family] | settings
    if not any(word in name for word in ("Image", "Audio")):
        given = dict(
            vocab_size=VOCABULARY, bos_token_id=None, eos_token_id=None, pad_token_id=0
        ) | given  # fmt: skip
    return getattr(transformers, name).config_class(**given)


def model(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float64, **settings: Any) -> Any:
    """``"GPT2LMHeadModel"`` and the like, with weights large enough to matter.

    >>> type(model("BertForMaskedLM")).__name__
    'BertForMaskedLM'
    """
    made_from = config(name, **settings)
    if dtype == torch.float64:  # torch's grouped matrix products know no double precision
        made_from._experts_implementation = "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: nn.Module = getattr(transformers, name)(made_from)
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(3 if p.ndim > 1 else 1)
    return made.to(dtype)


def batch(name: str, *, seed: int = 0) -> dict[str, Tensor]:
    """What a data collator makes for the class: padded inputs, labels with -100 for the pads."""
    g = torch.Generator().manual_seed(seed)
    classes = torch.arange(SAMPLES) % 2

    def noise(*shape: int) -> Tensor:
        return torch.randn(SAMPLES, *shape, generator=g, dtype=torch.float64)

    if "Image" in name:
        family = max((f for f in SIZES if name.startswith(f)), key=len)
        side = SIZES[family].get("image_size", 32 if family == "Segformer" else 16)
        return {"pixel_values": noise(3, side, side), "labels": classes}
    if "Audio" in name:
        return {"input_values": noise(12, 8), "labels": classes}
    if name.startswith(("Wav2Vec2", "Hubert")):
        return {"input_values": noise(60), "labels": classes}
    tokens = torch.randint(3, VOCABULARY, (SAMPLES, LENGTH), generator=g)
    mask = torch.ones_like(tokens)
    mask[0, -2:] = 0
    tokens = tokens.masked_fill(mask == 0, 0)
    labels = tokens.masked_fill(mask == 0, -100)
    if name.startswith("Whisper"):
        return {"input_features": noise(4, 12), "labels": labels}
    if "MultipleChoice" in name:
        both = torch.stack([tokens, tokens.flip(0)], 1)
        return {"input_ids": both, "attention_mask": (both != 0).long(), "labels": classes}
    if "SequenceClassification" in name:
        labels = classes
    elif "TokenClassification" in name:
        labels = (tokens % 2).masked_fill(mask == 0, -100)
    elif "MaskedLM" in name:
        chosen = torch.rand(tokens.shape, generator=g) < 0.4
        chosen[1, 1] = True
        labels = labels.masked_fill(~chosen, -100)
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}
