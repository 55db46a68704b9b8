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

from curvescope._checks import CurvescopeError

_STUDIES = "curvescope.studies."  # code with the settings of a study in it, unlike a library's
_ROWS = 4096  # copied at a time


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
    ``functools.partial``      function and arguments; bound methods: function and object
    ``nn.Module``              classes, attributes, hooks, parameters and buffers with their names
                               and numbers; an attribute of an unknown kind counts by its class
    dataclasses, plain objects class and fields
    anything else with an      that string
    ``identity`` that is a str
    ========================= ====================================================================

    Bytecode belongs to one version of Python: a function has another digest in the next one.

    Raises:
        CurvescopeError: If something is of another kind; nothing is known by its ``repr``.

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
    """

    def __init__(self, outer: _Encoder | None = None) -> None:
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
        code = isinstance(thing, types.FunctionType | type)
        for number, known in enumerate(self._code if code else self._inside):
            if known is thing:
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
        elif isinstance(given := getattr(thing, "identity", None), str):
            self._put("identity", given.encode())
        elif isinstance(thing, tuple | list):
            self._put("list" if isinstance(thing, list) else "tuple", str(len(thing)).encode())
            for each in thing:
                self.add(each)
        elif isinstance(thing, Set):
            self._unordered("set", [(each,) for each in thing])
        elif isinstance(thing, Mapping):
            self._unordered("mapping", list(thing.items()))
        else:
            self._code_or_object(thing)

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
        elif callable(getattr(thing, "__wrapped__", None)):  # functools.cache
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
            raise CurvescopeError(_refusal(thing))

    def _unordered(self, kind: str, entries: list[tuple[Any, ...]]) -> None:
        self._put(kind, str(len(entries)).encode())
        apart = [_Encoder(self) for _ in entries]
        for encoder, entry in zip(apart, entries, strict=True):
            encoder.add(entry)
        for entry_digest in sorted(encoder.hexdigest() for encoder in apart):
            self._put("entry", entry_digest.encode())

    def _lenient(self, thing: object) -> None:
        """A part that counts by its class where it is of an unknown kind."""
        apart = _Encoder(self)
        try:
            apart.add(thing)
        except CurvescopeError:
            self._put("opaque", _name(type(thing)).encode())
        else:
            self._put("part", apart.hexdigest().encode())
            self._code = apart._code

    def _tensor(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise CurvescopeError(_refusal(tensor, "a tensor that is sparse, quantized or empty"))
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        self._put("tensor", f"{plain.dtype} {tuple(plain.shape)}".encode())
        self._put("numbers", plain.reshape(-1).view(torch.uint8).numpy().data)

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        if array.dtype.hasobject:
            raise CurvescopeError(_refusal(array, "an array of Python objects"))
        self._put("array", f"{array.dtype.str} {array.shape}".encode())
        self._put("numbers", np.ascontiguousarray(array).tobytes())

    def _module(self, module: nn.Module) -> None:
        self._put("network")
        for name, each in module.named_modules(remove_duplicate=False):
            self._put("part of network", name.encode())
            self.add(type(each))
            for key, value in sorted(vars(each).items()):
                if not key.startswith("_") and key != "training":
                    self._put("attribute", key.encode())
                    self._lenient(value)
            for hook in chain(each._forward_pre_hooks.values(), each._forward_hooks.values()):
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
        self.add(dict(fields))

    def _describe_class(self, cls: type) -> None:
        self._put("class", _name(cls).encode())
        for base in cls.__mro__:
            if not _in_library(base):
                for name, value in sorted(vars(base).items()):
                    if isinstance(value, types.FunctionType):
                        self._put("defines", name.encode())
                        self._lenient(value)

    def _function(self, function: types.FunctionType) -> None:
        self._put("function", _name(function).encode())
        self.add((function.__defaults__, function.__kwdefaults__))
        cells = function.__closure__ or ()
        self._put("captures", str(len(cells)).encode())
        for cell in cells:
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                self._put("empty cell")
            else:
                self.add(value)
        if not _in_library(function):
            self._bytecode(function.__code__)
            for name in sorted(set(_globals_of(function.__code__))):
                if name in function.__globals__:
                    self._put("global", name.encode())
                    self._lenient(function.__globals__[name])

    def _bytecode(self, code: types.CodeType) -> None:
        self._put("code", code.co_code)
        self.add((code.co_consts, code.co_names, code.co_varnames, code.co_freevars))
        self.add((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags))


def _globals_of(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_of(constant)


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


@functools.cache
def _installed(module: str) -> bool:
    """Whether a module belongs to a library: its code is known by its name."""
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


def _refusal(thing: object, what: str = "") -> str:
    remedy = "give it an attribute `identity`, a text that says all that decides its numbers"
    if isinstance(thing, os.PathLike):
        remedy = "use str(path) for the place or file_digest(path) for the contents"
    return f"identity: {what or _name(type(thing))} has no identity of its own; {remedy}"
