"""TR fig. 5: the log-spectrum of G and its knockouts, exact and by the paper's Lanczos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.operators.gauss_newton import GaussNewton
from curvescope.problem import Problem
from curvescope.spectra.exact import ExactSpectrum, log_distance
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.structure.knockouts import class_dual
from curvescope.structure.outliers import SHARES, Attribution, Group, outliers_of, widest_gap
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.traces import subjects
from curvescope.studies.traces.subjects import EPS, Spectrum

_KEPT = 400  # leading eigenvalues with their shares
PARTS = ("class", "cross", "within", "diagonal")


@dataclass(frozen=True)
class Found:
    """What is measured of one network; small enough to be kept."""

    exact: dict[str, ExactSpectrum]  # "G", "G without class", …
    parts: dict[str, Tensor]  # eigenvalues of the class part and of the cross part
    attribution: Attribution
    lanczos: SpectralMeasure
    loss: float
    error: float


def run(settings: Settings) -> Outcome:
    """Train, diagonalize the Gram matrix and its knockouts, run Lanczos, compare."""
    tensors = {
        **settings.once("traces-attribution-exact", lambda: _exactly(settings)),
        **settings.once("traces-attribution-lanczos", lambda: _lanczos(settings)),
    }
    found = _restore({name: tensor.cpu() for name, tensor in tensors.items()})
    exact, attribution = found.exact, found.attribution
    rows = (
        *subjects.attribution_rows(attribution),
        *_statements(found),
        *_distances(exact["G"], found.lanczos),
    )
    numbers = {
        "parameters": exact["G"].dimension,
        "training loss": found.loss,
        "training error": found.error,
        "attribution": subjects.attribution_numbers(attribution),
        "zeros": exact["G"].zeros,
        "largest eigenvalues": {
            name: spectrum.values.flip(0)[:120].tolist() for name, spectrum in exact.items()
        },
        "class part": found.parts["class"].tolist(),
        "cross part": found.parts["cross"].tolist(),
    }
    pictures = (
        _knockouts(exact, attribution),
        _together(exact["G"], found.lanczos),
        _makers(attribution),
    )
    return Outcome(rows, pictures, numbers, _notes(settings, found))


def _problem(settings: Settings) -> tuple[Problem, tuple[float, float]]:
    """The trained network on its training data, with loss and error there."""
    plan = subjects.recipe(
        settings.pick(smoke=40, small=150, paper=350),
        settings.pick(smoke=0.05, small=0.02, paper=0.1),
    )
    data = subjects.images(settings, "cifar-10", _per_class(settings))
    subject = subjects.train_one(
        settings, "traces-attribution-network", _network(settings), data, plan
    )
    size = settings.pick(smoke=80, small=200, paper=1360)
    return subjects.problem(subject, data, size=size), subjects.fit(subject, data)


def _exactly(settings: Settings) -> dict[str, Tensor]:
    """All eigenvalues of G, of its knockouts and of its parts; the attribution of outliers."""
    problem, fitted = _problem(settings)
    settings.tell("Gram matrix")
    dual = class_dual(problem)
    few = len(dual.gram) <= 1024
    attribution = outliers_of(dual, generator=None if few else settings.generator(1))
    settings.tell("all eigenvalues of G and of its knockouts")
    found = {"G": dual.spectrum().values}
    found |= {f"G without {part}": dual.knocked_out(part).values for part in PARTS}
    for name in ("class", "cross"):
        X = dual.bases[name]
        found[f"{name} part"] = torch.linalg.eigvalsh(X.T @ dual.gram @ X)
    numbers = torch.tensor([problem.params.size, *fitted], dtype=torch.float64)
    return found | _saved_attribution(attribution) | {"size, loss, error": numbers}


def _lanczos(settings: Settings) -> dict[str, Tensor]:
    """The paper's log-spectrum: FastLanczos, one probe; ctrl-C ends it with the steps so far."""
    problem, _ = _problem(settings)
    steps = settings.pick(smoke=128, small=512, paper=2048)
    settings.tell(f"Lanczos, {steps} steps without re-orthogonalization")
    found = spectral_measure(
        GaussNewton(problem, keep=True), steps=steps, reorthogonalize=False,
        generator=settings.generator(2), on_interrupt="return",
    )  # fmt: skip
    return subjects.saved_measure(found)


def _saved_attribution(found: Attribution) -> dict[str, Tensor]:
    groups = [[g.expected, g.outliers, g.subtracted, g.projected] for g in found.groups]
    return {
        "leading": found.values[:_KEPT].clone(),
        "shares": found.shares[:_KEPT].clone(),
        "groups": torch.tensor(groups),
        "edge": torch.tensor([found.edge], dtype=torch.float64),
    }


