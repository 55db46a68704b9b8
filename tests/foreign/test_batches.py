"""Batches as the libraries' own collators make them, from a loader, with a tokenizer made here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.utils.data import DataLoader

import curvescope as cs
from curvescope.engine.engine import Engine
from tests.foreign import hugging_face

pytestmark = pytest.mark.foreign

WORDS = ["[PAD]", "[MASK]", "[CLS]", "[SEP]", *"a cat dog sat on the mat".split()]
TEXTS = ["a cat sat on the mat", "the dog sat", "a dog", "the cat sat on a cat", "a mat"]
LABELS = [0, 1, 1, 0, 1]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[PAD]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", mask_token="[MASK]", cls_token="[CLS]",
        sep_token="[SEP]",
    )  # fmt: skip


def causal(tokenizer: Any) -> tuple[str, list[Any], Any]:
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    return "GPT2LMHeadModel", [tokenizer(t) for t in TEXTS], collate


def masked(tokenizer: Any) -> tuple[str, list[Any], Any]:
    """With masks drawn once: drawn anew in every pass they are refused."""
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5, seed=0)
    batches = list(DataLoader([tokenizer(t) for t in TEXTS], batch_size=2, collate_fn=collate))
    return "BertForMaskedLM", batches, None


def sequences(tokenizer: Any) -> tuple[str, list[Any], Any]:
    rows = [{**tokenizer(t), "labels": y} for t, y in zip(TEXTS, LABELS, strict=True)]
    return "BertForSequenceClassification", rows, transformers.DataCollatorWithPadding(tokenizer)


def tokens(tokenizer: Any) -> tuple[str, list[Any], Any]:
    rows = [tokenizer(t) for t in TEXTS]
    rows = [{**row, "labels": [i % 2 for i in row["input_ids"]]} for row in rows]
    collate = transformers.DataCollatorForTokenClassification(tokenizer)
    return "DistilBertForTokenClassification", rows, collate


def pairs(tokenizer: Any) -> tuple[str, list[Any], Any]:
    rows = [{**tokenizer(t), "labels": tokenizer(t)["input_ids"][::-1]} for t in TEXTS]
    return "T5ForConditionalGeneration", rows, transformers.DataCollatorForSeq2Seq(tokenizer)


def loss(model: nn.Module, batches: Iterator[Any]) -> tuple[Tensor, float]:
    """The mean over all labels that count, from the model's own losses, and their number."""
    total, count = torch.zeros((), dtype=torch.float64), 0.0
    for batch in batches:
        labels = batch["labels"]
        if "CausalLM" in type(model).__name__ or "LMHead" in type(model).__name__:
            labels = labels[:, 1:]
        weight = float((labels != -100).sum())
        if weight:  # the model's own mean over nothing is not a number
            total, count = total + weight * model(**batch).loss, count + weight
    return total / count, count


@pytest.mark.parametrize("make", [causal, masked, sequences, tokens, pairs])
def test_what_a_collator_makes(make: Callable[[Any], Any], tokenizer: Any) -> None:
    name, rows, collate = make(tokenizer)
    loader = rows if collate is None else DataLoader(rows, batch_size=2, collate_fn=collate)
    net = hugging_face.model(name, vocab_size=len(WORDS)).eval()
    problem = cs.Problem(net, loader)
    value, count = loss(net, iter(loader))
    assert count > 0
    rounding = 1e-12 if name.startswith(("Bert", "Distil")) else 1e-6  # a part in float32
    assert float(problem.value()) == pytest.approx(float(value.detach()), rel=rounding)
    slopes = torch.autograd.grad(value, list(net.parameters()), allow_unused=True)
    flat = torch.cat([
        (torch.zeros_like(p) if g is None else g).flatten()
        for g, p in zip(slopes, net.parameters(), strict=True)
    ])  # fmt: skip
    scale = 1e2 * rounding * float(flat.norm())
    torch.testing.assert_close(problem.gradient(), flat, rtol=0, atol=scale)
    v = torch.randn(len(flat), generator=torch.Generator().manual_seed(0)).double()
    kept, streamed = (cs.Hessian(problem, keep=keep) @ v for keep in (True, False))
    torch.testing.assert_close(kept, streamed, rtol=1e-10, atol=1e-10 * float(kept.norm()))


def test_masks_that_are_drawn_in_every_pass_are_refused(tokenizer: Any) -> None:
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5)
    rows = [tokenizer(t) for t in TEXTS]
    net = hugging_face.model("BertForMaskedLM", vocab_size=len(WORDS)).eval()
    problem = cs.Problem(net, DataLoader(rows, batch_size=2, collate_fn=collate))
    problem.value()
    with pytest.raises(cs.CurvescopeError, match="two passes over the data disagree"):
        problem.value()


@pytest.mark.parametrize("name", ["MixtralForCausalLM", "Qwen3MoeForCausalLM"])
def test_experts_by_grouped_products_in_float32(name: str) -> None:
    """The way that these models take by default; torch has its grouped products in float32 only."""
    data = hugging_face.batch(name)
    results = []
    for dtype in (torch.float32, torch.float64):
        problem = cs.Problem(hugging_face.model(name, dtype=dtype).eval(), [data])
        g = torch.Generator().manual_seed(0)
        v = torch.randn(problem.params.size, 2, generator=g).to(dtype)
        results.append([
            make(problem, keep=keep) @ each
            for make in (cs.Hessian, cs.GaussNewton)
            for keep in (True, False)
            for each in (v, v[:, 0])
        ])  # fmt: skip
        assert problem.companion(Engine)._linearizer.tapes("second order")
    for single, double in zip(*results, strict=True):
        assert float((single - double).norm() / double.norm()) < 1e-4


def test_questions_have_two_targets_and_are_refused() -> None:
    net = hugging_face.model("BertForQuestionAnswering").eval()
    data = hugging_face.batch("BertForMaskedLM")
    del data["labels"]
    data |= {"start_positions": torch.tensor([0, 1, 2]), "end_positions": torch.tensor([1, 2, 2])}
    with pytest.raises(cs.CurvescopeError, match="a mapping needs the key 'labels'"):
        cs.Problem(net, [data]).value()
