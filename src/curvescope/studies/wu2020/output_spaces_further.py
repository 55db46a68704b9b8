"""Table 10 for other networks and data, as in the study ``output-spaces``."""

from curvescope.studies.wu2020.output_spaces import derive, run

__all__ = ["derive", "run"]
