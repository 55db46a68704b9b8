"""DH E.2.2, E.2.3, fig. 5, 10–13, 25, 26 and tables 6, 7: variants of VGG11 and ResNet18."""

from __future__ import annotations

from curvescope.figures.model import Curve, Panel, Picture
from curvescope.studies.dissecting_hessian import panels
from curvescope.studies.dissecting_hessian.families import (
    FINISHED,
    PLACE,
    Family,
    Group,
    first,
    gather,
    scaled,
)
from curvescope.studies.dissecting_hessian.layer_study import LayerStudy, layer_studies
from curvescope.studies.dissecting_hessian.overlap_cifar import flat
from curvescope.studies.dissecting_hessian.variants import RESNET, VGG, VGG_32, Variant
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.training import Recipe, evaluate

NEAR = 0.2
"""A peak within this share of ``m`` counts as one at ``m``; the number is ours."""
WINDOW = 10
"""Eigenvectors over which fig. 26e and 26f take a mean."""


def run_vgg(settings: Settings) -> Outcome:
    """Study all layers of the variants of VGG11."""
    variants: tuple[Variant, ...] = settings.pick(
        smoke=(Variant("VGG11-W4", "mnist-6k"),), small=(VGG_32,), paper=VGG
    )
    convolutions = settings.pick(smoke=(2, 5, 6), small=range(1, 9), paper=range(1, 9))
    layers = (*(f"conv{i}" for i in convolutions), "fc1")
    return _outcome(settings, variants, layers, "DH fig. 10, 5c")


def run_resnet(settings: Settings) -> Outcome:
    """Study layers of the variants of ResNet18."""
    variants: tuple[Variant, ...] = settings.pick(
        smoke=(Variant("ResNet18-W4", "mnist-6k"),),
        small=(Variant("ResNet18-W8", "cifar-10", samples=3000),),
        paper=RESNET,
    )
    layers = settings.pick(
        smoke=("conv15", "conv17", "fc1"),
        small=("conv1", "conv4", "conv7", "conv10", "sc-conv2", "conv13", "conv15", "conv17",
               "fc1"),
        paper=(*(f"conv{i}" for i in range(1, 18)), "sc-conv1", "sc-conv2", "sc-conv3", "fc1"),
    )  # fmt: skip
    return _outcome(settings, variants, layers, "DH fig. 11, 5b")


def _outcome(
    settings: Settings, variants: tuple[Variant, ...], layers: tuple[str, ...], figure: str
) -> Outcome:
    rows: list[Row] = []
    pictures: list[Picture] = []
    notes: list[str] = []
    numbers = {}
    for variant in variants:
        networks = networks_of(settings, variant)
        studies = _studies(settings, networks, layers)
        name = f"{variant.network} on {variant.data}"
        rows += _rows(name, variant, studies)
        pictures += _pictures(name, studies, figure)
        numbers[name] = panels.summary(studies)
        notes.append(_training(name, networks))
    notes += [
        "DH says that most convolutional layers peak around their number of outputs m, that the "
        "last layer stays about constant up to it, and that early and delayed peaks can be "
        f"predicted from the factors. Within {NEAR:.0%} of m counts as at m; that share is ours.",
        "Initial weights are Xavier's with zero biases, as DH D.3 says: from PyTorch's own ones, "
        "on 5000 images, the loss of VGG11-W32 stayed at log c for five epochs.",
    ]
    if settings.scale == "small":
        notes.append(
            "Differs from DH: 2 networks instead of 5, part of CIFAR-10, momentum and few epochs "
            "instead of 1000 at 0.01, so that the networks are not at a minimum; CIFAR-100 and "
            "the wider variants are at the scale of the paper only."
        )
    return Outcome(tuple(rows), tuple(pictures), numbers, (*notes, FINISHED))


def networks_of(settings: Settings, variant: Variant) -> Group:
    """The networks of a variant, trained if need be, with the samples of this scale."""
    data = scaled(settings, variant.data, "channel")
    data = first(data, settings.pick(smoke=300, small=variant.samples, paper=len(data)))
    quick = Recipe(
        seed=0, epochs=settings.pick(smoke=2, small=12, paper=1), lr=0.01, momentum=0.9,
        batch_size=32, schedule="linear",
    )  # fmt: skip
    plain = Recipe(seed=0, epochs=1000, lr=0.01)
    family = Family(
        f"{PLACE}/{variant.network}-{variant.data}-{settings.scale}",
        variant.network,
        variant.data,
        "channel",
        settings.pick(smoke=quick, small=quick, paper=plain),
        settings.pick(smoke=2, small=2, paper=5),
        "xavier",
    )
    return gather(settings, family, data, settings.pick(smoke=60, small=500, paper=len(data)))


