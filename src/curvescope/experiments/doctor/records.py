"""What the doctor says: plain dataclasses, saved and shown like any other result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from curvescope._numbers import short
from curvescope.record.memory import readable

MATRICES = ("H", "G")


@dataclass(frozen=True)
class ModuleNote:
    """A module of the model: whether its operations are recorded, and its derivatives.

    ``closed_form`` says for which matrices the block of its weight is multiplied in closed form;
    where for none, ``why_not`` has the reason if there is one to give.
    """

    name: str
    kind: str
    parameters: int  # of its own, without those of its children
    called: bool
    recorded: bool
    twice: bool
    problem: str  # why it is not recorded, or has no second derivative
    closed_form: tuple[str, ...]
    why_not: str


@dataclass(frozen=True)
class AttentionNote:
    """Calls of ``scaled_dot_product_attention`` in a forward pass, and how they are computed.

    ``blockwise`` of them are computed in blocks of queries, by curvescope's own derivatives; the
    others take torch's unfused path, whose matrices ``T × T`` of one batch take ``scores`` bytes.
    """

    calls: int
    blockwise: int
    longest: int  # T
    scores: int

    @property
    def how(self) -> str:
        """How they are computed, in words."""
        unfused = self.calls - self.blockwise
        if not unfused:
            return "in blocks of queries, without the matrix of all scores"
        scores = f"torch's unfused path, whose scores take {readable(self.scores)} of a batch"
        return scores if not self.blockwise else f"{unfused} of them by {scores}"


@dataclass(frozen=True)
class Question:
    """One check: what was looked at, the answer, and whether the analysis can go on."""

    what: str
    answer: str
    ok: bool


@dataclass(frozen=True)
class Product:
    """The cost of a product with one matrix over all data, scaled up from some batches.

    ``one`` and ``block`` are the seconds of a product with one column and with ``columns``;
    ``filling`` those of keeping the linearized batches, before the first product. ``peak_one`` and
    ``peak_block`` are bytes at the peak without model and data, ``held`` those between products.
    """

    matrix: str
    strategy: str
    columns: int
    one: float
    block: float
    filling: float
    held: int
    peak_one: int
    peak_block: int


@dataclass(frozen=True)
class Measured:
    """What passes and products take: seconds over all data, and bytes at the peak."""

    samples: int
    batches: int
    forward: float
    gradient: float
    gradient_peak: int
    products: tuple[Product, ...]

    def product(self, matrix: str, *, kept: bool) -> Product | None:
        """The product of a matrix, kept or streamed; None where it was not measured."""
        for product in self.products:
            if product.matrix == matrix and product.strategy.startswith("kept") == kept:
                return product
        return None


@dataclass(frozen=True)
class Forecast:
    """What a piece of work will take on this machine, or why it cannot be done."""

    what: str
    seconds: float | None
    bytes: int | None  # at the peak, besides the process as it is now
    steps: tuple[tuple[str, float], ...]  # what the time consists of
    because: str = ""  # why there is no estimate

    def __str__(self) -> str:
        if self.seconds is None or self.bytes is None:
            return f"{self.what}: {self.because}"
        return f"{self.what}: about {duration(self.seconds)}, {readable(self.bytes)}"


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`curvescope.doctor` found out about a problem, on this machine.

    ``refusal`` is the one sentence that says why the problem cannot be analyzed; empty where it
    can. ``advice`` is the call, or the command, that fits. ``print(diagnosis)`` shows all of it.
    """

    FORMAT: ClassVar[int] = 1

    model: str
    parameters: int
    variables: int
    dtype: str
    device: str
    threads: int
    free: int
    loss: str
    questions: tuple[Question, ...]
    attention: AttentionNote | None
    tied: tuple[tuple[str, ...], ...]
    frozen: tuple[str, ...]
    modules: tuple[ModuleNote, ...]
    measured: Measured | None
    forecasts: tuple[Forecast, ...]
    refusal: str
    advice: str

    @property
    def ok(self) -> bool:
        """Whether the problem can be analyzed."""
        return not self.refusal

    def forecast(self, what: str) -> Forecast:
        """The forecast of ``"density"``, ``"analysis"`` or ``"certificate"``."""
        return next(each for each in self.forecasts if each.what == what)

    def __str__(self) -> str:
        return "\n".join(lines(self))


def lines(diagnosis: Diagnosis) -> list[str]:
    """The diagnosis as text, a line for each fact."""
    d = diagnosis
    text = [
        f"{d.model}: {d.variables:,} of {d.parameters:,} parameters vary, {d.dtype} on {d.device} "
        f"({d.threads} threads, {readable(d.free)} free)"
    ]
    text += [f"{'  ok' if q.ok else 'STOP'}  {q.what}: {q.answer}" for q in d.questions]
    if (m := d.measured) is not None:
        text.append(
            f"a gradient takes {duration(m.gradient)} over {m.samples:,} samples in {m.batches} "
            f"batches, {readable(m.gradient_peak)}"
        )
        text += [_product(product, m.gradient) for product in m.products]
    text += [str(forecast) for forecast in d.forecasts]
    text.append(d.refusal or d.advice)
    return text


def _product(product: Product, gradient: float) -> str:
    holds = f", holds {readable(product.held)}" if product.held else ""
    return (
        f"{product.matrix}·v, {product.strategy}: {duration(product.one)} "
        f"({short(product.one / gradient)} gradients), {readable(product.peak_one)}{holds}; "
        f"{product.columns} columns: {duration(product.block)}, {readable(product.peak_block)}"
    )


def duration(seconds: float) -> str:
    """A time as one says it.

    >>> duration(0.0123), duration(8.04), duration(75), duration(5400), duration(172800)
    ('12 ms', '8.0 s', '75 s', '90 min', '48 h')
    """
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
