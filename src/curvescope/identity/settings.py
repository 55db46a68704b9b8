"""Whether modules and functions still are what they were besides their parameters and buffers."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from curvescope.identity.encoding import HOOKS, TORCH_ATTRIBUTES, globals_of

_SMALL = 1 << 16  # bytes of a tensor that is no parameter and no buffer, compared as a whole
_DEEP = 8  # objects inside each other that are looked into
_CODE = types.BuiltinFunctionType | type | types.ModuleType
_STRUCTURE = ("_modules", *HOOKS)
#: what modules write to themselves when they are evaluated, such as a count of the calls
_WRITTEN: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()


class Settings:
    """Classes, attributes, hooks and children of modules and objects, as they are now.

    Numbers, texts and containers of them count by value, in other objects as well, and so do the
    values that a function captures or finds among its globals; anything else, code above all,
    counts by being the same object. This is looked at before every product, and is no digest.

    Cost: about a microsecond for each module.

    >>> layer = nn.LeakyReLU(0.1)
    >>> settings = Settings([layer])
    >>> settings.difference() is None
    True
    >>> layer.negative_slope = 0.2
    >>> settings.difference()
    "'negative_slope' of LeakyReLU"
    """

    def __init__(self, things: Iterable[object]) -> None:
        self._things = [_Thing(thing) for thing in things]
        # All dictionaries in two lists, because Python compares these without running any code.
        self._now = [each for thing in self._things for each in thing.now.values()]
        self._before = [each for thing in self._things for each in thing.before.values()]
        self._owners = [thing.owner for thing in self._things]
        self._kinds = [thing.kind for thing in self._things]
        self._looked_into = [thing for thing in self._things if thing.inside]

    def _same(self) -> bool:
        """Whether nothing has changed, by a fast comparison."""
        try:
            same = self._now == self._before
        except Exception:  # of another tensor or array in the place of one
            return False
        return (
            same
            and list(map(type, self._owners)) == self._kinds
            and all(thing.same_inside() for thing in self._looked_into)
        )

    def difference(self) -> str | None:
        """The first attribute that is another one now; None where all are as they were."""
        if self._same():
            return None
        for thing in self._things:
            for name in thing.differences():
                if name not in thing.written:
                    return f"{name!r} of {thing.kind.__name__}"
        self._before = [dict(each) for each in self._now]  # modes of modules are no difference
        return None

    def differences(self) -> list[set[str]]:
        """The attributes that are others now, of each thing; classes, children, hooks left out."""
        return [{*thing.differences()} - {"class", *_STRUCTURE} for thing in self._things]

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Ignore from now on what changes in the block: the evaluation writes it.

        Hooks that it sets, as models of Hugging Face do in their first pass, belong to the model.
        """
        before = None if self._same() else [thing.differences() for thing in self._things]
        try:
            yield
        finally:
            if not self._same():
                for i, thing in enumerate(self._things):
                    earlier = before[i] if before else []
                    changed = {*thing.differences()} - {*earlier}
                    thing.written.update(changed - {"class", *_STRUCTURE})
                    for name in changed & {*HOOKS}:
                        thing.before[name].clear()
                        thing.before[name].update(thing.now[name])


