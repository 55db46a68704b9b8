"""What an entry of the catalog is, what it is given, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from curvescope import io
from curvescope._checks import AnyFloat
from curvescope.figures.model import Picture
from curvescope.identity import digest

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """Where and how large an entry is run.

    ``smoke`` takes seconds on a laptop with the data inside the package, ``small`` minutes on a CPU
    with real data, ``paper`` has the paper's network and wants a GPU; ``Entry.reduced`` says what
    is smaller than the paper's all the same.
    """

    scale: Scale
    work: Path  # trained networks and finished parts; a second call goes on from there
    root: Path | None = None  # the folder with the data files
    device: str = "cpu"
    seed: int = 0
    tell: Callable[[str], None] = lambda text: None  # one line about what happens now

    @property
    def identity(self) -> str:
        """What decides numbers; not where they are kept or computed, and what is told."""
        return digest("settings", self.scale, self.seed)

    def pick(self, *, smoke: T, small: T, paper: T) -> T:
        """The value for this scale.

        >>> Settings("small", Path()).pick(smoke=1, small=20, paper=1000)
        20
        """
        return {"smoke": smoke, "small": small, "paper": paper}[self.scale]

    def generator(self, stream: int = 0) -> torch.Generator:
        """A generator of its own for each ``stream``, on the CPU."""
        return torch.Generator().manual_seed(1_000_003 * stream + self.seed)

    def once(self, key: str, compute: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """The tensors of ``compute()``, from ``work`` when they were computed before.

        They are recognized by all that ``compute`` is made of: its code and that of the studies
        that it calls, and the values that it captures, networks and data among them. What has
        changed is computed anew, beside the old. ``key`` is a name for readers.
        """
        name = f"{key}-{self.scale}-seed{self.seed}-{digest(compute)[:16]}"
        file = self.work / f"{name}.safetensors"
        if file.is_file():
            tensors, _ = io.read_tensors(file)
            return {name: tensor.to(self.device) for name, tensor in tensors.items()}
        tensors = {name: tensor.contiguous() for name, tensor in compute().items()}
        io.make_folder(file.parent)
        io.write_tensors(file, {name: tensor.cpu() for name, tensor in tensors.items()})
        return tensors


@dataclass(frozen=True)
class Row:
    """One number of the paper beside ours.

    >>> Row("λ₁/λ₂", 12.9, paper=12.29, low=9.65, high=16.16).agrees
    True
    """

    what: str
    ours: AnyFloat
    paper: AnyFloat | None = None
    low: AnyFloat | None = None  # the paper's own range, where it prints one or the text implies it
    high: AnyFloat | None = None
    note: str = ""

    @property
    def agrees(self) -> bool | None:
        """Whether ours is inside the paper's range; None where there is no range."""
        if self.low is None and self.high is None:
            return None
        above = self.low is None or self.ours >= self.low
        return above and (self.high is None or self.ours <= self.high)


@dataclass(frozen=True)
class Outcome:
    """What an entry found: numbers beside the paper's, pictures, and what is to be said of them."""

    rows: tuple[Row, ...]
    pictures: tuple[Picture, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)  # everything else, as plain JSON
    notes: tuple[str, ...] = ()  # what differs from the paper, and why
    checks: tuple[Row, ...] = ()  # the paper's sentences as criteria; see ``Entry.checks``

    @property
    def judged(self) -> tuple[Row, ...]:
        """Rows and checks that have a range to meet."""
        return tuple(row for row in (*self.rows, *self.checks) if row.agrees is not None)

    def values(self, start: str) -> list[float]:
        """Ours of all rows whose name starts like this, in their order.

        >>> Outcome((Row("λ, decay 0", 1.0), Row("λ, decay 1", 2.0), Row("w", 3.0))).values("λ, ")
        [1.0, 2.0]
        """
        return [row.ours for row in self.rows if row.what.startswith(start)]


def no_checks(outcome: Outcome) -> Iterable[Row]:
    """For entries whose rows are judged as they are."""
    return ()


@dataclass(frozen=True)
class Entry:
    """A figure or table of a paper that can be computed.

    ``smoke`` must run everywhere with the embedded data; an entry whose ``scales`` lack ``paper``
    says why in ``shows``. ``checks`` puts sentences of the paper into criteria (an order, a sign, a
    bound) that the rows and numbers of an outcome meet or miss. It sees the outcome alone, so that
    it is also applied to outcomes that were written before it was.
    """

    name: str  # "dissecting-hessian/overlap": the folder under reproductions/
    source: str  # "DH fig. 2, 4, 24; table 6"
    shows: str  # what one should see, in one or two sentences
    cost: Mapping[Scale, str]  # what each scale needs and takes: {"smoke": "4 s, embedded digits"}
    run: Callable[[Settings], Outcome]
    subject: Mapping[Scale, str] = field(default_factory=dict)  # network and data; a title
    reduced: Mapping[Scale, str] = field(default_factory=dict)  # what is smaller than the paper's
    checks: Callable[[Outcome], Iterable[Row]] = no_checks

    @property
    def scales(self) -> tuple[Scale, ...]:
        """The scales at which it can be run."""
        return tuple(scale for scale in SCALES if scale in self.cost)
