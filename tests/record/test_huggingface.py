"""Models of Hugging Face as they come: with their cache on, which is their default."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import curvescope as cs
from curvescope.engine.engine import Engine
from tests import huggingface
from tests.conformance import assert_relative, random_block

RTOL = 1e-10
SAMPLES, LENGTH = 3, 5

MODELS = [
    "GPT2LMHeadModel", "LlamaForCausalLM", "Qwen2ForCausalLM", "GemmaForCausalLM",
    "MambaForCausalLM", "BertForMaskedLM", "BertForSequenceClassification",
    "T5ForConditionalGeneration", "ViTForImageClassification",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and softmax of these models work in float32; in float64 they can be compared."""
    to, softmax = Tensor.to, F.softmax

    def wide(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.dtype == torch.float64:
            args = tuple(torch.float64 if a is torch.float32 else a for a in args)
            kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()}
        return to(self, *args, **kwargs)

    def wide_softmax(x: Tensor, *args: Any, dtype: Any = None, **kwargs: Any) -> Tensor:
        return softmax(x, *args, dtype=None if x.dtype == torch.float64 else dtype, **kwargs)

    monkeypatch.setattr(Tensor, "to", wide)
    monkeypatch.setattr(Tensor, "float", lambda self: self.to(torch.float32))
    monkeypatch.setattr(F, "softmax", wide_softmax)


def batch(name: str) -> tuple[dict[str, Tensor], Tensor]:
    g = torch.Generator().manual_seed(0)
    if name.startswith("ViT"):
        pixels = torch.randn(SAMPLES, 3, 8, 8, generator=g, dtype=torch.float64)
        return {"pixel_values": pixels}, torch.arange(SAMPLES) % 2
    tokens = torch.randint(1, huggingface.VOCABULARY, (SAMPLES, LENGTH), generator=g)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    inputs["attention_mask"][0, -1] = 0
    if name.startswith("Mamba"):
        del inputs["attention_mask"]
    if name.startswith("T5"):
        inputs["decoder_input_ids"] = tokens.flip(1)
    return inputs, (tokens[:, 0] % 2 if "Classification" in name else tokens)


def double_backward(
    model: nn.Module, inputs: dict[str, Tensor], target: Tensor, V: Tensor, *, causal: bool
) -> dict[str, Tensor]:
    """H and G times the columns of V by torch alone."""
    named = {n: p.detach().requires_grad_() for n, p in model.named_parameters()}
    leaves = list(named.values())
    columns = [[v.view_as(p) for v, p in zip(w.split([p.numel() for p in leaves]), leaves,
                strict=True)] for w in V.T]  # fmt: skip

    def flat(pieces: Any) -> Tensor:
        return torch.cat([
            (torch.zeros_like(p) if g is None else g).reshape(-1)
            for g, p in zip(pieces, leaves, strict=True)
        ])  # fmt: skip

    with sdpa_kernel(SDPBackend.MATH):
        z = torch.func.functional_call(model, named, kwargs=inputs).logits
        if causal:  # the output at a position is compared with the label of the next one
            z, target = z[:, :-1], target[:, 1:]
        rows = z.reshape(-1, z.shape[-1])
        loss = F.cross_entropy(rows, target.reshape(-1))
        first = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
        used = [i for i, g in enumerate(first) if g is not None and g.requires_grad]
        H = [flat(torch.autograd.grad([first[i] for i in used], leaves, [v[i] for i in used],
             retain_graph=True, allow_unused=True)) for v in columns]  # fmt: skip
        u = torch.zeros_like(rows, requires_grad=True)
        pulled = torch.autograd.grad(rows, leaves, u, create_graph=True, allow_unused=True)
        there = [i for i, g in enumerate(pulled) if g is not None]
        p = rows.detach().softmax(-1)
        G = []
        for v in columns:
            (jv,) = torch.autograd.grad(
                [pulled[i] for i in there], u, [v[i] for i in there], retain_graph=True
            )
            bjv = (p * jv - p * (p * jv).sum(-1, keepdim=True)) / len(rows)
            G.append(flat(torch.autograd.grad(rows, leaves, bjv, retain_graph=True,
                                              allow_unused=True)))  # fmt: skip
    return {"H": torch.stack(H, 1), "G": torch.stack(G, 1)}


@pytest.mark.parametrize("name", MODELS)
def test_products(name: str) -> None:
    model = huggingface.model(name).eval()
    inputs, target = batch(name)
    problem = cs.Problem(model, [(inputs, target)], "cross_entropy")
    V = random_block(problem.params.size, 3, torch.float64)
    causal = "Causal" in name or "LMHead" in name
    expected = double_backward(model, inputs, target, V, causal=causal)
    for keep in (False, "auto", True):
        for matrix, make in (("H", cs.Hessian), ("G", cs.GaussNewton)):
            A = make(problem, keep=keep)
            assert_relative(A @ V, expected[matrix], rtol=RTOL, what=f"{name} {matrix} @ [n, 3]")
            single = expected[matrix][:, 0]
            assert_relative(A @ V[:, 0], single, rtol=RTOL, what=f"{name} {matrix} @ [n]")
    # Mamba writes into slices of its states, which only the universal engine follows.
    tapes = problem.companion(Engine)._linearizer.tapes("second order")
    assert tapes == (not name.startswith("Mamba"))
