"""Foreign architectures: how each is built, what a batch of it looks like, what is known of it.

An entry costs a line here and nothing in the library, which is the point of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import peft
import torch
from torch import Tensor, nn

from tests.foreign import hugging_face, images, networks


@dataclass(frozen=True)
class Architecture:
    """A model and a batch of data in float64."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Any]  # a mapping with labels, or (inputs, target)
    no_oracle: str = ""  # why torch's double backward is none: differences of gradients decide
    on_graphs: str = ""  # why it cannot be recorded on a tape, for the few that cannot

    def loss_and_logits(self, model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
        """The model's own loss, and the logits and targets that it consists of, ``[n, C]``."""
        given = self.batch()
        if not isinstance(given, dict):
            inputs, y = given
            z = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
            loss = nn.functional.cross_entropy(z, y)
            return loss, z.movedim(1, -1).flatten(0, -2), y.flatten()
        out, y = model(**given, **_without_cache(model)), given["labels"]
        z = out.logits
        if any(word in self.name for word in ("CausalLM", "LMHead")):
            z, y = z[:, :-1], y[:, 1:]
        rows, y = z.reshape(-1, z.shape[-1]), y.reshape(-1)
        return out.loss, rows[y != -100], y[y != -100]


def _without_cache(model: nn.Module) -> dict[str, bool]:
    """Models with states write over them where they keep them, and autograd refuses that."""
    takes = inspect.signature(model.forward).parameters
    return {"use_cache": False} if "use_cache" in takes else {}


def _language(name: str, **more: Any) -> Architecture:
    settings = more.pop("settings", {})
    return Architecture(
        name,
        lambda: hugging_face.model(name, **settings).eval(),
        lambda: hugging_face.batch(name),
        **more,
    )


def _pictures(name: str, side: int, no_oracle: str = "", **settings: Any) -> Architecture:
    def batch() -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(0)
        return torch.randn(2, 3, side, side, generator=g).double(), torch.tensor([0, 2])

    build = lambda: images.model(name, **settings).eval()  # noqa: E731
    return Architecture(f"timm/{name}", build, batch, no_oracle=no_oracle)


def _own(name: str, build: Callable[[], nn.Module], *shape: int, pixels: bool = False) -> Any:
    def batch() -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(0)
        x = torch.randn(4, *shape, generator=g).double()
        return x, torch.randint(3, (4, *shape[1:] * pixels), generator=g)

    return Architecture(f"torch/{name}", lambda: build().double(), batch)


def _recurrent(name: str, layer: Callable[[], nn.Module], width: int, packed: bool) -> Any:
    def batch() -> tuple[tuple[Tensor, Tensor], Tensor]:
        tokens = torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(0))
        return (tokens, torch.tensor([3, 5, 1, 4])), torch.tensor([0, 1, 2, 1])

    build = lambda: networks.Sequences(layer(), width, packed=packed).double()  # noqa: E731
    return Architecture(f"torch/{name}", build, batch)


def _adapted(name: str, *targets: str) -> Architecture:
    """Low-rank adapters on a frozen model, which are its only variables."""

    def build() -> nn.Module:
        settings = peft.LoraConfig(
            r=2, target_modules=list(targets), fan_in_fan_out=name.startswith("GPT2")
        )
        model = peft.get_peft_model(hugging_face.model(name), settings).double()
        g = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for key, p in model.named_parameters():
                if "lora_B" in key:  # begins at zero, where half of the Hessian vanishes
                    p.copy_(torch.randn(p.shape, generator=g))
        return model.eval()

    return Architecture(f"peft/LoRA on {name}", build, lambda: hugging_face.batch(name))


