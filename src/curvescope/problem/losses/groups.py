"""Classes that are groups of a model's outputs: a large vocabulary seen as a few classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from curvescope.errors import CurvescopeError


@dataclass(frozen=True)
class Groups:
    """The class of every output, ``0 … count − 1``.

    >>> groups = Groups.of({5: 0, 7: 1}, outputs=9, where="doctest")  # all others are a third
    >>> groups.count, groups.classes
    (3, (2, 2, 2, 2, 2, 0, 2, 1, 2))
    """

    classes: tuple[int, ...]

    @classmethod
    def of(cls, given: Any, outputs: int, where: str) -> Groups:
        """From a class for each output, or from a map; outputs that it leaves out are one more.

        Raises:
            CurvescopeError: for a number that is no class, or an output that there is not.
        """
        rule = f"`classes` must give each of the {outputs} outputs a class 0, 1, …"
        if isinstance(given, Groups):
            given = given.classes
        if isinstance(given, Mapping):
            of_output = {int(output): int(c) for output, c in given.items()}
            wrong = [output for output in of_output if not 0 <= output < outputs]
            if wrong:
                raise CurvescopeError(where, rule, given=f"a class for output {wrong[0]}")
            rest = max(of_output.values(), default=-1) + 1
            classes = [of_output.get(output, rest) for output in range(outputs)]
        elif isinstance(given, Tensor | Sequence) and not isinstance(given, str):
            tensor = torch.as_tensor(given)
            if tensor.shape != (outputs,) or tensor.is_floating_point():
                raise CurvescopeError(where, rule, given=f"{tensor.dtype} {list(tensor.shape)}")
            classes = tensor.tolist()
        else:
            raise CurvescopeError(where, rule, given=type(given).__name__)
        if min(classes) < 0:
            raise CurvescopeError(where, rule, given=f"the class {min(classes)}")
        empty = set(range(max(classes) + 1)).difference(classes)
        if max(classes) < 1 or empty:
            rule = "`classes` must name at least two classes, and each from 0 to the largest"
            which = f"no output of class {min(empty)}" if empty else "a single class"
            raise CurvescopeError(where, rule, given=which)
        return cls(tuple(classes))

    @cached_property
    def count(self) -> int:
        """``K``, one more than the largest class."""
        return max(self.classes) + 1

    def tensor(self, device: torch.device) -> Tensor:
        """The class of every output: ``[V]``."""
        return torch.tensor(self.classes, device=device)

    def labels(self, outputs: Tensor) -> Tensor:
        """The classes of some outputs; −1, an ignored one, stays."""
        classes = self.tensor(outputs.device)
        return torch.where(outputs < 0, outputs, classes[outputs.clamp(min=0)])

    def log_sums(self, log_p: Tensor) -> Tensor:
        """``log Σ_{v in c} exp log_p[…, v]``: ``[…, K]``; empty classes have ``−∞``."""
        index = self.tensor(log_p.device).expand(log_p.shape)
        shape = (*log_p.shape[:-1], self.count)
        top = log_p.new_full(shape, -torch.inf).scatter_reduce(-1, index, log_p, "amax")
        top = torch.where(top.isfinite(), top, 0.0)
        sums = torch.zeros_like(top).scatter_add(
            -1, index, torch.exp(log_p - top.gather(-1, index))
        )
        return sums.log() + top
