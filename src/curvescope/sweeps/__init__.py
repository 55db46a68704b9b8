"""Many runs by many workers, on one machine or many, until all have ended.

A :class:`Task` is a run with a name, a kind and settings; a :class:`Queue` keeps those of a plan on
the disk, with what became of them. Workers (:func:`work`) take one after the other by a claim
(:mod:`curvescope.sweeps.claims`) and are started by an engine (:func:`engine`): processes, Ray, or
Slurm. What a task does is given from outside.
"""

from curvescope.sweeps.empty import States, empty
from curvescope.sweeps.engines import ENGINES, engine
from curvescope.sweeps.plan import Command, tasks_of
from curvescope.sweeps.queue import Queue, Result, State, Task, is_sweep, tasks_in
from curvescope.sweeps.worker import Ended, Perform, work

__all__ = [
    "ENGINES",
    "Command",
    "Ended",
    "Perform",
    "Queue",
    "Result",
    "State",
    "States",
    "Task",
    "empty",
    "engine",
    "is_sweep",
    "tasks_in",
    "tasks_of",
    "work",
]