def _studies(settings: Settings, networks: Group, layers: tuple[str, ...]) -> dict[str, LayerStudy]:
    model = networks.models[0]
    sizes = {layer: 2 * len(model.get_parameter(f"{layer}.weight")) for layer in layers}
    key = f"{networks.family.network}-{networks.family.data}"
    return layer_studies(settings, key, networks, sizes)


def kind(peak: float, m: int) -> str:
    """Where a peak is.

    >>> kind(20, 32), kind(33, 32), kind(60, 32)
    ('early', 'at m', 'delayed')
    """
    if peak < (1 - NEAR) * m:
        return "early"
    return "at m" if peak <= (1 + NEAR) * m else "delayed"


def _rows(name: str, variant: Variant, studies: dict[str, LayerStudy]) -> list[Row]:
    hidden = {layer: study for layer, study in studies.items() if layer != "fc1"}
    seen = {layer: kind(study.between.peak, study.m) for layer, study in hidden.items()}
    expected = {
        layer: kind(float(study.predicted_peak.double().mean()), study.m)
        for layer, study in hidden.items()
    }
    rows = [
        Row(
            f"{name}: share of the convolutions whose overlap peaks at m",
            sum(where == "at m" for where in seen.values()) / len(seen),
            low=0.5,
            note="DH: most",
        ),
        Row(
            f"{name}: share whose kind of peak the factors predict",
            sum(seen[layer] == expected[layer] for layer in seen) / len(seen),
            note=", ".join(f"{layer} {seen[layer]} ({expected[layer]})" for layer in seen),
        ),
        _named(flat(studies["fc1"]), name),
    ]
    for what, layers, printed in (
        ("fc1", ["fc1"], variant.linear),
        ("convolutions", [layer for layer in hidden if layer != "conv1"], variant.convolutional),
    ):
        structures = [s for layer in layers for s in studies[layer].structures]
        if printed is not None:
            rows += panels.autocorrelation_rows(f"{name}, {what}", structures, printed)
            continue
        for title, values in (
            ("(v₁·Ê[x])²", [s.alignment for s in structures]),
            ("λ₁/λ₂", [s.spectral_ratio for s in structures]),
        ):
            note = f"{min(values):.4g} … {max(values):.4g} over {len(values)} layers"
            rows.append(Row(f"{title}, {name}, {what}: mean", sum(values) / len(values), note=note))
    return rows


def _named(row: Row, name: str) -> Row:
    return Row(
        f"{name}, {row.what}", row.ours, row.paper, row.low, row.high, f"{row.note}; range ours"
    )


def _pictures(name: str, studies: dict[str, LayerStudy], figure: str) -> list[Picture]:
    file = name.replace(" on ", "-").lower()
    shown = tuple(panels.between_models(study, layer) for layer, study in studies.items())
    caption = (
        f"Overlap of the top eigenspaces of independently trained {name}, with the curve that the "
        f"factors let expect ({figure})."
    )
    pictures = [Picture(f"overlap-{file}", caption, shown, columns=3, title=name)]
    if not name.startswith("VGG11"):
        return pictures
    for layer, figures in (("conv5", "12, 25"), ("conv2", "13, 26")):
        caption = (
            f"{layer} of {name}: overlap, eigenvalues of the factors, eigenvectors of the layer "
            f"against those of E[xxᵀ], and their share on its first (DH fig. {figures})."
        )
        pictures.append(Picture(f"{layer}-{file}", caption, _mixture(studies[layer]), 3, name))
    caption = (
        f"Eigenvectors of the first convolutions of {name} against those of E[xxᵀ], for the true "
        "Hessian and for the Kronecker product (first version of DH, fig. 14 to 16)."
    )
    early = [studies[layer] for layer in ("conv1", "conv2", "conv3") if layer in studies]
    maps = [panel for study in early for panel in panels.correspondences(study)[::2]]
    return [*pictures, Picture(f"correspondence-{file}", caption, tuple(maps), title=name)]


