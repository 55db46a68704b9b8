"""The trace of the Hessian or of the Gauss–Newton matrix as a penalty (PP §6, eq. 13).

``L(w) → L(w) + η tr H(w)``. PP estimate the trace by ``vᵀ H v`` with a random ``v`` in weight space
and differentiate it, a third derivative. There are cheaper roads to the same expectation.

**Gauss–Newton.** With one random ``ε_n`` per sample in *output* space and ``S Sᵀ`` the output
Hessian,

    tr G = (1/N) Σ_n E‖J_nᵀ S(z_n) ε_n‖²,

the squared norm of a gradient, one derivative less. Norms of per-sample gradients come from layer
inputs and errors without the gradients themselves:
:mod:`curvescope.flatness.trace_gradient.pullback`. In matrix products a layer costs 1 forwards, 1
to pull the error back, 2 for the derivative of that, and the 2 of the ordinary backward pass, which
the loss shares: 6 against the 3 of a plain step. And there are ``N`` independent probes instead of
one: the mixed terms between samples, most of the variance of ``vᵀ G v``, are not there.

**Hessian.** ``H = G + E`` with ``E = Σ_c (∂ℓ/∂z_c) ∂²z_c/∂w²``. If every parameter is used once and
everything after it is piecewise affine (ReLU, max-pooling, convolutions, batch norm in eval mode),
the output is piecewise affine in each parameter tensor, the diagonal blocks of ``E`` vanish and

    tr H = tr G

wherever the derivative exists: the same estimate serves both. Whether it is so is read off a
recorded pass (:mod:`curvescope.flatness.trace_gradient.affine`), once for a model and the functions
that it runs. For any other model ``vᵀ H v`` is differentiated as in the paper.

References:
    PP: *A Practical PAC-Bayes Generalisation Bound for Deep Learning* (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from curvescope import _checks
from curvescope._state import differentiable, exclusive, watching
from curvescope.errors import CurvescopeError
from curvescope.flatness.trace_gradient.affine import functions_of_piecewise_affine
from curvescope.flatness.trace_gradient.capture import Capture
from curvescope.flatness.trace_gradient.forward import (
    batch_norms_train,
    frozen_calls,
    run,
    samples_of,
    take,
    trainable,
)
from curvescope.flatness.trace_gradient.independence import rows_per_sample
from curvescope.flatness.trace_gradient.pullback import Folding, squared_gradients
from curvescope.flatness.trace_gradient.signs import Signs
from curvescope.problem.losses import Loss, OutputRoot, as_loss


class Objective(NamedTuple):
    """A batch's mean loss, its penalty, and the output that both were computed from."""

    loss: Tensor
    penalty: Tensor
    output: Tensor

    @property
    def total(self) -> Tensor:
        """``loss + penalty``, to be minimized."""
        return self.loss + self.penalty


