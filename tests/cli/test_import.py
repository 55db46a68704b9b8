"""``import curvescope`` and the command line are quick: what is heavy waits until it is used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import curvescope

HEAVY = ("matplotlib", "sklearn", "pooch", "jinja2", "pandas", "torchvision")


def printed(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_first_steps_take_at_most_one_and_a_half_times_what_torch_takes() -> None:
    """In processor seconds of one process: the clock would measure the neighbors too."""
    code = (
        "from time import process_time; begun = process_time()\n"
        "import torch; torchs = process_time() - begun\n"
        "import curvescope as cs; cs.Problem, cs.Hessian, cs.eigenpairs\n"
        "print((process_time() - begun) / torchs)"
    )
    # The first measurement is the only one unless something disturbed it.
    ratios = (float(printed(code)) for _ in range(3))
    assert any(ratio <= 1.5 for ratio in ratios)


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import curvescope", (*HEAVY, "torch", "numpy", "typer", "rich")),
        ("from curvescope import *", (*HEAVY, "typer", "rich")),
        ("import curvescope.cli.app", (*HEAVY, "torch", "numpy")),
    ],
)
def test_heavy_libraries_wait_until_they_are_used(statement: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys; {statement}; print([m for m in {heavy!r} if m in sys.modules])"
    assert printed(code).strip() == "[]"


COMMANDS = ("demo", "train", "analyze", "certify", "reproduce", "compare", "view", "data list")


def test_help_and_version_do_not_wait_for_torch() -> None:
    asked = [["--help"], ["--version"], *([*name.split(), "--help"] for name in COMMANDS)]
    code = (
        "import sys; from curvescope.cli.app import run\n"
        f"codes = [run(words) for words in {asked!r}]\n"
        "assert codes == [0] * len(codes), codes\n"
        "assert 'torch' not in sys.modules"
    )
    assert "Usage: curvescope analyze" in printed(code)


def test_completion_and_plain_mistakes_do_not_wait_for_torch() -> None:
    code = (
        "import sys, atexit; from curvescope.cli import main\n"
        "atexit.register(lambda: print('torch' in sys.modules))\n"
        "sys.argv[1:] = {words!r}\n"
        "try:\n    main()\nexcept SystemExit:\n    pass"
    )
    shell = {"COMP_WORDS": "curvescope analyz", "COMP_CWORD": "1"}
    completed = printed(
        code.format(words=[]), **shell, _CURVESCOPE_COMPLETE="complete_bash"
    ).split()
    assert completed == ["analyze", "False"]
    wrong = ["train", "F-4", "--data", "digits", "--device", "abacus"]
    assert printed(code.format(words=wrong)) == "False\n"


def test_a_folder_does_not_hide_the_function_of_its_name() -> None:
    code = (
        "import curvescope.flatness.measures, curvescope as cs\n"
        "print(callable(cs.sharpness), cs.spectra.__name__)"
    )
    assert printed(code).split() == ["True", "curvescope.spectra"]


def test_public_names_are_found_and_others_are_not() -> None:
    assert all(getattr(curvescope, name) is not None for name in curvescope.__all__)
    assert set(curvescope.__all__) <= set(dir(curvescope))
    with pytest.raises(AttributeError, match="has no attribute 'nothing_of_ours'"):
        _ = curvescope.nothing_of_ours
