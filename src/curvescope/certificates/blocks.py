"""How a network's parameters are laid out for a posterior: one matrix for each layer.

A layer is the matrix ``[W, b]`` with a row for each output (DH App. B's extended input ``[x; 1]``
takes the bias into the Kronecker product); a convolution's kernel is flattened as
``weight.flatten(1)``. A weight that is stored with a row for each input is that matrix, and its
bias stands alone. Everything else (the scale of a batch norm, grouped convolutions, tied weights)
is a row of its own, for which the standard basis is kept.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
from torch import Tensor, nn

from curvescope._checks import positive_int
from curvescope.errors import CurvescopeError
from curvescope.layers import matrix_kind


@dataclass(frozen=True)
class Block:
    """One layer's parameters as a matrix ``[rows, columns]``, the bias as its last column."""

    name: str
    weight: str
    bias: str | None
    shape: tuple[int, ...]  # of the weight
    layer: bool  # whether it may have a Kronecker basis

    def __post_init__(self) -> None:
        for size in self.shape or (0,) * self.layer:
            positive_int(f"Block {self.name!r}", "size", size)

    @property
    def rows(self) -> int:
        """Outputs of the layer; 1 for parameters that are no layer."""
        return self.shape[0] if self.layer else 1

    @property
    def columns(self) -> int:
        """Inputs of the layer, and one more for its bias."""
        return prod(self.shape) // self.rows + (self.bias is not None)

    @property
    def size(self) -> int:
        """The number of parameters."""
        return self.rows * self.columns


class Layout:
    """The blocks of a model one after the other in a flat vector of ``size`` numbers.

    >>> layout = Layout.of(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1, bias=False)))
    >>> [(block.name, block.rows, block.columns) for block in layout.blocks], layout.size
    ([('0', 3, 3), ('2', 1, 3)], 12)
    """

    def __init__(self, blocks: tuple[Block, ...]) -> None:
        self.blocks = blocks
        self.sizes = [block.size for block in blocks]
        self.size = sum(self.sizes)
        self.offsets = [0, *accumulate(self.sizes)][:-1]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """The layout of all trainable parameters of a model; frozen ones are constants."""
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        users: dict[int, int] = {}
        for _, p in model.named_parameters(remove_duplicate=False):
            users[id(p)] = users.get(id(p), 0) + 1
        blocks: list[Block] = []
        joined: set[str] = set()
        for path, module in model.named_modules():
            prefix = f"{path}." if path else ""
            names = [f"{prefix}weight", f"{prefix}bias"]
            layer = matrix_kind(module)
            if layer is None or layer.groups > 1 or names[0] not in trainable:
                continue
            if any(users.get(id(trainable.get(name)), 1) > 1 for name in names):
                continue
            if layer.transposed:
                names.pop()
            bias = names[-1] if names[-1] in trainable and not layer.transposed else None
            shape = tuple(trainable[names[0]].shape)
            blocks.append(Block(path or "weight", names[0], bias, shape, layer=True))
            joined.update(names)
        order = {name: i for i, name in enumerate(trainable)}
        blocks += [
            Block(name, name, None, tuple(p.shape), layer=False)
            for name, p in trainable.items()
            if name not in joined
        ]
        if not blocks:
            rule = "no parameter requires grad"
            raise CurvescopeError("certify(model)", rule, remedy="there is nothing to certify")
        return cls(tuple(sorted(blocks, key=lambda block: order[block.weight])))

    def split(self, flat: Tensor) -> list[Tensor]:
        """The matrices ``[rows, columns]`` of a flat vector, as views."""
        return [
            piece.view(block.rows, block.columns)
            for block, piece in zip(self.blocks, flat.split(self.sizes), strict=True)
        ]

    def flatten(self, state: Mapping[str, Tensor]) -> Tensor:
        """The flat vector of a state dict's parameters.

        Raises:
            CurvescopeError: If a parameter is missing or has another shape.
        """
        pieces: list[Tensor] = []
        for block in self.blocks:
            weight = self._entry(state, block.weight, block.shape).reshape(block.rows, -1)
            if block.bias is not None:
                bias = self._entry(state, block.bias, (block.rows,))
                weight = torch.cat([weight, bias[:, None]], 1)
            pieces.append(weight.reshape(-1))
        return torch.cat(pieces)

    @staticmethod
    def _entry(state: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in state or tuple(state[name].shape) != shape:
            got = list(state[name].shape) if name in state else "nothing of this name"
            rule = f"must hold {name!r} of shape {list(shape)}"
            raise CurvescopeError("certify(initial_state)", rule, given=got)
        return state[name].detach()

    def state(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters by name; the inverse of :meth:`flatten`.

        >>> model = nn.Linear(2, 3)
        >>> layout = Layout.of(model)
        >>> back = layout.state(layout.flatten(model.state_dict()))
        >>> all(torch.equal(back[name], p) for name, p in model.state_dict().items())
        True
        """
        state: dict[str, Tensor] = {}
        for block, matrix in zip(self.blocks, self.split(flat), strict=True):
            if block.bias is not None:
                state[block.bias] = matrix[:, -1].contiguous()
                matrix = matrix[:, :-1]
            state[block.weight] = matrix.reshape(block.shape)
        return state

    def groups(self, device: torch.device) -> Tensor:
        """The block that each parameter belongs to, ``[size]``."""
        sizes = torch.tensor(self.sizes, device=device)
        return torch.repeat_interleave(torch.arange(len(self.blocks), device=device), sizes)
