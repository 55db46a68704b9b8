"""The network of TR fig. 3, 4, 14 and 16: VGG11 on MNIST, trained and measured once for all."""

from __future__ import annotations

from dataclasses import dataclass

from curvescope.operators.gauss_newton import GaussNewton
from curvescope.operators.hessian import Hessian
from curvescope.problem import Problem
from curvescope.spectra.measure import SpectralMeasure, spectral_measure
from curvescope.studies.entry import Settings
from curvescope.studies.traces import subjects
from curvescope.studies.trained import Subject

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Digits:
    """The trained network and the images on which its spectra are measured."""

    network: str
    subject: Subject
    problems: dict[str, Problem]  # by split
    fits: dict[str, tuple[float, float]]  # loss and error on all images of a split
    trained_on: int  # per class
    measured_on: int  # per class

    @property
    def note(self) -> str:
        """What was trained and measured, in one sentence."""
        errors = ", ".join(
            f"{split} loss {loss:.3g}, error {error:.1%}" for split, (loss, error) in
            self.fits.items()
        )  # fmt: skip
        return (
            f"{self.network} trained on {self.trained_on} digits per class ({errors}), spectra on "
            f"{self.measured_on} of each split; on a GPU training is in TF32, nothing else."
        )


def digits(settings: Settings) -> Digits:
    """Train (App. D; at ``paper`` half of its epochs, and in TF32) and set up both splits."""
    network = settings.pick(smoke="F-24", small="LeNet5", paper="VGG11-4096^2-BN")
    per_class = settings.pick(smoke=20, small=30, paper=1351)
    least = settings.pick(smoke=20, small=30, paper=100)
    plan = subjects.recipe(
        settings.pick(smoke=20, small=60, paper=100),
        settings.pick(smoke=0.05, small=0.02, paper=0.05),
    )
    data = subjects.images(settings, "mnist", per_class)
    subject = subjects.train_one(settings, "traces-digits", network, data, plan)
    most = settings.pick(smoke=20, small=800, paper=800)
    all_of = {"train": data, "test": subjects.images(settings, "mnist", most, split="test")}
    return Digits(
        network,
        subject,
        {
            split: subjects.problem(subject, found.per_class(least), size=1000)
            for split, found in all_of.items()
        },
        {split: subjects.fit(subject, found) for split, found in all_of.items()},
        per_class,
        least,
    )


def test_residual(settings: Settings, found: Digits) -> SpectralMeasure:
    """The spectrum of ``E = H − G`` on test images by Lanczos, one probe, computed once."""
    steps = settings.pick(smoke=128, small=256, paper=512)
    problem = found.problems["test"]

    def measure() -> SpectralMeasure:
        settings.tell(f"Lanczos on the test E, {steps} steps")
        E = Hessian(problem, keep=True) - GaussNewton(problem, keep=True)
        return spectral_measure(E, steps=steps, generator=settings.generator(20))

    kept = settings.once("traces-digits-residual", lambda: subjects.saved_measure(measure()))
    return subjects.restored_measure(kept)