def _restore(found: Mapping[str, Tensor]) -> Found:
    size, loss, error = found["size, loss, error"].tolist()
    n = int(size)
    names = ["G", *(f"G without {part}" for part in PARTS)]
    exact = {name: ExactSpectrum(found[name], n - len(found[name]), "dual", 0) for name in names}
    groups = tuple(
        Group(name, *numbers)
        for name, numbers in zip(SHARES, found["groups"].tolist(), strict=True)
    )
    edge, C = float(found["edge"]), groups[1].expected + 1
    attribution = Attribution(C, edge, found["leading"], found["shares"], groups, exact=True)
    lanczos = subjects.restored_measure(found)
    parts = {name: found[f"{name} part"] for name in ("class", "cross")}
    return Found(exact, parts, attribution, lanczos, loss, error)


def _network(settings: Settings) -> str:
    return settings.pick(smoke="F-32^2", small="VGG11-W16", paper="VGG11-4096^2-BN")


def _per_class(settings: Settings) -> int:
    return settings.pick(smoke=8, small=20, paper=136)


# Rows -------------------------------------------------------------------------------------------


def _statements(found: Found) -> tuple[Row, ...]:
    """What TR sec. 6.1 says of fig. 5, as numbers."""
    C, exact = found.attribution.classes, found.exact
    top = exact["G"].values.flip(0)
    left = {part: exact[f"G without {part}"].values.flip(0) for part in PARTS}
    bulk = _median(exact["G"].values)
    parts = {name: float(values.median()) / bulk for name, values in found.parts.items()}
    trace = float(top.sum())
    gap = widest_gap(top[: 2 * C], most=2 * C - 1)
    gone = sum(group.subtracted for group in found.attribution.groups[:2])
    return (
        Row("outliers gone when the class part is subtracted", gone, paper=C, low=C,
            note="“the C outliers on the right disappear”"),
        Row(
            "mean of the C largest: without the class part over with it",
            float(left["class"][:C].mean() / top[:C].mean()), note="never above 1",
        ),
        Row(
            "mean of the C largest: without c = c' over with it",
            float(left["diagonal"][:C].mean() / top[:C].mean()), paper=1.0, low=0.9, high=1.1,
            note="“no clear effect”",
        ),
        Row("median eigenvalue of the class part over that of G", parts["class"],
            low=1.0, note="the outliers lie to the right of the bulk"),
        Row("median eigenvalue of the cross part over that of G", parts["cross"],
            high=1.0, note="the mini-bulk lies to the left of the main bulk in fig. 5"),
        Row("the same, over that of G's eigenvalues above ε",
            parts["cross"] * bulk / float(top[top > EPS].median()),
            note="those below ε = 1e-5 are not in the paper's picture"),
        Row("widest gap among the 2C largest of G: outliers above it", gap.count, paper=C,
            note=f"a factor {gap.ratio:.2f}"),
        *(
            Row(f"share of tr G left without the {part} part", float(values.sum()) / trace)
            for part, values in left.items()
        ),
    )  # fmt: skip


def _median(values: Tensor) -> float:
    """Of the eigenvalues that are not zero by the form of G: more than rounding."""
    return float(values[values > 1e-13 * values[-1]].median())


def _distances(exact: ExactSpectrum, lanczos: SpectralMeasure) -> tuple[Row, ...]:
    """Lanczos against the exact spectrum on the logarithmic axis."""
    top = float(exact.values[-1])
    return (
        Row("Lanczos to exact, Wasserstein of ln(λ + ε), all", log_distance(exact, lanczos)),
        Row("Lanczos to exact, Kolmogorov of λ + ε, all", subjects.kolmogorov(lanczos, exact, EPS)),
        Row(
            f"Lanczos to exact, Kolmogorov among eigenvalues above {EPS:g}",
            subjects.kolmogorov(lanczos, exact, EPS, alone=True),
        ),
        Row("eigenvalues above 1e-5, exact", _above(exact, EPS)),
        Row("eigenvalues above 1e-5, Lanczos", _above(lanczos, EPS)),
        Row("largest eigenvalue, Lanczos over exact", float(lanczos.nodes.max()) / top,
            paper=1.0, low=0.999, high=1.001),
    )  # fmt: skip


def _above(spectrum: Spectrum, x: float) -> float:
    share = 1 - float(spectrum.cdf(torch.tensor([x], dtype=torch.float64)))
    return share * spectrum.dimension


# Pictures ---------------------------------------------------------------------------------------


