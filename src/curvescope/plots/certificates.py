"""Pictures of certificates: where a posterior is wide, how its bound fell, what it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from curvescope._checks import CurvescopeError
from curvescope.certificates.certificate import Certificate
from curvescope.certificates.profile import variance_profile
from curvescope.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def variances(certificates: Mapping[str, Certificate], *, title: str = "") -> Figure:
    """Posterior variance against the order of eigenvalues, a panel for each layer (DH fig. 7, 30).

    What one should see: the larger the eigenvalue, the smaller the variance.

    Args:
        certificates: Name in the legend -> certificate with its posterior; all of one network.
        title: Put before the layers' names.

    Raises:
        CurvescopeError: If there is none, a posterior is missing, or the networks differ.
    """
    found = _some("variances", certificates)
    layouts = {c.layout for c in found}
    if any(c.posterior is None for c in found) or len(layouts) != 1:
        msg = (
            "plots.certificates.variances: needs certificates of one network with their "
            "posteriors; load them with the .safetensors file beside the .json"
        )
        raise CurvescopeError(msg)
    layers = [block.name for block in found[0].layout]
    figure, (row,) = style.panels(1, len(layers))
    for axes, layer in zip(row, layers, strict=True):
        for colour, (name, certificate) in zip(
            _colours(certificates), certificates.items(), strict=True
        ):
            assert certificate.posterior is not None
            profile = variance_profile(certificate.posterior, layer)
            axes.plot(profile.place.tolist(), profile.variance.tolist(), color=colour, label=name)
        axes.set(
            xscale="log", yscale="log", xlabel="place by falling eigenvalue",
            ylabel="posterior variance",
        )  # fmt: skip
        style.finish(axes, f"{title} {layer}".strip())
    return figure


def history(certificates: Mapping[str, Certificate], *, title: str = "") -> Figure:
    """The bound, the error and the divergence against epochs of optimisation.

    The points are estimates on the way; the certified bound is a mark at the end.

    Args:
        certificates: Name in the legend -> certificate.
        title: Of the first panel.

    Raises:
        CurvescopeError: If there is none.
    """
    _some("history", certificates)
    figure, (row,) = style.panels(1, 3)
    for colour, (name, c) in zip(_colours(certificates), certificates.items(), strict=True):
        epochs = [point.epoch for point in c.history]
        for axes, part in zip(row, ("bound", "error", "kl"), strict=True):
            values = [getattr(point, part) for point in c.history]
            axes.plot(epochs, values, color=colour, label=name)
        if epochs:
            row[0].plot(epochs[-1:], [c.bound], "o", color=colour)
    for axes, label in zip(row, ("bound", "error on the examples", "KL(Q‖P)"), strict=True):
        axes.set(xlabel="epoch", ylabel=label)
        style.finish(axes, title if axes is row[0] else "", legend=axes is row[0])
    row[2].set_yscale("log")
    return figure


def terms(certificates: Mapping[str, Certificate], *, title: str = "") -> Figure:
    """What each bound is made of: the error, and what the sample, the prior and the draws add.

    A bar grows from the empirical error to its upper bound (draws), and on to the certified bound;
    the last step is shared out in proportion to the terms of the right-hand side: the divergence,
    the prior's grid and the confidence.

    Args:
        certificates: Label of the bar -> certificate.
        title: Of the panel.

    Raises:
        CurvescopeError: If there is none.
    """
    found = _some("terms", certificates)
    figure, ((axes,),) = style.panels(1, 1, width=6.0, height=1.2 + 0.35 * len(found))
    places = range(len(found))
    left = [0.0] * len(found)
    for colour, (part, lengths) in zip(style.CYCLE, _parts(found).items(), strict=False):
        axes.barh(places, lengths, left=left, color=colour, label=part)
        left = [start + length for start, length in zip(left, lengths, strict=True)]
    axes.set_yticks(places, labels=list(certificates))
    axes.invert_yaxis()
    axes.set_xlabel("error rate")
    style.finish(axes, title)
    return figure


def _parts(found: list[Certificate]) -> dict[str, list[float]]:
    """The lengths of the bars' pieces; those of one certificate add up to its bound."""
    parts: dict[str, list[float]] = {
        "error on the examples": [c.empirical_error for c in found],
        "draws": [c.error_bound - c.empirical_error for c in found],
    }
    for name, label in (
        ("kl", "divergence"), ("grid", "choice of the prior"), ("confidence", "confidence"),
    ):  # fmt: skip
        parts[label] = [
            (c.bound - c.error_bound)
            * getattr(c.terms, name)
            / (c.terms.kl + c.terms.grid + c.terms.confidence)
            for c in found
        ]
    return parts


def _some(where: str, certificates: Mapping[str, Certificate]) -> list[Certificate]:
    if not certificates:
        msg = f"plots.certificates.{where}: needs at least one certificate, got none"
        raise CurvescopeError(msg)
    return list(certificates.values())


def _colours(certificates: Mapping[str, Certificate]) -> list[str]:
    return [style.CYCLE[i % len(style.CYCLE)] for i in range(len(certificates))]
