"""The course of an estimate: its steps, what they cost, and the state they can go on from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.identity import digest
from curvescope.operators.base import LinearOperator
from curvescope.vectors import Space, read_pieces, remove_pieces, write_pieces

if TYPE_CHECKING:
    from curvescope.spectra.resumable import Estimator, State


class Counted(LinearOperator):
    """The same matrix, with a count of the ``products`` taken: columns or quadratic forms.

    ``products_for_identity`` of them were used to compute its identity.
    """

    def __init__(self, A: LinearOperator) -> None:
        super().__init__(A.shape, dtype=A.dtype, device=A.device, symmetric=A.symmetric, psd=A.psd)
        self._operator = A
        self.products = self.products_for_identity = 0

    def _layout(self) -> Space:
        return self._operator.domain

    def _matmat(self, X: Tensor) -> Tensor:
        Y = self._operator._matmat(X)
        self.products += X.shape[1]
        return Y

    def _rmatmat(self, Y: Tensor) -> Tensor:
        X = self._operator._rmatmat(Y)
        self.products += Y.shape[1]
        return X

    def _on_rows(self, rows: Tensor) -> Tensor:
        image = self._operator._on_rows(rows)
        self.products += len(rows)
        return image

    def _quadratic(self, X: Tensor) -> Tensor:
        forms = self._operator._quadratic(X)
        self.products += X.shape[1]
        return forms

    @property
    def identity(self) -> str:
        """The identity of the matrix; products taken for it are counted."""
        self.products_for_identity += self._operator.identity_products
        self.products += self._operator.identity_products
        return self._operator.identity

    def __repr__(self) -> str:
        return repr(self._operator)


class Course:
    """The steps of an estimate, and its checkpoint.

    Where vectors are spread over ranks, all ranks take the same steps, and a checkpoint is a file
    of the first rank that names a piece of each rank's vectors.
    """

    def __init__(
        self,
        steps: Estimator[Any],
        A: Counted,
        settings: Mapping[str, object],
        place: io.Checkpoint | None,
    ) -> None:
        self._steps, self._operator, self._place = steps, A, place
        self._space, self._in_pieces = A.domain, False
        self._generators = {
            name: value for name, value in settings.items() if isinstance(value, torch.Generator)
        }
        if A.products > A.products_for_identity:
            rule = "takes products in its constructor, which are lost when its steps go on"
            raise CurvescopeError(steps.task, rule, remedy="take them in a step")
        if place is not None:
            self._resume(place)
        self._before = dict(vars(steps)) if "state" in vars(steps) else None
        self._note()

    # Steps --------------------------------------------------------------------------------------

    def stopped(self, pressed: bool) -> bool:
        """Whether ctrl-C was pressed, on any of the ranks; all of them must be at the same step."""
        if self._space.alone:
            return pressed
        here = 4 * self._steps.done + 2 * self._steps.finished + pressed
        ranks = self._space.group.counts(here)
        if len({each >> 1 for each in ranks}) > 1:
            done = ", ".join(str(each >> 2) for each in ranks)
            rule = f"the ranks took different steps, they have done {done}"
            remedy = "see that all have the same settings, library and kind of processor"
            raise CurvescopeError(self._steps.task, rule, remedy=remedy)
        return any(each & 1 for each in ranks)

    def step(self) -> None:
        """Take one step and record generators and products for the next :meth:`save`."""
        self._steps.step()
        self._note()
        if self._before is not None:
            _refuse_hidden(self._steps, self._before)
            self._before = None

    def _note(self) -> None:
        """Record generators and products after a whole step; an interrupted one changes them."""
        self.products = self._operator.products
        if self._place is not None:
            self._drawn = {
                f"generator.{name}": generator.get_state()
                for name, generator in self._generators.items()
            }

    # The checkpoint -----------------------------------------------------------------------------

    def _resume(self, place: io.Checkpoint) -> None:
        """Go back to where the checkpoint is, if there is one."""
        saved, steps, space = place.load(), self._steps, self._space
        if not space.alone and len(set(space.group.counts(int(saved is not None)))) > 1:
            rule = f"only some ranks see the checkpoint {str(place.path)!r}"
            raise CurvescopeError(steps.task, rule, remedy="put it on a disk that all of them see")
        if saved is None:
            return
        done, products, *pieces = saved.notes
        if done > steps.total:
            rule = f"the checkpoint has {done} steps, more than the {steps.total} asked for"
            raise CurvescopeError(steps.task, rule, remedy="ask for as many, or delete it")
        state = dict(below("state", saved.tensors))
        if pieces:
            self._in_pieces = True
            state |= read_pieces(place.path, pieces[0], space)
        else:
            state = {n: space.local(t) if self._is_vector(n) else t for n, t in state.items()}
        current = steps.state
        steps.state = {
            name: tensor.to(current[name].device) if name in current else tensor
            for name, tensor in state.items()
        }
        for name, generator in self._generators.items():
            generator.set_state(saved.tensors[f"generator.{name}"])
        self._operator.products = products

    def save(self) -> None:
        """Write the checkpoint, if there is one."""
        if self._place is None:
            return
        state, notes = self._steps.state, [self._steps.done, self.products]
        path, space = self._place.path, self._space
        if space.alone:
            self._place.save({**nested("state", state), **self._drawn}, notes)
            if self._in_pieces:  # those of more ranks, from which it went on
                remove_pieces(path)
                self._in_pieces = False
            return
        small = {name: t for name, t in state.items() if not self._is_vector(name)}
        self._check_same(small)
        vectors = {name: t for name, t in state.items() if self._is_vector(name)}
        pieces = write_pieces(path, space, vectors)
        if space.group.rank == 0:
            self._place.save({**nested("state", small), **self._drawn}, [*notes, pieces])
            remove_pieces(path, keep=pieces["files"])
        space.group.agree(True)  # the file is there

    def _is_vector(self, name: str) -> bool:
        return name.rpartition(".")[2] in self._steps.vectors

    def _check_same(self, small: State) -> None:
        """Refuse numbers that are others on other ranks, such as a part of a vector."""
        mine = {name: float(t.double().abs().sum()) for name, t in small.items()}
        for other in self._space.group.plain_of_all({n: repr(x) for n, x in mine.items()}):
            for name, x in mine.items():
                y = float(other.get(name, "nan"))
                if not (math.isclose(x, y, rel_tol=1e-6) or (x != x and y != y)):
                    rule = f"the state {name!r} differs from rank to rank"
                    remedy = "if its rows are vectors, name it in `vectors` of the estimator"
                    raise CurvescopeError(self._steps.task, rule, remedy=remedy)


def check_alike(where: str, space: Space, settings: Iterable[object]) -> None:
    """Refuse generators that are not in the same state on all ranks."""
    if space.alone:
        return
    drawn = [digest(each) for each in settings if isinstance(each, torch.Generator)]
    for rank, other in enumerate(space.group.plain_of_all([where, drawn])):
        if other != [where, drawn]:
            rule = f"rank {rank} has another estimate to make, or a generator in another state"
            raise CurvescopeError(where, rule, remedy="give all ranks the same seed")


def _refuse_hidden(steps: Estimator[Any], before: Mapping[str, object]) -> None:
    """Refuse attributes that a step sets outside ``state``: they would be lost on resuming."""
    for name, value in vars(steps).items():
        if name != "state" and value is not before.get(name):
            rule = f"a step sets {name!r}, which is no part of its `state`"
            raise CurvescopeError(steps.task, rule, remedy="keep it there")


def nested(name: str, state: State) -> dict[str, Tensor]:
    """The state of a part with ``name.`` before its keys, for the state of the whole.

    >>> list(nested("outer", nested("inner", {"x": torch.ones(1)})))
    ['outer.inner.x']
    """
    return {f"{name}.{key}": tensor for key, tensor in state.items()}


def below(name: str, state: State) -> dict[str, Tensor]:
    """The inverse of :func:`nested`: the state of a part from that of the whole."""
    start = f"{name}."
    return {key[len(start) :]: t for key, t in state.items() if key.startswith(start)}
