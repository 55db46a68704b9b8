"""TR fig. 11 and 12: KFAC and CFAC beside the exact block of every layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from curvescope.figures.model import Picture, above
from curvescope.operators.gram import GramForm
from curvescope.problem import Problem
from curvescope.record.extended import class_directions
from curvescope.structure.class_factors import LayerApproximation, layer_approximations
from curvescope.studies.entry import Entry, Outcome, Row, Settings
from curvescope.studies.traces import subjects
from curvescope.studies.traces.perceptron import DATA, SUBJECT, difference, perceptron


def run(settings: Settings) -> Outcome:
    """All layers of the perceptron on each data set, on a balanced subset."""
    per_class = settings.pick(smoke=3, small=15, paper=100)
    rows: list[Row] = []
    pictures: list[Picture] = []
    numbers: dict[str, object] = {}
    notes = [difference(settings), subjects.RANGES]
    for name in DATA:
        found = perceptron(settings, name)
        few = found.data.per_class(per_class)
        settings.tell(f"{name}: G, KFAC and CFAC of all layers")
        problem = subjects.problem(found.subject, few)
        layers = layer_approximations(
            problem,
            generator=settings.generator(3),
            limit=settings.pick(smoke=512, small=2048, paper=16384),
            steps=settings.pick(smoke=24, small=100, paper=120),
        )
        half = carriers(problem)
        rows += [*_rows(name, list(layers.values())),
                 Row(f"{name}: samples of {len(few)} that carry half of tr G", half)]  # fmt: skip
        pictures.append(_picture(name, found.name, list(layers.values())))
        numbers[name] = {layer: _numbers(own) for layer, own in layers.items()}
        notes.append(found.note)
    notes.append(
        f"G is measured on {per_class} training images per class; spectra of G and KFAC are exact, "
        "those of CFAC exact where they are small and else from Lanczos. Distance: Wasserstein of "
        "the spectra of ln(λ + 1e-5); outliers: mean |ln λᵢ − ln λ̂ᵢ| of the C largest. An "
        "error ‖G − A‖/‖G‖ above 1 means that A is not near G as a matrix, whatever its spectrum; "
        "how many samples carry half of tr G says on how few of them it rests."
    )
    return Outcome(tuple(rows), tuple(pictures), numbers, tuple(notes))


def _rows(data: str, layers: list[LayerApproximation]) -> list[Row]:
    n, last = len(layers), layers[-1]
    rows = []
    for what in ("outliers", "frobenius", "distance"):
        pairs = [(getattr(x.cfac_error, what), getattr(x.kfac_error, what)) for x in layers]
        better = [ours < other for ours, other in pairs]
        listed = ", ".join(x.name for x, good in zip(layers, better, strict=True) if not good)
        note = f"not in {listed}" if listed else ""
        rows.append(Row(f"{data}: layers of {n} where CFAC is nearer to G, {what}",
                        sum(better), paper=n, note=note))  # fmt: skip
    rows += [
        Row(f"{data}, last layer: outliers of CFAC over KFAC's misalignment",
            last.cfac_error.outliers / last.kfac_error.outliers, high=1.0, note="fig. 11"),
        Row(f"{data}, last layer: relative error ‖G − CFAC‖/‖G‖", last.cfac_error.frobenius,
            note=f"KFAC: {last.kfac_error.frobenius:.3f}"),
        Row(f"{data}, last layer: cosine of g_c and δ_c ⊗ h_c, mean",
            float(last.class_cosines.nanmean()), 1.0, low=0.9, note="sec. 7.12"),
        Row(f"{data}, last layer: cosine of g_cc' and δ_cc' ⊗ h_c, mean",
            _off(last), 1.0, low=0.9, note="sec. 7.12"),
        Row(f"{data}, first layer: cosine of g_c and δ_c ⊗ h_c, mean",
            float(layers[0].class_cosines.nanmean())),
    ]  # fmt: skip
    return rows


def carriers(problem: Problem) -> int:
    """How many samples it takes, the heaviest first, to make half of ``tr G``."""
    form = GramForm(problem, class_directions)
    norms = form.diagonal()
    samples = sum(len(batch.target) for batch in form.source.batches)
    shares = norms.reshape(samples, -1).sum(1).sort(descending=True).values.cumsum(0)
    return int((shares < shares[-1] / 2).sum()) + 1


def _off(layer: LayerApproximation) -> float:
    """Over pairs of different classes."""
    cosines = layer.cross_cosines.clone().fill_diagonal_(float("nan"))
    return float(cosines.nanmean())


def _numbers(layer: LayerApproximation) -> dict[str, float]:
    return {
        **{f"KFAC {k}": v for k, v in vars(layer.kfac_error).items()},
        **{f"CFAC {k}": v for k, v in vars(layer.cfac_error).items()},
        "class cosine": float(layer.class_cosines.nanmean()),
        "cross cosine": _off(layer),
    }


def _picture(data: str, network: str, layers: list[LayerApproximation]) -> Picture:
    panels = []
    for layer in layers:
        spectra = {"G": layer.exact, "KFAC": layer.kfac, "CFAC": layer.cfac}
        edges = subjects.decades(spectra)
        # Lanczos puts the eigenvalues of CFAC's bulk on few nodes: sums are smooth, counts a comb.
        counts = [subjects.histogram(name, s, edges) for name, s in spectra.items()]
        curves = tuple(replace(curve, y=above(curve.y)) for curve in counts)
        panels.append(replace(subjects.log_panel(layer.name, curves), ylabel="eigenvalues above"))
    caption = (
        f"{data}: how many eigenvalues of every layer's block of G, of KFAC and of CFAC lie above "
        "a value (TR fig. 11, 12, which show densities)."
    )
    return Picture(f"{data}-spectra", caption, tuple(panels), 4, f"{data}, {network}")


def _checks(outcome: Outcome) -> Iterator[Row]:
    """TR: CFAC aligns much better with G than KFAC, especially at deeper layers."""
    for data, layers in outcome.numbers.items():
        nearer = [own["CFAC outliers"] < own["KFAC outliers"] for own in layers.values()]
        n, deep = len(nearer), nearer[len(nearer) // 2 :]
        yield Row(f"{data}: layers of {n} where CFAC has the outliers of G better, most",
                  sum(nearer), paper=n, low=n // 2 + 1, note="“align much better”")  # fmt: skip
        yield Row(f"{data}: of the {len(deep)} deepest, all", sum(deep), paper=len(deep),
                  low=len(deep), note="“especially at deeper layers”")  # fmt: skip


ENTRY = Entry(
    name="traces/kfac",
    source="TR sec. 7.10–7.12: fig. 11, 12",
    shows=(
        "CFAC, which pairs features and errors within classes, has the outliers of G where KFAC "
        "has not, most of all in deep layers."
    ),
    cost={
        "smoke": "4 s, embedded digits and garments, 32 units",
        "small": "2 minutes on two cores, 256 units; shares its networks with features-errors",
        "paper": "2048 units, 1,351 images per class, 2 minutes on an H200 with its training",
    },
    run=run,
    subject=SUBJECT,
    reduced={
        "smoke": "32 units instead of 2048, embedded images, without CIFAR-10",
        "small": (
            "256 units instead of 2048, 300 images per class, 40 epochs, one learning rate instead "
            "of a sweep; G of 15 images per class; without CIFAR-10"
        ),
        "paper": (
            "one learning rate instead of a sweep; G of 100 images per class; without CIFAR-10 and "
            "without batch norm"
        ),
    },
    checks=_checks,
)
