"""Initial weights, by a named scheme and from an explicit generator.

DH calls its scheme both "the default of PyTorch" and "Xavier, zero bias"; the two differ, so the
choice is explicit here.

References:
    GPT-2: Radford et al. (2019), *Language Models are Unsupervised Multitask Learners*.
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from curvescope import _checks
from curvescope.layers import LayerKind, registered

SCHEMES = ("pytorch", "xavier", "dziugaite-roy", "gpt-2")
_SMALL = 0.02  # σ of GPT-2


@torch.no_grad()
def initialize(model: nn.Module, scheme: str, *, generator: torch.Generator) -> None:
    """Draw new weights for the linear, convolutional and other layers, in the model's own order.

    With ``n_in`` and ``n_out`` the numbers of inputs and outputs of a unit (times the area of the
    kernel):

    - ``"pytorch"``: weights and biases uniform on ``±1/√n_in``, bit for bit what torch's
      constructors draw from a generator in the same state;
    - ``"xavier"``: weights uniform on ``±√(6/(n_in + n_out))`` (Glorot & Bengio), biases 0;
    - ``"dziugaite-roy"``: weights from a normal distribution with σ = 0.04, cut off at 2σ; the bias
      of the first layer 0.1, the others 0 (the networks of DH's PAC-Bayes bounds);
    - ``"gpt-2"``: weights and embeddings normal with σ = 0.02, biases 0; the L layers that are
      added to a residual stream, which the network names as its ``branch_ends``, with σ = 0.02/√L.

    Other schemes draw embeddings from a standard normal distribution, as torch does. Batch and
    layer norms start with scale 1, shift 0 and fresh statistics. Numbers are drawn where the
    generator lives; torch's global generator is not touched.

    Args:
        model: The network; changed in place.
        scheme: One of the four.
        generator: The source of all random numbers.

    Raises:
        CurvescopeError: If the scheme is unknown or there is no generator.

    >>> layer = nn.Linear(3, 2)
    >>> initialize(layer, "xavier", generator=torch.Generator().manual_seed(0))
    >>> bool(layer.weight.abs().max() <= sqrt(6 / 5)), layer.bias.tolist()
    (True, [0.0, 0.0])
    """
    where = "initialize(scheme)"
    _checks.one_of(where, "scheme", scheme, SCHEMES)
    _checks.generator("initialize(generator)", generator)
    first = True
    ends = getattr(model, "branch_ends", ())
    for name, module in model.named_modules():
        layer = registered(module)
        if isinstance(module, nn.Embedding):
            _normal(module.weight, _SMALL if scheme == "gpt-2" else 1.0, generator)
        elif isinstance(module, nn.LayerNorm):
            module.reset_parameters()
        elif layer is not None and scheme == "gpt-2":
            _normal(layer.weight, _SMALL / sqrt(len(ends)) if name in ends else _SMALL, generator)
            if (bias := getattr(module, "bias", None)) is not None:
                bias.zero_()
        elif layer is not None:
            _draw(layer, getattr(module, "bias", None), scheme, first, generator)
            first = False
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.reset_running_stats()
            if module.affine:
                module.weight.fill_(1.0)
                module.bias.zero_()


def _normal(weight: Tensor, std: float, generator: torch.Generator) -> None:
    fresh = torch.empty(weight.shape, dtype=weight.dtype, device=generator.device)
    weight.copy_(fresh.normal_(0.0, std, generator=generator))


def _draw(
    layer: LayerKind, bias: Tensor | None, scheme: str, first: bool, generator: torch.Generator
) -> None:
    weight, (outputs, fan_in) = layer.weight, layer.matrix_shape
    fan_out = outputs * weight[0, 0].numel()  # times the area of the kernel
    fresh = torch.empty(weight.shape, dtype=weight.dtype, device=generator.device)
    if scheme == "dziugaite-roy":
        nn.init.trunc_normal_(fresh, std=0.04, a=-0.08, b=0.08, generator=generator)
    elif scheme == "xavier":
        bound = sqrt(6 / (fan_in + fan_out))
        fresh.uniform_(-bound, bound, generator=generator)
    else:  # the bound as torch rounds it: gain √(1/3) times √3/√n_in
        bound = sqrt(3.0) * (sqrt(2.0 / 6.0) / sqrt(fan_in))
        fresh.uniform_(-bound, bound, generator=generator)
    weight.copy_(fresh)
    if bias is None:
        return
    if scheme == "pytorch":
        bound = 1 / sqrt(fan_in)
        fresh = torch.empty(bias.shape, dtype=bias.dtype, device=generator.device)
        bias.copy_(fresh.uniform_(-bound, bound, generator=generator))
    else:
        bias.fill_(0.1 if scheme == "dziugaite-roy" and first else 0.0)
