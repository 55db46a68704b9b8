"""Models whose weights are shared out over ranks: ``fully_shard`` (FSDP2) and DTensor parameters.

Each rank has some rows of every weight, and whole weights exist only while a batch is computed:
gathering them is an operation that can be differentiated twice. Its adjoint adds up what all ranks
send back and gives each its rows, so that derivatives by the rows of a rank are those of the loss
over the data of all ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from curvescope import _state
from curvescope.errors import CurvescopeError, ModelError
from curvescope.problem.batches import Batch, Batches
from curvescope.problem.calling import arguments_for, call_with, more_arguments, output_of
from curvescope.problem.losses import Loss, LossAt, as_loss
from curvescope.problem.params import ParamSpace
from curvescope.ranks import Group, GroupLike

_WHERE = "ShardedProblem"


class ShardedProblem:
    """The mean loss of a sharded model over the data of all ranks, by this rank's rows of weights.

    Args:
        model: With parameters that are DTensors on one mesh of one dimension, each split along its
            first dimension or the same on every rank; all of them are variables.
        data: This rank's batches, as for :class:`curvescope.Problem`.
        loss: As for :class:`curvescope.Problem`.
        group: The ranks of the mesh.

    The model itself is not run: its modules are copied without the hooks of ``fully_shard``, and
    without the memory of weights. It is evaluated in evaluation mode.
    """

    def __init__(
        self, model: nn.Module, data: Any, *, loss: Any = "cross_entropy", group: GroupLike = True
    ) -> None:
        self.group = Group.of(group)
        with self.group.together():
            weights = dict(model.named_parameters())
            self._rows = {name: _Rows.of(name, p, self.group) for name, p in weights.items()}
            self._local = {name: _local(p).detach() for name, p in weights.items()}
            first = next(iter(self._local.values()))
            self.device, self.dtype = first.device, first.dtype
            self._check()
            self.model = without_hooks(model)
            self.loss: Loss = as_loss(loss)
            self.data = Batches(data, self.device, None, self.dtype, self.group)
        shapes = {name: torch.Size(p.shape) for name, p in weights.items()}
        self.params = ParamSpace(shapes, {})
        self.local = ParamSpace({name: p.shape for name, p in self._local.items()}, {})
        self._most = max(self.group.counts(len(list(self.data)) if self.data.counts else 0))
        self._versions = self._marks()

    def _check(self) -> None:
        if not all(p.dtype == self.dtype and p.device == self.device for p in self._local.values()):
            raise CurvescopeError(_WHERE, "all parameters must share one dtype and one device")
        if self.dtype not in (torch.float32, torch.float64):
            rule = "needs parameters in float32 or float64"
            raise CurvescopeError(_WHERE, rule, given=self.dtype, remedy="convert the model first")
        for name, p in self._local.items():
            if not bool(p.isfinite().all()):
                raise CurvescopeError(_WHERE, f"{name} contains NaN or infinity")

    # What a rank holds ----------------------------------------------------------------------------

    def parts(self) -> list[list[tuple[int, int]]]:
        """The ranges of the flat vector that each rank holds."""
        return [
            [
                (start, stop)
                for name in self.params.names
                if (start := self.params.slice(name).start + self._rows[name].begins[rank])
                < (stop := self.params.slice(name).start + self._rows[name].ends[rank])
            ]
            for rank in range(self.group.size)
        ]

    def _marks(self) -> list[tuple[int, int]]:
        return [(p._version, p.data_ptr()) for p in self._local.values()]

    def check_unchanged(self) -> None:
        """Refuse to go on after an optimizer's step."""
        if self._marks() != self._versions:
            rule = "the weights have changed since the problem was made"
            raise CurvescopeError(_WHERE, rule, remedy="make a new one")

    # What a batch's graphs are made of: see `engine.graph.GraphBatch` -----------------------------

    def batches(self) -> Iterator[tuple[Batch, bool]]:
        """The batches of this rank, and whether each counts.

        Every rank has as many: in place of those that it lacks, it takes its first again.
        """
        first, taken = None, 0
        for batch in self.data:
            first = first or batch
            taken += 1
            yield batch, self.data.counts
        assert first is not None, "a rank without data was lent some"
        for _ in range(taken, self._most):
            yield first, False

    def variables(self) -> dict[str, Tensor]:
        """Fresh leaves: this rank's rows of each weight."""
        return {name: p.detach().requires_grad_() for name, p in self._local.items()}

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Evaluation mode, and kernels that can be differentiated twice."""
        with (
            _state.exclusive(self.model),
            _state.held(self.model, "eval"),
            _state.differentiable(),
        ):
            yield

    def output(self, variables: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """``f(x; w)``, with weights gathered for it."""
        state = {name: self._rows[name].gather(p, self.group) for name, p in variables.items()}
        state |= {name: b.clone() for name, b in self.model.named_buffers()}
        args, kwargs = arguments_for(self.model, batch.inputs)
        more = more_arguments(self.model, batch)
        z = output_of(f"{_WHERE}(model)", call_with(self.model, state, args, {**more, **kwargs}))
        if not z.requires_grad:
            raise ModelError(_WHERE, "the model's output does not depend on its parameters")
        return z

    def loss_at(self, z: Tensor, batch: Batch) -> LossAt:
        """The loss at an output."""
        return self.loss.at(z.detach(), batch.target)


# Rows of weights --------------------------------------------------------------------------------


class _Rows:
    """How the rows of a weight lie on the ranks; numbers of entries from the first one on."""

    def __init__(self, counts: list[int] | None, width: int, group: Group) -> None:
        self.counts = counts  # None: every rank has the whole weight
        sizes = [0] * group.size if counts is None else [n * width for n in counts]
        if counts is None:
            sizes[0] = width
        self.ends = [sum(sizes[: rank + 1]) for rank in range(group.size)]
        self.begins = [end - size for end, size in zip(self.ends, sizes, strict=True)]

    @classmethod
    def of(cls, name: str, p: Tensor, group: Group) -> _Rows:
        """From a parameter's placement."""
        from torch.distributed.tensor import DTensor, Shard

        if not isinstance(p, DTensor):
            rule = f"{name} is not sharded, while others are"
            remedy = "call fully_shard on the whole model as well"
            raise CurvescopeError(_WHERE, rule, remedy=remedy)
        mesh, [placement, *others] = p.device_mesh, p.placements
        ranks = mesh.mesh.flatten().tolist()
        if others or len(ranks) != group.size:
            rule = "needs one mesh of one dimension, that of the ranks which share the data"
            raise CurvescopeError(_WHERE, rule, given=f"{name} on {tuple(mesh.mesh.shape)}")
        if not (isinstance(placement, Shard) and placement.dim == 0):
            rule = "weights must be split along their first dimension, as fully_shard does"
            raise CurvescopeError(_WHERE, rule, given=f"{name}: {placement}")
        counts = group.counts(len(p.to_local()))
        return cls(counts, p.shape[1:].numel(), group)

    def gather(self, local: Tensor, group: Group) -> Tensor:
        """The whole weight, differentiable any number of times."""
        assert self.counts is not None
        return _gathered(local, self.counts, group)


