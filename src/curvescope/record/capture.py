"""A forward pass that remembers what passed through some layers, to pull cotangents back to them.

For a layer ``y[t] = W x[t] + b`` inside a network with output ``z``, the derivative of a direction
``⟨u, z⟩`` by ``W`` is ``Σ_t e[t] x[t]ᵀ`` where ``e = ∂⟨u, z⟩/∂y`` (DH eq. 5; for convolutions A.2).
One forward pass gives ``x``, one backward pass for each ``u`` gives ``e`` for all layers and all
samples, and no derivative by a parameter is taken at all.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils import _pytree as pytree

from curvescope._state import exclusive
from curvescope.errors import ModelError
from curvescope.layers import Kind, watched_calls
from curvescope.problem.batches import Batch
from curvescope.problem.problem import Problem
from curvescope.record.selection import UnsupportedLayer, first_names, layer_of


@dataclass(frozen=True)
class Passage:
    """A forward pass and what went through some modules, each of which was called once."""

    output: Tensor
    inputs: dict[str, Tensor]  # as the modules saw them
    edges: dict[str, GradientEdge]  # where the cotangents of the modules' outputs appear
    sizes: dict[str, int]  # of the modules' outputs
    again: Callable[[], AbstractContextManager[None]]  # the model as it was, for checkpoints

    @property
    def samples(self) -> int:
        """The number of samples of the batch."""
        return self.output.shape[0]

    def pull_back(self, u: Tensor, *, last: bool = False) -> dict[str, Tensor]:
        """The cotangent ``u`` of the output at each module's output; ``last`` frees the graph."""
        with self.backward() as pull_back:
            return pull_back(u, last)

    @contextmanager
    def backward(self) -> Iterator[Callable[[Tensor, bool], dict[str, Tensor]]]:
        """:meth:`pull_back` for many cotangents: the model is prepared once for all of them."""
        edges = list(self.edges.values())

        def pull_back(u: Tensor, last: bool) -> dict[str, Tensor]:
            pulled = torch.autograd.grad(self.output, edges, u, retain_graph=not last)
            return dict(zip(self.edges, pulled, strict=True))

        with self.again():
            yield pull_back


@dataclass(frozen=True)
class Capture(Passage):
    """The same for layers, each with its kind."""

    layers: dict[str, Kind]
    positions: dict[str, int]  # of each sample
    operations: frozenset[str]  # that lie behind the layers

    def rows(self, name: str) -> Tensor:
        """What the layer's weight meets, ``[B, T, …]``; for a matrix its input ``[B, T, n]``."""
        return self.layers[name].rows(self.inputs[name], self.samples)

    def errors(self, name: str, e: Tensor) -> Tensor:
        """``[B, T, m]`` from a cotangent in the layer's own layout."""
        return self.layers[name].errors(e, self.samples)


class Trials:
    """What was tried out of the layers of a problem; ``problem.companion(Trials)``."""

    def __init__(self, _: Problem) -> None:
        self.layers: set[str] = set()  # behind which samples do not see each other
        self.common: set[str] = set()  # applied once for all samples, as to their positions
        self.terms: dict[str, bool] = {}  # whether each position has a term of the loss to itself


def passage(
    problem: Problem,
    batch: Batch,
    modules: Mapping[str, nn.Module],
    variables: Mapping[str, Tensor],
    *,
    common: Collection[str] = (),
    look: Callable[[str, Tensor, Tensor], None] | None = None,
) -> Passage:
    """Run the model on a batch and remember what passes through ``modules``.

    Only ``variables`` require grad, so that the graph begins at the first of them. A module in
    ``common`` is applied once for all samples, as an embedding of positions may be: its output is
    repeated for each sample, whose cotangents then are told apart.

    Raises:
        UnsupportedLayer: a module that is not called once, with a tensor, or outside of the graph.
    """
    inputs: dict[str, Tensor] = {}
    edges: dict[str, GradientEdge] = {}
    sizes: dict[str, int] = {}
    samples = samples_given(batch) or 1

    def see(name: str, x: Tensor, y: Tensor) -> Tensor | None:
        if name in inputs:
            raise UnsupportedLayer(
                "layers", f"layer {name!r} is used more than once in a forward pass"
            )
        if not y.requires_grad:
            raise UnsupportedLayer(
                "layers",
                f"the output of layer {name!r} has no graph",
                remedy="remove torch.no_grad or use checkpointing with use_reentrant=False",
            )
        if look is not None:
            look(name, x.detach(), y.detach())
        if name in common:
            once = x.shape[0] == y.shape[0] == 1
            x, y = (t if once else t[None] for t in (x, y))
            x, y = (t.expand(samples, *t.shape[1:]) for t in (x, y))
        inputs[name], edges[name], sizes[name] = x.detach(), get_gradient_edge(y), y.numel()
        return y if name in common else None

    again = partial(problem.evaluation, frozenset(variables))
    with ExitStack() as stack:
        stack.enter_context(again())
        stack.enter_context(watched_calls(modules, see))
        try:
            z = problem.output(variables, batch)
        except ModelError:
            _check_called(modules, inputs)
            raise
    _check_called(modules, inputs)
    return Passage(z, inputs, edges, sizes, again)


