"""PAC-Bayes bounds on MNIST by the methods of Wu et al. (2020) and by ours (tables 1 and 9).

Processes that share a work folder can share the rows between them: :func:`networks` first, then
:func:`row`, then :func:`run`, which reads what they made.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from curvescope import io
from curvescope.certificates import (
    Certificate,
    Method,
    Progress,
    Verification,
    certify,
    posterior_method,
)
from curvescope.certificates.profile import variance_profile
from curvescope.data import Dataset, dataset
from curvescope.errors import CurvescopeError
from curvescope.figures.model import Picture
from curvescope.studies.networks import Description, Images, Trained, trained
from curvescope.studies.pictures import curves
from curvescope.studies.run import Result, Run
from curvescope.training import Recipe, evaluate

ALGORITHM_1 = ", algorithm 1"
KEPT = ("kl", "empirical_error", "error_bound", "bound", "terms", "prior", "draws")
"""What an outcome has of each certificate."""
_FIXED = ("BASE", "APPR")  # their basis does not change, so that the variances need longer


@dataclass(frozen=True)
class Bound:
    """A row of the table: the certificate, and how wide the posterior of the first layer is."""

    name: str  # "T-600"
    method: str  # "ITER", "BASE, algorithm 1"
    certificate: Certificate
    places: Tensor  # of the first layer's coordinates, by falling eigenvalue
    variances: Tensor

    @property
    def half_log(self) -> float:
        """``½ log λ`` of the prior, which the paper's column "λ (prior)" has; of the first term."""
        return 0.5 * math.log(self.certificate.prior[0].variance)


def run(run: Run) -> Result:
    """Every row of the scale, one after the other."""
    errors = networks(run)
    bounds = [row(run, key) for key in keys(run)]
    return Result(_values(bounds, errors), _pictures(bounds), _numbers(bounds))


def keys(run: Run) -> list[str]:
    """The rows of the scale: network and method, those by algorithm 1 last."""
    return [*run["rows"], *(f"{key}{ALGORITHM_1}" for key in run["exact"])]


# Networks -----------------------------------------------------------------------------------------


def networks(run: Run) -> dict[str, float]:
    """Train what is not in the work folder yet; the errors on test data after SGD."""
    errors = {}
    for name in dict.fromkeys(key.partition(":")[0] for key in keys(run)):
        network = _network(run, name, _images(run, name, "train"))
        test = _images(run, name, "test")
        errors[name] = 1 - evaluate(network.model, test, loss=_loss(name)).accuracy
    return errors


def _network(run: Run, name: str, data: Dataset) -> Trained:
    """The network after SGD with batches of 128 at rate 0.01, and its initial weights (App. G)."""
    recipe = Recipe(seed=0, epochs=run["sgd_epochs"], momentum=0.9, loss=_loss(name))
    description = Description(
        name.removesuffix("_10"),
        Images(data.name),
        recipe,
        init="dziugaite-roy",
        outputs=10 if name.endswith("_10") else 1,
    )
    (network,) = trained(
        f"wu2020/pac-bayes-{_file(name)}-{run.scale}",
        description,
        data,
        work=run.work,
        device=run.device,
        seed=run.seed,
        tell=run.tell,
    )
    return network


def _loss(name: str) -> str:
    return "cross_entropy" if name.endswith("_10") else "binary_logistic"


def _images(run: Run, name: str, split: str) -> Dataset:
    """0–4 against 5–9, the same with random labels, or ten classes; pixels in [0, 1]."""
    kind = run["data"]
    if not name.endswith("_10"):
        kind += "-2-R" if name.startswith("R-") else "-2"
    images = dataset(
        kind, root=run.root, split=split, seed=run.seed, per_class=run.get("per_class")
    )
    return images.to(run.device)


def _file(text: str) -> str:
    """A name that every file system takes.

    >>> _file("T-200^2_10:ITER(D)")
    'T-200x2_10-ITER-D'
    """
    for old, new in (("^", "x"), ("(", "-"), (")", ""), (":", "-"), (", ", "-"), (" ", "-")):
        text = text.replace(old, new)
    return text


# Rows ---------------------------------------------------------------------------------------------


def row(run: Run, key: str) -> Bound:
    """One row, from the work folder or computed."""
    name, _, method = key.partition(":")
    chosen = _method(run, method)

    def compute() -> dict[str, Tensor]:
        return _compute(run, name, method, chosen)

    part = run.once(f"bound-{_file(key)}", compute)
    text = bytes(part["certificate"].tolist()).decode()
    certificate = Certificate.from_json(io.parse_json(text, key))
    return Bound(name, method, certificate, part["places"].cpu(), part["variances"].cpu())


def _method(run: Run, name: str) -> Method:
    if name.endswith(ALGORITHM_1):
        return posterior_method(name.removesuffix(ALGORITHM_1).lower(), **run["algorithm_1"])
    if name == "LOCAL":
        return posterior_method("local", **run["own"])
    fast = run["fast"]
    fixed = name in _FIXED
    return posterior_method(
        name.lower(),
        local=True,
        epochs=fast["fixed_epochs" if fixed else "epochs"],
        rate=fast["fixed_rate" if fixed else "rate"],
        batch_size=fast["batch_size"],
    )


