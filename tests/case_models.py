"""The models of the case table: small, each with one trait that people's models have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint


def mlp(
    activation: type[nn.Module] = nn.Tanh, inputs: int = 4, outputs: int = 3, **options: Any
) -> nn.Module:
    """``fc1``, an activation, ``fc2``."""
    model = nn.Sequential()
    model.add_module("fc1", nn.Linear(inputs, 5))
    model.add_module("act", activation(**options))
    model.add_module("fc2", nn.Linear(5, outputs))
    return model


class Squeezed(nn.Module):
    """An MLP with one output whose last axis is dropped: ``[N]``."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(outputs=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).squeeze(-1)


class Positions(nn.Module):
    """``[N, T, 3]`` inputs to ``[N, T, C]`` outputs, or torch's ``[N, C, T]``."""

    def __init__(self, classes: int = 4, *, class_axis: int = -1) -> None:
        super().__init__()
        self.fc1, self.fc2, self.class_axis = nn.Linear(3, 4), nn.Linear(4, classes), class_axis

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(x).cumsum(1))).movedim(-1, self.class_axis)


class ReusedModule(nn.Module):
    """One module used twice in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.shared(torch.tanh(self.shared(x)))))


class TiedLanguageModel(nn.Module):
    """Token embeddings that are also the output matrix; position embeddings in a buffer."""

    def __init__(self, tokens: int = 7, width: int = 4, length: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, tokens)
        self.head.weight = self.embed.weight
        self.register_buffer("positions", torch.randn(length, width))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens) + self.positions[: tokens.shape[1]]
        return self.head(h + torch.tanh(self.mix(h.cumsum(1))))


class PaddedEmbedding(nn.Module):
    """An embedding with ``padding_idx``: its padding row gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4, padding_idx=0)
        self.head = nn.Linear(4, 3)
        with torch.no_grad():
            self.embed.weight[0] = torch.randn(4)  # so that the padding row matters to the output

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(tokens)).sum(1))


class ConvNet(nn.Module):
    """One convolution with any options, an activation, a pooling and a linear head."""

    def __init__(
        self, pool: nn.Module, features: int, activation: nn.Module | None = None, **conv: Any
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, **conv)
        self.act = nn.Tanh() if activation is None else activation
        self.pool, self.fc = pool, nn.Linear(features, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.act(self.conv(x))).flatten(1))


def conv1d() -> nn.Module:
    """Conv1d and its transpose."""
    return nn.Sequential(
        nn.Conv1d(2, 3, 3, stride=2),
        nn.Tanh(),
        nn.ConvTranspose1d(3, 2, 2),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


class Residual(nn.Module):
    """A residual block with ``x += y``, in-place ReLUs and an optional normalization."""

    def __init__(self, norm: Any = None, activation: Any = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 3, 3, padding=1)
        self.norm1 = norm(3) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(3, 2, 3, padding=1, bias=False)
        self.norm2 = norm(2) if norm else nn.Identity()
        self.act = nn.ReLU(inplace=True) if activation is None else activation
        self.fc = nn.Linear(2, 3)
        randomize_norms(self)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += x
        return self.fc(self.act(y).mean((2, 3)))


def randomize_norms(model: nn.Module) -> nn.Module:
    """Give normalization layers generic weights and running statistics, as after training."""
    for module in model.modules():
        if (
            isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm)
            and module.weight is not None
        ):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.running_var is not None:
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 1.5)
    return model


def batch_norm_mlp(*, dropout: float = 0.0, **options: Any) -> nn.Module:
    """Linear, batch norm, tanh, dropout, linear."""
    return randomize_norms(
        nn.Sequential(
            nn.Linear(4, 5),
            nn.BatchNorm1d(5, **options),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(5, 3),
        )
    )


def layer_norm_mlp() -> nn.Module:
    """Linear, LayerNorm, GELU, linear."""
    return randomize_norms(
        nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3))
    )


class Attention(nn.Module):
    """Embedding, ``nn.MultiheadAttention``, mean, linear."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.attention = nn.MultiheadAttention(4, 2, dropout=dropout, batch_first=True)
        self.norm = nn.BatchNorm1d(4)
        self.fc = nn.Linear(4, 3)
        randomize_norms(self)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.fc(self.norm(h.mean(1)))


class ScaledDotProduct(nn.Module):
    """``F.scaled_dot_product_attention``, plain or causal, over ``[N, T, 4]``."""

    def __init__(self, *, causal: bool = False, per_token: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12, bias=False), nn.Linear(4, 3)
        self.causal, self.per_token = causal, per_token

    def forward(self, x: Tensor) -> Tensor:
        N, T, D = x.shape
        q, k, v = (part.view(N, T, 2, D // 2).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        h = x + h.transpose(1, 2).reshape(N, T, D)
        return self.out(h if self.per_token else h.mean(1))


class Transformer(nn.Module):
    """``nn.TransformerEncoderLayer`` with a padding mask, as users build it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            4, 2, 4, dropout=0.3, activation="gelu", batch_first=True
        )
        self.fc = nn.Linear(4, 3)
        randomize_norms(self)

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        padding[:, -1] = True
        return self.fc(self.layer(x, src_key_padding_mask=padding)[:, 0])


