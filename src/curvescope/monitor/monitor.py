"""Curvature while a network trains: a monitor that measures within a budget and changes nothing."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn

from curvescope import _checks, _state
from curvescope._random import global_generators_kept
from curvescope.errors import CurvescopeError
from curvescope.identity import digest
from curvescope.io import PathLike
from curvescope.monitor.events import Alarms, Event
from curvescope.monitor.limits import (
    NEED_BEFORE,
    Before,
    Limits,
    name_of,
    scales_coordinates,
    stability_limits,
    unwrapped,
)
from curvescope.monitor.log import FileLog, Header, Record, Sink, sink_of
from curvescope.monitor.price import Price, price_of
from curvescope.monitor.probe import Probe
from curvescope.monitor.quantities import (
    NEED_STEP,
    QUANTITIES,
    Look,
    Settings,
    Values,
    loss_and_gradient,
)
from curvescope.monitor.schedule import Budget, ordered
from curvescope.problem import Loss

PRESETS: Mapping[str, tuple[tuple[str, ...], float]] = {
    "economy": (("directional",), 0.01),
    "standard": (("directional", "top", "trace", "noise"), 0.05),
    "full": (("directional", "top", "trace", "noise", "line", "rank"), 0.1),
}
"""What is tracked under each name, and the budget that comes with it."""


class Monitor:
    """Measures the curvature of a loss while it is minimized.

    One line in a loop, after the optimizer's step::

        monitor = cs.Monitor(model, (X, y), loss="cross_entropy", optimizer=opt,
                             log="runs/first", generator=torch.Generator().manual_seed(0))
        for x, t in batches:
            loss = ...; loss.backward(); opt.step(); opt.zero_grad()
            monitor.step()

    All is measured at the weights *after* a step, on a probe that stays the same, with dropout off:

    ``"directional"``
        ``ΔᵀHΔ / ‖Δ‖²`` and ``Δᵀg`` for the step ``Δ`` that was really made, weights after less
        weights before, whatever the optimizer; one product.
    ``"top"``
        ``λ_max(H)``, from the last eigenvector on, with its residual; for optimizers that scale
        their coordinates also that of ``P^{-1/2} H P^{-1/2}`` from their own state, and the limit
        of stability for either, see :mod:`curvescope.monitor.limits`.
    ``"trace"``
        ``tr G`` and the practical bound's ``tr G + ½‖w‖²`` (PP eq. 7).
    ``"noise"``
        the gradient noise scale ``tr Σ / ‖G‖²``, the critical batch size.
    ``"line"``, ``"rank"``
        the loss on the line through the step; the effective rank ``(tr G)² / tr G²``.

    The monitor changes nothing: not the weights, gradients, buffers and flags of the model, nor the
    optimizer's state, nor any generator but its own; training gives the same bits without it.

    Args:
        model: The model in training; it must not be wrapped for several devices.
        probe: A fixed sample of the data, as for :class:`curvescope.Problem`; read into memory.
        loss: As for :class:`curvescope.Problem`.
        optimizer: A ``torch.optim.Optimizer`` (or a wrapper of one): a hook notes the weights
            before a step that will be measured. Without one, call :meth:`before_step` yourself.
        track: The quantities, or ``"economy"``, ``"standard"`` or ``"full"``.
        budget: The part of the training's time that may be used; the default is the preset's, or
            0.05. ``monitor.price`` says what measurements cost.
        every: Measure everything at each step that this number divides, instead of a budget.
        log: A folder for JSON lines (``monitor.jsonl``), a ``SummaryWriter``, a function of
            ``(dict, step)``, or a list of these.
        on_event: Is called with each :class:`Event`.
        pairs: How many eigenpairs ``"top"`` follows at least; those above 3/4 of the limit are
            followed as well.
        tol: The residual of an eigenpair, relative to the largest eigenvalue.
        mode: ``"train"``: batch norm uses the statistics of the probe's batches, as in training
            steps; or ``"eval"``.
        clock: The time in seconds.
        generator: The source of all that is random here.

    Constructing it measures everything once, before the training begins, which gives the price.

    >>> from torch.nn.functional import mse_loss
    >>> model = nn.Linear(2, 1, bias=False)
    >>> X, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
    >>> opt = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> g = torch.Generator().manual_seed(0)
    >>> how = {"loss": "mse", "optimizer": opt, "track": ("top",), "every": 1}
    >>> monitor = Monitor(model, (X, y), **how, generator=g)
    >>> for _ in range(2):
    ...     mse_loss(model(X), y).backward(); opt.step(); opt.zero_grad()
    ...     record = monitor.step()
    >>> {name: round(record.values[name], 4) for name in ("top/hessian", "top/threshold")}
    {'top/hessian': 4.0, 'top/threshold': 4.0}
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Any,
        *,
        loss: str | nn.Module | Callable[..., Tensor] | Loss = "cross_entropy",
        generator: torch.Generator,
        optimizer: Any = None,
        track: str | Sequence[str] = "standard",
        budget: float | None = None,
        every: int | None = None,
        log: PathLike | Sink | Sequence[Any] | Any = None,
        on_event: Callable[[Event], object] | None = None,
        pairs: int = 1,
        tol: float = 3e-3,
        max_products: int = 40,
        mode: str = "train",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.track, share = _tracked(track, budget)
        self._every = None if every is None else _checks.positive_int("Monitor", "every", every)
        pairs = _checks.positive_int("Monitor", "pairs", pairs)
        tol = _checks.finite_float("Monitor", "tol", tol, 0.0)
        max_products = _checks.positive_int("Monitor", "max_products", max_products)
        _checks.one_of("Monitor", "mode", mode, ("eval", "train"))
        self._generator = _checks.generator("Monitor", generator)
        self._settings = Settings(pairs, tol, max_products, self._generator)
        self._model, self._clock, self._on_event = model, clock, on_event
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        with _state.without_autocast(self._device):
            self._probe = Probe(model, probe, loss, mode)
        named = dict(model.named_parameters())
        self._parameters = [named[name] for name in self._probe.names]
        self._optimizer = unwrapped(optimizer)
        self._check_optimizer(optimizer)
        self._needs_gradients = optimizer is not None and name_of(self._optimizer) in NEED_BEFORE
        self._budget = Budget(share, self.track)
        self._alarms = Alarms()
        self._vectors: dict[str, Tensor] = {}
        self._before: Before | None = None
        self._chosen: list[str] | None = None  # what is due at the coming step
        self._number = self._count = 0  # what the last step is called, and how many there were
        self._own = self._elapsed = 0.0
        self._paid = 0.0  # for measurements, of the own time since the last step
        self._noted = False  # whether the weights before a step were ever noted
        self._last: float | None = None  # when the monitor last gave the time back
        self.setup_seconds = 0.0
        self.events: list[Event] = []
        self._header = self._describe(share, every, pairs, tol, mode)
        self._sinks, self._file = self._places(log)
        self._first: Record | None = self._trial()
        self._hook = self._watch(optimizer)

    # A step -------------------------------------------------------------------------------------

    def before_step(self) -> None:
        """Just before the optimizer's step; the hook of a given ``optimizer`` calls it."""
        start = self._take()
        self._chosen, self._before, self._noted = self._due(), None, True
        if self._chosen:
            self._note(self._chosen)
        self._give_back(start)

    def _note(self, due: Sequence[str]) -> None:
        """Keep what the step will change and a measurement needs."""
        whole = "top" in due and self._needs_gradients
        if whole or any(name in NEED_STEP for name in due):
            weights = {id(p): p.detach().clone() for p in self._parameters}
            slopes = [(id(p), p.grad) for p in self._parameters if whole and p.grad is not None]
            self._before = Before(weights, {key: g.detach().clone() for key, g in slopes})

    def step(
        self, number: int | None = None, *, loss: float | Tensor | None = None
    ) -> Record | None:
        """After the optimizer's step: measures what is due, and returns it.

        Args:
            number: The number of the step; by default one more than the last.
            loss: The training loss of the step, looked at for numbers that are not finite and for
                jumps; a tensor on a GPU is waited for.
        """
        start = self._take()
        due = self._due() if self._chosen is None else self._chosen
        self._number = self._number + 1 if number is None else number
        self._count += 1
        record, events = None, self._begin() if self._first is not None else []
        if loss is not None:
            loss = loss.detach() if isinstance(loss, Tensor) else loss
            events += self._alarms.train_loss(self._number, float(loss))
        if self._before is None and due:
            due = [name for name in due if name not in NEED_STEP]
        if due:
            record, rung = self._look(due)
            events += rung
        self._chosen = self._before = None
        if record is not None or events:
            self._write(record, events)
            self.events += events
        self._give_back(start)
        for event in events:
            if self._on_event is not None:
                self._on_event(event)
        return record

    def _due(self) -> list[str]:
        """What to measure after the coming step."""
        if self._every is not None:
            return list(self.track) if (self._count + 1) % self._every == 0 else []
        return self._budget.due()

    def _look(self, due: Sequence[str]) -> tuple[Record, list[Event]]:
        values, seconds, found = self._measure(due)
        self._budget.pay(seconds)
        self._paid += sum(seconds.values())
        values["share"] = self.share
        unit = None if found is None else found.threshold * found.rate
        events = self._alarms.look(self._number, values, unit)
        return Record(self._number, self._elapsed, values), events

    def _take(self) -> float:
        """Own time begins, and what lies behind was the training's."""
        start = self._clock()
        if self._last is not None:
            self._elapsed += start - self._last
            self._budget.earn(start - self._last)
        return start

    def _give_back(self, start: float) -> None:
        self._last = self._clock()
        self._own += self._last - start
        self._budget.spend(self._last - start - self._paid)
        self._paid = 0.0

    @property
    def share(self) -> float:
        """The monitor's time so far, as a part of the training's time without it."""
        return self._own / self._elapsed if self._elapsed > 0 else 0.0

    @property
    def price(self) -> Price:
        """What each quantity costs: ``print(monitor.price)``."""
        return price_of(self._budget, self._gradient_seconds)

    # Measuring ----------------------------------------------------------------------------------

    def _measure(
        self, due: Sequence[str], step: Tensor | None = None
    ) -> tuple[Values, dict[str, float], Limits | None]:
        """The values of what is due, the seconds that each took, and the optimizer's limits."""
        start = self._now()
        if not all(_checks.finite(p.detach()) for p in self._parameters):
            return {"loss": math.nan}, {}, None
        with (
            torch.enable_grad(),
            _state.without_autocast(self._device),
            global_generators_kept(),
        ):
            if step is None and self._before is not None:
                step = self._step_made(self._before)
            needs = "top" in due
            found = self._limits() if needs else None
            look = Look(
                self._probe.problem(), self._probe.batches, self._settings, many=needs, step=step,
                limits=found, vectors=self._vectors,
            )  # fmt: skip
            loss_and_gradient(look, slope="directional" in due)
            values: Values = {"loss": look.loss}
            if not math.isfinite(look.loss):
                return values, {}, found
            now = self._now()
            common, seconds = (now - start) / len(due), {}
            for name in sorted(due, key=lambda each: each != "top"):  # it has most to share
                values |= QUANTITIES[name](look)
                start, now = now, self._now()
                seconds[name] = values[f"{name}/seconds"] = now - start + common
            look.release()
        return values, seconds, found

    def _limits(self) -> Limits | None:
        return stability_limits(self._optimizer, self._parameters, self._before)

    def _step_made(self, before: Before) -> Tensor:
        moves = [p.detach() - before.weights[id(p)] for p in self._parameters]
        return torch.cat([move.reshape(-1) for move in moves])

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._clock()

    def _trial(self) -> Record:
        """Everything before the training, for the prices; twice, as the first one warms up."""
        start = self._now()
        step = torch.cat([p.detach().reshape(-1) for p in self._parameters]) * 1e-3
        for _ in range(2):
            values, seconds, found = self._measure(self.track, step)
        if not seconds:
            rule = "the loss on the `probe`, or a weight, is not finite"
            raise CurvescopeError("Monitor(model)", rule)
        if "top" in seconds and found is None and scales_coordinates(self._optimizer):
            seconds["top"] *= 2  # after the first step there will be two matrices
        self._budget = Budget(self._budget.share, self.track, seconds)
        begin = self._now()
        with torch.enable_grad(), _state.without_autocast(self._device):
            loss_and_gradient(
                Look(self._probe.problem(), self._probe.batches, self._settings, many=False),
                slope=True,
            )
        self._gradient_seconds = self._now() - begin
        self.setup_seconds = self._now() - start
        made = {n: v for n, v in values.items() if n.partition("/")[0] not in NEED_STEP}
        return Record(0, 0.0, made)

    # The log ------------------------------------------------------------------------------------

    def _begin(self) -> list[Event]:
        """At the first step: the header, and what was measured before it."""
        if not self._noted and any(name in NEED_STEP for name in self.track):
            rule = "`track` has quantities of a step, but nothing has noted the weights before it"
            remedy = "give the `optimizer`, or call before_step() before each of its steps"
            raise CurvescopeError("Monitor", rule, remedy=remedy)
        first, self._first = self._first, None
        assert first is not None, "called once"
        if self._file is not None:
            self._file.begin()
        self._write(first, [])
        return self._alarms.look(0, first.values, None)

    def _write(self, record: Record | None, events: Sequence[Event]) -> None:
        if self._file is not None:
            self._file.write([*([] if record is None else [record]), *events])
        for sink in self._sinks:
            if record is not None:
                sink(dict(record.values), record.step)
            for event in events:
                sink({f"event/{event.kind.replace(' ', '_')}": event.value}, event.step)

    def _places(self, log: Any) -> tuple[list[Sink], FileLog | None]:
        given = [] if log is None else list(log) if isinstance(log, list | tuple) else [log]
        folders = [each for each in given if isinstance(each, str) or hasattr(each, "__fspath__")]
        if len(folders) > 1:
            raise CurvescopeError("Monitor(log)", "takes one folder", given=len(folders))
        file = FileLog(folders[0], self._header) if folders else None
        return [sink_of(each) for each in given if each not in folders], file

    def _describe(
        self, share: float, every: int | None, pairs: int, tol: float, mode: str
    ) -> Header:
        shapes = [tuple(p.shape) for p in self._parameters]
        identity = digest(
            "monitor", self._probe.names, shapes, self._probe.identity, self._probe.loss,
            self.track, mode,
        )  # fmt: skip
        settings = {
            "model": type(self._model).__name__,
            "variables": sum(p.numel() for p in self._parameters),
            "loss": self._probe.loss.name,
            "samples": self._probe.samples,
            "optimizer": None if self._optimizer is None else type(self._optimizer).__name__,
            "track": list(self.track),
            "budget": share,
            "every": every,
            "pairs": pairs,
            "tol": tol,
            "mode": mode,
        }
        return Header(identity, metadata.version("curvescope"), settings)

    # Hooks and states -----------------------------------------------------------------------------

    def _check_optimizer(self, optimizer: Any) -> None:
        if optimizer is None:
            return
        groups = getattr(optimizer, "param_groups", None)
        if groups is None:
            rule = "needs an optimizer with parameter groups"
            raise CurvescopeError("Monitor(optimizer)", rule, given=type(optimizer).__name__)
        mine = {id(p) for p in self._parameters}
        if not any(id(p) in mine for group in groups for p in group["params"]):
            rule = "none of its parameters is a parameter of the model"
            remedy = "give the optimizer of this model, made after the model was moved"
            raise CurvescopeError("Monitor(optimizer)", rule, remedy=remedy)

    def _watch(self, optimizer: Any) -> Any:
        inner = unwrapped(optimizer)
        register = getattr(inner, "register_step_pre_hook", None)
        if register is None:
            return None
        me = weakref.ref(self)  # the optimizer does not keep the monitor alive

        def before(*_: Any) -> None:
            monitor = me()
            if monitor is not None:
                monitor.before_step()

        return register(before)

    def close(self) -> None:
        """Take the hook off the optimizer."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def state_dict(self) -> dict[str, Any]:
        """All that goes on with the training: tensors, numbers and texts, for its checkpoint."""
        return {
            "format": 1,
            "identity": self._header.identity,
            "step": self._number,
            "count": self._count,
            "elapsed": self._elapsed,
            "own": self._own,
            "budget": self._budget.state(),
            "alarms": self._alarms.state(),
            "vectors": {name: v.detach().clone() for name, v in self._vectors.items()},
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; later lines of the log are cut.

        Raises:
            CurvescopeError: If the state belongs to another monitor.
        """
        if state.get("format") != 1 or state.get("identity") != self._header.identity:
            rule = "the state is that of a monitor with another model, probe, loss or track"
            raise CurvescopeError("Monitor.load_state_dict", rule)
        if self._file is not None:
            self._file.resume(int(state["step"]))
        self._first = None
        self._number, self._count, self._last = int(state["step"]), int(state["count"]), None
        self._elapsed, self._own = float(state["elapsed"]), float(state["own"])
        self._budget.load(state["budget"])
        self._alarms.load(state["alarms"])
        self._vectors = {name: v.to(self._device) for name, v in state["vectors"].items()}
        self._generator.set_state(state["generator"].cpu())


def _tracked(track: str | Sequence[str], budget: float | None) -> tuple[tuple[str, ...], float]:
    """The quantities in their order, and the budget."""
    share = 0.05
    if isinstance(track, str):
        _checks.one_of("Monitor", "track", track, PRESETS)
        track, share = PRESETS[track]
    for name in track:
        _checks.one_of("Monitor", "track", name, QUANTITIES)
    if not track:
        raise CurvescopeError("Monitor", "`track` must name a quantity")
    if budget is not None:
        share = _checks.finite_float("Monitor", "budget", budget, 0.0)
    return ordered(track, QUANTITIES), share
