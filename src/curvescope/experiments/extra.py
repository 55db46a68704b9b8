"""The names that a file with a user stage imports; see ``docs/extending/report-section.md``."""

from curvescope.experiments.checks import Check
from curvescope.experiments.stages.context import Context
from curvescope.experiments.stages.plan import Extra
from curvescope.experiments.store import Outcome

__all__ = ["Check", "Context", "Extra", "Outcome"]