def _knockouts(exact: dict[str, ExactSpectrum], found: Attribution) -> Picture:
    floor = _floor(exact["G"])
    edges = subjects.decades(exact, floor=floor)
    panels = [
        subjects.log_panel(name, (subjects.histogram("", spectrum, edges, floor=floor, color=i),))
        for i, (name, spectrum) in enumerate(exact.items())
    ]
    caption = (
        "Exact spectra of G and of G without each part (TR fig. 5), on a logarithmic axis. "
        f"{found.outliers} eigenvalues lie above the edge of the bulk, {found.edge:.3g}."
    )
    return Picture("knockouts", caption, tuple(panels), columns=2)


def _together(exact: ExactSpectrum, lanczos: SpectralMeasure) -> Picture:
    edges = subjects.decades({"exact": exact})
    curves = (
        subjects.histogram("exact, Gram matrix", exact, edges),
        subjects.histogram(f"Lanczos, M = {lanczos.nodes.shape[1]}", lanczos, edges),
    )
    caption = (
        "The exact spectrum of G beside the paper's Lanczos log-spectrum (one probe, no "
        "re-orthogonalization), ε = 1e-5 as in the paper."
    )
    return Picture("exact-and-lanczos", caption, (subjects.log_panel("", curves),), columns=1)


def _makers(found: Attribution, most: int = 150) -> Picture:
    makers, values = found.maker[:most], found.values[:most]
    curves = []
    for i, name in enumerate(SHARES):
        chosen = [k for k, maker in enumerate(makers) if maker == name]
        if chosen:
            curves.append(
                Curve.of(name, [k + 1 for k in chosen], values[chosen], kind="points", color=i)
            )
    ends = [1, len(values)]
    curves.append(Curve.of("edge of the bulk", ends, [found.edge] * 2, color=6))
    panel = Panel(xlabel="index", ylabel="eigenvalue of G", curves=tuple(curves), yscale="log")
    caption = "The largest eigenvalues of G by the part that makes most of each."
    return Picture("makers", caption, (panel,), columns=1)


def _floor(spectrum: ExactSpectrum) -> float:
    """Below what the paper can see, and above the rounding of float32 rows."""
    return min(EPS, 1e-10 * float(spectrum.values[-1]))


def _notes(settings: Settings, found: Found) -> tuple[str, ...]:
    data = "embedded digits" if settings.scale == "smoke" else "CIFAR-10 images"
    steps = found.lanczos.nodes.shape[1]
    plain = "without batch norm (the paper's VGG11 has it)"
    norm = settings.pick(smoke=plain, small=plain, paper="with batch norm as in the paper")
    return (
        f"{_network(settings)}, {found.exact['G'].dimension:,} parameters, on "
        f"{_per_class(settings)} {data} per class, {norm}, trained as in App. D at one learning "
        f"rate, not the best of 100 (on a GPU in TF32): training loss {found.loss:.3g}, error "
        f"{found.error:.1%}.",
        subjects.RANGES,
        "An outlier is an eigenvalue above all that is left when the span of the C² cross-class "
        "means is projected out; the paper counts by eye.",
        "Who makes the outliers depends on training, and interpolation does not suffice. A VGG11 "
        "of width 16 that fits its 30 images per class (one seed) has, of 17 to 26 outliers, by "
        "class and within part: 4 and 15 without batch norm (learning rate 0.02, 600 steps), 1 and "
        "15 with it, 4 and 12 at the rate 0.1, and 10, the paper's C, and 8 after 3,600 steps, "
        "about the paper's number. Without weight decay these steps give 3 and 12: decay does it.",
        f"Lanczos: {steps} steps (the paper takes 2048), one probe, float32 without TF32, no "
        "re-orthogonalization. Below ε it tells how much mass there is, not where.",
    )


ENTRY = Entry(
    name="traces/attribution",
    source="TR sec. 6.1: fig. 5",
    shows=(
        "C outliers of G disappear with the class part, the mini-bulk with the cross-class part, "
        "the bulk with the within part; the exact log-spectrum beside the paper's Lanczos."
    ),
    cost={
        "smoke": "4 s, embedded digits",
        "small": "2 minutes on two cores, CIFAR-10, a VGG11 16 channels wide",
        "paper": "3 minutes on an H200: VGG11 with 28.2 million parameters, 136 per class",
    },
    run=run,
    subject={
        "smoke": "G of F-32^2 on embedded digits",
        "small": "G of VGG11-W16 on cifar-10",
        "paper": "G of VGG11 on cifar-10",
    },
    reduced={
        "smoke": "network, data and epochs",
        "small": (
            "16 channels, 20 images per class instead of 136, 150 epochs, without batch norm; 512 "
            "Lanczos steps instead of 2048"
        ),
        "paper": "one learning rate instead of the best of 100",
    },
)
