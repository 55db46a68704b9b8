"""The GPT beside torch's own layers, and its initial weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope.errors import CurvescopeError
from curvescope.networks import network

CLASSES, LENGTH = 11, 9


def gpt(name: str = "GPT-2x64", **options: object) -> nn.Module:
    return network(name, LENGTH, CLASSES, **options).double()  # type: ignore[arg-type]


def by_hand(model: nn.Module, tokens: Tensor, depth: int, width: int) -> Tensor:
    """Head by head and position by position."""
    state = {name: p.detach() for name, p in model.named_parameters()}

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        scaled = centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    length = tokens.shape[1]
    x = state["embedding.weight"][tokens] + state["positions.weight"][:length]
    for block in range(1, depth + 1):
        h = norm(x, f"norm-attention{block}")
        q, k, v = (linear(h, f"{name}{block}") for name in "qkv")
        mixed = torch.zeros_like(h)
        for head in range(width // 32):
            part = slice(32 * head, 32 * head + 32)
            for t in range(length):
                scores = (k[:, : t + 1, part] @ q[:, t, part, None])[..., 0] / 32**0.5
                weights = scores.softmax(-1)
                mixed[:, t, part] = (weights[..., None] * v[:, : t + 1, part]).sum(1)
        x = x + linear(mixed, f"o{block}")
        h = linear(norm(x, f"norm-mlp{block}"), f"up{block}")
        x = x + linear(h * 0.5 * (1 + torch.erf(h / 2**0.5)), f"down{block}")
    return linear(norm(x, "norm"), "head")


def test_it_computes_what_its_description_says() -> None:
    g = torch.Generator().manual_seed(0)
    model = gpt(init="pytorch", generator=g)
    tokens = torch.randint(CLASSES, (3, LENGTH), generator=g)
    torch.testing.assert_close(model(tokens), by_hand(model, tokens, 2, 64), rtol=1e-10, atol=1e-12)


def test_no_output_sees_a_later_token() -> None:
    model, g = gpt(), torch.Generator().manual_seed(1)
    one = torch.randint(CLASSES, (1, LENGTH), generator=g)
    other = one.clone()
    other[0, 5:] = (one[0, 5:] + 1) % CLASSES
    torch.testing.assert_close(model(one)[:, :5], model(other)[:, :5])
    assert not torch.allclose(model(one)[:, 5:], model(other)[:, 5:])
    assert model(one[:, :4]).shape == (1, 4, CLASSES)  # shorter sequences too


@pytest.mark.parametrize(("depth", "width"), [(1, 32), (2, 64), (3, 96)])
def test_parameters(depth: int, width: int) -> None:
    model = network(f"GPT-{depth}x{width}", LENGTH, CLASSES)
    formula = (
        width * (2 * CLASSES + LENGTH) + CLASSES + depth * (12 * width**2 + 13 * width) + 2 * width
    )
    assert sum(p.numel() for p in model.parameters()) == formula
    assert {"q1", "k1", "v1", "o1", "up1", "down1", "embedding", "head"} <= {
        name for name, _ in model.named_children()
    }


def test_initial_weights_of_gpt_2() -> None:
    model = network("GPT-4x128", LENGTH, 1000)
    assert model.spec.init == "gpt-2"
    for name, parameter in model.named_parameters():
        layer, _, kind = name.rpartition(".")
        if layer.startswith("norm"):
            assert bool((parameter == (kind == "weight")).all())
        elif kind == "bias":
            assert not parameter.any()
        else:
            std = 0.02 / 8**0.5 if layer[:-1] in ("o", "down") else 0.02
            assert parameter.detach().std().item() == pytest.approx(std, rel=0.05)
    tokens = torch.arange(LENGTH)[None]
    loss = F.cross_entropy(model(tokens)[0], tokens[0])
    assert loss.item() == pytest.approx(torch.tensor(1000.0).log().item(), rel=0.02)


@pytest.mark.parametrize("init", ["pytorch", "xavier", "dziugaite-roy"])
def test_other_schemes_leave_nothing_undrawn(init: str) -> None:
    same = [network("GPT-1x32", LENGTH, CLASSES, init=init) for _ in range(2)]
    for one, other in zip(*(model.parameters() for model in same), strict=True):
        assert torch.equal(one, other)
        assert bool(one.isfinite().all())
    assert same[0].get_parameter("embedding.weight").detach().std().item() == pytest.approx(
        1, rel=0.2
    )


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("GPT-2x40", LENGTH, "the width must be a multiple of 32, the width of a head, got 40"),
        ("GPT-2x64", (1, 28, 28), r"needs sequences of tokens, inputs=\(length,\)"),
        ("GPT-2", LENGTH, "such a name has the form GPT-<blocks>x<width>, as GPT-4x128"),
        ("GPT-0x64", LENGTH, "every width and depth must be an integer of at least 1"),
    ],
)
def test_what_is_no_gpt_is_refused(name: str, inputs: object, message: str) -> None:
    with pytest.raises(CurvescopeError, match=message):
        network(name, inputs, CLASSES)  # type: ignore[arg-type]
