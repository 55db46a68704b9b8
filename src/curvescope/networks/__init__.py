"""The networks of the papers, by name."""

from curvescope.networks.initialization import initialize
from curvescope.networks.names import network
from curvescope.networks.spec import NetworkSpec

__all__ = ["NetworkSpec", "initialize", "network"]
