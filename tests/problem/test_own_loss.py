"""Models of Hugging Face: our loss is the one that they compute themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import BatchEncoding

import curvescope as cs
from tests.foreign.hugging_face import VOCABULARY, model

N, T = 6, 5


def batch(name: str, seed: int = 0, **settings: Any) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, VOCABULARY, (N, T), generator=g)
    mask = (torch.arange(T) < torch.randint(2, T + 1, (N, 1), generator=g)).long()
    outputs = settings.get("num_labels", 2)
    if "Sequence" in name:
        labels = torch.randint(outputs, (N,), generator=g)
        if settings.get("problem_type") == "multi_label_classification":
            labels = torch.randint(2, (N, outputs), generator=g).double()
        elif settings.get("problem_type") == "regression":
            labels = torch.randn(N, generator=g).double()
    elif "Token" in name:
        labels = torch.randint(outputs, (N, T), generator=g).masked_fill(mask == 0, -100)
    else:
        labels = tokens.masked_fill(mask == 0, -100)
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("GPT2LMHeadModel", "cross_entropy", {"use_cache": False}),
    ("LlamaForCausalLM", "cross_entropy", {"use_cache": False}),
    ("LlamaForCausalLM", "model", {"use_cache": False}),
    ("BertForMaskedLM", "cross_entropy", {}),
    ("BertLMHeadModel", "cross_entropy", {"is_decoder": True, "use_cache": False}),
    ("BertForTokenClassification", "cross_entropy", {}),
    ("BertForSequenceClassification", "cross_entropy", {}),
    (
        "BertForSequenceClassification",
        "model",
        {"num_labels": 3, "problem_type": "multi_label_classification"},
    ),
    ("BertForSequenceClassification", "mse", {"num_labels": 1, "problem_type": "regression"}),
    ("T5ForConditionalGeneration", "cross_entropy", {"use_cache": False}),
]
IDS = [f"{name}-{loss}-{len(settings)}" for name, loss, settings in CASES]


def pick(net: nn.Module) -> list[str]:
    """A parameter near the output and one far from it, few enough for dense matrices."""
    names = [n for n, p in net.named_parameters() if p.ndim == 1]
    return [names[0], names[-1]]


@pytest.mark.parametrize(("name", "loss", "settings"), CASES, ids=IDS)
def test_value_and_curvature_are_those_of_the_models_own_loss(
    name: str, loss: str, settings: dict[str, Any]
) -> None:
    net, data = model(name, **settings).eval(), batch(name, **settings)
    ours = cs.Problem(net, [data], loss=loss, params=pick(net))
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        own = net(**data).loss
    rounding = 1e-12 if name.startswith("BertFor") else 1e-6  # others do a part in float32
    assert float(ours.value()) == pytest.approx(float(own.detach()), rel=rounding)
    chosen = [net.get_parameter(n) for n in ours.params.names]
    slopes = torch.autograd.grad(own, chosen, create_graph=True)
    g = torch.cat([s.flatten() for s in slopes])
    scale = float(g.detach().abs().max())
    torch.testing.assert_close(ours.gradient(), g.detach(), rtol=0, atol=30 * rounding * scale)
    v = torch.randn(len(g), generator=torch.Generator().manual_seed(1)).double()
    Hv = torch.cat([h.flatten() for h in torch.autograd.grad(g @ v, chosen)])
    found = cs.Hessian(ours) @ v
    torch.testing.assert_close(found, Hv, rtol=0, atol=300 * rounding * float(Hv.abs().max()))


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM", "BertForMaskedLM"])
def test_batches_of_different_token_counts_are_weighted_by_tokens(name: str) -> None:
    net = model(name, use_cache=False).eval()
    batches = [batch(name, seed) for seed in range(3)]
    z = torch.cat([net(**{k: v for k, v in b.items() if k != "labels"}).logits for b in batches])
    y = torch.cat([b["labels"] for b in batches])
    if name != "BertForMaskedLM":
        z, y = z[:, :-1], y[:, 1:]
    expected = F.cross_entropy(z.flatten(0, 1), y.flatten()).detach()
    torch.testing.assert_close(cs.Problem(net, batches).value(), expected, rtol=1e-12, atol=0)


def test_labels_may_stand_beside_the_inputs() -> None:
    net, data = model("GPT2LMHeadModel", use_cache=False).eval(), batch("GPT2LMHeadModel")
    labels = data.pop("labels")
    ours = cs.Problem(net, (data["input_ids"], labels))
    assert ours.loss.name == "cross_entropy(shift=1)"
    own = net(input_ids=data["input_ids"], labels=labels).loss
    assert float(ours.value()) == pytest.approx(float(own.detach()), rel=1e-6)


class Own(nn.Module):
    """Returns a loss of its own, ``factor`` times a cross-entropy."""

    def __init__(self, factor: float = 1.0, *, zero: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4).double()
        self.factor = factor
        if zero:
            nn.init.zeros_(self.layer.weight)
            nn.init.zeros_(self.layer.bias)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.layer(x)
        if labels is None:
            return SimpleNamespace(logits=logits, loss=None)
        loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten())
        return SimpleNamespace(logits=logits, loss=self.factor * loss)


class OwnForCausalLM(Own):
    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        out = super().forward(x)
        if labels is not None:
            out.loss = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return out


X = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)).double()
Y = torch.tensor([[0, 1, 2, 3, 0], [3, 2, 2, 1, 1]])


def test_a_loss_of_its_own_that_we_do_not_know_is_refused() -> None:
    for loss in ("cross_entropy", "model"):
        problem = cs.Problem(Own(1.01), [({"x": X}, Y)], loss=loss)
        with pytest.raises(cs.CurvescopeError, match=r"no loss that the library knows .* shift=1"):
            problem.value()
    told = cs.Problem(Own(1.01), [({"x": X}, Y)], loss=cs.losses.CrossEntropy(axis=-1))
    assert float(told.value()) > 0  # the user's word


def test_numbers_that_several_losses_give_are_decided_by_the_class_or_refused() -> None:
    """Uniform predictions: the loss is log C, with shifted labels or not."""
    causal = cs.Problem(OwnForCausalLM(zero=True), [({"x": X}, Y)])
    assert causal.loss.name == "cross_entropy(shift=1)"
    with pytest.raises(cs.CurvescopeError, match="several losses give that number; say which"):
        cs.Problem(Own(zero=True), [({"x": X}, Y)]).value()


def test_a_named_loss_that_is_not_the_models_is_refused() -> None:
    net = model("BertForSequenceClassification", num_labels=1, problem_type="regression").eval()
    data = batch("Sequence", num_labels=1, problem_type="regression")
    problem = cs.Problem(net, [data], loss="smooth_l1")
    with pytest.raises(cs.CurvescopeError, match="no loss that the library knows"):
        problem.value()


class Around(nn.Module):
    """A model in another one, which takes whatever it is given."""

    def __init__(self, net: nn.Module, *, logits: bool = False) -> None:
        super().__init__()
        self.net, self.logits = net, logits

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.net(*args, **kwargs)
        return out.logits if self.logits else out


class Alone(nn.Module):
    """A model in another one that does not pass labels on."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.net(input_ids=input_ids, attention_mask=attention_mask).logits


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("wrap", [Around, lambda net: torch.compile(net, backend="eager")])
def test_wrapped_and_compiled_models_shift_labels_as_well(wrap: Any) -> None:
    net, data = model("GPT2LMHeadModel", use_cache=False).eval(), batch("GPT2LMHeadModel")
    ours = cs.Problem(wrap(net), [data])
    assert ours.loss.name == "cross_entropy(shift=1)"
    assert float(ours.value()) == pytest.approx(float(net(**data).loss.detach()), rel=1e-6)


