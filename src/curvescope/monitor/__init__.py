"""Curvature while a network trains.

``monitor`` is the object that a training loop calls; ``quantities`` is what it measures, ``limits``
what optimizers allow, ``top`` and ``noise`` two of the methods; ``schedule`` says when to measure,
``events`` what rings, and ``log`` keeps the numbers.
"""

from curvescope.monitor.events import Event
from curvescope.monitor.limits import Limits, Preconditioned, stability_limits
from curvescope.monitor.log import Header, MonitorLog, Record, read_log
from curvescope.monitor.monitor import PRESETS, Monitor
from curvescope.monitor.noise import NoiseScale, noise_scale
from curvescope.monitor.price import Price
from curvescope.monitor.top import Pairs, largest

__all__ = [
    "PRESETS",
    "Event",
    "Header",
    "Limits",
    "Monitor",
    "MonitorLog",
    "NoiseScale",
    "Pairs",
    "Preconditioned",
    "Price",
    "Record",
    "largest",
    "noise_scale",
    "read_log",
    "stability_limits",
]