class Recurrent(nn.Module):
    """A loop over time with a cell."""

    def __init__(self, cell: type[nn.Module] = nn.RNNCell) -> None:
        super().__init__()
        self.cell, self.fc = cell(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.fc(h)


class Lstm(nn.Module):
    """``nn.LSTM``, whose fused kernels may have no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(3, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0][:, -1])


class LogitsObject(nn.Module):
    """Hugging Face style: keyword tensors in, an object with ``.logits`` out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = nn.Embedding(6, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        h = torch.tanh(self.embed(input_ids)) * attention_mask[..., None]
        return SimpleNamespace(logits=self.fc(torch.sin(h.sum(1))), hidden=h)


class TwoInputs(nn.Module):
    """``forward(a, b)`` for tuple inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(4, 4), nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.out(torch.sigmoid(self.left(a)) * self.right(b))


class StopGradient(nn.Module):
    """``detach`` in the forward: the detached branch counts as a constant in all derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.fc1(x))
        return self.fc2(h * (1 + h.detach()))


class NoGradBlock(nn.Module):
    """``torch.no_grad()`` in the forward: again a constant (forward mode may miss that)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.fc1(x))
        with torch.no_grad():
            norm = h.norm(dim=1, keepdim=True)
        return self.fc2(h / norm)


class _CubeWithContext(torch.autograd.Function):
    """``x³ + x`` in the classic style: ``forward(ctx, x)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3 + x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (3 * x**2 + 1)


class _CubeForTransforms(torch.autograd.Function):
    """The same in the newer style, with ``setup_context`` and a generated rule for ``vmap``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3 + x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (3 * x**2 + 1)


class CustomFunction(nn.Module):
    """A user's ``autograd.Function`` between two linear layers."""

    def __init__(self, *, classic: bool) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 3)
        self.function = _CubeWithContext if classic else _CubeForTransforms

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.function.apply(self.fc1(x)))


class ControlFlow(nn.Module):
    """Branches and shapes that depend on the data of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.fc1(x))
        if x.sum().item() > 0:
            h = torch.sin(self.fc2(h))
        chosen = h[x[:, 0] > 0]
        if len(chosen):
            h = h + chosen.mean(0)
        return self.fc3(h)


class FunctionalDropout(nn.Module):
    """``F.dropout(..., self.training)``, written by hand: off unless the model is in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.dropout(torch.tanh(self.fc1(x)), 0.5, self.training))


class Checkpointed(nn.Module):
    """``torch.utils.checkpoint`` around the first layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def _body(self, x: Tensor) -> Tensor:
        return torch.tanh(self.fc2(torch.tanh(self.fc1(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(checkpoint(self._body, x, use_reentrant=False))


class LooseParameters(nn.Module):
    """Parameters of the model itself: a scalar, an unused one, one cut in pieces, a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.unused = nn.Parameter(torch.randn(3))
        self.packed = nn.Parameter(torch.randn(4 * 5 + 5 * 3) / 2)
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        A, B = self.packed.split([20, 15])
        return torch.tanh(x @ A.view(4, 5) * self.frozen) @ B.view(5, 3) / self.temperature


class _PlainWeightNorm(nn.Module):
    """``g v / ‖v‖`` by row, in elementary operations."""

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        return g * v / v.norm(dim=1, keepdim=True)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return weight.norm(dim=1, keepdim=True), weight


class WeightNorm(nn.Module):
    """``weight_norm`` as a parametrization: the parameters sit under ``parametrizations``.

    The fused operation behind it has a wrong second derivative in torch 2.13 (its backward treats
    the saved norm as a constant; the double-backward "Hessian" is not even symmetric and is 29 %
    off finite differences of the gradient). ``fused=False`` is the same function in elementary
    operations, for the reference.
    """

    def __init__(self, *, fused: bool = True) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 3)
        if fused:
            parametrizations.weight_norm(self.fc1)
        else:
            parametrize.register_parametrization(self.fc1, "weight", _PlainWeightNorm())

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(x)))


def frozen(model: nn.Module, *names: str) -> nn.Module:
    """The model with some parameters frozen."""
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model
