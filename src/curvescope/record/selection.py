"""Which layers have a closed form: linear and convolution layers with a weight of their own."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from curvescope._checks import CurvescopeError, Inapplicable
from curvescope._layers import LAYERS
from curvescope._state import exclusive
from curvescope.problem.problem import Problem
from curvescope.record.patches import supported


class UnsupportedLayer(Inapplicable):
    """The layer has no closed form in this network; the message says why."""


def linear_layers(problem: Problem, layers: str | Iterable[str] | None = None) -> tuple[str, ...]:
    """The chosen layers, or (None) all linear and convolution layers whose weight is a variable.

    Raises:
        UnsupportedLayer: for a layer of another kind, or one whose weight others share.
        CurvescopeError: for a layer that the model does not have, or when there is none.
    """
    modules = dict(problem.model.named_modules(remove_duplicate=False))
    if layers is None:
        names = [
            name
            for name, module in modules.items()
            if supported(module) and join(name, "weight") in problem.params.names
        ]
    else:
        names = [layers] if isinstance(layers, str) else list(layers)
    if not names:
        msg = "layers: the model has no linear or convolution layer among its variables"
        raise CurvescopeError(msg)
    with exclusive(problem.model):
        for name in names:
            _check_layer(problem, modules, name)
    return tuple(dict.fromkeys(names))


def _check_layer(problem: Problem, modules: dict[str, nn.Module], name: str) -> None:
    kinds = "Linear, Conv1d, Conv2d or Conv3d"
    if name not in modules:
        known = ", ".join(n for n, m in modules.items() if supported(m)) or "none"
        msg = f"layers: layer {name!r} is not in the model; {kinds} layers are {known}"
        raise CurvescopeError(msg)
    module = modules[name]
    if not supported(module):
        why = " with a changed forward or weight" if isinstance(module, LAYERS) else ""
        msg = f"layers: layer {name!r} must be {kinds}, got {type(module).__name__}{why}"
        raise UnsupportedLayer(msg)
    for kind in ("weight", "bias"):
        own = module._parameters.get(kind)
        users = [n for n, p in problem.model.named_parameters(remove_duplicate=False) if p is own]
        if own is not None and len(users) > 1:
            msg = f"layers: layer {name!r} shares its {kind} ({' = '.join(users)})"
            raise UnsupportedLayer(msg)


def join(layer: str, parameter: str) -> str:
    """The name of a layer's parameter; the model itself may be the layer."""
    return f"{layer}.{parameter}" if layer else parameter
