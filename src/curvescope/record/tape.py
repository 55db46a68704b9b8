"""A tape of linear steps and the programs cut from it.

The tape of a batch holds the forward pass ``z = f(w)`` and the backward pass ``g = J(w)ᵀ u`` as
steps between numbered slots. With seeds at the parameters and at the cotangent ``u``, running it
pushes tangents through:

    forward            ẇ ↦ ż = J ẇ
    backward           (ẇ, u̇) ↦ ġ = Jᵀ u̇ + (∂_w Jᵀ u)[ẇ]

so that ``u̇ = B ż`` with seeds ``ẇ`` left out of the backward part is a Gauss–Newton product, and
with them it is a Hessian product. A *program* is the part of the tape that some seeds reach and
some results need: restricting it to one layer's parameters leaves out everything before the layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from curvescope.record.rules import Cache, LinearStep, Outputs


@dataclass(frozen=True)
class Step:
    """One recorded operation: which slots it reads and writes, and its linear map."""

    name: str
    linear: LinearStep
    sources: tuple[int | None, ...]
    targets: tuple[int | None, ...]

    def condensed(self, cache: Cache) -> Step:
        """The step with the faster form of its map, where there is one."""
        if self.linear.condensed is None:
            return self
        return replace(self, linear=self.linear.condensed(cache))


@dataclass(frozen=True)
class Instruction:
    """A step inside a program, with the slots whose tangents are no longer needed after it.

    ``owned`` is proved when the program is cut: the first tangent was made by a step of the program
    in memory of its own, no other step reads it, views of it included, and it is not wanted
    afterwards. Only then is it written over; a seed, which may be the user's vector or the model's
    weights, never is.
    """

    step: Step
    finished: tuple[int, ...]
    owned: bool = False

    def apply(self, inputs: list[Tensor | None], columns: bool) -> Outputs:
        """The step's map, in place where that is allowed."""
        linear = self.step.linear
        if self.owned and linear.inplace is not None:
            return linear.inplace(*inputs)
        return (linear.block if columns else linear.single)(*inputs)


@dataclass(frozen=True)
class Program:
    """A pruned sequence of steps."""

    instructions: tuple[Instruction, ...]
    width: int  # the largest number of elements that are live at once, for one column
    slots: frozenset[int]  # every slot that gets a tangent, the seeds included
    remaining: frozenset[int]  # those that are still there at the end
    reads: frozenset[int]  # those that the steps read but do not make

    def run(self, tangents: dict[int, Tensor], columns: bool) -> None:
        """Push ``tangents`` (slot -> tangent) through the steps, in place."""
        get = tangents.get
        for instruction in self.instructions:
            step = instruction.step
            inputs = [None if s is None else get(s) for s in step.sources]
            if any(t is not None for t in inputs):  # a gate may have stopped all of them
                out = instruction.apply(inputs, columns)
                outs = out if isinstance(out, tuple | list) else (out,)
                for slot, tangent in zip(step.targets, outs, strict=False):
                    if slot is not None and tangent is not None:
                        tangents[slot] = tangent
            for slot in instruction.finished:
                tangents.pop(slot, None)


def cut(
    steps: Sequence[Step], sizes: Sequence[int], seeds: Iterable[int], wanted: Iterable[int]
) -> Program:
    """The part of ``steps`` between ``seeds`` and ``wanted``."""
    reached = set(seeds)
    alive: list[Step] = []
    for step in steps:
        if any(s in reached for s in step.sources if s is not None):
            alive.append(step)
            reached.update(t for t in step.targets if t is not None)
    keep = set(wanted) & reached
    needed = set(keep)
    program: list[Step] = []
    for step in reversed(alive):
        if any(t in needed for t in step.targets if t is not None):
            program.append(step)
            needed.update(s for s in step.sources if s is not None and s in reached)
    program.reverse()
    return _with_lifetimes(program, sizes, reached & set(seeds), keep, reached)


def _with_lifetimes(
    steps: list[Step], sizes: Sequence[int], seeds: set[int], keep: set[int], reached: set[int]
) -> Program:
    last: dict[int, int] = {}
    for i, step in enumerate(steps):
        for slot in (*step.sources, *step.targets):
            if slot is not None and slot in reached:
                last[slot] = i
    fresh = {
        t for step in steps if step.linear.fresh for t in step.targets if t is not None
    } - seeds
    readers = Counter(s for step in steps for s in step.sources if s is not None)
    instructions = []
    live = widest = 0
    for i, step in enumerate(steps):
        live += sum(sizes[t] for t in step.targets if t is not None)
        widest = max(widest, live)
        touched = {s for s in (*step.sources, *step.targets) if s is not None}
        finished = tuple(s for s in touched if last.get(s) == i and s not in keep)
        live -= sum(sizes[s] for s in finished if s not in seeds)
        instructions.append(Instruction(step, finished, _owned(step, finished, fresh, readers)))
    made = {t for step in steps for t in step.targets if t is not None}
    read = {s for step in steps for s in step.sources if s is not None and s in reached}
    return Program(
        tuple(instructions),
        widest,
        frozenset(made | seeds),
        frozenset(keep),
        frozenset(read - made),
    )


def _owned(step: Step, finished: Sequence[int], fresh: set[int], readers: Counter[int]) -> bool:
    """Whether nothing but this step refers to the memory of its first tangent."""
    first = step.sources[0]
    return (
        step.linear.inplace is not None
        and first in finished
        and first in fresh
        and readers[first] == 1
    )
