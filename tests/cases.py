"""One table of cases: model × data × loss × parameters × mode, crossed with dtypes by the tests.

Weights and inputs are made in float32 and converted, so that float32 and float64 runs sit at
exactly the same point and share one dense float64 reference. Batches are uneven (5 + 5 + 2) unless
a case says otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests import case_models as m
from tests.reference.curvature import Reference
from tests.reference.losses import IGNORED, BinaryLogistic, Cauchy, CrossEntropy, Huber, MeanSquare

Batch = tuple[Any, Tensor]
DTYPES = (torch.float64, torch.float32)
SIZES = (5, 5, 2)


# Data --------------------------------------------------------------------------------------------


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _cut(inputs: Any, targets: Tensor, sizes: tuple[int, ...]) -> list[Batch]:
    """Uneven batches of tensors, tuples or dicts of tensors."""
    targets_cut = targets.split(sizes)
    if isinstance(inputs, dict):
        parts = [
            dict(zip(inputs, values, strict=True))
            for values in zip(*(v.split(sizes) for v in inputs.values()), strict=True)
        ]
    elif isinstance(inputs, tuple):
        parts = list(zip(*(v.split(sizes) for v in inputs), strict=True))
    else:
        parts = list(inputs.split(sizes))
    return list(zip(parts, targets_cut, strict=True))


def classes(
    *shape: int, classes: int = 3, sizes: tuple[int, ...] = SIZES, seed: int = 0
) -> list[Batch]:
    """Gaussian inputs ``[N, *shape]``, class labels ``[N]``."""
    g, n = _generator(seed), sum(sizes)
    return _cut(
        torch.randn(n, *shape, generator=g), torch.randint(classes, (n,), generator=g), sizes
    )


def values(
    *shape: int, outputs: tuple[int, ...] = (3,), sizes: tuple[int, ...] = SIZES
) -> list[Batch]:
    """Gaussian inputs and Gaussian targets ``[N, *outputs]``."""
    g, n = _generator(1), sum(sizes)
    return _cut(torch.randn(n, *shape, generator=g), torch.randn(n, *outputs, generator=g), sizes)


def signs(target_shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> list[Batch]:
    """Gaussian inputs ``[N, 4]``, targets 0/1."""
    g, n = _generator(2), sum(SIZES)
    y = torch.randint(2, (n, *target_shape), generator=g).to(dtype)
    return _cut(torch.randn(n, 4, generator=g), y, SIZES)


def positions(
    length: int = 5,
    classes: int = 4,
    *,
    features: int = 3,
    ignored: bool = False,
    empty_batch: bool = False,
) -> list[Batch]:
    """``[N, T, features]`` inputs, a label per position; optionally ``-100`` at uneven places."""
    g, n = _generator(3), sum(SIZES)
    x, y = (
        torch.randn(n, length, features, generator=g),
        torch.randint(classes, (n, length), generator=g),
    )
    if ignored:
        y[0, 1:] = IGNORED
        y[3] = IGNORED
        y[6:8, ::2] = IGNORED
    if empty_batch:
        y[SIZES[0] : SIZES[0] + SIZES[1]] = IGNORED
    return _cut(x, y, SIZES)


def tokens(
    vocabulary: int = 6, length: int = 4, *, next_token: bool = False, classes: int = 3
) -> list[Batch]:
    """Token inputs ``[N, T]`` with a class per sequence or per position."""
    g, n = _generator(4), sum(SIZES)
    x = torch.randint(vocabulary, (n, length), generator=g)
    y = torch.randint(
        vocabulary if next_token else classes, (n, length) if next_token else (n,), generator=g
    )
    return _cut(x, y, SIZES)


def keyword_inputs() -> list[Batch]:
    """Dicts of tokens and a mask."""
    batches = tokens()
    x, y = torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches])
    mask = torch.ones(x.shape)
    mask[::3, 2:] = 0
    return _cut({"input_ids": x, "attention_mask": mask}, y, SIZES)


def two_inputs() -> list[Batch]:
    """Pairs ``([N, 4], [N, 2])``."""
    g, n = _generator(5), sum(SIZES)
    pair = (torch.randn(n, 4, generator=g), torch.randn(n, 2, generator=g))
    return _cut(pair, torch.randint(3, (n,), generator=g), SIZES)


# The table ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One row. ``names`` are the parameters that ``params`` means (default: all with grad)."""

    name: str
    make_model: Callable[[], nn.Module]
    make_data: Callable[[], list[Batch]] = field(default=lambda: classes(4))
    loss: Any = "cross_entropy"
    reference_loss: Any = field(default_factory=CrossEntropy)
    params: Any = None
    names: tuple[str, ...] | None = None
    mode: str = "eval"
    per_batch: bool = False
    make_reference_model: Callable[[], nn.Module] | None = None

    def model(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """The model, the same weights in every dtype."""
        return build(self.make_model, dtype)

    def data(self, dtype: torch.dtype = torch.float64) -> list[Batch]:
        """The batches, floating tensors converted."""
        return convert(self.make_data(), dtype)

    def reference(self) -> Reference:
        """The dense float64 references."""
        return Reference(
            build(self.make_reference_model or self.make_model, torch.float64),
            self.data(),
            self.reference_loss,
            names=self.names,
            mode=self.mode,
            per_batch=self.per_batch,
        )

    def problem(self, dtype: torch.dtype = torch.float64) -> Any:
        """The library's problem."""
        import curvescope as cs

        return cs.Problem(
            self.model(dtype), self.data(dtype), loss=self.loss, params=self.params, mode=self.mode
        )


def build(make_model: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    """A model from a fixed seed; torch's global generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        return make_model().to(dtype)


def convert(tree: Any, dtype: torch.dtype, device: str = "cpu") -> Any:
    """Nested batches with floating tensors in another dtype, on a device."""
    if isinstance(tree, Tensor):
        return tree.to(device, dtype if tree.is_floating_point() else tree.dtype)
    if isinstance(tree, dict):
        return {k: convert(v, dtype, device) for k, v in tree.items()}
    return type(tree)(convert(v, dtype, device) for v in tree)


@functools.cache
def dense(name: str, matrix: str) -> Tensor:
    """One dense reference of one case: ``"hessian"``, ``"gauss_newton"``, ``"gradient"`` …"""
    return getattr(BY_NAME[name].reference(), matrix)()


def _smoothed(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, label_smoothing=0.2)


def _huber(output: Tensor, target: Tensor) -> Tensor:
    return F.huber_loss(output, target, delta=0.8)


def _cauchy(output: Tensor, target: Tensor) -> Tensor:
    return torch.log(1 + (output - target) ** 2).mean()


IMAGE = (2, 6, 6)
_mse = {"loss": "mse", "reference_loss": MeanSquare()}
_logistic = {"loss": "binary_logistic", "reference_loss": BinaryLogistic()}

LOSSES = [
    Case("cross_entropy", m.mlp),
    Case("cross_entropy-one-batch", m.mlp, lambda: classes(4, sizes=(7,))),
    Case("cross_entropy-one-sample", m.mlp, lambda: classes(4, sizes=(1,))),
    Case("cross_entropy-positions", m.Positions, positions),
    Case("cross_entropy-ignored", m.Positions, lambda: positions(ignored=True)),
    Case("cross_entropy-ignored-batch", m.Positions, lambda: positions(empty_batch=True)),
    Case(
        "cross_entropy-class-axis-1",
        lambda: m.Positions(class_axis=1),
        lambda: positions(ignored=True),
        reference_loss=CrossEntropy(class_axis=1),
    ),
    Case("logistic", m.Squeezed, signs, **_logistic),
    Case("logistic-column", lambda: m.mlp(outputs=1), lambda: signs((1,)), **_logistic),
    Case("logistic-column-flat-target", lambda: m.mlp(outputs=1), signs, **_logistic),
    Case("logistic-integer-target", m.Squeezed, lambda: signs(dtype=torch.int64), **_logistic),
    Case("mse", m.mlp, lambda: values(4), **_mse),
    Case("mse-vector", m.Squeezed, lambda: values(4, outputs=()), **_mse),
    Case("mse-positions", lambda: m.Positions(2), lambda: values(5, 3, outputs=(5, 2)), **_mse),
    Case("module-cross_entropy", m.mlp, loss=nn.CrossEntropyLoss()),
    Case(
        "module-cross_entropy-ignored",
        lambda: m.Positions(class_axis=1),
        lambda: positions(ignored=True),
        loss=nn.CrossEntropyLoss(),
        reference_loss=CrossEntropy(class_axis=1),
    ),
    Case(
        "module-label-smoothing",
        m.mlp,
        loss=nn.CrossEntropyLoss(label_smoothing=0.1),
        reference_loss=CrossEntropy(smoothing=0.1),
    ),
    Case("module-mse", m.mlp, lambda: values(4), loss=nn.MSELoss(), reference_loss=MeanSquare()),
    Case(
        "module-logistic",
        m.Squeezed,
        signs,
        loss=nn.BCEWithLogitsLoss(),
        reference_loss=BinaryLogistic(),
    ),
    Case(
        "module-huber",
        m.mlp,
        lambda: values(4),
        loss=nn.HuberLoss(delta=0.8),
        reference_loss=Huber(0.8),
    ),
    Case(
        "callable-label-smoothing",
        m.mlp,
        loss=_smoothed,
        reference_loss=CrossEntropy(smoothing=0.2),
    ),
    Case("callable-huber", m.mlp, lambda: values(4), loss=_huber, reference_loss=Huber(0.8)),
    Case("callable-not-convex", m.mlp, lambda: values(4), loss=_cauchy, reference_loss=Cauchy()),
]

PARAMETERS = [
    Case("frozen-layer", lambda: m.frozen(m.mlp(), "fc1.weight", "fc1.bias")),
    Case("frozen-mse", lambda: m.frozen(m.mlp(), "fc1.bias"), lambda: values(4), **_mse),
    Case("frozen-logistic", lambda: m.frozen(m.Squeezed(), "body.fc2.weight"), signs, **_logistic),
    Case("params-layer", m.mlp, params="fc2", names=("fc2.weight", "fc2.bias")),
    Case("params-parameter", m.mlp, params="fc1.weight", names=("fc1.weight",)),
    Case(
        "params-list",
        m.mlp,
        params=["fc2", "fc1.bias"],
        names=("fc1.bias", "fc2.weight", "fc2.bias"),
    ),
    Case(
        "params-predicate",
        m.mlp,
        params=lambda name, parameter: parameter.ndim == 2,
        names=("fc1.weight", "fc2.weight"),
    ),
    Case("reused-module", m.ReusedModule),
    Case("reused-module-mse", m.ReusedModule, lambda: values(4), **_mse),
    Case("tied-embedding", m.TiedLanguageModel, lambda: tokens(7, next_token=True)),
    Case("loose-parameters", m.LooseParameters),
    Case("weight-norm", m.WeightNorm, make_reference_model=lambda: m.WeightNorm(fused=False)),
]

ACTIVATIONS = [
    Case(
        f"activation-{activation.__name__}",
        functools.partial(m.mlp, activation),
        lambda: values(4),
        **_mse,
    )
    for activation in (nn.GELU, nn.Sigmoid, nn.Softplus, nn.SiLU, nn.Mish, nn.ReLU, nn.PReLU)
]

CONVOLUTIONS = [
    Case(
        "conv-stride-padding",
        lambda: m.ConvNet(nn.AvgPool2d(2), 4, kernel_size=3, stride=2, padding=1),
        lambda: classes(*IMAGE),
    ),
    Case(
        "conv-groups-no-bias",
        lambda: m.ConvNet(nn.MaxPool2d(2), 16, kernel_size=3, groups=2, bias=False),
        lambda: values(*IMAGE),
        **_mse,
    ),
    Case(
        "conv-dilation-adaptive",
        lambda: m.ConvNet(
            nn.AdaptiveAvgPool2d(1), 4, nn.ReLU(inplace=True), kernel_size=2, dilation=2
        ),
        lambda: classes(*IMAGE),
    ),
    Case(
        "conv-circular-adaptive-max",
        lambda: m.ConvNet(
            nn.AdaptiveMaxPool2d(1), 4, kernel_size=3, padding=1, padding_mode="circular"
        ),
        lambda: classes(*IMAGE),
    ),
    Case("conv-1d-transposed", m.conv1d, lambda: classes(2, 5)),
    Case("residual-inplace", m.Residual, lambda: classes(2, 4, 4)),
]

NORMS = [
    Case("batch-norm-eval", m.batch_norm_mlp),
    Case("batch-norm-train", m.batch_norm_mlp, mode="train"),
    Case("batch-norm-train-mse", m.batch_norm_mlp, lambda: values(4), mode="train", **_mse),
    Case("batch-norm-train-not-affine", lambda: m.batch_norm_mlp(affine=False), mode="train"),
    Case(
        "batch-norm-no-statistics",
        lambda: m.batch_norm_mlp(track_running_stats=False),
        per_batch=True,
    ),
    Case("batch-norm-train-dropout", lambda: m.batch_norm_mlp(dropout=0.5), mode="train"),
    Case("residual-batch-norm-eval", lambda: m.Residual(nn.BatchNorm2d), lambda: classes(2, 4, 4)),
    Case(
        "residual-batch-norm-train",
        lambda: m.Residual(nn.BatchNorm2d, nn.Tanh()),
        lambda: classes(2, 4, 4),
        mode="train",
    ),
    Case(
        "residual-group-norm",
        lambda: m.Residual(lambda channels: nn.GroupNorm(1, channels), nn.Tanh()),
        lambda: classes(2, 3, 3),
    ),
    Case("layer-norm", m.layer_norm_mlp),
]

SEQUENCES = [
    Case("embedding-attention", m.Attention, tokens),
    Case(
        "embedding-attention-dropout-train", lambda: m.Attention(dropout=0.5), tokens, mode="train"
    ),
    Case("embedding-padding", m.PaddedEmbedding, tokens),
    Case("sdpa", m.ScaledDotProduct, lambda: classes(3, 4)),
    Case(
        "sdpa-causal-positions",
        lambda: m.ScaledDotProduct(causal=True, per_token=True),
        lambda: positions(length=4, classes=3, ignored=True, features=4),
    ),
    Case("transformer-layer", m.Transformer, lambda: classes(3, 4)),
    Case("recurrent-loop", m.Recurrent, lambda: classes(3, 3)),
    Case("gru-cell", lambda: m.Recurrent(nn.GRUCell), lambda: classes(2, 3)),
]

TRAITS = [
    Case("logits-object-dict-input", m.LogitsObject, keyword_inputs),
    Case("tuple-input", m.TwoInputs, two_inputs),
    Case("detach", m.StopGradient),
    Case("no-grad-block", m.NoGradBlock),
    Case("custom-function-classic", lambda: m.CustomFunction(classic=True)),
    Case("custom-function-for-transforms", lambda: m.CustomFunction(classic=False)),
    Case("control-flow", m.ControlFlow, per_batch=True),
    Case(
        "dropout-module",
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(), nn.Linear(5, 3)),
    ),
    Case("dropout-functional", m.FunctionalDropout),
    Case("checkpoint", m.Checkpointed),
]

CASES = LOSSES + PARAMETERS + ACTIVATIONS + CONVOLUTIONS + NORMS + SEQUENCES + TRAITS
BY_NAME = {case.name: case for case in CASES}
