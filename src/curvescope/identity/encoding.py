"""Things to bytes, without ambiguity: every part carries its kind and its length."""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import os
import struct
import sys
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from curvescope.errors import CurvescopeError

_STUDIES = "curvescope.studies."  # code with the settings of a study in it, unlike a library's
_ROWS = 4096  # copied at a time
TORCH_ATTRIBUTES = {*vars(nn.Module()), "_compiled_call_impl"}
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_ABOUT = functools.WRAPPER_ASSIGNMENTS  # names and annotations, which decide nothing
_DEFINED = (types.FunctionType, staticmethod, classmethod, property)


def digest(*things: object) -> str:
    """The SHA-256 of an unambiguous description of ``things``, as 64 hexadecimal digits.

    ========================= ====================================================================
    numbers, texts, bytes      kind and value; floats by their bits, so that −0.0 is not 0.0
    ``None``, ``Enum``         kind and name
    tuples, lists, sets        kind, length and elements; a set has no order
    mappings                   keys and values; without order
    tensors, arrays            dtype, shape and numbers, wherever they lie
    ``torch.Generator``        device and state
    functions                  qualified name, bytecode, constants, defaults, captured values, and
                               the globals that they use; code of installed libraries by name
    classes                    name, and all that a class of the user's defines
    ``functools.partial``      function and arguments; bound methods: function and object
    ``nn.Module``              classes, attributes, hooks, parameters and buffers with their names
                               and numbers
    dataclasses, plain objects class and fields
    anything else with an      that string
    ``identity`` that is a str
    ========================= ====================================================================

    Attributes of modules and classes, and globals, may be of any other kind as well: these count by
    what ``pickle`` would write of them, and by their class where it cannot write them.

    Bytecode belongs to one version of Python: a function has another digest in the next one.

    Raises:
        CurvescopeError: If something is of another kind; a ``repr`` is never used.

    >>> digest("ab", "c") == digest("a", "bc"), digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    (False, True)
    >>> def scaled(factor):
    ...     return lambda x: factor * x
    >>> digest(scaled(2)) == digest(scaled(3)), digest(scaled(2)) == digest(scaled(2))
    (False, True)
    """
    encoder = _Encoder()
    for thing in things:
        encoder.add(thing)
    return encoder.hexdigest()


def row_digests(tensors: Sequence[Tensor]) -> list[str]:
    """A digest for each row of some tensors with the same first dimension, taken together.

    >>> one = row_digests([torch.tensor([[1.0], [2.0], [1.0]]), torch.tensor([0, 0, 0])])
    >>> one[0] == one[2] != one[1]
    True
    """
    count = len(tensors[0])
    head = hashlib.sha256(digest([(t.dtype, t.shape[1:]) for t in tensors]).encode())
    plain = [t.detach().resolve_conj().resolve_neg().cpu().reshape(count, -1) for t in tensors]
    digests = []
    for start in range(0, count, _ROWS):
        pieces = [t[start : start + _ROWS].contiguous() for t in plain if t.numel()]
        raw = [piece.view(torch.uint8).numpy() for piece in pieces]
        for row in np.concatenate(raw, axis=1) if raw else [b""] * len(plain[0][start:]):
            one = head.copy()
            one.update(row)
            digests.append(one.hexdigest())
    return digests


