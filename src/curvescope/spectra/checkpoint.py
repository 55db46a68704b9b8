"""The saved state of an estimate: it goes on only where it belongs.

A checkpoint is a safetensors file. It says what it belongs to: the task, the matrix (by
:attr:`LinearOperator.identity`), every setting and the state in which the generator began. Another
matrix of the same shape, another seed or another setting is refused with the difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from torch import Tensor

from curvescope import io
from curvescope._checks import CurvescopeError
from curvescope.identity import digest
from curvescope.operators.base import LinearOperator

State = Mapping[str, Tensor]
"""What an estimator needs to go on: named tensors."""
FORMAT = "curvescope checkpoint 1"
_OTHER = {
    "task": "it is one of {there}",
    "matrix": "the matrix is another one",
    "plan": "products are {there} there and {here} here, where another amount of memory is free: "
    "keep=True or keep=False asks for one of them",
    "generator": "the generator began in another state, that of another seed",
}


class Checkpoint:
    """A place for the state of one estimate.

    Args:
        path: The file.
        task: The estimator.
        A: The operator. What it takes to recognize it is in ``products``.
        settings: Whatever else decides the numbers; the generator as it is before the first draw.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        task: str,
        A: LinearOperator,
        settings: Mapping[str, object],
    ) -> None:
        self._path, self._task, self.products = path, task, A.identity_products
        known = {"task": task, "shape": A.shape, "dtype": A.dtype, "device": str(A.device)}
        self._belongs = {name: _text(value) for name, value in {**known, **settings}.items()}
        self._belongs["matrix"] = A.identity

    def load(self) -> dict[str, Tensor] | None:
        """The state, or None where there is none.

        Raises:
            CurvescopeError: If it belongs to another estimate, or is damaged.
        """
        if not os.path.lexists(self._path):
            return None
        try:
            state, texts = io.read_tensors(self._path, ours=True)
        except CurvescopeError as error:
            msg = f"{self._task}: the checkpoint {error}; delete it or give another path"
            raise CurvescopeError(msg) from None
        if texts.get("format") != FORMAT:
            msg = f"{self._task}: {str(self._path)!r} is no checkpoint; give another path"
            raise CurvescopeError(msg)
        different = self._differences(json.loads(texts["belongs"]))
        if different:
            msg = (
                f"{self._task}: the checkpoint {str(self._path)!r} belongs to another estimate "
                f"({'; '.join(different)}); give another path or delete it"
            )
            raise CurvescopeError(msg)
        # In memory of torch's own: where numbers begin decides how they are summed up.
        return {name: tensor.clone() for name, tensor in state.items()}

    def _differences(self, there: dict[str, str]) -> list[str]:
        """Which things are others there, in words."""
        names = ["task"] if there["task"] != self._belongs["task"] else [*self._belongs]
        if there.get("matrix") != self._belongs.get("matrix"):  # the products of another matrix
            names = [name for name in names if name != "plan"]
        found = []
        for name in names:
            other, own = there.get(name, "nothing"), self._belongs[name]
            if other != own:
                plain = _OTHER.get(name, "{name} is {there} there and {here} here")
                if {other[:1], own[:1]} == {"#"}:
                    plain = _OTHER.get(name, "{name} is another one")
                found.append(plain.format(name=name, there=other, here=own))
        return found

    def save(self, state: State) -> None:
        """Write the state; a kill leaves the old state or the new one."""
        belongs = json.dumps(self._belongs, sort_keys=True)
        io.write_tensors(self._path, state, {"format": FORMAT, "belongs": belongs})


def _text(value: object) -> str:
    """A plain value as it is, anything else by its digest."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    return f"#{digest(value)}"
