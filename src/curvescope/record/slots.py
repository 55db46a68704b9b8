"""The slots of a recorder: which tensors have one, and what happens to them when memory is written.

An operation that writes to memory which other tensors look at, a row of a buffer for example,
changes all of them. From then on the memory itself has a slot, one row of all its numbers: a write
makes a new one, and a tensor in it gets a new slot from it where it is used next, see
:mod:`rules.memory`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from curvescope.record.memory import address
from curvescope.record.rules import Call, Untraceable
from curvescope.record.rules.memory import Place, read, write

Slots = tuple[int | None, ...]


@dataclass
class _Written:
    """A memory that was written to where several tensors look at it."""

    owner: Tensor  # one of them, so that the memory is not given to others
    slot: int | None  # of all its numbers; None while all of them are constants
    version: int = 0  # how often it was written to


class SlotKeeper(TorchDispatchMode):
    """Numbers tensors, and follows writes to their memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []  # elements of each slot
        self.forward_slots: int | None = None  # set when the backward pass begins
        self._second_order = True
        self._slots: dict[int, tuple[int, Any]] = {}  # id -> (slot, the tensor, kept alive)
        self._origins: list[Tensor] = []  # the tensor that each slot was made for
        self._memory: dict[int, set[int]] = {}  # address -> ids of the tensors with a slot in it
        self._readers: dict[int, list[Call]] = {}  # address -> calls whose rules may look there
        self._written: dict[int, _Written] = {}  # by address
        self._versions: dict[int, int] = {}  # id -> the version of its memory that its slot is of
        self._constants: list[Tensor] = []  # kept alive, so that no other tensor gets their ids

    @abstractmethod
    def _varies(self, tensor: Any) -> bool:
        """Whether an argument depends on the parameters, as autograd sees it."""

    @abstractmethod
    def _take(self, call: Call, sources: Slots, targets: Slots) -> None:
        """What is done with an operation that was seen."""

    def add(self, tensor: Tensor) -> int:
        """Give a tensor a new slot."""
        slot = len(self.sizes)
        self.sizes.append(tensor.numel())
        self._origins.append(tensor)
        self._bind(tensor, slot)
        return slot

    def forget(self) -> None:
        """Let go of all tensors; the steps keep what they need."""
        self._slots.clear()
        self._origins.clear()
        self._memory.clear()
        self._written.clear()
        self._constants.clear()

    def _bind(self, tensor: Tensor, slot: int) -> None:
        self._slots[id(tensor)] = (slot, tensor)
        where = address(tensor)
        if where is not None:
            self._memory.setdefault(where, set()).add(id(tensor))
            if where in self._written:
                self._versions[id(tensor)] = self._written[where].version

    # Memory that several tensors look at ---------------------------------------------------------

    def _shared(self, target: Tensor) -> _Written | None:
        """The memory of a tensor about to be written to; None if the tensor has it for itself."""
        where = address(target)
        if where is None or where in self._written:
            return None if where is None else self._written[where]
        inside = self._memory.get(where, set())
        if not target._is_view() and not inside - {id(target)}:
            return None
        memory = self._written[where] = _Written(target, None)
        written: set[int] = set()
        for slot, tensor in sorted((self._slots[i] for i in inside), key=lambda entry: entry[0]):
            if tensor.element_size() != target.element_size():
                raise Untraceable("an in-place operation on memory that is read in two dtypes")
            if slot not in written and self._varies(tensor):
                self._write(memory, tensor)
                written.add(slot)
        self._versions.update(dict.fromkeys(inside, 0))
        return memory

    def _save_numbers(self, leaves: list[Any]) -> None:
        """Copies for the calls that refer to memory which may be written to now.

        Their rules are made later. Autograd allows such a write where it has saved the result
        instead, and in a backward pass nobody watches.
        """
        for leaf in leaves:
            where = address(leaf) if isinstance(leaf, Tensor) else None
            calls = self._readers.pop(where, ()) if where is not None else ()
            copies: dict[int, Tensor] = {}
            for call in calls:
                for old in call.leaves:
                    if isinstance(old, Tensor) and address(old) == where:
                        call.replace(old, copies.setdefault(id(old), old.clone()))

    def _write(self, memory: _Written, tensor: Tensor) -> None:
        """Note that a part of a memory has the numbers of a tensor."""
        place = Place.of(tensor)
        sources = (memory.slot, self._slots[id(tensor)][0])
        memory.slot = self._row(place.room, memory.owner)
        self._take(Call(write, (place,), {}, None, [0, 1]), sources, (memory.slot,))

    def _row(self, room: int, owner: Tensor) -> int:
        """A slot for all numbers of a memory."""
        self.sizes.append(room)
        self._origins.append(owner)
        return len(self.sizes) - 1

    def _look_again(self, leaves: list[Any]) -> None:
        """New slots for arguments whose memory was written to after they got theirs."""
        for leaf in leaves:
            where = address(leaf) if isinstance(leaf, Tensor) else None
            memory = None if where is None else self._written.get(where)
            if memory is None or memory.slot is None:
                continue
            if self._versions.get(id(leaf)) == memory.version:
                continue
            if not self._second_order and memory.slot < (self.forward_slots or 0):
                continue  # the forward pass counts as constant
            call = Call(read, (Place.of(leaf),), {}, None, [0])
            source, slot = memory.slot, self._row(leaf.numel(), memory.owner)
            self._bind(leaf, slot)
            self._take(call, (source,), (slot,))

    def _overwritten(self, out: Any) -> None:
        """A tensor that autograd takes for a constant, and that is written to, is one from then on.

        What shares its memory keeps the derivative that autograd gives it.
        """
        if isinstance(out, Tensor) and id(out) in self._slots:
            self._constants.append(self._slots.pop(id(out))[1])
            self._memory.get(address(out) or 0, set()).discard(id(out))
