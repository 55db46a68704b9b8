"""The parameter space: names of parameters and layers ↔ positions in one flat vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from curvescope.errors import CurvescopeError

Selection = str | Iterable[str] | Callable[[str, nn.Parameter], bool] | None


class ParamSpace:
    """An ordered set of named parameters laid out in one flat vector of ``size`` numbers.

    The order is that of ``model.named_parameters()``. A parameter that is used under several names
    (tied weights) appears once, under its first name; its other names work too. A *layer* is a
    module that owns selected parameters; any module path (``"block1"``) selects all below it.

    >>> space = ParamSpace.of(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
    >>> space.size, space.layers
    (13, ('0', '1'))
    >>> space.slice("1.weight")
    slice(9, 12, None)
    """

    def __init__(self, shapes: Mapping[str, torch.Size], aliases: Mapping[str, str]) -> None:
        self._shapes = dict(shapes)
        self._aliases = dict(aliases)
        offsets = [0]
        for shape in self._shapes.values():
            offsets.append(offsets[-1] + prod(shape))
        self._slices = {
            name: slice(a, b) for name, (a, b) in zip(self._shapes, pairwise(offsets), strict=True)
        }
        self.size = offsets[-1]

    @classmethod
    def of(cls, model: nn.Module, selection: Selection = None) -> ParamSpace:
        """The parameters of ``model`` that ``selection`` names (default: all that require grad)."""
        parameters = dict(model.named_parameters())
        first = {id(p): name for name, p in parameters.items()}
        aliases = {
            name: first[id(p)]
            for name, p in model.named_parameters(remove_duplicate=False)
            if name != first[id(p)]
        }
        everything = cls({name: p.shape for name, p in parameters.items()}, aliases)
        chosen = _choose(everything, parameters, selection)
        if not chosen:
            if selection is not None:
                raise CurvescopeError("Problem(params)", "no parameter is selected")
            remedy = "set requires_grad_(True) on those to differentiate by, or name them in params"
            raise CurvescopeError("Problem(model)", "no parameter requires grad", remedy=remedy)
        return cls({n: s for n, s in everything._shapes.items() if n in chosen}, aliases)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters, in the order of the flat vector."""
        return tuple(self._shapes)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """The shape of each parameter."""
        return dict(self._shapes)

    @property
    def layers(self) -> tuple[str, ...]:
        """The modules that directly own a parameter, in order."""
        return tuple(dict.fromkeys(name.rpartition(".")[0] for name in self._shapes))

    def slice(self, name: str) -> slice:
        """Where one parameter lies in the flat vector."""
        return self._slices[self.resolve(name)[0]]

    def resolve(self, name: str, where: str = "ParamSpace") -> list[str]:
        """The parameters that a layer or parameter name stands for."""
        prefix = f"{name}."
        names = [n for n in self._shapes if n == name or n.startswith(prefix) or name == ""]
        tied = [
            first
            for alias, first in self._aliases.items()
            if (alias == name or alias.startswith(prefix)) and first in self._shapes
        ]
        resolved = [n for n in self._shapes if n in names or n in tied]
        if not resolved:
            kind = "parameter" if name.rpartition(".")[2] in ("weight", "bias") else "layer"
            layers = ", ".join(layer or "the model itself" for layer in self.layers)
            rule = f"{kind} {name!r} is not in the model"
            raise CurvescopeError(where, rule, remedy=f"layers are {layers}")
        return resolved

    def indices(self, names: Iterable[str]) -> Tensor:
        """Positions of some parameters in the flat vector, in order."""
        pieces = [torch.arange(self._slices[n].start, self._slices[n].stop) for n in names]
        return torch.cat(pieces)

    def select(self, names: Iterable[str]) -> ParamSpace:
        """The space of some of the parameters (full names), in this space's order."""
        chosen = set(names)
        shapes = {n: s for n, s in self._shapes.items() if n in chosen}
        return ParamSpace(shapes, self._aliases)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """``{name: [*shape]}`` to ``[size]``, or ``{name: [*shape, k]}`` to ``[size, k]``."""
        missing = [name for name in self._shapes if name not in tensors]
        if missing:
            raise CurvescopeError("ParamSpace.flatten", f"no tensor for {', '.join(missing)}")
        pieces = []
        for name, shape in self._shapes.items():
            t = tensors[name]
            if t.shape[: len(shape)] != shape or t.ndim > len(shape) + 1:
                rule = f"{name} needs {list(shape)}"
                raise CurvescopeError("ParamSpace.flatten", rule, given=list(t.shape))
            pieces.append(t.reshape(prod(shape), *t.shape[len(shape) :]))
        return torch.cat(pieces)

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """The inverse of :meth:`flatten`; the results are views where possible."""
        if vector.ndim not in (1, 2) or vector.shape[0] != self.size:
            rule = f"needs [{self.size}] or [{self.size}, k]"
            raise CurvescopeError("ParamSpace.unflatten", rule, given=list(vector.shape))
        return {
            name: vector[self._slices[name]].reshape((*shape, *vector.shape[1:]))
            for name, shape in self._shapes.items()
        }

    def columns(self, rows: Tensor) -> dict[str, Tensor]:
        """``rows: [k, size]`` to ``{name: [k, *shape]}``: the columns-first form of the engine."""
        return {
            name: rows[:, self._slices[name]].reshape((rows.shape[0], *shape))
            for name, shape in self._shapes.items()
        }

    def __repr__(self) -> str:
        return f"ParamSpace({len(self._shapes)} parameters, {self.size:,} numbers)"


def _choose(
    everything: ParamSpace, parameters: dict[str, nn.Parameter], selection: Selection
) -> set[str]:
    if selection is None:
        return {name for name, p in parameters.items() if p.requires_grad}
    if isinstance(selection, str):
        return set(everything.resolve(selection, "Problem(params)"))
    if callable(selection):
        return {name for name, p in parameters.items() if selection(name, p)}
    return {name for item in selection for name in everything.resolve(item, "Problem(params)")}
