"""Data sets: images and labels as tensors, checked before they are used."""

from curvescope.data.embedded import load_embedded

__all__ = ["load_embedded"]
