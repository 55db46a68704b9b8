"""What passes leave in a model's attributes: tensors that they computed, counts, notes.

Some models keep tensors that were computed from their parameters (LeViT: the biases of its
attention, while it is not trained). A later pass would take them for constants, so that a
derivative would stop there without a word, and the identity of the model would depend on whether it
has been evaluated before.

A *cache* is therefore recognized by what it is: a tensor in an attribute, or in a dictionary that
is one, which a pass computes anew, with the same numbers, when it is taken away. A constant of the
model is missed in its place, or replaced by nothing or by other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from curvescope import _state
from curvescope.errors import CurvescopeError, ModelError
from curvescope.identity import Settings, digest
from curvescope.problem.calling import MISTAKES

_OF_TORCH = frozenset(vars(nn.Module()))


class _Place:
    """Where a tensor may lie that is neither a parameter nor a buffer: an attribute, or an entry.

    Args:
        holder: The attributes of a module, or a dictionary that is one of them.
        key: The attribute's name, or the entry's key.
        attribute: Which of the two it is.
    """

    def __init__(self, holder: dict[Any, Any], key: Any, *, attribute: bool) -> None:
        self.holder, self.key, self._attribute = holder, key, attribute
        self._hash = hash((id(holder), key))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Place) and self.holder is other.holder and self.key == other.key

    @property
    def tensor(self) -> Tensor | None:
        value = self.holder.get(self.key)
        return value if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) else None

    def empty(self) -> None:
        """As before any pass: an attribute is None, an entry is not there."""
        if self._attribute:
            self.holder[self.key] = None
        else:
            self.holder.pop(self.key, None)


class Caches:
    """The tensors that passes of one model leave in it, taken away while it is evaluated.

    Cost: a look at the attributes that are None, tensors or dictionaries, at each evaluation; where
    they hold tensors that are new, once a pass without them, or one for each where that fails.

    >>> class Cached(nn.Linear):
    ...     twice = None
    ...     def forward(self, x):
    ...         if self.twice is None:
    ...             self.twice = 2 * self.weight
    ...         return x @ self.twice.T
    >>> model, x = Cached(2, 1), torch.ones(1, 2)
    >>> with torch.no_grad():
    ...     _ = model(x)
    >>> caches = Caches(model)
    >>> caches.look_for(lambda: model(x))
    >>> with caches.emptied():
    ...     model(x).requires_grad
    True
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [vars(module) for module in model.modules()]
        attributes = [
            (values, name, value)
            for values in self._modules
            for name, value in values.items()
            if name not in _OF_TORCH
        ]
        self._dictionaries = [value for _, _, value in attributes if type(value) is dict]
        self._attributes = [
            _Place(values, name, attribute=True)
            for values, name, value in attributes
            if value is None or isinstance(value, Tensor)
        ]
        self._tried: set[_Place] = set()
        self._caches: set[_Place] = set()
        self._written: set[_Place] = set()

    def renewed(self, model: nn.Module) -> Caches:
        """Those of the same model later on, without trying out anew what is known."""
        other = Caches(model)
        other._tried, other._caches = {*self._tried}, {*self._caches}
        return other

    @property
    def are_known(self) -> bool:
        """Whether all tensors in attributes that look like constants have been looked at."""
        return self._tried.issuperset(self._constant())

    def look_for(self, run: Callable[[], object]) -> None:
        """Find the caches among the tensors in attributes.

        Args:
            run: Evaluates the model.
        """
        constant = self._constant()
        self._tried, self._caches = {*constant}, set()
        if not constant:
            return
        with self.emptied():
            found = _made_anew(constant, run)
            if found is None:
                found = [place for place in constant if _made_anew([place], run)]
        self._caches = {*found}

    def empty(self) -> None:
        """Take away what passes have kept; in a block of :meth:`restored`."""
        for place in self._filled():
            if place in self._caches or _computed(place.tensor):
                place.empty()

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """In the block no cache is filled, at its end all are as they were."""
        with self.restored():
            self.empty()
            yield

    @contextmanager
    def restored(self) -> Iterator[None]:
        """After the block the attributes hold the tensors that they held before."""
        filled = self._filled()
        before = {place: place.tensor for place in (*self._attributes, *filled)}
        sizes = [len(values) for values in self._modules]

        def put_back() -> None:
            for place in self._filled():
                if place not in before:  # an entry that is new
                    place.empty()
            for place, tensor in before.items():
                if place.tensor is not tensor:
                    place.holder[place.key] = tensor
                    self._written.add(place)
            for values, size in zip(self._modules, sizes, strict=True):
                for name in list(values)[size:] if len(values) > size else ():
                    if isinstance(values[name], Tensor):
                        del values[name]

        with _state.undone(put_back):
            yield

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """In the block there are neither caches nor attributes that passes write tensors to."""
        places = {*self._caches, *self._written}
        before = [(place, place.holder[place.key]) for place in places if place.key in place.holder]

        def put_back() -> None:
            for place, value in before:
                place.holder[place.key] = value

        with _state.undone(put_back):
            for place, _ in before:
                del place.holder[place.key]
            yield

    def _constant(self) -> list[_Place]:
        return [place for place in self._filled() if not _computed(place.tensor)]

    def _filled(self) -> list[_Place]:
        entries = [
            _Place(each, key, attribute=False)
            for each in self._dictionaries
            for key, value in each.items()
            if isinstance(value, Tensor)
        ]
        return [place for place in (*self._attributes, *entries) if place.tensor is not None]


