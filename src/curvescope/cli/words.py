"""The library's errors in the words of a command: options and files, not functions and arguments.

The sentence is made anew from the parts of the error. An argument that the library mentions becomes
the option of the same name, if the command has one; few have another name there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curvescope.errors import MENTION, CurvescopeError, sentence

# Arguments whose option has another name: everywhere, or as arguments of one function.
_OPTIONS = {
    "Confidence(draws)": "draw_delta",
    "Confidence(sample)": "delta",
    "TraceRegularizer(kind)": "trace_of",
    "TraceRegularizer(weight)": "trace_weight",
    "dataset(seed)": "data_seed",
    "confidence.draws": "draw_delta",
    "confidence.sample": "delta",
    "data.options.seed": "data_seed",
    "folder": "out",
    "initial_state": "initial",
    "overwrite": "again",
    "posterior_method(name)": "method",
}
_WORDS = {"model": "the model", "data": "the data"}  # wherever they come from
_KINDS = {"dataset": "data set ", "network": "network "}  # what has this name; else it is a file
_QUOTES = "'\""
_VERBS = ("must", "needs", "is", "has", "holds", "does", "cannot", "was", "brings")


class Words:
    """The words of one command.

    >>> import typer
    >>> def train(lr: float = 0.1, optimizer: str = "", average_from: int = 0) -> None: ...
    >>> app = typer.Typer()
    >>> words = Words(typer.main.get_command(app.command()(train) and app))
    >>> words.about(CurvescopeError("Recipe", "`lr` must be at least 0", given=-1))
    '--lr must be at least 0, got -1'
    >>> words.about(CurvescopeError("Recipe", "`optimizer='gadam'` needs `average_from`"))
    '--optimizer gadam needs --average-from'
    >>> words.about(CurvescopeError("certify(model)", "needs a tensor"))
    'the model needs a tensor'
    """

    def __init__(self, command: Any) -> None:
        self._name: str = command.name or ""
        self._options: dict[str, str] = {}
        self._flags: set[str] = set()
        for parameter in command.params:
            long = [name for name in parameter.opts if name.startswith("--")]
            self._options[parameter.name] = long[0] if long else parameter.metavar
            if getattr(parameter, "is_flag", False):
                self._flags.add(parameter.name)

    def about(self, error: CurvescopeError) -> str:
        """The whole sentence."""
        place, rest = self._place(error.where), self.after_where(error)
        verb = rest.partition(" ")[0] in _VERBS
        function = error.where.partition("(")[0]
        if not place:
            return f"{function}: {rest}" if verb else rest
        if rest.startswith("--") and (place[0] not in f"-{_QUOTES}" or rest.startswith(place)):
            return rest
        return f"{place} {rest}" if verb and place[0] not in _QUOTES else f"{place}: {rest}"

    def after_where(self, error: CurvescopeError) -> str:
        """The sentence without its place, for a reader who has that already."""
        function = error.where.partition("(")[0]
        remedy = error.remedy if error.remedy_cli is None else error.remedy_cli
        said = self._said(function, error.rule), self._said(function, remedy or "")
        return sentence(said[0], error.given, said[1])

    def _place(self, where: str) -> str:
        """The place in the user's words: an option or a file instead of a function's argument."""
        function, _, inside = where.partition("(")
        inside = inside.removesuffix(")")
        if not function.replace(".", "").isidentifier():
            return where  # a path, or words of the command line
        if inside[:1] and inside[0] in _QUOTES:
            kind = _KINDS.get(function, "")
            option = self._options.get("data") if function == "dataset" else None
            return f"{option} {inside}" if option else f"{kind}{inside}"
        name = inside.partition("=")[0]
        ours = name == "problem" or not name.isidentifier()  # nothing that somebody typed
        return "" if ours else self._argument(function, inside)

    def _said(self, function: str, text: str) -> str:
        return MENTION.sub(lambda mention: self._argument(function, mention[1]), text)

    def _argument(self, function: str, mention: str) -> str:
        """The option that sets an argument, or the argument where this command has none."""
        name, equals, value = mention.partition("=")
        if name in _WORDS and not equals:
            return _WORDS[name]
        of_this_function = _OPTIONS.get(f"{function}({name})")
        target = of_this_function or _OPTIONS.get(name) or name.rpartition(".")[2]
        if target not in self._options or (target in self._flags) != (value == "True"):
            return mention
        option = self._options[target]
        return f"{option} {value.strip(_QUOTES)}" if equals and value != "True" else option


def words_of(group: Any, arguments: list[str]) -> Words:
    """The words of the command that a command line names."""
    for word in arguments:
        inside: Mapping[str, Any] = getattr(group, "commands", {})
        if word not in inside:
            break
        group = inside[word]
    return Words(group)