class TraceRegularizer:
    """``weight · tr H`` or ``weight · tr G`` of the batch's mean loss, to be added to the loss.

    Unbiased: the expectation of the value is the trace and that of its gradient is the gradient of
    the trace (PP eq. 13 with ``η = weight``; a sum over the eigenvalues, not their mean). Two ways
    to use it::

        (F.cross_entropy(model(X), y) + regularizer(model, X, y)).backward()   # in any loop
        regularizer.objective(model, X, y).total.backward()          # one forward pass for both

    The second is faster and sees the model exactly as the loss does. The first runs the model once
    more, without dropout, and leaves its buffers alone. Batch norms are differentiated in the mode
    in which they are. Weight decay is not part of the loss whose curvature this is.

    The probes are a function of the generator's state when the regularizer is made and of the
    number of draws since, on all devices alike. :meth:`tensors` holds both, so that a training that
    saves them resumes with the same probes. Steps may be captured in a CUDA graph (``capturable``).

    Whether the output for a sample depends on others (as with batch norm in train mode) is
    determined by a trial at the first call. Where it does, and for parameters outside linear and
    convolutional layers, gradients are taken over the whole batch, which is right as well but
    noisier.

    Cost of a step with :meth:`objective` in plain steps, on the CPU: about 2 for a fully connected
    network and 1.9 to 2.4 for convolutional ones with or without batch norm; a call beside a plain
    step comes to 3 or a little more (``benchmarks/sharpness.py``). ``kind="hessian"`` costs the
    same where ``tr H = tr G``, see above, and about 6 (with batch norm in train mode 9) where it
    does not; ``samples`` lowers that.

    Args:
        kind: ``"hessian"`` or ``"ggn"``. The Hessian's trace may be negative, and then the penalty
            rewards negative curvature (PP §6: training may diverge); that of G cannot.
        weight: ``η``.
        generator: The source of the probes.
        loss: As for :class:`curvescope.Problem`. Callables only with ``kind="hessian"``.
        probes: Draws per step. If a sample has one label and at most this many outputs, all of them
            are taken, and the value is exact for linear and convolutional layers of networks whose
            samples do not see each other.
        samples: How many samples of each batch to look at, drawn anew at every step (default all).

    >>> model = nn.Linear(2, 1, bias=False).double()
    >>> X, y = torch.tensor([[3.0, 4.0]]).double(), torch.zeros(1, 1).double()
    >>> g = torch.Generator().manual_seed(0)
    >>> regularizer = TraceRegularizer("ggn", weight=0.1, loss="mse", generator=g)
    >>> round(regularizer(model, X, y).item(), 9)  # 0.1 · tr(2 x xᵀ)
    5.0
    """

    capturable = True
    """Whether a step can be captured in a CUDA graph: it draws and reads nothing on the host."""

    def __init__(
        self,
        kind: str = "hessian",
        *,
        weight: float,
        generator: torch.Generator,
        loss: str | nn.Module | Callable[..., Tensor] | Loss = "cross_entropy",
        probes: int = 1,
        samples: int | None = None,
    ) -> None:
        where = "TraceRegularizer"
        self.kind = _checks.one_of(where, "kind", kind, ("hessian", "ggn"))
        self.weight = _checks.finite_float(where, "weight", weight, minimum=0.0)
        self.probes = _checks.positive_int(where, "probes", probes)
        self.samples = None if samples is None else _checks.positive_int(where, "samples", samples)
        self._stream = Signs(_checks.generator(where, generator))
        self._loss = as_loss(loss)
        if kind == "ggn" and not self._loss.closed_form:
            self._loss.probe(torch.zeros(1, 1), torch.zeros(1))  # refuses a loss without a root
        # The functions that models run for which tr H = tr G, None for others.
        self._affine: WeakKeyDictionary[nn.Module, frozenset[Any] | None] = WeakKeyDictionary()

    def __call__(self, model: nn.Module, X: Any, y: Any) -> Tensor:
        """The penalty, from a forward pass of its own.

        Args:
            model: Any module; its flags, buffers and gradients stay as they are.
            X: The batch's inputs: a tensor, a tuple of positional or a mapping of keyword ones.
            y: The targets.
        """
        X, y = self._drawn(model, X, y)
        with frozen_calls(model) as call:
            return self._both(model, call, X, y).penalty

    def objective(self, model: nn.Module, X: Any, y: Any) -> Objective:
        """Loss and penalty from one forward pass of the model as it is."""
        if self.samples is not None:
            z = run(model, X)
            return Objective(self._loss.mean(z, y), self(model, X, y), z)
        return self._both(model, lambda inputs: run(model, inputs), X, y)

    def tensors(self, device: torch.device) -> dict[str, Tensor]:
        """The tensors that decide the next probes (not copies), from now on on this device.

        >>> g = torch.Generator().manual_seed(0)
        >>> regularizer = TraceRegularizer("ggn", weight=0.1, generator=g)
        >>> regularizer.tensors(torch.device("cpu"))["probes"][1]  # the number of words drawn
        tensor(0)
        """
        return {"probes": self._stream.state(device)}

    def __repr__(self) -> str:
        samples = "" if self.samples is None else f", samples={self.samples}"
        return (
            f"TraceRegularizer({self.kind!r}, weight={self.weight!r}, loss={self._loss.name!r}, "
            f"probes={self.probes}{samples})"
        )

    # One batch -----------------------------------------------------------------------------------

    def _both(self, model: nn.Module, call: Callable[[Any], Tensor], X: Any, y: Any) -> Objective:
        # The fused kernels of attention have no second derivative.
        with exclusive(model), differentiable():
            parameters = trainable("TraceRegularizer", model)
            tried = None if self.kind == "ggn" else self._piecewise_affine(model, X, y)
            if self.kind == "ggn" or tried is not None:
                with watching(Capture(parameters, second_order=True)) as capture:
                    z = call(X)
                if tried is None or (capture.functions <= tried and not capture.shared):
                    capture.separate(samples_of(X), rows_per_sample(model, X))
                    root = self._loss.probe(z, y)
                    trace = self._pulled_back(capture, root, z)
                    return Objective(root.value, self.weight * trace, z)
                self._affine[model] = None  # use autograd for this model from now on
            with watching(Capture(parameters, second_order=False)):
                z = call(X)
            value = self._loss.mean(z, y)
            return Objective(value, self.weight * self._quadratic_form(value, parameters), z)

    def _piecewise_affine(self, model: nn.Module, X: Any, y: Any) -> frozenset[Any] | None:
        """The functions that the model runs if ``tr H = tr G``, else None; a trial for a new model.

        Without dropout and before the step: so the model is run once in every step, the first
        included, and draws and counts the same in a training that is interrupted and goes on with a
        new regularizer.
        """
        if not self._loss.closed_form or batch_norms_train(model):
            return None
        if model not in self._affine:
            self._affine[model] = functions_of_piecewise_affine(model, self._loss, X, y)
        return self._affine[model]

    def _pulled_back(self, capture: Capture, root: OutputRoot, z: Tensor) -> Tensor:
        total = torch.zeros((), dtype=z.dtype, device=z.device)
        whole = bool(capture.rows) and root.shape[0] == len(z) and root.shape[1] <= self.probes
        fold = Folding(self._stream, whole=whole)
        for epsilon, share in self._epsilons(root, z, whole=whole):
            u = root(epsilon)
            by_sample, rest = squared_gradients(capture, z, u, fold, create_graph=True)
            total = total + share * (by_sample.sum() + rest)
        return total / root.weight

    def _epsilons(
        self, root: OutputRoot, z: Tensor, *, whole: bool
    ) -> Iterator[tuple[Tensor, float]]:
        """Probes with their shares: random signs, or every unit vector with a sign per sample."""
        if not whole:
            for _ in range(self.probes):
                yield self._stream.draw(root.shape, z), 1 / self.probes
            return
        for unit in torch.eye(root.shape[1], dtype=z.dtype, device=z.device):
            yield unit * self._stream.draw((root.shape[0], 1), z), 1.0

    def _quadratic_form(self, value: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """The mean of ``vᵀ H v`` over the probes, with its graph."""
        slopes = torch.autograd.grad(
            value, parameters, create_graph=True, allow_unused=True, materialize_grads=True
        )
        total = torch.zeros((), dtype=value.dtype, device=value.device)
        for _ in range(self.probes):
            v = self._vectors(parameters)
            moving = [(g, w) for g, w in zip(slopes, v, strict=True) if g.requires_grad]
            if not moving:
                break
            products = torch.autograd.grad(
                [g for g, _ in moving], parameters, [w for _, w in moving],
                create_graph=True, allow_unused=True, materialize_grads=True,
            )  # fmt: skip
            total = total + sum(
                ((h * w).sum() for h, w in zip(products, v, strict=True)), torch.zeros_like(total)
            )
        return total / self.probes

    def _vectors(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Random signs in weight space, one tensor for each parameter."""
        sizes = [p.numel() for p in parameters]
        pieces = self._stream.draw((sum(sizes),), parameters[0]).split(sizes)
        return [piece.reshape(p.shape) for piece, p in zip(pieces, parameters, strict=True)]

    def _drawn(self, model: nn.Module, X: Any, y: Any) -> tuple[Any, Any]:
        if self.samples is None:
            return X, y
        if batch_norms_train(model):
            rule = "batch norm in train mode ties the samples of a batch together"
            remedy = "leave `samples=None`, or put the batch norms in eval mode"
            raise CurvescopeError("TraceRegularizer(samples)", rule, remedy=remedy)
        return take(X, y, self.samples, self._stream)
