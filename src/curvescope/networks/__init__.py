"""The networks of the papers, by name."""

from curvescope.networks.initialise import initialise
from curvescope.networks.names import network
from curvescope.networks.spec import NetworkSpec

__all__ = ["NetworkSpec", "initialise", "network"]
