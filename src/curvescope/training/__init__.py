"""Reproducible training of the papers' networks and of any other classifier."""

from curvescope.training.loop import Progress, train, train_many
from curvescope.training.objective import Fit, evaluate
from curvescope.training.recipe import Recipe
from curvescope.training.records import Epoch
from curvescope.training.run import Trained
from curvescope.training.sweeps import Sweep, learning_rates, sweep
from curvescope.training.weights import load_network, load_weights, save_weights

__all__ = [
    "Epoch",
    "Fit",
    "Progress",
    "Recipe",
    "Sweep",
    "Trained",
    "evaluate",
    "learning_rates",
    "load_network",
    "load_weights",
    "save_weights",
    "sweep",
    "train",
    "train_many",
]
