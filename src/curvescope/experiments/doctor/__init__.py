"""The doctor: tries a model and its data out, and says what an analysis of them will take."""

from curvescope.experiments.doctor.examination import doctor
from curvescope.experiments.doctor.records import Diagnosis

__all__ = ["Diagnosis", "doctor"]