def _architectures() -> Iterator[Architecture]:
    yield from map(_language, [
        # causal language models
        "GPT2LMHeadModel", "GPTNeoXForCausalLM", "GPTJForCausalLM", "OPTForCausalLM",
        "BloomForCausalLM", "FalconForCausalLM", "LlamaForCausalLM", "MistralForCausalLM",
        "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GemmaForCausalLM", "Gemma2ForCausalLM",
        "PhiForCausalLM", "Olmo2ForCausalLM", "CohereForCausalLM", "Lfm2ForCausalLM",
        # mixtures of experts
        "MixtralForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM",
        # recurrent states
        "MambaForCausalLM", "Mamba2ForCausalLM", "RecurrentGemmaForCausalLM", "RwkvForCausalLM",
        # masked language models
        "BertForMaskedLM", "RobertaForMaskedLM", "AlbertForMaskedLM", "DistilBertForMaskedLM",
        "DebertaV2ForMaskedLM", "ModernBertForMaskedLM", "FunnelForMaskedLM",
        # other heads
        "BertForSequenceClassification", "LlamaForSequenceClassification",
        "DistilBertForTokenClassification", "BertForMultipleChoice",
        # encoders and decoders
        "T5ForConditionalGeneration", "SwitchTransformersForConditionalGeneration",
        "BartForConditionalGeneration", "WhisperForConditionalGeneration",
        # images
        "ViTForImageClassification", "Dinov2ForImageClassification", "BeitForImageClassification",
        "ConvNextForImageClassification", "SwinForImageClassification",
        "ResNetForImageClassification", "MobileViTForImageClassification",
        "SegformerForImageClassification", "LevitForImageClassification",
        # sounds
        "ASTForAudioClassification",
    ])  # fmt: skip
    yield _language("FNetForMaskedLM", on_graphs="complex numbers have no slots on a tape")
    for name in ("Wav2Vec2ForSequenceClassification", "HubertForSequenceClassification"):
        yield _language(name, no_oracle="torch's second derivative of weight_norm is wrong")
    yield _adapted("GPT2LMHeadModel", "c_attn", "c_proj")
    yield _adapted("LlamaForCausalLM", "q_proj", "v_proj")
    lacks = "hardswish_backward and hardsigmoid_backward have no derivative in torch"
    yield _pictures("mobilenetv3_small_050", 32, lacks)
    yield _pictures("lcnet_050", 32, lacks)
    small = dict(img_size=16, patch_size=8, embed_dim=8, depth=2, num_heads=2)
    windows = dict(
        img_size=32, patch_size=4, window_size=4, embed_dim=4, depths=(2, 1), num_heads=(1, 2)
    )
    tiny = dict(depths=(1, 1, 1, 1), dims=(4, 4, 8, 8))
    yield _pictures("vit_tiny_patch16_224", 16, **small)
    yield _pictures("beit_base_patch16_224", 16, **small)
    yield _pictures("eva02_tiny_patch14_224", 28, img_size=28, embed_dim=8, depth=2, num_heads=2)
    yield _pictures("xcit_nano_12_p16_224", 32, img_size=32, embed_dim=8, depth=1, num_heads=2)
    yield _pictures("swin_tiny_patch4_window7_224", 32, **windows)
    yield _pictures("swinv2_tiny_window8_256", 32, **windows)
    yield _pictures("convnext_atto", 32, **tiny)
    yield _pictures("edgenext_xx_small", 32, depths=(1,) * 4, dims=(8,) * 4, heads=(2,) * 4)
    yield _pictures("sequencer2d_s", 32, img_size=32, layers=(1,) * 4, embed_dims=(8,) * 4,
                    hidden_sizes=(4,) * 4)  # fmt: skip
    yield _pictures("test_efficientnet", 32)
    yield _pictures("test_nfnet", 32)
    yield _own("speech", networks.Speech, 2, 24)
    yield _own("U-Net", networks.UNet, 2, 8, 8, pixels=True)
    yield _own("buffer filled row by row", networks.FilledRowByRow, 4, 2)
    yield _own("function with its own derivative", networks.OwnFunction, 2)
    for packed in (False, True):
        how = ", packed" * packed
        yield _recurrent(f"LSTM of two layers{how}", lambda: nn.LSTM(
            4, 3, num_layers=2, batch_first=True), 6, packed)  # fmt: skip
        yield _recurrent(f"GRU in both directions{how}", lambda: nn.GRU(
            4, 3, bidirectional=True, batch_first=True), 6, packed)  # fmt: skip
        yield _recurrent(f"RNN{how}", lambda: nn.RNN(4, 3, batch_first=True), 3, packed)


TABLE = {a.name: a for a in _architectures()}
