"""The demonstration: two networks trained and analyzed, a third one certified, in a few minutes.

It walks the road that ``curvescope train``, ``analyze`` and ``certify`` walk, at its smallest: the
embedded part of MNIST, small networks, and the curvature of the loss of two hundred samples, few
enough for the exact spectrum of G and its class structure. Everything lies in one folder, and a
demonstration that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curvescope import io
from curvescope._checks import positive_int
from curvescope._numbers import short
from curvescope.certificates import Certificate, posterior_method
from curvescope.experiments import trained
from curvescope.experiments.analyze import analyze
from curvescope.experiments.best_values import best_values
from curvescope.experiments.certified import certified
from curvescope.experiments.configuration import Settings
from curvescope.experiments.quantities import LARGEST, SMALLEST, TRACE
from curvescope.experiments.stages.context import derived
from curvescope.experiments.stages.overview import Overview
from curvescope.experiments.store import RunDirectory
from curvescope.experiments.training import named_data, train_network
from curvescope.problem import Problem
from curvescope.spectra.control import Progress
from curvescope.training.recipe import Recipe

Show = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Subject:
    """A network, its data and how it is trained; ``folder`` lies below the demonstration's."""

    folder: str
    network: str
    data: str
    epochs: int
    lr: float
    momentum: float = 0.0
    loss: str = "cross_entropy"


@dataclass(frozen=True)
class Plan:
    """The networks, data and settings of a demonstration.

    Args:
        analyzed: The networks that are analyzed.
        certified: The network with a certificate; of two classes, for which little data suffices.
        per_class: Training samples of each class whose loss is differentiated.
        settings: How much work each analysis does.
        epochs: Passes over the data for the certificate's posterior.
        slack: The most that the draws may add to the certified error.
    """

    analyzed: tuple[Subject, ...] = (
        Subject("lenet5", "LeNet5", "mnist-6k", epochs=10, lr=0.05, momentum=0.9),
        Subject("mlp", "F-64^2", "mnist-6k", epochs=15, lr=0.05, momentum=0.9),
    )
    certified: Subject = Subject(
        "binary", "T-100", "mnist-6k-2", epochs=20, lr=0.1, loss="binary_logistic"
    )
    per_class: int = 20
    settings: Settings = field(
        default_factory=lambda: Settings(
            steps=60, probes=4, trace_probes=24, layer_pairs=20, exact_rows=2048, class_rows=2048
        )
    )
    epochs: int = 30
    slack: float = 0.003


@dataclass(frozen=True)
class Course:
    """The configuration of a demonstration."""

    seed: int
    plan: Plan


@dataclass(frozen=True)
class Demonstration:
    """A finished demonstration: the folder, its analyses in order, and the certificate."""

    path: Path
    runs: tuple[RunDirectory, ...]
    certificate: Certificate

    @property
    def consistent(self) -> bool:
        """Whether all self-checks agree and the certificate's arithmetic holds."""
        checked = all(check.passed for run in self.runs for _, check in run.checks())
        return checked and self.certificate.verify().passed


def demonstrate(
    out: io.PathLike,
    *,
    seed: int,
    plan: Plan | None = None,
    tell: Callable[[str], None] = lambda stage: None,
    show: Show = lambda done, total, words: None,
    progress: Callable[[Progress], None] | None = None,
) -> Demonstration:
    """Train, analyze and certify; what is finished in ``out`` is read.

    Args:
        out: A folder: new, empty, or with a demonstration of the same plan and seed.
        seed: Decides every random number.
        plan: Networks, data and settings; the plan of ``curvescope demo`` if none.
        tell: Called with a few words at the beginning of each part.
        show: Called with the steps done, the steps in all and a few words, while a network is
            trained or certified.
        progress: Called after every step of an estimate.

    Raises:
        CurvescopeError: If ``out`` holds something else or another demonstration.
    """
    seed = positive_int("demonstrate", "seed", seed, minimum=0)
    plan = plan or Plan()
    with io.claimed(out, Course(seed, plan)) as place:
        for subject in (*plan.analyzed, plan.certified):
            tell(f"{subject.network}: training")
            _train(subject, place, seed, show)
        for subject in plan.analyzed:
            _analyze(subject, place, seed, plan, tell=tell, progress=progress)
        tell(f"{plan.certified.network}: certificate")
        _certify(plan, place, seed, show)
    return load(place)


def load(path: io.PathLike) -> Demonstration:
    """A finished demonstration from its folder alone.

    Raises:
        CurvescopeError: If there is none, or it is not finished.
    """
    place = Path(path)
    plan = io.load(place / "config.json", Course).plan
    runs = tuple(RunDirectory(place / each.folder / "analysis") for each in plan.analyzed)
    folder = place / plan.certified.folder
    return Demonstration(place, runs, Certificate.load(folder / "certificate.json"))


def column(run: RunDirectory) -> dict[str, str]:
    """One network in numbers: what the tables of a demonstration show, row by row.

    Eigenvalues and sums are the best values, see :mod:`curvescope.experiments.best_values`.
    """
    overview = run.result("overview", Overview)
    rows = {
        "parameters": f"{overview.parameters:,}",
        "loss of these samples": short(overview.train.loss),
    }
    if overview.test is not None:
        rows["test loss"] = short(overview.test.loss)
        rows["test error"] = f"{100 * (overview.test.error or 0.0):.2f} %"
    for matrix, row in best_values(run).items():
        for quantity in (LARGEST, SMALLEST, TRACE):
            rows[f"{quantity} of {matrix}"] = str(row[quantity])
    return rows


def _train(subject: Subject, place: Path, seed: int, show: Show) -> None:
    recipe = Recipe(
        seed=seed,
        epochs=subject.epochs,
        lr=subject.lr,
        momentum=subject.momentum,
        loss=subject.loss,
    )

    def tell(progress: Any) -> None:
        last = progress.epochs[0]
        show(progress.done, progress.total, f"accuracy {last.accuracy:.1%}" if last else "")

    train_network(
        subject.network, named_data(subject.data), recipe,
        folder=place / subject.folder, resume=True, tell=tell,
    )  # fmt: skip


def _analyze(
    subject: Subject,
    place: Path,
    seed: int,
    plan: Plan,
    *,
    tell: Callable[[str], None],
    progress: Callable[[Progress], None] | None,
) -> None:
    folder = place / subject.folder
    model, data = trained.load_run(folder), trained.load_run_data(folder)
    few = data.train.per_class(plan.per_class)
    analyze(
        Problem(model, few, loss=subject.loss),
        folder / "analysis",
        seed=seed,
        test=Problem(model, data.test, loss=subject.loss),
        settings=plan.settings,
        names={"model": subject.network, "data": f"{len(few):,} digits of {data.name}"},
        tell=lambda stage: tell(f"{subject.network}: {stage}"),
        progress=progress,
    )


def _certify(plan: Plan, place: Path, seed: int, show: Show) -> None:
    folder = place / plan.certified.folder
    data = trained.load_run_data(folder)
    certified(
        folder / "certificate.json",
        trained.load_run(folder),
        folder / "weights" / "initial.safetensors",
        data.train,
        seed=derived(seed, "certificate"),
        method=posterior_method("local", epochs=plan.epochs),
        test=data.test,
        slack=plan.slack,
        progress=lambda p: show(p.done, p.total, f"{p.task}, {p.bound:.3f}"),
    )
