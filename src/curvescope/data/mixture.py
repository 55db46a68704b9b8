"""Gaussian mixtures: the canonical classification model of TR §8.2.

References:
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
"""

from __future__ import annotations

import re

import torch

from curvescope._checks import finite_float, one_of, positive_int
from curvescope.data.labeled import Dataset
from curvescope.data.labels import SPLITS, stream
from curvescope.errors import CurvescopeError

FORM = "gaussian-mixture-C10-D100-t3"
_FORM = re.compile(r"gaussian-mixture-c(\d+)-d(\d+)-t(\d+(?:\.\d*)?(?:e[+-]?\d+)?)")


def gaussian_mixture(
    t: float,
    *,
    classes: int,
    dimension: int,
    per_class: int,
    seed: int,
    split: str = "train",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Dataset:
    """Samples of the canonical classification model CCM(D, C) (TR definition 8.1).

    ``x_{i,c} = t e_c + z_{i,c}`` with ``z_{i,c} ~ N(0, I_D)`` independent, for ``c = 1 … C`` and
    ``i = 1 … N``: class means along the first C coordinate axes, all at the distance ``t`` from the
    origin, the signal-to-noise ratio. The classes take turns, so that any ``k C`` consecutive
    samples from a multiple of C on are balanced.

    The noise is drawn in float64 on the CPU, then converted: a seed means the same samples on every
    device and, to rounding, in every precision. The two splits of a seed are independent.

    Args:
        t: The length of the class means, at least 0.
        classes: C.
        dimension: D, at least C.
        per_class: N.
        seed: Decides the noise.
        split: ``"train"`` or ``"test"``.
        dtype: The samples' floating-point type.
        device: Where the tensors go.

    Returns:
        A :class:`Dataset` with ``X`` of shape ``[N C, D]``.

    Raises:
        CurvescopeError: If a number is out of its range.

    >>> data = gaussian_mixture(5, classes=3, dimension=4, per_class=10_000, seed=0)
    >>> data.y[:7].tolist()
    [0, 1, 2, 0, 1, 2, 0]
    >>> data.X[data.y == 1].mean(0).round(decimals=1) + 0.0
    tensor([0., 5., 0., 0.])
    """
    where = "gaussian_mixture"
    t = finite_float(where, "t", t, minimum=0.0)
    classes = positive_int(where, "classes", classes, minimum=2)
    per_class = positive_int(where, "per_class", per_class)
    dimension = positive_int(where, "dimension", dimension)
    one_of(where, "split", split, SPLITS)
    if dimension < classes:
        rule = f"`dimension` must be at least `classes={classes}`"
        raise CurvescopeError(where, rule, given=dimension)
    if not dtype.is_floating_point:
        raise CurvescopeError(where, "`dtype` must be a floating-point type", given=dtype)
    generator = stream(where, seed, "noise", split)
    X = torch.randn(per_class, classes, dimension, generator=generator, dtype=torch.float64)
    X += t * torch.eye(classes, dimension, dtype=torch.float64)
    y = torch.arange(classes).repeat(per_class)
    return Dataset(
        X.flatten(0, 1).to(device=device, dtype=dtype),
        y.to(device),
        classes=classes,
        name=f"gaussian-mixture-C{classes}-D{dimension}-t{t:g}",
        split=split,
    )


def parameters(name: str) -> tuple[float, int, int] | None:
    """``t``, ``classes`` and ``dimension`` from a name like ``gaussian-mixture-C10-D100-t3``.

    >>> parameters("gaussian-mixture-C10-D100-t3"), parameters("mnist")
    ((3.0, 10, 100), None)
    """
    match = _FORM.fullmatch(name.lower())
    return (float(match[3]), int(match[1]), int(match[2])) if match else None