class _Encoder:
    """Writes a description into a hash.

    Code may refer to itself and to much other code, so that a function or class is described where
    it comes first, and by its number after that. Another object can only come again inside itself.

    A strict one refuses what is of an unknown kind.
    """

    def __init__(self, outer: _Encoder | None = None, *, strict: bool = True) -> None:
        self._strict = strict
        self._hash = hashlib.sha256()
        self._inside: list[object] = list(outer._inside) if outer else []
        self._code: list[object] = list(outer._code) if outer else []

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def _put(self, kind: str, content: bytes | memoryview = b"") -> None:
        tag = kind.encode()
        self._hash.update(struct.pack(">HQ", len(tag), len(content)) + tag)
        self._hash.update(content)

    def add(self, thing: Any) -> None:
        """Describe one thing."""
        code = isinstance(thing, types.FunctionType | types.ModuleType | type)
        for number, previous in enumerate(self._code if code else self._inside):
            if previous is thing:
                return self._put("again", str(number).encode())
        place = self._code if code else self._inside
        place.append(thing)
        try:
            self._add(thing)
        finally:
            if not code:
                place.pop()

    def _add(self, thing: Any) -> None:
        if thing is None or thing is Ellipsis or thing is NotImplemented:
            self._put("constant", str(thing).encode())
        elif isinstance(thing, Enum):
            self._put("enum", thing.name.encode())
            self.add(type(thing))
        elif isinstance(thing, bool | int):
            self._put(type(thing).__name__, str(int(thing)).encode())
        elif isinstance(thing, float):
            self._put("float", struct.pack(">d", thing))
        elif isinstance(thing, complex):
            self._put("complex", struct.pack(">dd", thing.real, thing.imag))
        elif isinstance(thing, str):
            self._put("str", thing.encode("utf-8", "surrogatepass"))
        elif isinstance(thing, bytes | bytearray):
            self._put("bytes", bytes(thing))
        elif isinstance(thing, Tensor):
            self._tensor(thing)
        elif isinstance(thing, np.ndarray | np.generic):
            self._array(np.asarray(thing))
        elif isinstance(thing, torch.dtype | torch.device | torch.layout | torch.memory_format):
            self._put("torch", str(thing).encode())
        elif isinstance(thing, torch.Generator):
            self._put("generator", str(thing.device).encode())
            self._tensor(thing.get_state())
        elif isinstance(thing, type):
            self._describe_class(thing)
        elif isinstance(thing, nn.Module):
            self._module(thing)
        elif isinstance(identity := getattr(thing, "identity", None), str):
            self._put("identity", identity.encode())
        elif isinstance(thing, tuple | list | Set | Mapping):
            self._collection(thing)
        else:
            self._code_or_object(thing)

    def _collection(self, thing: Any) -> None:
        if not _in_library(type(thing)):  # a named tuple, or a mapping with attributes
            self._object(thing, getattr(thing, "__dict__", {}))
        if isinstance(thing, tuple | list):
            self._put("list" if isinstance(thing, list) else "tuple", str(len(thing)).encode())
            for each in thing:
                self.add(each)
        elif isinstance(thing, Set):
            self._unordered("set", [(each,) for each in thing])
        else:
            self._unordered("mapping", list(thing.items()))

    def _code_or_object(self, thing: Any) -> None:
        if isinstance(thing, functools.partial):
            self._put("partial")
            self.add((thing.func, thing.args, thing.keywords))
        elif isinstance(thing, types.MethodType):
            self._put("method")
            self.add((thing.__func__, thing.__self__))
        elif isinstance(thing, types.FunctionType):
            self._function(thing)
        elif isinstance(thing, types.BuiltinFunctionType | types.MethodWrapperType):
            self._put("builtin", f"{thing.__module__}.{thing.__qualname__}".encode())
            if thing.__self__ is not None and not isinstance(thing.__self__, types.ModuleType):
                self.add(thing.__self__)
        elif isinstance(thing, functools._lru_cache_wrapper):
            self.add(thing.__wrapped__)
        elif isinstance(thing, types.ModuleType):
            self._put("module", thing.__name__.encode())
        elif isinstance(thing, types.CodeType):
            self._bytecode(thing)
        elif dataclasses.is_dataclass(thing):
            fields = {each.name: getattr(thing, each.name) for each in dataclasses.fields(thing)}
            self._object(thing, fields)
        elif hasattr(thing, "__dict__") and not any(map(_has_hidden_state, type(thing).__mro__)):
            self._object(thing, vars(thing))
        else:
            self._unknown(thing)

    def _unknown(self, thing: Any, what: str = "") -> None:
        if self._strict:
            raise _refused(thing, what)
        parts = _pickled(thing)
        self._put("opaque" if parts is None else "pickled", _name(type(thing)).encode())
        if parts is not None:
            self.add(parts)

    def _unordered(self, kind: str, entries: list[tuple[Any, ...]]) -> None:
        self._put(kind, str(len(entries)).encode())
        apart = [_Encoder(self, strict=self._strict) for _ in entries]
        for encoder, entry in zip(apart, entries, strict=True):
            encoder.add(entry)
        for entry_digest in sorted(encoder.hexdigest() for encoder in apart):
            self._put("entry", entry_digest.encode())

    def _lenient(self, thing: object) -> None:
        """A part that may be of an unknown kind."""
        apart = _Encoder(self, strict=False)
        try:
            apart.add(thing)
        except RecursionError:
            self._put("opaque", _name(type(thing)).encode())
        else:
            self._put("part", apart.hexdigest().encode())
            self._code = apart._code

    def _tensor(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            return self._unknown(tensor, "a tensor that is sparse, quantized or empty")
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        self._put("tensor", f"{plain.dtype} {tuple(plain.shape)}".encode())
        self._put("numbers", plain.reshape(-1).view(torch.uint8).numpy().data)

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        if array.dtype.hasobject:
            return self._unknown(array, "an array of Python objects")
        self._put("array", f"{array.dtype.str} {array.shape}".encode())
        self._put("numbers", np.ascontiguousarray(array).tobytes())

    def _module(self, module: nn.Module) -> None:
        self._put("network")
        for name, each in module.named_modules(remove_duplicate=False):
            self._put("part of network", name.encode())
            self.add(type(each))
            for key, value in sorted(vars(each).items()):
                if key not in TORCH_ATTRIBUTES:
                    self._put("attribute", key.encode())
                    self._lenient(value)
            for kind in HOOKS:
                for hook in getattr(each, kind).values():
                    self._put("hook", kind.encode())
                    self._lenient(hook)
        first: dict[int, str] = {}
        tensors = chain(
            module.named_parameters(remove_duplicate=False),
            module.named_buffers(remove_duplicate=False),
        )
        for name, tensor in tensors:
            self._put("named", f"{name} = {first.get(id(tensor), name)}".encode())
            if first.setdefault(id(tensor), name) == name:
                self._tensor(tensor)

    def _object(self, thing: object, fields: Mapping[str, object]) -> None:
        self._put("object")
        self.add(type(thing))
        self.add({name: fields[name] for name in fields if name not in _ABOUT})

    def _describe_class(self, cls: type) -> None:
        self._put("class", _name(cls).encode())
        for base in cls.__mro__:
            if not _in_library(base):
                for name, value in sorted(vars(base).items()):
                    if isinstance(value, _DEFINED) or not name.startswith("__"):
                        self._put("defines", name.encode())
                        self._lenient(_plain(value))

    def _function(self, function: types.FunctionType) -> None:
        self._put("function", _name(function).encode())
        self.add((function.__defaults__, function.__kwdefaults__))
        names = {*_names_in(function.__code__)}
        cells = function.__closure__ or ()
        self._put("captures", str(len(cells)).encode())
        for cell in cells:
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                self._put("empty cell")
            else:
                self.add(value)
                self._parts_of_module(value, names)
        if not _in_library(function):
            self._bytecode(function.__code__)
            for name in sorted(set(globals_of(function.__code__))):
                if name in function.__globals__:
                    self._put("global", name.encode())
                    self._lenient(function.__globals__[name])
                    self._parts_of_module(function.__globals__[name], names)

    def _parts_of_module(self, module: object, names: set[str]) -> None:
        """Add the parts of a user's module that code with these names may refer to."""
        if not isinstance(module, types.ModuleType) or _installed(module.__name__):
            return
        for name in sorted(names & vars(module).keys()):
            part = vars(module)[name]
            if not any(described is part for described in self._code):
                self._put("part of module", name.encode())
                self._lenient(part)
                self._parts_of_module(part, names)

    def _bytecode(self, code: types.CodeType) -> None:
        self._put("code", code.co_code)
        self.add((code.co_consts, code.co_names, code.co_varnames, code.co_freevars))
        self.add((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags))


def globals_of(code: types.CodeType) -> Iterator[str]:
    """The names that code looks up outside of itself, that of functions inside it included."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from globals_of(constant)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _plain(defined: Any) -> Any:
    """The functions behind a method of a class or a property."""
    if isinstance(defined, property):
        return defined.fget, defined.fset, defined.fdel
    return defined.__func__ if isinstance(defined, staticmethod | classmethod) else defined


def _pickled(thing: Any) -> list[Any] | str | None:
    """The parts that ``pickle`` would write of an object; None where it cannot."""
    if isinstance(thing, RemovableHandle):  # of a hook; it has a running number
        return None
    try:
        parts = thing.__reduce_ex__(4)
        if isinstance(parts, str):
            return parts
        return [list(part) if isinstance(part, Iterator) else part for part in parts]
    except Exception:  # whatever foreign code raises; locks, generators and files have none
        return None


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


@functools.cache
def _installed(module: str) -> bool:
    """Whether a module belongs to a library: its code is identified by its name."""
    top = module.partition(".")[0]
    if f"{module}.".startswith(_STUDIES):
        return False
    if top in {*sys.stdlib_module_names, "curvescope"} - {"__main__"}:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _in_library(thing: Any) -> bool:
    return _installed(str(thing.__module__))


def _has_hidden_state(base: type) -> bool:
    """Whether instances may hold more than their ``__dict__``: a class that may be written in C."""
    if base is object or base.__module__ in ("abc", "typing"):
        return False
    return _in_library(base) and base.__module__.partition(".")[0] != "curvescope"


def _refused(thing: object, what: str) -> CurvescopeError:
    remedy = "give it an attribute `identity`, a text that says all that decides its numbers"
    if isinstance(thing, os.PathLike):
        remedy = "use str(path) for the place or file_digest(path) for the contents"
    rule = f"{what or _name(type(thing))} has no identity"
    return CurvescopeError("identity", rule, remedy=remedy)
