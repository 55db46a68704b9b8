"""Which layers have a closed form: those of some kind, with a weight of their own."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from curvescope._state import exclusive
from curvescope.errors import CurvescopeError, Inapplicable
from curvescope.layers import Kind, LayerKind, class_names, kind_of, kinds
from curvescope.problem.problem import Problem


class UnsupportedLayer(Inapplicable):
    """The layer has no closed form in this network; the message says why."""


def linear_layers(
    problem: Problem, layers: str | Iterable[str] | None = None, *, shared: bool = False
) -> tuple[str, ...]:
    """The chosen layers that multiply by a matrix, or (None) all whose weight is a variable.

    Args:
        problem: the model and its variables.
        layers: names.
        shared: whether a layer may share its weight with others; what is recorded of it then
            belongs to its own use of the weight.

    Raises:
        UnsupportedLayer: for a layer of another kind, or one whose weight others share.
        CurvescopeError: for a layer that the model does not have, or when there is none.
    """
    return _selected(problem, layers, True, shared)


def layers_of_any_kind(
    problem: Problem, layers: str | Iterable[str] | None = None, *, shared: bool = False
) -> tuple[str, ...]:
    """The same for layers of every kind: matrices, tables (embeddings) and scales (norms)."""
    return _selected(problem, layers, False, shared)


def _selected(
    problem: Problem, layers: str | Iterable[str] | None, matrices: bool, shared: bool
) -> tuple[str, ...]:
    modules = dict(problem.model.named_modules(remove_duplicate=False))
    with exclusive(problem.model):  # another thread's evaluation puts other tensors in
        if layers is None:
            first = first_names(problem.model)
            names = [
                name
                for name, module in problem.model.named_modules()
                if _is_variable(problem, name, module, first if shared else None)
                and _fits(kind_of(module), matrices)
            ]
        else:
            names = [layers] if isinstance(layers, str) else list(layers)
        if not names:
            raise CurvescopeError(
                "layers",
                f"the model has no {_either(matrices)} layer with a weight among its variables",
            )
        for name in names:
            _check_layer(problem, modules, name, matrices, shared)
    return tuple(dict.fromkeys(names))


def _is_variable(
    problem: Problem, name: str, module: nn.Module, first: dict[int, str] | None
) -> bool:
    """Whether the weight is among the variables; with ``first`` a shared one by its first name."""
    weight = module._parameters.get("weight")
    if weight is None:
        return False
    return (join(name, "weight") if first is None else first[id(weight)]) in problem.params.shapes


def first_names(model: nn.Module) -> dict[int, str]:
    """The name by which each parameter goes, where it has several; by the parameter's ``id``."""
    return {id(p): name for name, p in model.named_parameters()}


def _check_layer(
    problem: Problem, modules: dict[str, nn.Module], name: str, matrices: bool, shared: bool
) -> None:
    if name not in modules:
        able = [n for n, module in modules.items() if _fits(kind_of(module), matrices)]
        names = ", ".join(able) or "none"
        rule = f"layer {name!r} is not in the model; {_either(matrices)} layers are {names}"
        raise CurvescopeError("layers", rule)
    module = modules[name]
    kind = kind_of(module)
    if kind is None or not _fits(kind, matrices):
        changed = kind is None and isinstance(module, kinds())
        why = " with a changed forward or weight" if changed else ""
        rule = f"layer {name!r} must be {_either(matrices)}"
        raise UnsupportedLayer("layers", rule, given=f"{type(module).__name__}{why}")
    if not kind.works_in(problem.mode):
        raise UnsupportedLayer(
            "layers",
            f"layer {name!r} takes the statistics of the batch, so that samples see each other",
            remedy="batch norm needs mode='eval' and running statistics",
        )
    if shared:
        return
    for part in ("weight", "bias"):
        users = users_of(problem.model, module, part)
        if len(users) > 1:
            rule = f"layer {name!r} shares its {part} ({' = '.join(users)})"
            raise UnsupportedLayer("layers", rule)


def users_of(model: nn.Module, module: nn.Module, part: str) -> list[str]:
    """All names of a module's weight or bias; several where it is shared."""
    parameter = module._parameters.get(part)
    everything = model.named_parameters(remove_duplicate=False)
    return [] if parameter is None else [name for name, p in everything if p is parameter]


def _fits(kind: Kind | None, matrices: bool) -> bool:
    return isinstance(kind, LayerKind) if matrices else kind is not None


def _either(matrices: bool) -> str:
    *most, last = class_names(matrices=matrices)
    return f"{', '.join(most)} or {last}"


def layer_of(model: nn.Module, name: str) -> Kind:
    """A layer that :func:`layers_of_any_kind` accepted, with its kind."""
    with exclusive(model):
        kind = kind_of(model.get_submodule(name))
    assert kind is not None, "checked before"
    return kind


def matrix_layer(model: nn.Module, name: str) -> LayerKind:
    """A layer that :func:`linear_layers` accepted, with its kind."""
    kind = layer_of(model, name)
    assert isinstance(kind, LayerKind), "checked before"
    return kind


def join(layer: str, parameter: str) -> str:
    """The name of a layer's parameter; the model itself may be the layer."""
    return f"{layer}.{parameter}" if layer else parameter
