"""Functions of torch that are replaced while a batch is recorded by what has derivatives for us."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from curvescope._state import watching
from curvescope.record.recurrent.calls import TakenApart
from curvescope.record.rules.attention import Fused


@contextmanager
def replaced() -> Iterator[None]:
    """Fused attention becomes one operator, fused recurrent layers become many."""
    with watching(Fused()), watching(TakenApart()):
        yield
