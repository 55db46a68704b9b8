"""The differences of two configurations, in words for the rule of an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from curvescope.errors import mention

_MOST = 6
"""Differences that a sentence can hold."""
_DIGEST = re.compile(r"#?\b[0-9a-f]{32,64}\b")


def differences(
    there: Any, here: Any, words: Mapping[str, str] | None = None, name: str = ""
) -> list[str]:
    """The differences of two configurations in words; of two digests, only that they differ.

    Args:
        there: Plain JSON.
        here: Plain JSON.
        words: Texts for some places, which may contain ``{there}`` and ``{here}``.
        name: The place of both in something larger.

    >>> differences({"lr": 0.1, "data": {"n": 5}}, {"lr": 0.2, "data": {"n": 5}})
    ['`lr` is 0.1 there and 0.2 here']
    >>> differences({"data": {"digest": "0" * 64}}, {"data": {"digest": "1" * 64}})
    ['`data.digest` is another one']
    >>> differences({"test": None}, {"test": "0123456789ab" + "0" * 52})
    ["`test` is None there and '0123456789ab…' here"]
    """
    if isinstance(there, dict) and isinstance(here, dict):
        return [
            line
            for key in dict.fromkeys([*there, *here])
            for line in differences(
                there.get(key), here.get(key), words, f"{name}.{key}".lstrip(".")
            )
        ]
    if there == here:
        return []
    digests = all(isinstance(x, str) and _DIGEST.fullmatch(x) for x in (there, here))
    if words and name in words:
        return [words[name].format(there=there, here=here)]
    if digests:
        return [f"{mention(name)} is another one"]
    return [f"{mention(name)} is {_shown(there)} there and {_shown(here)} here"]


def _shown(value: Any) -> str:
    """A value as Python writes it, the digests in it cut short."""
    return _DIGEST.sub(lambda digest: f"{digest[0][:12]}…", repr(value))


def in_words(different: list[str]) -> str:
    """As many differences as a sentence can hold.

    >>> in_words(list("abcdefgh"))
    'a; b; c; d; e; f; and 2 more'
    """
    more = f"; and {len(different) - _MOST} more" if len(different) > _MOST else ""
    return "; ".join(different[:_MOST]) + more
