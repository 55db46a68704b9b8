"""Layers of models as transformers builds them: which have closed forms; these are exact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import curvescope as cs
from curvescope.engine.engine import Engine
from curvescope.record.samples import terms_apart
from curvescope.record.selection import layers_of_any_kind
from curvescope.structure.factors import kronecker_factors
from tests.conformance import check_products
from tests.foreign import hugging_face
from tests.foreign.test_table import _double  # noqa: F401
from tests.reference.curvature import Reference
from tests.reference.losses import CrossEntropy
from tests.tolerances import EXACT

pytestmark = pytest.mark.foreign
RTOL = EXACT[torch.float64]


def data_of(name: str) -> list[tuple[dict[str, Tensor], Tensor]]:
    """Two uneven batches."""
    batch = hugging_face.batch(name)
    target = batch.pop("labels")
    parts = [{k: v[cut] for k, v in batch.items()} for cut in (slice(2), slice(2, None))]
    return [(parts[0], target[:2]), (parts[1], target[2:])]


# Layers whose blocks go the general way.
GENERAL: dict[str, set[str]] = {
    "GPT2ForSequenceClassification": set(),
    "LlamaForSequenceClassification": set(),
    "GemmaForSequenceClassification": set(),
    "BertForSequenceClassification": set(),
    "ViTForImageClassification": set(),
    "ConvNextForImageClassification": set(),
}


@pytest.mark.parametrize("name", GENERAL)
def test_blocks_of_every_layer_are_exact_and_in_closed_form(name: str) -> None:
    model = hugging_face.model(name).eval()
    data = data_of(name)
    problem = cs.Problem(model, data, loss="cross_entropy")
    reference = Reference(model, data, CrossEntropy())
    G = reference.gauss_newton()
    layers = layers_of_any_kind(problem)
    weights = {n.rpartition(".")[0] for n in problem.params.names if n.endswith(".weight")}
    assert set(layers) == weights
    for layer in layers:
        names = [n for n in problem.params.names if n.rpartition(".")[0] == layer]
        indices = reference.indices(names)
        block = cs.GaussNewton(problem, keep=True).block(layer)
        dense = G[indices][:, indices]
        check_products(block, dense, rtol=RTOL, scale=max(float(dense.norm()), 1e-9))
    recorded = {layer for layer, _ in problem.companion(Engine)._closed._factors}
    assert set(layers) - recorded == GENERAL[name]


LANGUAGE_MODELS = {  # head, last norm, what shares its weight with the head
    "GPT2LMHeadModel": ("lm_head", "transformer.ln_f", "transformer.wte"),
    "LlamaForCausalLM": ("lm_head", "model.norm", None),
    "BertForMaskedLM": (
        "cls.predictions.decoder", "cls.predictions.transform.LayerNorm",
        "bert.embeddings.word_embeddings",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_factors_of_a_language_model(name: str) -> None:
    """Of every layer, a tied head included; positions do not meet behind the last norm."""
    head, last, embedding = LANGUAGE_MODELS[name]
    model = hugging_face.model(name).eval()
    loss = cs.losses.CrossEntropy(axis=-1, shift=0 if "Masked" in name else 1)
    problem = cs.Problem(model, data_of(name), loss=loss)
    batch = next(iter(problem.data))
    layers = layers_of_any_kind(problem, shared=True)
    assert {head, last} <= terms_apart(problem, batch, layers, shared=True)
    g = torch.Generator().manual_seed(0)
    factors = kronecker_factors(problem, draws=2, generator=g)
    assert set(factors) == set(layers)
    for layer, factor in factors.items():
        assert factor.operator().shape[0] == model.get_submodule(layer).weight.numel()
        assert bool(factor.tied) == (embedding is not None and layer in (head, embedding))
