"""A model as a function of some of its parameters, evaluated without changing the model."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from curvescope import _checks, _state
from curvescope.errors import CurvescopeError, ModelError
from curvescope.problem.batches import Batch
from curvescope.problem.calling import (
    MISTAKES,
    arguments_for,
    call_with,
    more_arguments,
    output_of,
)
from curvescope.problem.causes import model_error
from curvescope.problem.evaluation import differentiated
from curvescope.problem.independence import apart
from curvescope.problem.params import ParamSpace, Selection
from curvescope.problem.soundness import (
    check_mode,
    check_model,
    check_weights,
    device_and_dtype,
    unwrapped,
)


class ModelFunction:
    """``w ↦ f(x; w)`` in one mode of the batch norms; see :class:`Problem` for the arguments."""

    def __init__(self, model: nn.Module, params: Selection, mode: str) -> None:
        model = unwrapped(model)
        check_model(model)
        self.model: nn.Module = model
        self.mode = _checks.one_of("Problem", "mode", mode, ("eval", "train"))
        with _state.exclusive(model):
            self.params = ParamSpace.of(model, params)
            self.device, self.dtype = device_and_dtype(model, self.params.shapes)
            check_weights(model)
            self._parameters = list(model.named_parameters())
            # Where a forward pass may write to buffers.
            self._statistics = [m for m in model.modules() if mode == "train" and m._buffers]
        self._samples_apart: bool | None = None

    @contextmanager
    def evaluation(self, variables: Container[str] | None = None) -> Iterator[None]:
        """The context of every forward and backward pass: mode set, attention differentiable.

        The model is restored at the end. Backward passes belong inside because checkpoints run
        layers again; ``variables`` are the names that :meth:`output` is called with inside, by
        default the chosen ones.
        """
        check_mode("Problem", self.device)
        variables = self.params.shapes if variables is None else variables
        mode: _state.Mode = "norms train" if self.mode == "train" else "eval"
        with (
            _state.exclusive(self.model),
            _state.held(self.model, mode),
            _state.differentiable(),
            differentiated(self._parameters, variables, self._statistics),
        ):
            yield

    def variables(self) -> dict[str, Tensor]:
        """Fresh leaves that share the memory of the chosen parameters."""
        chosen = self.params.shapes
        with _state.exclusive(self.model):
            return {
                name: p.detach().requires_grad_()
                for name, p in self.model.named_parameters()
                if name in chosen
            }

    def output(self, variables: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """``f(x; w)`` as a tensor, with everything but ``variables`` held constant."""
        z = output_of(
            "Problem(model)", self._call(variables, batch, more_arguments(self.model, batch))
        )
        if not z.is_floating_point() or not z.requires_grad:
            rule = "the model's output does not depend on the chosen parameters"
            raise ModelError("Problem", rule)
        return z

    def _call(
        self, variables: Mapping[str, Tensor], batch: Batch, more: Mapping[str, Tensor]
    ) -> Any:
        """What the model returns for a batch, and for ``more`` arguments by name."""
        state: dict[str, Tensor] = {
            name: p.detach() for name, p in self.model.named_parameters() if name not in variables
        }
        state.update(variables)
        # A forward may write to its buffers (running statistics), but not to the model's.
        state.update({name: b.clone() for name, b in self.model.named_buffers()})
        args, kwargs = arguments_for(self.model, batch.inputs)
        try:
            z = call_with(self.model, state, args, {**more, **kwargs})
        except (CurvescopeError, torch.OutOfMemoryError):
            raise
        except MISTAKES as error:
            raise model_error(error, batch, self.dtype) from error
        return z

    def _repeats(self, batch: Batch) -> bool:
        """Whether the model gives the same output twice."""
        variables = self.variables()
        with self.evaluation():
            a, b = (self.output(variables, batch).detach() for _ in range(2))
        return close(a, b)

    def samples_apart(self, batch: Batch) -> bool:
        """Whether outputs do not depend on the rest of the batch, see :func:`apart`.

        Determined once, on the first batch of at least two samples; False in ``mode="train"``.
        """
        if self._samples_apart is not None:
            return self._samples_apart
        if self.mode != "eval":
            return False
        variables = self.variables()

        def run(tree: Any) -> Tensor:
            with self.evaluation():
                return self.output(variables, Batch(tree[0], tree[1], batch.index))

        independent = apart(run, (batch.inputs, batch.target))
        if independent is None:  # one sample alone shows no dependence
            norms = [m for m in self.model.modules() if isinstance(m, _NormBase)]
            return all(norm.running_mean is not None for norm in norms)
        self._samples_apart = independent
        return independent


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two results of the same computation agree to rounding."""
    tolerance = 1e-4 if a.dtype == torch.float32 else 1e-9
    return bool((a - b).norm() <= tolerance * a.norm())