def _gathered(local: Tensor, counts: list[int], group: Group) -> Tensor:
    whole: Tensor = _Gather.apply(local, counts, group)  # type: ignore[no-untyped-call]
    return whole


class _Gather(torch.autograd.Function):
    """The rows of all ranks below each other; its adjoint is :class:`_ScatterSum`."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, counts: list[int], group: Group) -> Tensor:
        ctx.counts, ctx.group = counts, group
        return group.concatenate(local.contiguous(), counts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        rows: Tensor = _ScatterSum.apply(grad, ctx.counts, ctx.group)  # type: ignore[no-untyped-call]
        return rows, None, None


class _ScatterSum(torch.autograd.Function):
    """This rank's rows of the sum over ranks; its adjoint is :class:`_Gather`."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, counts: list[int], group: Group) -> Tensor:
        ctx.counts, ctx.group = counts, group
        return group.scatter_sum(whole, counts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _gathered(grad, ctx.counts, ctx.group), None, None


def _local(p: Tensor) -> Tensor:
    return p.to_local() if hasattr(p, "to_local") else p


def without_hooks(model: nn.Module) -> nn.Module:
    """The same modules with empty weights, as they were before ``fully_shard``.

    Hooks of the user's own stay. Shared modules and shared weights stay shared.
    """
    modules: dict[int, nn.Module] = {}
    empty: dict[int, nn.Parameter] = {}

    def bare(module: nn.Module) -> nn.Module:
        if id(module) in modules:
            return modules[id(module)]
        kind = _before_sharding(type(module))
        twin: nn.Module = kind.__new__(kind)
        vars(twin).update(vars(module))
        modules[id(module)] = twin
        for attribute in ("_forward_pre_hooks", "_forward_hooks", "_forward_hooks_always_called",
                          "_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs",
                          "_buffers"):  # fmt: skip
            vars(twin)[attribute] = copy.copy(vars(module)[attribute])
        for hooks in (twin._forward_pre_hooks, twin._forward_hooks):
            for key in [key for key, hook in hooks.items() if _of_torch(hook)]:
                del hooks[key]
                for others in (twin._forward_pre_hooks_with_kwargs, twin._forward_hooks_with_kwargs,
                               twin._forward_hooks_always_called):  # fmt: skip
                    others.pop(key, None)
        vars(twin)["_parameters"] = {
            name: None if p is None else empty.setdefault(
                id(p), nn.Parameter(_placeholder(p), requires_grad=False)
            )
            for name, p in module._parameters.items()
        }  # fmt: skip
        vars(twin)["_modules"] = {
            name: None if child is None else bare(child) for name, child in module._modules.items()
        }
        return twin

    return bare(model)


def _before_sharding(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of a module that ``fully_shard`` has given one of its own."""
    names = [each.__name__ for each in kind.__mro__]
    if "FSDPModule" not in names:
        return kind
    return next(
        each
        for each in kind.__mro__[1:]
        if each.__name__ != "FSDPModule" and issubclass(each, nn.Module)
    )


def _placeholder(p: Tensor) -> Tensor:
    """The shape of a whole weight without its memory."""
    local = _local(p)
    return torch.zeros((), dtype=p.dtype, device=local.device).expand(p.shape)


def _of_torch(hook: Any) -> bool:
    """Whether a hook belongs to torch's sharding."""
    owner = getattr(hook, "__self__", None)
    inner = getattr(hook, "__wrapped__", None)
    owner = getattr(inner, "__self__", owner) if owner is None else owner
    module = type(owner).__module__ if owner is not None else getattr(hook, "__module__", "")
    return module.startswith("torch.distributed")