def _compute(run: Run, name: str, method: str, chosen: Method) -> dict[str, Tensor]:
    data, test = (_images(run, name, split) for split in ("train", "test"))
    network = _network(run, name, data)
    run.tell(f"{name} {method}: {chosen.epochs} epochs")
    certificate = certify(
        network.model,
        network.initial,
        data,
        test=test,
        method=chosen,
        slack=run["slack"][name[0]],
        generator=run.generator(),
        progress=_teller(run, f"{name} {method}"),
    )
    _insist(
        certificate.verify(
            model=network.model,
            initial_state=network.initial,
            data=data,
            generator=run.generator(1),
        )
    )
    if certificate.posterior is None:
        raise CurvescopeError("pac-bayes", "a certificate has no posterior")
    profile = variance_profile(certificate.posterior, certificate.layout[0].name)
    text = json.dumps(certificate.to_json()).encode()
    return {
        "certificate": torch.tensor(list(text), dtype=torch.uint8),
        "places": profile.place,
        "variances": profile.variance,
    }


def _insist(result: Verification) -> None:
    """Refuse a row whose certificate is anything but verified."""
    if result.verdict != "verified":
        wrong = [f"{check.what}: {check.detail}" for check in result.checks if not check.passed]
        rule = f"a certificate is {result.verdict} ({'; '.join([*wrong, *result.unchecked])})"
        raise CurvescopeError("pac-bayes", rule)


def _teller(run: Run, key: str) -> Callable[[Progress], None]:
    """Say how far a row is, every few seconds."""
    last = [time.monotonic()]

    def tell(progress: Progress) -> None:
        if time.monotonic() - last[0] >= 5:
            last[0] = time.monotonic()
            word = "bound about" if progress.task == "optimize" else "error"
            done = f"{progress.task} {progress.done}/{progress.total}"
            run.tell(f"{key}: {done}, {word} {progress.bound:.4f}")

    return tell


# What is shown ------------------------------------------------------------------------------------


def _values(bounds: Sequence[Bound], errors: Mapping[str, float]) -> dict[str, float]:
    values: dict[str, float] = {}
    for each in bounds:
        c, row = each.certificate, f"{each.name} {each.method}"
        values |= {
            f"bound, {row}": c.bound,
            f"KL, {row}": c.kl,
            f"error, {row}": c.error_bound,
            f"½ log λ, {row}": each.half_log,
        }
    values |= {f"test error after SGD, {name}": error for name, error in errors.items()}
    shown = [each for each in _of_wide(bounds) if each.method not in _FIXED]
    chosen = next((each for each in shown if each.method == "ITER"), shown[0])
    values["variance of the first layer, where the eigenvalue is largest over the median"] = float(
        chosen.variances[0] / chosen.variances.median()
    )
    return values


def _of_wide(bounds: Sequence[Bound]) -> list[Bound]:
    """Those of the network that the paper draws, T-200² with ten classes, or of the first."""
    names = [each.name for each in bounds]
    wide = "T-200^2_10" if "T-200^2_10" in names else names[0]
    return [each for each in bounds if each.name == wide]


def derive(values: Mapping[str, float], numbers: Mapping[str, Any]) -> dict[str, float]:
    """Table 1's rows for APPR, and what a curvature basis gains."""
    made = {
        f"bound as in table 1, {row}": values[f"bound, {row}"]
        for row in ("T-600 APPR", "T-300^2 APPR", "T-600^2 APPR", "T-200^2_10 APPR")
        if f"bound, {row}" in values
    }
    gains = [a - b for a, b in _pairs(values, "ITER", "BASE")]
    if gains:
        made["bound of ITER less that of BASE, largest"] = max(gains)
    own = [a - b for a, b in _pairs(values, "LOCAL", "ITER")]
    if own:
        made["bound of LOCAL less that of ITER, largest"] = max(own)
    losses = [a / b for a, b in _pairs(values, "ITER.M", "ITER")]
    if losses:
        made["bound of ITER.M over that of ITER, least"] = min(losses)
    return made


def _pairs(values: Mapping[str, float], one: str, other: str) -> list[tuple[float, float]]:
    """The bounds of two methods, of all networks with true labels that have both."""
    names = [n.removesuffix(f" {one}") for n in values if n.startswith("bound, T-")]
    return [
        (values[f"{name} {one}"], values[f"{name} {other}"])
        for name in dict.fromkeys(names)
        if f"{name} {one}" in values and f"{name} {other}" in values
    ]


def _numbers(bounds: Sequence[Bound]) -> dict[str, Any]:
    """What the bounds are made of."""
    made = {}
    for each in bounds:
        whole = each.certificate.to_json()
        made[f"{each.name} {each.method}"] = {key: whole[key] for key in KEPT}
    return made


def _pictures(bounds: Sequence[Bound]) -> tuple[Picture, ...]:
    shown = _of_wide(bounds)
    wide = shown[0].name
    layer = shown[0].certificate.layout[0].name
    variance = curves(
        "",
        "place by falling eigenvalue",
        "posterior variance",
        {each.method: (each.places, each.variances) for each in shown},
        xscale="log",
        yscale="log",
    )
    return (
        Picture(
            "variance",
            f"{wide}, {layer}: posterior variance against the order of eigenvalues (fig. 7, 30). "
            "BASE has no eigenvalues: its coordinates are the weights in their order.",
            (variance,),
            columns=1,
        ),
        _histories([each for each in bounds if each.name == bounds[0].name]),
    )


def _histories(bounds: Sequence[Bound]) -> Picture:
    def part(name: str) -> dict[str, Any]:
        return {
            each.method: (
                [point.epoch / each.certificate.method.epochs for point in points],
                [getattr(point, name) for point in points],
            )
            for each in bounds
            if (points := each.certificate.history)
        }

    labels = {"bound": "bound", "error": "stochastic error", "kl": "KL(Q‖P)"}
    panels = tuple(
        curves("", "share of the epochs", label, part(name), yscale="log")
        for name, label in labels.items()
    )
    caption = (
        f"{bounds[0].name}: estimates of the bound and its two parts while the posterior is "
        "optimized; a curvature basis reaches a smaller divergence at a smaller error."
    )
    return Picture("history", caption, panels, columns=3)