@pytest.mark.parametrize("wrap", [Alone, lambda net: Around(net, logits=True)])
def test_labels_that_are_the_inputs_need_a_word(wrap: Any) -> None:
    """The logits alone do not tell whether labels are shifted, and half of all users are wrong."""
    net, data = model("GPT2LMHeadModel", use_cache=False).eval(), batch("GPT2LMHeadModel")
    with pytest.raises(cs.CurvescopeError, match=r"labels are the model's inputs .*shift=1\)"):
        cs.Problem(wrap(net), [data]).value()
    told = cs.Problem(wrap(net), [data], loss=cs.losses.CrossEntropy(axis=-1, shift=1))
    assert float(told.value()) == pytest.approx(float(net(**data).loss.detach()), rel=1e-6)


def test_a_plain_loss_of_torchs_must_agree_too() -> None:
    """With as many positions as tokens, torch's axis of the classes would be the positions'."""
    net = model("GPT2LMHeadModel", use_cache=False, n_positions=VOCABULARY).eval()
    tokens = torch.arange(3 * VOCABULARY).reshape(3, VOCABULARY) % VOCABULARY
    problem = cs.Problem(net, [{"input_ids": tokens, "labels": tokens}], loss=nn.CrossEntropyLoss())
    with pytest.raises(cs.CurvescopeError, match="no loss that the library knows"):
        problem.value()
    classes, data = model("BertForSequenceClassification").eval(), batch("Sequence")
    ours = cs.Problem(classes, [data], loss=F.cross_entropy).value()
    assert float(ours) == pytest.approx(float(classes(**data).loss.detach()), rel=1e-12)


