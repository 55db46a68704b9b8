"""Weights on disk: the state of a model as safetensors, with the name of the network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from curvescope import io
from curvescope._state import evaluated
from curvescope.errors import CurvescopeError
from curvescope.networks.names import network
from curvescope.networks.spec import NetworkSpec


def save_weights(
    path: io.PathLike, model: nn.Module, notes: Mapping[str, Any] | None = None
) -> None:
    """Write the parameters and buffers of ``model``, with its name and ``notes`` as metadata.

    Args:
        path: A ``.safetensors`` file; its folder must exist.
        model: The network.
        notes: Remarks to store with the weights; anything with a JSON form.
    """
    spec = getattr(model, "spec", None)
    described = {
        "network": asdict(spec) if isinstance(spec, NetworkSpec) else None,
        **(notes or {}),
    }
    io.write_tensors(path, model.state_dict(), {io.NOTES: json.dumps(described)})


@torch.no_grad()
def load_weights(path: io.PathLike, model: nn.Module) -> dict[str, Any]:
    """Read weights into ``model``; nothing changes unless everything fits.

    Args:
        path: A file of :func:`save_weights` or another safetensors file with the same names, or the
            folder of a finished run, whose final weights are meant. Of the names of a tied
            parameter, one is enough.
        model: A network of the same architecture, on any device and of any floating-point type.

    Returns:
        The notes of the file; empty for a file from elsewhere.

    Raises:
        CurvescopeError: If the file is missing, truncated or foreign, belongs to another
            architecture, or contains NaN or infinity.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "w.safetensors"
    >>> save_weights(path, network("F-3", 2, 2), {"epoch": 1})
    >>> load_weights(path, network("F-3", 2, 2))["epoch"]
    1
    >>> load_weights(path, network("F-4", 2, 2))
    Traceback (most recent call last):
    curvescope.errors.CurvescopeError: load_weights(...): the weights are of another architecture
    (F-3), 'fc1.weight' is [3, 2] in the file and [4, 2] in the model
    """
    where = f"load_weights({str(path)!r})"
    tensors, metadata = io.read_tensors(_file(where, path), ours=Path(path).is_dir())
    notes = io.notes_of(metadata)
    state = model.state_dict()
    _compare(where, tensors, state, notes)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            rule = f"{name} contains NaN or infinity"
            raise CurvescopeError(where, rule, remedy="these weights are of no use")
    for name, tensor in tensors.items():
        state[name].copy_(tensor)
    return notes


def load_network(path: io.PathLike) -> nn.Module:
    """The network of a file of weights or of the folder of a finished run, on the CPU.

    Args:
        path: As for :func:`load_weights`; the weights of a network of :func:`network`.

    Raises:
        CurvescopeError: If the file does not say which network it belongs to, and as
            :func:`load_weights`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "w.safetensors"
    >>> save_weights(path, network("F-3", 2, 2))
    >>> load_network(path).spec.name
    'F-3'
    """
    where = f"load_network({str(path)!r})"
    tensors, metadata = io.read_tensors(_file(where, path), ours=Path(path).is_dir())
    try:
        spec = io.decode(NetworkSpec, io.notes_of(metadata).get("network"))
    except CurvescopeError:
        rule = "the file does not say which network it belongs to"
        remedy = "make the model and use load_weights(path, model)"
        raise CurvescopeError(where, rule, remedy=remedy, remedy_cli="") from None
    model = network(spec.name, spec.inputs, spec.classes, init=spec.init)
    types = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(types) == 1:
        model.to(types.pop())
    load_weights(path, model)
    return evaluated(model)


def _file(where: str, path: io.PathLike) -> Path:
    """The file itself, or the final weights of the run in a folder."""
    place = Path(path)
    if not place.is_dir():
        return place
    final = place / "weights" / "final.safetensors"
    if not final.is_file():
        what = "a training run without final weights"
        if not (place / "weights").is_dir():
            what = "a folder, but not that of a training run"
        remedy = "name a .safetensors file or the folder of a finished run"
        raise CurvescopeError(where, f"is {what}", remedy=remedy)
    return final


def _compare(
    where: str, tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], notes: Mapping[str, Any]
) -> None:
    spec = notes.get("network")
    named = f" ({spec['name']})" if isinstance(spec, dict) and "name" in spec else ""
    filled = {_place(state.get(name)) for name in tensors} - {None}
    missing = [name for name in state if name not in tensors and _place(state[name]) not in filled]
    surplus = [name for name in tensors if name not in state]
    wrong = [name for name in state if name in tensors and tensors[name].shape != state[name].shape]
    if missing:
        difference = f"{missing[0]!r} of the model is not in the file"
    elif surplus:
        difference = f"{surplus[0]!r} of the file is not in the model"
    elif wrong:
        shapes = (list(tensors[wrong[0]].shape), list(state[wrong[0]].shape))
        difference = f"{wrong[0]!r} is {shapes[0]} in the file and {shapes[1]} in the model"
    else:
        return
    raise CurvescopeError(where, f"the weights are of another architecture{named}, {difference}")


def _place(value: Any) -> tuple[Any, ...] | None:
    """The place of a tensor's numbers in memory, which all names of a tied parameter share."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or not value.data_ptr():
        return None
    return value.data_ptr(), value.shape, value.stride(), value.dtype