def _mixture(study: LayerStudy) -> tuple[Panel, ...]:
    """What decides where the overlap of a layer peaks (DH F.3.3)."""
    true, _, approximate, _ = panels.correspondences(study, rows=20, columns=50)
    shares = Panel(
        title=f"{study.layer}: share of h_i on v₁",
        xlabel="i",
        ylabel=f"Corr(v₁, h_i), mean of {WINDOW}",
        curves=tuple(
            _smooth(label, study.correspondences[f"{key} input"][0].tolist())
            for label, key in (("true", "true"), ("Kronecker", "approximate"))
        ),
        lines={f"m = {study.m}": study.m},
        ylim=(0.0, 1.05),
    )
    between = panels.between_models(study, f"{study.layer}: overlap between models")
    return (between, panels.factor_spectra(study), true, approximate, shares)


def _smooth(label: str, values: list[float]) -> Curve:
    """Means over the ``WINDOW`` values around each place, as far as there are."""
    half = WINDOW // 2
    means = []
    for place in range(len(values)):
        near = values[max(0, place - half) : place + half]
        means.append(sum(near) / len(near))
    return Curve.of(label, None, means)


def _training(name: str, networks: Group) -> str:
    recipe = networks.family.recipe
    right = [evaluate(model, networks.data).accuracy for model in networks.models]
    return (
        f"{name}: {len(right)} networks, rate {recipe.lr:g}, momentum {recipe.momentum:g}, batches "
        f"of {recipe.batch_size}, {recipe.epochs} epochs; right on {min(right):.0%} to "
        f"{max(right):.0%} of the {len(networks.data):,} samples that the curvature is over."
    )


ENTRIES = (
    Entry(
        name="dissecting-hessian/overlap-vgg",
        source=(
            "DH E.2.2, E.2.3, F.3.3: fig. 5c, 10, 12 (VGG11), 13 (VGG11), 23 (VGG11), 25, 26; "
            "tables 6 (VGG11), 7 (VGG11); first version, fig. 14, 15, 16"
        ),
        shows=(
            "Most convolutions of VGG11 peak at their number of outputs too; early and delayed "
            "peaks are where E[xxᵀ] is not close enough to rank one, as the factors predict."
        ),
        cost={
            "smoke": "4 s, embedded digits, four channels",
            "small": "6 minutes, 5000 images of CIFAR-10, two VGG11-W32, 500 samples",
            "paper": "a GPU for hours; CIFAR-10 and CIFAR-100, 35 networks for 1000 epochs",
        },
        run=run_vgg,
        subject={
            "smoke": "VGG11-W4 on embedded digits",
            "small": "VGG11-W32 on cifar-10",
            "paper": "VGG11 on cifar-10 and cifar-100",
        },
        reduced={
            "smoke": "width, data and epochs, two networks",
            "small": (
                "of seven variants one, VGG11-W32 on 5000 images of CIFAR-10; two networks instead "
                "of five, 12 epochs with momentum instead of 1000 without; curvature over 500"
            ),
            "paper": "nothing",
        },
    ),
    Entry(
        name="dissecting-hessian/overlap-resnet",
        source=(
            "DH E.2.2: fig. 1a (ResNet18), 5b, 11, 13 (ResNet18), 23 (ResNet18); "
            "tables 6 (ResNet18), 7 (ResNet18)"
        ),
        shows="The overlap of ResNet18's later convolutions peaks at their number of outputs.",
        cost={
            "smoke": "4 s, embedded digits, four channels",
            "small": "6 minutes, 3000 images of CIFAR-10, two ResNet18-W8, 500 samples",
            "paper": "a GPU for hours; CIFAR-100, 15 networks for 1000 epochs",
        },
        run=run_resnet,
        subject={
            "smoke": "ResNet18-W4 on embedded digits",
            "small": "ResNet18-W8 on cifar-10",
            "paper": "ResNet18 on cifar-100",
        },
        reduced={
            "smoke": "width, data and epochs, two networks, three layers",
            "small": (
                "eight channels instead of 48, 64 and 80; 3000 images of CIFAR-10 instead of "
                "CIFAR-100; two networks instead of five, 12 epochs with momentum instead of 1000 "
                "without; 9 of 21 layers; curvature over 500 images"
            ),
            "paper": "nothing",
        },
    ),
)
