"""The specification of a network: name, inputs and outputs, an attribute of the built module.

The modules of this folder are flat. Every layer hangs directly on the network under the name that
the papers give it (``conv1``, ``fc1``, ``sc-conv1`` for a convolution on a shortcut), so that
``problem.restrict("fc1")`` and the papers' figures speak of the same thing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from curvescope.errors import CurvescopeError

Layers = list[tuple[str, nn.Module]]


@dataclass(frozen=True)
class NetworkSpec:
    """The arguments of :func:`network`: enough to build the same architecture again."""

    name: str
    inputs: tuple[int, ...]  # the shape of one input
    classes: int  # the number of outputs
    init: str  # the initialization scheme

    @property
    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of the input; refused where the input is not an image."""
        if len(self.inputs) != 3:
            rule = "needs images, inputs=(channels, height, width)"
            raise CurvescopeError(f"network({self.name!r})", rule, given=self.inputs)
        channels, height, width = self.inputs
        return channels, height, width

    def too_small(self, least: int) -> CurvescopeError:
        """The error for images that the pooling of a network would reduce to nothing."""
        return CurvescopeError(
            f"network({self.name!r})",
            f"needs images of at least {least}×{least} pixels",
            given=f"{self.inputs[1]}×{self.inputs[2]}",
        )


class Chain(nn.Sequential):
    """Named layers, one after the other; a slice of it is a chain too, without a spec."""

    spec: NetworkSpec

    @classmethod
    def of(cls, spec: NetworkSpec, layers: Layers) -> Chain:
        """The chain of these layers."""
        chain = cls(OrderedDict(layers))
        chain.spec = spec
        return chain
