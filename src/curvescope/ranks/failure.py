"""What a rank is told when another one cannot go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from curvescope.errors import CurvescopeError


class RankError(CurvescopeError):
    """Another rank raised, ended or did not come in time: the computation is over on all ranks.

    Attributes:
        rank: The rank at fault, None where it cannot be known.
    """

    def __init__(self, where: str, rule: str, *, rank: int | None, remedy: str | None) -> None:
        super().__init__(where, rule, remedy=remedy)
        self.rank = rank


def sentence_of(error: BaseException) -> str:
    """An error as the other ranks are told of it, on one line."""
    if isinstance(error, KeyboardInterrupt) or getattr(error, "interrupted", False):
        return "was interrupted"
    text = str(error)
    if not isinstance(error, CurvescopeError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return " ".join(text.split())[:4000]


def raised(rank: int, size: int, sentence: str) -> RankError:
    """A rank has said why it cannot go on."""
    return RankError(f"rank {rank} of {size}", sentence, rank=rank, remedy=None)


def ended(ranks: Sequence[int], size: int) -> RankError:
    """Processes are no longer there and have said nothing."""
    names = ", ".join(map(str, ranks))
    where = f"rank {names} of {size}" if len(ranks) == 1 else f"ranks {names} of {size}"
    rule = "has ended without a word" if len(ranks) == 1 else "have ended without a word"
    remedy = "look whether it was killed or ran out of memory, and start all ranks again"
    return RankError(where, rule, rank=ranks[0], remedy=remedy)


def lost(size: int, detail: str) -> RankError:
    """A collective failed although all ranks seem to be there."""
    rule = f"a collective failed ({' '.join(detail.split())[:300]})"
    return RankError(f"the group of {size} ranks", rule, rank=None, remedy=None)


def late(size: int, limit: float) -> RankError:
    """Nothing came within the time limit, from processes that are still there."""
    rule = f"a collective took longer than the limit of {limit:g} s"
    remedy = "see that all ranks call the same things in the same order, or raise `limit`"
    return RankError(f"the group of {size} ranks", rule, rank=None, remedy=remedy)


def parts(error: RankError) -> dict[str, Any]:
    """An error as plain data, for ranks that have not noticed yet."""
    return {"where": error.where, "rule": error.rule, "of": error.rank, "remedy": error.remedy}


def relayed(message: dict[str, Any]) -> RankError:
    """The error that another rank has met."""
    where, rule, remedy = message["where"], message["rule"], message["remedy"]
    return RankError(where, rule, rank=message["of"], remedy=remedy)
