"""LeNet5 with its batch norms after the pooling, as in the study ``batch-norm``."""

from curvescope.studies.wu2020.batch_norm import run

__all__ = ["run"]
