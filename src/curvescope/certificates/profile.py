"""Where a posterior is wide: its variances in the order of the curvature (DH fig. 7 and 30).

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from curvescope._checks import one_of, positive_int
from curvescope.certificates.posterior import Posterior


@dataclass(frozen=True)
class Profile:
    """Variances of one layer's coordinates, averaged over runs of neighboring places.

    Args:
        layer: Its name.
        place: The middle of each run (geometric), from 1 for the largest eigenvalue.
        variance: The mean variance of each run.
        curvature: The mean eigenvalue of each run.
    """

    layer: str
    place: Tensor
    variance: Tensor
    curvature: Tensor


def variance_profile(posterior: Posterior, layer: str, *, runs: int = 150) -> Profile:
    """The posterior variances of a layer against the order of eigenvalues, for a logarithmic axis.

    Coordinates are ordered by falling eigenvalue of the approximate layer Hessian (DH fig. 7); the
    first ones stand alone, later ones are averaged over ever longer runs. In the standard basis
    there are no eigenvalues, and the coordinates stay in the order of the weights.

    Args:
        posterior: Of a certificate.
        layer: The name of one of its layers.
        runs: At most so many points.

    Raises:
        CurvescopeError: If there is no such layer.

    >>> from torch import nn
    >>> from curvescope.certificates.bases import Bases
    >>> from curvescope.certificates.blocks import Layout
    >>> layout = Layout.of(nn.Linear(3, 1, bias=False))
    >>> s, h = torch.tensor([0.5, 0.1, 0.3]), torch.tensor([1.0, 9.0, 4.0])
    >>> found = variance_profile(Posterior(s, s, s, Bases.standard(layout), h), "weight")
    >>> [round(value, 3) for value in found.variance.tolist()]
    [0.1, 0.3, 0.5]
    """
    where = "variance_profile"
    names = [block.name for block in posterior.layout.blocks]
    index = names.index(one_of(where, "layer", layer, names))
    runs = positive_int(where, "runs", runs)
    variance, curvature = (
        flat.split(posterior.layout.sizes)[index].double().cpu()
        for flat in (posterior.variance, posterior.curvature)
    )
    order = curvature.argsort(descending=True, stable=True)
    size = len(order)
    steps = torch.linspace(0, math.log(size + 1), runs + 1, dtype=torch.float64).exp().round()
    edges = sorted({min(int(edge), size + 1) for edge in steps})
    lengths = [after - before for before, after in pairwise(edges)]
    places = torch.arange(1, size + 1, dtype=torch.float64)

    def averages(values: Tensor) -> Tensor:
        return torch.stack([run.mean() for run in values.split(lengths)])

    return Profile(
        layer, averages(places.log()).exp(), averages(variance[order]), averages(curvature[order])
    )
