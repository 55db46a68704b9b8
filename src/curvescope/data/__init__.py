"""Data sets: images and labels as tensors, checked before they are used."""

from curvescope.data.download import fetch
from curvescope.data.embedded import load_embedded
from curvescope.data.inventory import inventory, verify
from curvescope.data.labeled import Dataset
from curvescope.data.load import dataset
from curvescope.data.mixture import gaussian_mixture

__all__ = [
    "Dataset",
    "dataset",
    "fetch",
    "gaussian_mixture",
    "inventory",
    "load_embedded",
    "verify",
]
