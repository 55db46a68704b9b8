"""What goes into a layer and what comes back to it: inputs and pulled-back output directions.

For a linear layer ``y[t] = W x[t] + b`` inside a network with output ``z``, the derivative of a
direction ``⟨u, z⟩`` with respect to ``W`` is ``Σ_t e[t] x[t]ᵀ`` where ``e = ∂⟨u, z⟩/∂y`` (DH eq. 5;
for convolutions A.2). One forward pass gives ``x``, one backward pass for each ``u`` gives ``e``
for all layers and all samples, and no derivative by a parameter is taken at all.

This needs samples that do not see each other, and layers that are used once; both are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils import _pytree as pytree

from curvescope._checks import CurvescopeError, ModelError
from curvescope.problem.batches import Batch
from curvescope.problem.problem import Problem
from curvescope.record.patches import Layer, errors_of, groups, rows_of
from curvescope.record.samples import positions
from curvescope.record.selection import UnsupportedLayer, join, linear_layers

__all__ = [
    "Capture", "Directions", "LayerRecord", "UnsupportedLayer", "capture", "check_samples",
    "checked_directions", "first_samples", "linear_layers", "record_layers", "samples_given",
]  # fmt: skip

Directions = Callable[[Tensor, Any], Tensor]
PROBE = 4  # samples on which the independence of samples is tried out


@dataclass(frozen=True)
class LayerRecord:
    """One layer on one batch of ``B`` samples with ``K`` output directions each.

    ``inputs: [B, T, n]`` at the layer's ``T`` positions: one for a plain linear layer, those along
    a sequence, or the output positions of a convolution, whose inputs are unfolded in the order of
    ``weight.flatten(1)``. ``errors: [B, K, T, m]`` are the directions pulled back to the output.
    The derivative of the k-th direction of sample b by the weight is
    ``Σ_t errors[b,k,t] inputs[b,t]ᵀ``, by the bias ``Σ_t errors[b,k,t]``. With ``groups > 1`` each
    group brings its own positions, at which the errors of the other groups' channels are zero.
    """

    name: str
    inputs: Tensor
    errors: Tensor


@dataclass(frozen=True)
class Capture:
    """A forward pass that remembers what passed through some layers."""

    output: Tensor
    modules: dict[str, Layer]
    inputs: dict[str, Tensor]  # as the layer saw them
    edges: dict[str, GradientEdge]  # where the cotangents of the layers' outputs appear
    positions: dict[str, int]  # of each sample
    operations: frozenset[str]  # that lie behind the layers
    again: Callable[[], AbstractContextManager[None]]  # the model as it was, for checkpoints

    @property
    def samples(self) -> int:
        """The number of samples of the batch."""
        return self.output.shape[0]

    def pull_back(self, u: Tensor, *, last: bool = False) -> dict[str, Tensor]:
        """The cotangent ``u`` of the output at each layer's output; ``last`` frees the graph."""
        with self.again():
            found = torch.autograd.grad(
                self.output, list(self.edges.values()), u, retain_graph=not last
            )
        return dict(zip(self.edges, found, strict=True))

    def rows(self, name: str) -> Tensor:
        """``[B, T, n]``, see :class:`LayerRecord`."""
        return rows_of(self.modules[name], self.inputs[name], self.samples)

    def errors(self, name: str, e: Tensor) -> Tensor:
        """``[B, T, m]`` from a cotangent in the layer's own layout."""
        return errors_of(self.modules[name], e, self.samples)


