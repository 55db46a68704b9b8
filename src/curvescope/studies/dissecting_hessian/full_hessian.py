"""DH App. B, fig. 2c, 2d, 8: the full Hessian of F-200² from its full output Hessian."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.operators.hessian import Hessian
from curvescope.spectra.eigensolver import eigenpairs
from curvescope.structure.full_hessian import full_hessian_approximation
from curvescope.structure.overlaps import compare_eigenpairs
from curvescope.studies.dissecting_hessian.families import FINISHED, MNIST, Group, group
from curvescope.studies.entry import Entry, Outcome, Row, Settings

TOP = 9
"""c − 1."""


def run(settings: Settings) -> Outcome:
    """Compare at the minimum."""
    networks = group(settings, MNIST)
    models = networks.models[: settings.pick(smoke=1, small=1, paper=5)]
    k = settings.pick(smoke=12, small=20, paper=50)
    true, approximate, share = compare(settings, "full-minimum", networks, models, k)
    relative = approximate / true
    rows = (
        Row(f"overlap of the top {TOP}", float(share[:, TOP - 1].mean())),
        Row(f"overlap of the top {share.shape[1]}", float(share[:, -1].mean())),
        Row("λ₁, approximated over true", float(relative[:, 0].mean())),
        Row(
            f"mean relative error of the top {TOP} eigenvalues",
            float((relative[:, :TOP] - 1).abs().mean()),
        ),
    )
    caption = (
        "Top eigenvalues σ_i‖w_i‖² and eigenspace from the full output Hessian and mean inputs, "
        "beside those of the full Hessian of F-200² (DH fig. 2c, 2d, 8a, 8b)."
    )
    numbers = {
        "true": true.tolist(),
        "approximate": approximate.tolist(),
        "overlap": share.tolist(),
    }
    notes = (
        f"{len(models)} networks, curvature over {len(networks.data)} samples.",
        "DH also shows F-200⁴, F-600⁴ and F-600⁸: entry full-hessian-depth.",
        FINISHED,
    )
    picture = Picture("full", caption, comparison_panels(true, approximate, share))
    return Outcome(rows, (picture,), numbers, notes)


def _checks(outcome: Outcome) -> Iterator[Row]:
    """DH: accurate for the top eigenvectors, not as accurate for later ones."""
    top, more = outcome.values("overlap of the top ")
    yield Row(
        f"overlap of the top {TOP} with the approximation",
        top,
        low=0.5,
        note="DH: “accurate for top eigenvectors and also top eigenspace”; range ours",
    )
    yield Row(
        "overlap of all eigenvectors over that of the top",
        more / top,
        high=1.0,
        note="DH: “for latter eigenvectors, the approximation would not be as accurate”",
    )
    (error,) = outcome.values("mean relative error of the top")
    yield Row(
        f"mean relative error of the top {TOP} eigenvalues, at most",
        error,
        high=0.25,
        note="DH: λ_i ≈ σ_i‖w_i‖², eq. 51; range ours",
    )


def compare(
    settings: Settings, key: str, networks: Group, models: Sequence[nn.Module], k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues, approximate ones and overlaps: ``[models, k]`` each, kept under ``key``."""

    def compute() -> dict[str, Tensor]:
        found = []
        for place, model in enumerate(models):
            settings.tell(f"{k} eigenpairs of the full Hessian, network {place + 1}")
            problem = networks.problem(model)
            pairs = eigenpairs(Hessian(problem), k, tol=1e-4, generator=settings.generator(place))
            found.append(compare_eigenpairs(pairs, full_hessian_approximation(problem, k)))
        return {
            "true": torch.stack([c.true.double().cpu() for c in found]),
            "approximate": torch.stack([c.approximate.double().cpu() for c in found]),
            "overlap": torch.stack([c.overlap.double().cpu() for c in found]),
        }

    tensors = settings.once(f"dissecting-hessian/{key}", compute)
    true, approximate, share = (tensors[n].cpu() for n in ("true", "approximate", "overlap"))
    return true, approximate, share


def comparison_panels(
    true: Tensor, approximate: Tensor, share: Tensor, *, title: str = ""
) -> tuple[Panel, Panel]:
    """Eigenvalues and overlap, mean and standard deviation over the models."""
    start = f"{title}: " if title else ""
    values = Panel(
        title=f"{start}eigenvalues",
        xlabel="index",
        ylabel="eigenvalue",
        curves=(Curve.mean("true", None, true), Curve.mean("approximated", None, approximate)),
        yscale="log",
    )
    curve = Curve.mean("", None, share, within=(0.0, 1.0))
    overlaps = Panel(
        title=f"{start}overlap", xlabel="k", ylabel="overlap", curves=(curve,), ylim=(0.0, 1.05)
    )
    return values, overlaps


ENTRY = Entry(
    name="dissecting-hessian/full-hessian",
    source="DH App. B: fig. 2c, 2d, 8a, 8b",
    shows="The full output Hessian and the mean inputs give the top of the full Hessian.",
    cost={
        "smoke": "3 s, embedded digits, one network of width 24",
        "small": "2 minutes, MNIST, one network, 2000 samples",
        "paper": "2 minutes on a GPU, of which 1 trains 5 networks",
    },
    run=run,
    subject={
        "smoke": "Full Hessian of F-24^2 on embedded digits",
        "small": "Full Hessian of F-200^2 on mnist",
        "paper": "Full Hessian of F-200^2 on mnist",
    },
    reduced={
        "smoke": "width 24 instead of 200, data and epochs, one network, the top 12",
        "small": (
            "one network instead of five, the top 20 instead of 50, curvature over 2000 digits; 3 "
            "epochs instead of 1000 where the work folder has no finished weights"
        ),
        "paper": "nothing",
    },
    checks=_checks,
)
