"""The rows of DH table 9: networks after SGD, and certificates of them, kept in the work folder.

A row is a network and a method, ``T-600:ITER``: T- and R- are true and random labels of 0–4 against
5–9, ``_10`` is ten classes; LOCAL is our own method. Processes that share a work folder can share
the rows between them: :func:`train_networks` first, then :func:`row`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
from curvescope.certificates.posterior import Posterior
from curvescope.certificates.profile import variance_profile
from curvescope.data import Dataset, dataset
from curvescope.errors import CurvescopeError
from curvescope.studies.dissecting_hessian.table_9_printed import PRINTED
from curvescope.studies.entry import Settings
from curvescope.studies.trained import Subject, trained
from curvescope.training import Recipe


@dataclass(frozen=True)
class Found:
    """A finished row: the certificate, how long it took, and how wide the posterior is."""

    name: str
    method: str
    certificate: Certificate
    seconds: float
    places: Tensor  # of the first layer's coordinates, by falling eigenvalue
    variances: Tensor

    @property
    def printed(self) -> tuple[float, float, float, float] | None:
        """The paper's bound, KL, stochastic error and ½ log λ."""
        return PRINTED.get(self.name, {}).get(self.method)


# Networks -----------------------------------------------------------------------------


def train_networks(settings: Settings, keys: Sequence[str]) -> None:
    """Train what is not in the work folder yet."""
    for name in dict.fromkeys(key.partition(":")[0] for key in keys):
        subject(settings, name, _load(settings, name, "train"))


def subject(settings: Settings, name: str, data: Dataset) -> Subject:
    """The network after SGD with batches of 128 at rate 0.01, and its initial weights (DH App. G).

    DH: 1000 epochs without momentum; see the notes.
    """
    ten = name.endswith("_10")
    recipe = Recipe(
        seed=settings.seed,
        epochs=settings.pick(smoke=20, small=20, paper=100),
        momentum=0.9,
        loss="cross_entropy" if ten else "binary_logistic",
    )
    (found,) = trained(
        settings,
        f"table-9-{_file(name)}-{settings.scale}",
        name.removesuffix("_10"),
        data,
        recipe,
        seeds=(settings.seed,),
        init="dziugaite-roy",
        outputs=10 if ten else 1,
    )
    return found


def _load(settings: Settings, name: str, split: str) -> Dataset:
    """MNIST-2, MNIST-2 with random labels, or MNIST with ten classes; as pixels in [0, 1]."""
    kind = settings.pick(smoke="mnist-6k", small="mnist", paper="mnist")
    if not name.endswith("_10"):
        kind += "-2-R" if name.startswith("R-") else "-2"
    few = settings.pick(smoke=400, small=None, paper=None)
    found = dataset(kind, root=settings.root, split=split, seed=settings.seed, per_class=few)
    return found.to(settings.device)


def _file(text: str) -> str:
    """A name that every file system takes.

    >>> _file("T-200^2_10:ITER(D)")
    'T-200x2_10-ITER-D'
    """
    return text.replace("^", "x").replace("(", "-").replace(")", "").replace(":", "-")


# Rows ---------------------------------------------------------------------------------


def row(settings: Settings, key: str, **changes: object) -> Found:
    """One row, from the work folder or computed; ``changes`` are fields of the method."""
    name, _, method = key.partition(":")
    kept = settings.once(f"table-9-{_file(key)}", lambda: _compute(settings, name, method, changes))
    text = bytes(kept["certificate"].tolist()).decode()
    return Found(
        name, method, Certificate.from_json(io.parse_json(text, key)), float(kept["seconds"]),
        kept["places"].cpu(), kept["variances"].cpu(),
    )  # fmt: skip


def _compute(
    settings: Settings, name: str, method: str, changes: Mapping[str, object]
) -> dict[str, Tensor]:
    data, test = (_load(settings, name, split) for split in ("train", "test"))
    network = subject(settings, name, data)
    chosen = _method(settings, method, changes)
    settings.tell(f"{name}:{method}: {chosen.epochs} epochs")
    begin = time.monotonic()
    certificate = certify(
        network.model, network.initial, data, test=test, method=chosen,
        slack=settings.pick(smoke=0.03, small=1e-3, paper=1e-3 if name.startswith("R-") else 2e-4),
        generator=settings.generator(), progress=_teller(settings, f"{name}:{method}"),
    )  # fmt: skip
    seconds = time.monotonic() - begin
    _insist(certificate.verify(
        model=network.model, initial_state=network.initial, data=data,
        generator=settings.generator(1),
    ))  # fmt: skip
    profile = variance_profile(_posterior(certificate), certificate.layout[0].name)
    text = json.dumps(certificate.to_json()).encode()
    return {
        "certificate": torch.tensor(list(text), dtype=torch.uint8),
        "seconds": torch.tensor(seconds, dtype=torch.float64),
        "places": profile.place,
        "variances": profile.variance,
    }


def _posterior(certificate: Certificate) -> Posterior:
    if certificate.posterior is None:
        rule = "a certificate has no posterior"
        raise CurvescopeError("table 9", rule, remedy="compute the row again")
    return certificate.posterior


def _insist(result: Verification) -> None:
    """Refuse a row whose certificate is anything but verified."""
    if result.verdict != "verified":
        wrong = [f"{check.what}: {check.detail}" for check in result.checks if not check.passed]
        rule = f"a certificate is {result.verdict} ({'; '.join([*wrong, *result.unchecked])})"
        raise CurvescopeError("table 9", rule)


def _method(settings: Settings, name: str, changes: Mapping[str, object]) -> Method:
    """The method with what its scale allows; the paper's methods with local noise, see the notes.

    Where the basis is fixed the variances need longer.
    """
    choices: dict[str, object]
    if name == "LOCAL":
        choices = {
            "epochs": settings.pick(smoke=15, small=60, paper=700),
            "batch_size": settings.pick(smoke=100, small=500, paper=1000),
            "rate": settings.pick(smoke=3.0, small=3.0, paper=1.0),
        }
    else:
        fixed = name in ("BASE", "APPR")
        choices = {
            "local": True,
            "epochs": settings.pick(smoke=15, small=60, paper=400 if fixed else 200),
            "batch_size": settings.pick(smoke=100, small=250, paper=500),
            "rate": settings.pick(smoke=2e-2, small=3e-3, paper=2e-3 if fixed else 3e-3),
        }
    return posterior_method(name.lower(), **{**choices, **changes})


def _teller(settings: Settings, key: str) -> Callable[[Progress], None]:
    """Say how far a row is, every few seconds."""
    last = [time.monotonic()]

    def tell(progress: Progress) -> None:
        if time.monotonic() - last[0] >= 5:
            last[0] = time.monotonic()
            word = "bound about" if progress.task == "optimize" else "error"
            done = f"{progress.task} {progress.done}/{progress.total}"
            settings.tell(f"{key}: {done}, {word} {progress.bound:.4f}")

    return tell
