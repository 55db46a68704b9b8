"""From the name of a network to the network.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
    FF: Granziol (2020), *Flatness is a False Friend*.
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.networks import gpt, plain, residual
from curvescope.networks.initialization import SCHEMES, initialize
from curvescope.networks.spec import NetworkSpec

_WIDTHS = r"\d+(?:\^\d+)?(?:-\d+(?:\^\d+)?)*"
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


@dataclass(frozen=True)
class _Family:
    """Names of one kind: how they begin, what they look like, and how they are built."""

    start: str
    pattern: str
    form: str  # how a user writes it
    example: str
    build: Callable[[NetworkSpec, re.Match[str]], nn.Module]
    init: str = "pytorch"  # how its weights are drawn unless the caller says how


def network(
    name: str,
    inputs: int | Sequence[int],
    classes: int,
    *,
    init: str | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """A network of the papers, by its name there, with fresh weights on the CPU.

    =============================== ===============================================================
    ``F-200^2``, ``F-600^2-100``    fully connected, hidden layers of these widths, ReLU (DH D.2)
    ``T-600``, ``R-600``            the same, initialized by ``"dziugaite-roy"`` (DH §6)
    ``logistic``                    no hidden layer: multinomial logistic regression (FF)
    ``LeNet5``, ``LeNet5-(fc1-80)`` also with other widths of conv1, conv2, fc1, fc2 (DH D.2)
    ``VGG11``, ``VGG11-W48``        eight convolutions and fc1; all of them 48 wide (DH D.2)
    ``VGG11-4096^2``                with two hidden layers of 4096 (TR; 28.1 million parameters)
    ``VGG16``                       thirteen convolutions and two hidden layers of 512 (FF)
    ``ResNet18``, ``ResNet18-W64``  without batch norm; all convolutions 64 wide (DH D.2)
    ``PreResNet-110``, ``-164``     pre-activated bottlenecks (FF, PP)
    ``WideResNet-28x10``            (FF, PP)
    ``All-CNN-C``                   the nine-layer CNN of FF and PP
    ``GPT-4x128``                   four blocks, 128 wide, on tokens; initialized by ``"gpt-2"``
    =============================== ===============================================================

    ``-BN`` at the end adds batch norms: after each hidden ReLU and without learnable parameters for
    fully connected networks and LeNet5 (DH D.2), the usual ones before each ReLU for VGG and
    ResNet18. ``F-2048^7-BN-ReLU`` has the usual ones too (TR, footnote 4). Superscripts may be
    written as such (``F-200²``). No network has dropout.

    Args:
        name: As above.
        inputs: The shape of one input, ``(1, 28, 28)``; for fully connected networks also its size,
            for a GPT the number of its tokens.
        classes: The number of outputs; 1 for the logistic loss with two classes.
        init: ``"pytorch"`` (the default), ``"xavier"``, ``"dziugaite-roy"`` or ``"gpt-2"``
            (:func:`curvescope.networks.initialization`).
        generator: Where the weights are drawn from. Without one they are those of seed 0, the same
            at every call: enough to look at a network, or to load weights into it.

    Raises:
        CurvescopeError: If the name is unknown or malformed, or the inputs do not fit the network.

    >>> model = network("F-200^2", (1, 28, 28), 10, generator=torch.Generator().manual_seed(0))
    >>> sum(p.numel() for p in model.parameters())
    199210
    >>> [name for name, _ in network("LeNet5", (3, 32, 32), 10).named_children()][:3]
    ['conv1', 'relu-conv1', 'maxpool1']
    """
    family, match = parse(name)
    scheme = init or family.init
    _checks.one_of(f"network({name!r})", "init", scheme, SCHEMES)
    shape = (inputs,) if isinstance(inputs, int) else tuple(inputs)
    for side in shape:
        _checks.positive_int(f"network({name!r})", "each side of inputs", side)
    classes = _checks.positive_int(f"network({name!r})", "classes", classes)
    spec = NetworkSpec(match.string, shape, classes, scheme)
    with torch.device("meta"):  # no memory, and nothing from torch's global generator
        model = family.build(spec, match)
    model = model.to_empty(device="cpu")
    initialize(model, scheme, generator=generator or torch.Generator().manual_seed(0))
    return model


def parse(name: str) -> tuple[_Family, re.Match[str]]:
    """What a name stands for; refused where it is none."""
    if not isinstance(name, str):
        rule = "needs a text such as 'F-200^2'"
        raise CurvescopeError("network(name)", rule, given=type(name).__name__)
    plain_name = re.sub(
        r"[⁰¹²³⁴-⁹]+", lambda digits: "^" + digits[0].translate(_SUPERSCRIPTS), name.strip()
    )
    for family in _FAMILIES:
        match = re.fullmatch(family.pattern, plain_name)
        if match:
            return family, match
    for family in _FAMILIES:
        if plain_name.startswith(family.start):
            rule = f"such a name has the form {family.form}, as {family.example}"
            raise CurvescopeError(f"network({name!r})", rule)
    examples = ", ".join(family.example for family in _FAMILIES)
    rule = "no network has this name"
    raise CurvescopeError(f"network({name!r})", rule, remedy=f"examples are {examples}")


def _widths(spec: NetworkSpec, text: str | None) -> tuple[int, ...]:
    """``"600^2-100"`` is 600, 600, 100."""
    widths: list[int] = []
    for part in (text or "").strip("-").split("-"):
        if part:
            width, _, times = part.partition("^")
            layers = _positive(spec, int(times or 1))
            if len(widths) + layers > 1000:
                rule = "more than 1000 layers are certainly a mistake"
                raise CurvescopeError(f"network({spec.name!r})", rule)
            widths += [_positive(spec, int(width))] * layers
    return tuple(widths)


def _positive(spec: NetworkSpec, number: int) -> int:
    return _checks.positive_int(f"network({spec.name!r})", "every width and depth", number)


def _fully_connected(spec: NetworkSpec, match: re.Match[str]) -> nn.Module:
    widths = _widths(spec, match["widths"])
    norms: dict[str, plain.Norm] = {"": "", "-BN": "BN", "-BN-ReLU": "BN-ReLU"}
    return plain.fully_connected(spec, widths, norm=norms[match["bn"] or ""])


def _lenet5(spec: NetworkSpec, match: re.Match[str]) -> nn.Module:
    changes = re.findall(r"\((\w+)-(\d+)\)", match["widths"])
    widths = {layer: _positive(spec, int(width)) for layer, width in changes}
    return plain.lenet5(spec, widths, batch_norm=bool(match["bn"]))


def _vgg(spec: NetworkSpec, match: re.Match[str]) -> nn.Module:
    depth = int(match["depth"])
    hidden = _widths(spec, match["widths"]) or ((512, 512) if depth == 16 else ())
    width = _positive(spec, int(match["width"])) if match["width"] else None
    return plain.vgg(spec, depth, width=width, hidden=hidden, batch_norm=bool(match["bn"]))


def _resnet18(spec: NetworkSpec, match: re.Match[str]) -> nn.Module:
    width = _positive(spec, int(match["width"])) if match["width"] else None
    return residual.ResNet18(spec, width=width, batch_norm=bool(match["bn"]))


def _gpt(spec: NetworkSpec, match: re.Match[str]) -> nn.Module:
    depth, width = (_positive(spec, int(match[part])) for part in ("depth", "width"))
    return gpt.GPT(spec, depth=depth, width=width)


_FAMILIES = (
    _Family(
        "F-",
        rf"F-(?P<widths>{_WIDTHS})(?P<bn>-BN(?:-ReLU)?)?",
        "F-<width>^<layers>-…",
        "F-200^2",
        _fully_connected,
    ),
    _Family(
        "T-",
        rf"[TR]-(?P<widths>{_WIDTHS})(?P<bn>-BN)?",
        "T-<width>^<layers>-…",
        "T-600",
        _fully_connected,
        "dziugaite-roy",
    ),
    _Family(
        "logistic",
        r"logistic",
        "logistic",
        "logistic",
        lambda spec, match: plain.fully_connected(spec, ()),
    ),
    _Family(
        "LeNet5",
        r"LeNet5(?P<widths>(?:-\((?:conv1|conv2|fc1|fc2)-\d+\))*)(?P<bn>-BN)?",
        "LeNet5-(<conv1, conv2, fc1 or fc2>-<width>)",
        "LeNet5-(fc1-80)",
        _lenet5,
    ),
    _Family(
        "VGG",
        rf"VGG(?P<depth>11|16)(?:-W(?P<width>\d+))?(?P<widths>-{_WIDTHS})?(?P<bn>-BN)?",
        "VGG<11 or 16>-W<width>-<hidden width>^<hidden layers>",
        "VGG11-W48",
        _vgg,
    ),
    _Family(
        "ResNet",
        r"ResNet18(?:-W(?P<width>\d+))?(?P<bn>-BN)?",
        "ResNet18-W<width>",
        "ResNet18-W64",
        _resnet18,
    ),
    _Family(
        "PreResNet",
        r"PreResNet-?(?P<depth>\d+)",
        "PreResNet-<depth>",
        "PreResNet-164",
        lambda spec, match: residual.preresnet(spec, int(match["depth"])),
    ),
    _Family(
        "WideResNet",
        r"WideResNet-?(?P<depth>\d+)[x×](?P<factor>\d+)",
        "WideResNet-<depth>x<factor>",
        "WideResNet-28x10",
        lambda spec, match: residual.wide_resnet(
            spec, int(match["depth"]), _positive(spec, int(match["factor"]))
        ),
    ),
    _Family(
        "All-CNN",
        r"All-CNN-C",
        "All-CNN-C",
        "All-CNN-C",
        lambda spec, match: plain.all_cnn_c(spec),
    ),
    _Family(
        "GPT",
        r"GPT-(?P<depth>\d+)[x×](?P<width>\d+)",
        "GPT-<blocks>x<width>",
        "GPT-4x128",
        _gpt,
        "gpt-2",
    ),
)