class _Thing:
    """One module or object."""

    def __init__(self, owner: Any) -> None:
        self.owner, self.kind = owner, type(owner)
        is_module = isinstance(owner, nn.Module)
        self.written = _WRITTEN.setdefault(owner, set()) if is_module else set()
        self._torchs: set[str] = {*TORCH_ATTRIBUTES} if is_module else set()
        if isinstance(owner, nn.RNNBase):
            self._torchs |= {"_flat_weights", "_flat_weight_refs"}  # its parameters once more
        self.now: dict[str, dict[str, Any]] = {"": vars(owner)}
        if is_module:
            self.now.update({name: vars(owner)[name] for name in _STRUCTURE})
        self.before = {name: dict(each) for name, each in self.now.items()}
        self.inside = {
            name: _look(value) for name, value in self._attributes(self.now) if not _plain(value)
        }

    def _attributes(self, where: dict[str, dict[str, Any]]) -> list[tuple[str, Any]]:
        return [(name, each) for name, each in where[""].items() if name not in self._torchs]

    def same_inside(self) -> bool:
        """Whether what attributes refer to is the same; the attributes are."""
        return all(_look(self.now[""][name]) == look for name, look in self.inside.items())

    def differences(self) -> list[str]:
        """The names of all that is another one."""
        others = ["class"] if type(self.owner) is not self.kind else []
        others += [
            name for name in self.now
            if name and list(self.now[name].values()) != list(self.before[name].values())
        ]  # fmt: skip
        before = {name: _look(each) for name, each in self._attributes(self.before)}
        before.update(self.inside)
        now = {name: _look(each) for name, each in self._attributes(self.now)}
        others += [
            name for name in {**before, **now}
            if name not in before or name not in now or before[name] != now[name]
        ]  # fmt: skip
        return others


# Attributes ---------------------------------------------------------------------------------------


def _plain(value: object) -> bool:
    """Nothing that could be written to, and equal if and only if it is the same."""
    if isinstance(value, tuple):
        return type(value) is tuple and all(map(_plain, value))
    return value is None or isinstance(
        value, bool | int | float | complex | str | bytes | torch.dtype | torch.device
    )


def _look(value: Any, outside: tuple[object, ...] = ()) -> Any:
    """Plain values and the objects that they lead to; equal for what is the same."""
    if _plain(value):
        return type(value), value
    if any(value is each for each in outside) or len(outside) > _DEEP:
        return _Same(value)
    into = functools.partial(_look, outside=(*outside, value))
    if isinstance(value, Tensor):
        return _Same(value), _numbers(value)
    if isinstance(value, tuple | list):
        return type(value), tuple(map(into, value))
    if isinstance(value, Set):
        return type(value), frozenset(map(into, value))
    if isinstance(value, Mapping):
        return type(value), tuple((into(k), into(v)) for k, v in value.items())
    if isinstance(value, functools.partial):
        return into(value.func), into(value.args), into(value.keywords)
    if isinstance(value, types.MethodType):
        return into(value.__func__), into(value.__self__)
    if isinstance(value, types.FunctionType):
        return _Same(value), tuple(map(into, _captured(value)))
    if isinstance(value, _CODE) or _opaque(type(value)):
        return _Same(value)
    skipped = TORCH_ATTRIBUTES if isinstance(value, nn.Module) else ()
    inside = [(name, each) for name, each in vars(value).items() if name not in skipped]
    return _Same(value), tuple((name, into(each)) for name, each in inside if _simple(each))


class _Same:
    """Equal to itself alone; it keeps the object, so that no other one gets its place."""

    def __init__(self, thing: object) -> None:
        self._thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._thing is other._thing

    def __hash__(self) -> int:
        return id(self._thing)


def _simple(value: object) -> bool:
    return _plain(value) or isinstance(value, list | tuple | dict | set)


def _opaque(kind: type) -> bool:
    """Objects of torch and ours, which keep what they have computed, and those without a dict."""
    if issubclass(kind, nn.Module):
        return False
    return kind.__module__.partition(".")[0] in ("torch", "curvescope") or not kind.__dictoffset__


def _captured(function: types.FunctionType) -> list[Any]:
    values = [function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            values.append(None)
    names = _globals_of(function.__code__)
    used = [function.__globals__[name] for name in names if name in function.__globals__]
    return [*values, *filter(_simple, used)]


@functools.cache
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    return tuple(sorted(set(globals_of(code))))


def _numbers(tensor: Tensor) -> object:
    """The numbers of a small tensor, the count of the writes to a large one."""
    if isinstance(tensor, nn.Parameter) or tensor.is_inference():
        return None
    if tensor.is_cpu and tensor.layout is torch.strided and tensor.nbytes <= _SMALL:
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return tensor._version
