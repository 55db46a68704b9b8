"""Which layers have a closed form: those of a known kind, with a weight of their own."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from curvescope._state import exclusive
from curvescope.errors import CurvescopeError, Inapplicable
from curvescope.layers import LayerKind, kind_of, kinds
from curvescope.problem.problem import Problem


class UnsupportedLayer(Inapplicable):
    """The layer has no closed form in this network; the message says why."""


def linear_layers(problem: Problem, layers: str | Iterable[str] | None = None) -> tuple[str, ...]:
    """The chosen layers, or (None) all of a known kind whose weight is a variable.

    Raises:
        UnsupportedLayer: for a layer of another kind, or one whose weight others share.
        CurvescopeError: for a layer that the model does not have, or when there is none.
    """
    modules = dict(problem.model.named_modules(remove_duplicate=False))
    if layers is None:
        names = [
            name
            for name, module in modules.items()
            if kind_of(module) is not None and join(name, "weight") in problem.params.names
        ]
    else:
        names = [layers] if isinstance(layers, str) else list(layers)
    if not names:
        raise CurvescopeError(
            "layers", f"the model has no {_either()} layer with a weight among its variables"
        )
    with exclusive(problem.model):
        for name in names:
            _check_layer(problem, modules, name)
    return tuple(dict.fromkeys(names))


def _check_layer(problem: Problem, modules: dict[str, nn.Module], name: str) -> None:
    if name not in modules:
        names = ", ".join(n for n, m in modules.items() if kind_of(m) is not None) or "none"
        rule = f"layer {name!r} is not in the model; {_either()} layers are {names}"
        raise CurvescopeError("layers", rule)
    module = modules[name]
    if kind_of(module) is None:
        why = " with a changed forward or weight" if isinstance(module, kinds()) else ""
        rule = f"layer {name!r} must be {_either()}"
        raise UnsupportedLayer("layers", rule, given=f"{type(module).__name__}{why}")
    for part in ("weight", "bias"):
        parameter = module._parameters.get(part)
        users = [
            n for n, p in problem.model.named_parameters(remove_duplicate=False) if p is parameter
        ]
        if parameter is not None and len(users) > 1:
            rule = f"layer {name!r} shares its {part} ({' = '.join(users)})"
            raise UnsupportedLayer("layers", rule)


def _either() -> str:
    *most, last = dict.fromkeys(kind.__name__ for kind in kinds())
    return f"{', '.join(most)} or {last}"


def layer_of(model: nn.Module, name: str) -> LayerKind:
    """A layer that :func:`linear_layers` accepted, with its kind."""
    kind = kind_of(model.get_submodule(name))
    assert kind is not None, "checked before"
    return kind


def join(layer: str, parameter: str) -> str:
    """The name of a layer's parameter; the model itself may be the layer."""
    return f"{layer}.{parameter}" if layer else parameter