def capture(problem: Problem, batch: Batch, layers: Sequence[str]) -> Capture:
    """Run the model on a batch and remember what passes through ``layers``.

    Only the chosen layers' weights require grad, so that the graph begins at the first of them.
    The names are those that :func:`linear_layers` returned.
    """
    modules = {name: cast(Layer, problem.model.get_submodule(name)) for name in layers}
    variables = {
        join(name, "weight"): module.weight.detach().requires_grad_()
        for name, module in modules.items()
    }
    inputs: dict[str, Tensor] = {}
    edges: dict[str, GradientEdge] = {}
    numbers: dict[str, int] = {}

    def hook(name: str) -> Callable[..., None]:
        def remember(module: nn.Module, args: tuple[Any, ...], kwargs: Any, out: Tensor) -> None:
            if name in inputs:
                msg = f"layers: layer {name!r} is used more than once in a forward pass"
                raise UnsupportedLayer(msg)
            if not out.requires_grad:
                msg = (
                    f"layers: the output of layer {name!r} has no graph; remove torch.no_grad or "
                    "use checkpointing with use_reentrant=False"
                )
                raise UnsupportedLayer(msg)
            inputs[name] = (args[0] if args else kwargs["input"]).detach()
            edges[name] = get_gradient_edge(out)
            numbers[name] = out.numel()

        return remember

    with ExitStack() as stack:
        again = partial(problem.evaluation, frozenset(variables))
        stack.enter_context(again())
        for name, module in modules.items():
            # First in the queue: it sees the layer's own output, whatever other hooks make of it.
            handle = module.register_forward_hook(hook(name), prepend=True, with_kwargs=True)
            stack.callback(handle.remove)
        try:
            z = problem.output(variables, batch)
        except ModelError:
            _check_called(layers, inputs)
            raise
    _check_called(layers, inputs)
    operations = _check_uses(z, layers, list(variables.values()))
    positions = {
        name: groups(module) * numbers[name] // (z.shape[0] * module.weight.shape[0])
        for name, module in modules.items()
    }
    return Capture(z, modules, inputs, edges, positions, operations, again)


def _check_called(layers: Sequence[str], inputs: dict[str, Tensor]) -> None:
    for name in layers:
        if name not in inputs:
            msg = f"layers: layer {name!r} is not used in the forward pass as a module"
            raise UnsupportedLayer(msg)


def _check_uses(z: Tensor, layers: Sequence[str], weights: list[Tensor]) -> frozenset[str]:
    """Refuse a weight that enters the graph anywhere but in its own layer's product.

    Returns the names of the operations in the graph.
    """
    uses: dict[Node, int] = {get_gradient_edge(w).node: 0 for w in weights}
    leaves = list(uses)
    seen: set[Node] = set()
    queue: list[Node] = [z.grad_fn] if z.grad_fn is not None else []
    while queue:
        node = queue.pop()
        if node in seen:
            continue
        seen.add(node)
        for parent, _ in node.next_functions:
            if parent in uses:
                uses[parent] += 1
            elif parent is not None:
                queue.append(parent)
    for name, leaf in zip(layers, leaves, strict=True):
        if uses[leaf] != 1:
            how = (
                "used more than once in a forward pass" if uses[leaf] else "not used for the output"
            )
            msg = f"layers: the weight of layer {name!r} is {how}"
            raise UnsupportedLayer(msg)
    return frozenset(node.name() for node in seen)


def check_samples(problem: Problem, batch: Batch, layers: Sequence[str]) -> None:
    """Refuse layers whose samples see each other, tried out on a few samples, once per problem.

    The output of a sample must not depend on what the layer computes for the others, see
    :func:`curvescope.record.samples.positions`.
    """
    known: set[str] = problem.cache.setdefault("independent layers", set())
    unknown = [name for name in layers if name not in known]
    if not unknown:
        return
    few = capture(problem, first_samples(batch), unknown)
    if few.samples < 2:
        return

    def pull_back(u: Tensor) -> list[Tensor]:
        pulled = few.pull_back(u)
        return [_rows_first(few.modules[name], pulled[name], few.samples) for name in unknown]

    for name, rows in zip(unknown, positions(pull_back, few.output, few.samples), strict=True):
        if not rows:
            msg = (
                f"layers: the samples of a batch see each other behind layer {name!r}, or are not "
                "its first dimension; batch norm needs mode='eval' and running statistics"
            )
            raise UnsupportedLayer(msg)
        known.add(name)


