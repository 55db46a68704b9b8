"""Table 10 with weight decay, and tables 6 and 7 of the same networks; see ``output-spaces``."""

from curvescope.studies.wu2020.output_spaces import run

__all__ = ["run"]
