"""Reproducible training of the papers' networks and of any other classifier."""

from curvescope.training.loop import Progress, train, train_many
from curvescope.training.objective import Fit, evaluate
from curvescope.training.recipe import Recipe
from curvescope.training.records import Epoch
from curvescope.training.run import Trained
from curvescope.training.weights import load_network, load_weights, save_weights

__all__ = [
    "Epoch",
    "Fit",
    "Progress",
    "Recipe",
    "Trained",
    "evaluate",
    "load_network",
    "load_weights",
    "save_weights",
    "train",
    "train_many",
]