def _rows_first(layer: Layer, e: Tensor, samples: int) -> Tensor:
    """A cotangent of a layer's output with rows first: a linear layer may have more dimensions."""
    linear = isinstance(layer, nn.Linear)
    return e.flatten(0, -2) if linear and e.shape[0] % samples else e


def samples_given(batch: Batch) -> int | None:
    """The common first dimension of a batch's inputs, if they have one."""
    leaves = [t for t in pytree.tree_leaves(batch.inputs) if isinstance(t, Tensor)]
    sizes = {t.shape[0] if t.ndim else None for t in leaves}
    return sizes.pop() if len(sizes) == 1 else None


def first_samples(batch: Batch) -> Batch:
    """A few samples of a batch, to try things out on; the batch itself if it cannot be cut."""
    size = samples_given(batch)
    if size is None:
        return batch

    def cut(t: Tensor) -> Tensor:
        return t[:PROBE] if t.ndim and t.shape[0] == size else t

    inputs, target = pytree.tree_map_only(Tensor, cut, (batch.inputs, batch.target))
    return Batch(inputs, target, batch.index)


def record_layers(
    problem: Problem, batch: Batch, layers: str | Iterable[str] | None, directions: Directions
) -> dict[str, LayerRecord]:
    """Inputs of some layers, and ``K`` output directions of each sample pulled back to them.

    Cost: one forward pass, and ``K`` passes backward that take no derivative by a parameter.
    Memory: what is returned, ``B·T·n + B·K·T·m`` numbers for each layer, and the graph.

    Args:
        problem: its model, mode and loss; ``layers`` need not be among its variables.
        batch: one of ``problem.batches()``.
        layers: names of linear or convolution layers (None: all among the variables).
        directions: a function of ``(z, target)`` that returns ``[B, K, *z.shape[1:]]``: the output
            directions of each sample, for example the columns of the output Hessian's root.

    Raises:
        UnsupportedLayer: a layer of another kind, used twice or not at all, with a shared weight,
            or behind which samples see each other (batch statistics).

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 2, bias=False)).double()
    >>> with torch.no_grad():
    ...     _ = model[1].weight.copy_(torch.tensor([[3.0], [4.0]]))
    >>> problem = Problem(model, (torch.tensor([[5.0, 6.0]]).double(), torch.tensor([0])))
    >>> each_output = lambda z, y: torch.eye(2).double()[None]
    >>> record = record_layers(problem, next(problem.batches()), "0", each_output)["0"]
    >>> record.inputs, record.errors.flatten()
    (tensor([[[5., 6.]]], dtype=torch.float64), tensor([3., 4.], dtype=torch.float64))
    """
    problem.check_unchanged()
    names = linear_layers(problem, layers)
    check_samples(problem, batch, names)
    seen = capture(problem, batch, names)
    u = checked_directions(seen.output, directions(seen.output.detach(), batch.target))
    pulled: dict[str, list[Tensor]] = {name: [] for name in names}
    for k in range(u.shape[1]):
        for name, e in seen.pull_back(u[:, k], last=k == u.shape[1] - 1).items():
            pulled[name].append(seen.errors(name, e))
    return {
        name: LayerRecord(name, seen.rows(name), torch.stack(pulled[name], 1)) for name in names
    }


def checked_directions(z: Tensor, u: Tensor) -> Tensor:
    """The output directions of a batch, ``[B, K, *z.shape[1:]]``."""
    if u.ndim != z.ndim + 1 or u.shape[0] != z.shape[0] or u.shape[2:] != z.shape[1:]:
        needed = ", ".join(["B", "K", *map(str, z.shape[1:])])
        msg = (
            f"record_layers(directions): must return [{needed}] with B = {z.shape[0]}, got "
            f"{list(u.shape)}"
        )
        raise CurvescopeError(msg)
    return u.detach()