def _made_anew(places: list[_Place], run: Callable[[], object]) -> list[_Place] | None:
    """Which tensors a pass makes anew when all of them are missing; None if it fails."""
    before = [place.tensor for place in places]

    def put_back() -> None:
        for place, tensor in zip(places, before, strict=True):
            place.holder[place.key] = tensor

    with _state.undone(put_back), torch.no_grad():
        for place in places:
            place.empty()
        try:
            run()
        except (CurvescopeError, *MISTAKES):
            return None
        return [place for place, tensor in zip(places, before, strict=True) if _same(place, tensor)]


def _same(place: _Place, before: Tensor | None) -> bool:
    now = place.tensor
    if now is None or before is None or (now.dtype, now.shape) != (before.dtype, before.shape):
        return False
    return torch.equal(now, before.to(now.device))


def _computed(value: Any) -> bool:
    return isinstance(value, Tensor) and value.grad_fn is not None


def model_digest(model: nn.Module, caches: Caches, run: Callable[[], object]) -> str:
    """The digest of a model without what passes leave in it: weights, buffers, settings, code.

    What the first pass sets up for all others (a configuration that is completed, a table) belongs
    to it, so that the digest is the same before and after. What changes from one pass to the next
    (a count, the last output) does not, and neither do caches.

    Cost: two passes of ``run`` and a digest.
    """
    with _state.exclusive(model):
        modules = list(model.modules())
        with caches.emptied():
            run()
        settings = Settings(modules)
        with caches.emptied():
            run()
        written = settings.differences()
        held = [(vars(module), dict(vars(module))) for module in modules]

        def put_back() -> None:
            for values, before in held:
                values.update(before)

        with _state.undone(put_back), caches.left_out():
            for (values, _), names in zip(held, written, strict=True):
                for name in names:
                    values.pop(name, None)
            return digest(model)


def refuse_leftovers(model: nn.Module, variables: Iterable[Tensor], z: Tensor) -> None:
    """Refuse an output that depends on the parameters by another way than through the variables.

    Cost: a walk over the graph of the output.
    """
    wanted = {id(v) for v in variables}
    memory = {p.data_ptr() for p in model.parameters()}
    visited: set[Any] = set()
    queue: list[Any] = [z.grad_fn]
    while queue:
        node = queue.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor) and id(leaf) not in wanted and leaf.data_ptr() in memory:
            rule = "the model keeps a tensor that an earlier pass computed from its parameters"
            remedy = "empty such caches, or compute the tensor in every pass"
            raise ModelError("Problem(model)", rule, remedy=remedy)
        queue.extend(parent for parent, _ in node.next_functions)