def samples_given(batch: Batch) -> int | None:
    """The common first dimension of a batch's inputs, if they have one."""
    leaves = [t for t in pytree.tree_leaves(batch.inputs) if isinstance(t, Tensor)]
    sizes = {t.shape[0] if t.ndim else None for t in leaves}
    return sizes.pop() if len(sizes) == 1 else None


def capture(
    problem: Problem,
    batch: Batch,
    layers: Sequence[str],
    *,
    shared: bool = False,
    look: Callable[[str, Tensor, Tensor], None] | None = None,
) -> Capture:
    """Run the model on a batch and remember what passes through ``layers``.

    The names are those that :func:`curvescope.record.selection.layers_of_any_kind` returned. This
    needs layers that are used once, which is checked, and samples that do not see each other, see
    :func:`curvescope.record.samples.check_samples`. With ``shared`` a weight may have other uses,
    which are not recorded.
    """
    kinds = {name: layer_of(problem.model, name) for name in layers}
    with exclusive(problem.model):  # another thread's evaluation puts other tensors in
        first = first_names(problem.model)
        own = {name: kind.weight for name, kind in kinds.items()}
    names = {name: first[id(weight)] for name, weight in own.items()}
    variables = {names[name]: weight.detach().requires_grad_() for name, weight in own.items()}
    record = passage(
        problem, batch, {name: kind.module for name, kind in kinds.items()}, variables,
        common=problem.companion(Trials).common, look=look,
    )  # fmt: skip
    weights = {name: variables[names[name]] for name in kinds}
    operations = _check_uses(record.output, weights, shared)
    positions = {
        name: kind.groups * record.sizes[name] // (record.samples * kind.matrix_shape[0])
        for name, kind in kinds.items()
    }
    return Capture(**vars(record), layers=kinds, positions=positions, operations=operations)


def _check_called(names: Iterable[str], inputs: Mapping[str, Tensor]) -> None:
    for name in names:
        if name not in inputs:
            rule = f"layer {name!r} is not used in the forward pass as a module"
            raise UnsupportedLayer("layers", rule)


def _check_uses(z: Tensor, weights: Mapping[str, Tensor], shared: bool) -> frozenset[str]:
    """Refuse a weight that enters the graph anywhere but in its own layer's product.

    Returns the names of the operations in the graph.
    """
    leaves = {name: get_gradient_edge(w).node for name, w in weights.items()}
    uses: dict[Node, int] = dict.fromkeys(leaves.values(), 0)
    visited: set[Node] = set()
    queue: list[Node] = [z.grad_fn] if z.grad_fn is not None else []
    while queue:
        node = queue.pop()
        if node in visited:
            continue
        visited.add(node)
        for parent, _ in node.next_functions:
            if parent in uses:
                uses[parent] += 1
            elif parent is not None:
                queue.append(parent)
    for name, leaf in leaves.items():
        if not uses[leaf]:
            rule = f"the weight of layer {name!r} is not used for the output"
            raise UnsupportedLayer("layers", rule)
        if uses[leaf] > 1 and not shared:
            rule = f"the weight of layer {name!r} is used more than once in a forward pass"
            raise UnsupportedLayer("layers", rule)
    return frozenset(node.name() for node in visited)
