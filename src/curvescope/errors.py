"""The errors of the library: what is wrong, in parts that make up one sentence.

Misuse of the library raises :class:`CurvescopeError` (a ``ValueError``), so that a caller can tell
it from a bug. ``str(error)`` words it for the author of a call; the command line words the same
parts for the user of a command.
"""

from __future__ import annotations

import re

# `name` or `name=value`, not within a word or a quoted text that somebody gave.
MENTION = re.compile(r"(?<![\w'\"`])`([A-Za-z_][\w.]*(?:=[^`]*)?)`(?![\w'\"`])")


class CurvescopeError(ValueError):
    """The input breaks a stated rule; the message says which one and what to do.

    Args:
        where: The place of the error: a function, ``"train"``, with the argument at fault,
            ``"certify(slack)"``, or with its value, ``"network('F-0')"``; or a path, ``"'a'"``.
        rule: The condition that must hold there, or the defect. It mentions arguments in
            backticks, with or without a value: the command line names the option instead.
        given: The value that breaks the rule.
        remedy: The advice; it mentions arguments in the same way.
        remedy_cli: The advice at the command line, if that is another one.

    >>> error = CurvescopeError("Recipe", "`lr` must be at least 0", given=-1, remedy="use 0.1")
    >>> str(error)
    'Recipe: lr must be at least 0, got -1; use 0.1'
    """

    def __init__(
        self,
        where: str,
        rule: str,
        *,
        given: object = None,
        remedy: str | None = None,
        remedy_cli: str | None = None,
    ) -> None:
        super().__init__(where, rule)
        self.where = where
        self.rule = rule
        self.given = None if given is None else str(given)
        self.remedy = remedy
        self.remedy_cli = remedy_cli

    def __str__(self) -> str:
        return f"{self.where}: {self.after_where()}"

    def after_where(self) -> str:
        """The sentence without its place, for a reader who has that already."""
        return sentence(plain(self.rule), self.given, plain(self.remedy or ""))


class ModelError(CurvescopeError):
    """The model cannot be differentiated; the message names the module or the operation."""


class Inapplicable(CurvescopeError):
    """A method does not apply to this model, loss or data: it never will."""


class MemoryLimitError(CurvescopeError):
    """The work does not fit into the memory that is free; it may fit later, or elsewhere."""


def sentence(rule: str, given: str | None, remedy: str) -> str:
    """The rule, what was given and the remedy, without the parts that are None or empty."""
    return rule + ("" if given is None else f", got {given}") + (f"; {remedy}" if remedy else "")


def mention(name: str) -> str:
    """The name of an argument or setting as a rule or remedy mentions it.

    >>> mention("recipe.lr"), mention("class 3")
    ('`recipe.lr`', 'class 3')
    """
    mentioned = f"`{name}`"
    return mentioned if MENTION.fullmatch(mentioned) else name


def plain(text: str) -> str:
    """A text with its mentions of arguments as they stand in Python.

    >>> plain("`schedule='averaging'` needs `average_from`")
    "schedule='averaging' needs average_from"
    """
    return MENTION.sub(r"\1", text)
