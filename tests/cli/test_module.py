"""``python -m curvescope``."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version


def test_the_module_is_the_command() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "curvescope", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == version("curvescope")