def test_what_a_tokenizer_returns_is_cut_and_compared_like_a_dict() -> None:
    net, data = model("GPT2LMHeadModel", use_cache=False).eval(), batch("GPT2LMHeadModel")
    own = float(net(**data).loss.detach())
    labels = data["labels"]
    inputs = BatchEncoding({k: v for k, v in data.items() if k != "labels"})
    for given in (BatchEncoding(data), (inputs, labels)):
        for size in (None, 4):
            ours = cs.Problem(net, given, batch_size=size, params=pick(net))
            assert float(ours.value()) == pytest.approx(own, rel=1e-6)

    class Changing:
        seed = 0

        def __iter__(self) -> Any:
            self.seed += 1
            tokens = (inputs["input_ids"] + self.seed) % VOCABULARY
            yield BatchEncoding({**inputs, "input_ids": tokens}), labels

    problem = cs.Problem(net, Changing(), loss=cs.losses.CrossEntropy(axis=-1), params=pick(net))
    problem.value()
    with pytest.raises(cs.CurvescopeError, match="two passes over the data disagree"):
        problem.value()


def test_model_needs_a_loss_of_the_models_own() -> None:
    with pytest.raises(cs.CurvescopeError, match="forward takes no labels; name the loss"):
        cs.Problem(nn.Linear(3, 2), (torch.randn(2, 3), torch.tensor([0, 1])), loss="model")

    class Silent(Own):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            return super().forward(x)

    with pytest.raises(cs.CurvescopeError, match="returns no loss of its own"):
        cs.Problem(Silent(), [({"x": X}, Y)], loss="model").value()
    silent = Silent()
    expected = F.cross_entropy(silent(X).logits.flatten(0, 1), Y.flatten()).detach()
    torch.testing.assert_close(cs.Problem(silent, [({"x": X}, Y)]).value(), expected)


def test_a_callable_that_wants_the_whole_output_is_told_what_it_gets() -> None:
    net, data = model("GPT2LMHeadModel", use_cache=False).eval(), batch("GPT2LMHeadModel")
    problem = cs.Problem(net, [data], loss=lambda out, y: out.loss)
    with pytest.raises(cs.CurvescopeError, match=r"given the output as a tensor.*loss='model'"):
        problem.value()


def test_restricted_problems_agree_on_the_loss() -> None:
    problem = cs.Problem(OwnForCausalLM(), [({"x": X}, Y)])
    assert problem.restrict("layer.bias").loss.name == "cross_entropy(shift=1)"
    assert float(problem.restrict("layer").value()) == float(problem.value())
