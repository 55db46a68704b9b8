"""The classes of an analysis: outputs, such as the tokens of a vocabulary, in a few groups."""

from __future__ import annotations

from typing import Any

from curvescope.errors import CurvescopeError
from curvescope.experiments.configuration import ClassesNote
from curvescope.identity import digest
from curvescope.problem import Problem
from curvescope.problem.losses import Groups
from curvescope.structure.grouping import frequent_classes

_NAMED = 12
"""Labels that are listed."""


def class_groups(
    problem: Problem, classes: Any, outputs: int
) -> tuple[Groups, ClassesNote] | tuple[None, None]:
    """What ``classes`` of :func:`curvescope.experiments.analyze.analyze` stands for.

    Args:
        problem: The problem.
        classes: True or False for no groups; a number k for the k most frequent labels and one
            class of all others; a class for each output, a map from outputs to classes, or a
            function of the output that gives its class. What a map leaves out, and what the
            function gives None for, is one more class.
        outputs: Of the network, for a sample or a position.

    >>> import torch
    >>> X, y = torch.ones(6, 1), torch.tensor([3, 1, 3, 3, 0, 1])
    >>> problem = Problem(torch.nn.Linear(1, 5), (X, y))
    >>> class_groups(problem, 2, 5)[1].words
    'the 2 most frequent labels (3, 1), and all others'
    >>> class_groups(problem, lambda token: token % 2, 5)[0].classes
    (0, 1, 0, 1, 0)
    """
    if classes is None or isinstance(classes, bool):
        return None, None
    if not problem.loss.has_classes:
        rule = f"the loss {problem.loss.name} has no classes"
        raise CurvescopeError("analyze(classes)", rule, remedy="leave `classes` out")
    if isinstance(classes, int):
        groups = Groups.of(frequent_classes(problem, classes), outputs, "analyze(classes)")
        first = [groups.classes.index(c) for c in range(min(classes, _NAMED))]
        more = ", …" if classes > _NAMED else ""
        labels = f"{', '.join(map(str, first))}{more}"
        words = f"the {classes} most frequent labels ({labels}), and all others"
    else:
        if callable(classes):
            named = {output: classes(output) for output in range(outputs)}
            classes = {output: c for output, c in named.items() if c is not None}
        groups = Groups.of(classes, outputs, "analyze(classes)")
        words = f"{groups.count} groups of the {outputs:,} outputs"
    return groups, ClassesNote(words, groups.count, digest(groups.classes))
