"""What is saved × ways of being another one: refused, or computed anew; the same is found again.

A thing is a function of a world and a folder. It is called twice with one folder, the second time
with a world that differs in one point, and may then refuse, or return exactly what it returns with
an empty folder. A new thing that is saved belongs into ``THINGS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from curvescope import io
from curvescope.data import Dataset
from curvescope.errors import CurvescopeError
from curvescope.experiments.analyze import analyze
from curvescope.experiments.stages import context as analyses
from curvescope.spectra import (
    block_lanczos,
    diagonal,
    eigenpairs,
    frobenius,
    kpm,
    lanczos,
    logdet,
    spectral_measure,
    subspace_iteration,
    trace,
)
from curvescope.studies.networks import Description, Images, trained
from curvescope.studies.run import Run
from curvescope.training import Recipe, train
from tests.fuzz.workspace import TOY
from tests.identity.world import MODELS, OTHER, SAME, SETTINGS, World, first

Result = dict[str, Any]


@dataclass(frozen=True)
class Thing:
    """``does`` it; ``blind`` are the ways that it does not see, ``strict`` the samples' order."""

    does: Callable[[World, Path], Result]
    blind: tuple[str, ...] = ()
    strict: bool = False


def plain(result: object) -> Result:
    return {field.name: getattr(result, field.name) for field in fields(result)}  # type: ignore[arg-type]


def estimate(
    run: Callable[..., Any], setting: str, world: World, folder: Path, **more: Any
) -> Result:
    settings = {setting: world.setting, **more, "generator": world.generator()}
    return plain(run(world.operator(), checkpoint=folder / "state", every=1, **settings))


ESTIMATORS: dict[str, Callable[[World, Path], Result]] = {
    "eigenpairs": partial(estimate, eigenpairs, "k", tol=1e-3),
    "lanczos": partial(estimate, lanczos, "steps"),
    "block_lanczos": partial(estimate, block_lanczos, "steps", block=2),
    "subspace_iteration": partial(estimate, subspace_iteration, "k", iterations=5),
    "spectral_measure": partial(estimate, spectral_measure, "steps", probes=2),
    "deflated measure": partial(estimate, spectral_measure, "steps", probes=2, deflate=2),
    "trace": partial(estimate, trace, "probes"),
    "xtrace": partial(estimate, trace, "probes", method="xtrace"),
    "frobenius": partial(estimate, frobenius, "probes"),
    "hutch++": partial(estimate, frobenius, "probes", method="hutch++"),
    "diagonal": partial(estimate, diagonal, "probes"),
    "logdet": partial(estimate, logdet, "steps", probes=2, damping=50.0),
    "kpm": partial(estimate, kpm, "degree", probes=2),
}


def training_run(world: World, folder: Path) -> Result:
    recipe = Recipe(seed=world.seed, epochs=2, lr=world.setting / 100, batch_size=4)
    model = world.model
    train(model, world.data, recipe, folder=folder / "run", resume=True)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def analysis(world: World, folder: Path) -> Result:
    settings = analyses.Settings(
        steps=4, probes=4, trace_probes=world.setting, outliers=2, layer_pairs=4
    )
    done = analyze(world.problem(), folder / "run", seed=world.seed, settings=settings)
    files = {name: (done.folder(name) / "result.json").read_text() for name in done.stages}
    return {"config": done.config, **files}


def study_part(world: World, folder: Path) -> Result:
    run = Run(TOY, "smoke", folder, seed=world.seed)
    operator, setting, seed = world.operator(), world.setting, world.seed

    def compute() -> dict[str, Tensor]:
        start = torch.linspace(0, setting, operator.shape[0], dtype=torch.float64)
        return {"image": operator @ start + seed}

    return dict(run.once("part", compute))


def study_network(world: World, folder: Path) -> Result:
    X, y = world.data
    data = Dataset(X.float(), y, classes=3, name="points")
    recipe = Recipe(seed=0, epochs=1, lr=world.setting / 100, batch_size=4)
    description = Description("F-5", Images("digits"), recipe)
    (network,) = trained("points", description, data, work=folder, seed=world.seed)
    return dict(network.model.state_dict())


NO_MATRIX = ("another matrix of its shape", "seven times the matrix")
NO_MODEL = (*NO_MATRIX, "another network", "another activation", *MODELS, *SETTINGS)
ROUNDED = ("one input's last bit",)  # inputs count as they are before rounding
NO_LOSS = ("another loss of its name",)
SEEDED = ("a generator that went on",)  # they take a seed, and make their generators from it

THINGS: dict[str, Thing] = {
    **{f"checkpoint of {name}": Thing(run) for name, run in ESTIMATORS.items()},
    "analysis": Thing(analysis, (*NO_MATRIX, *SEEDED)),
    "training run": Thing(training_run, (*NO_MATRIX, *NO_LOSS, *SEEDED), strict=True),
    "part of a study": Thing(study_part, SEEDED),
    "network of a study": Thing(
        study_network, (*NO_MODEL, *NO_LOSS, *ROUNDED, *SEEDED), strict=True
    ),
}
CELLS = [(t, w) for t, thing in THINGS.items() for w in OTHER if w not in thing.blind]
KEPT = [(t, w) for t, thing in THINGS.items() for w in SAME if not thing.strict or "again" in w]


def assert_equal(a: Result, b: Result) -> None:
    assert a.keys() == b.keys()
    for name in a:
        if isinstance(a[name], Tensor):
            assert torch.equal(a[name], b[name]), name
        else:
            assert a[name] == b[name], name


REFUSED = re.compile(r"belongs to another estimate|another configuration")


@pytest.mark.parametrize(("thing", "way"), CELLS)
def test_what_belongs_to_another_is_refused_or_computed_anew(
    thing: str, way: str, tmp_path: Path
) -> None:
    does, other = THINGS[thing].does, OTHER[way]
    for folder in ("shared", "alone"):
        (tmp_path / folder).mkdir()
    does(first(), tmp_path / "shared")
    before = written(tmp_path / "shared")
    try:
        result = does(other(first()), tmp_path / "shared")
    except CurvescopeError as error:
        assert REFUSED.search(str(error))  # noqa: PT017 (either outcome is right)
        assert written(tmp_path / "shared") == before
    else:
        assert written(tmp_path / "shared") != before
        assert_equal(result, does(other(first()), tmp_path / "alone"))


def written(folder: Path) -> dict[Path, int]:
    """The files with numbers and when they were written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} | {
        path: path.stat().st_mtime_ns for path in folder.rglob("state")
    }


@pytest.mark.parametrize(("thing", "way"), KEPT)
def test_what_is_the_same_is_found_again(thing: str, way: str, tmp_path: Path) -> None:
    does = THINGS[thing].does
    before = does(first(), tmp_path)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert_equal(before, does(SAME[way](first()), tmp_path))
    assert {path: path.stat().st_mtime_ns for path in files} == files


# What a refusal says ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("another matrix of its shape", r"\(the matrix is another one\)"),
        ("seven times the matrix", r"\(the matrix is another one\)"),
        ("a weight's last bit", r"\(the matrix is another one\)"),
        ("another loss of its name", r"\(the matrix is another one\)"),
        ("another seed", r"\(the generator began in another state, that of another seed\)"),
        ("another setting", r"\(probes is 6 there and 7 here\)"),
    ],
)
def test_a_refusal_says_what_differs(way: str, words: str, tmp_path: Path) -> None:
    ESTIMATORS["trace"](first(), tmp_path)
    with pytest.raises(CurvescopeError, match=rf"belongs to another estimate {words}; give"):
        ESTIMATORS["trace"](OTHER[way](first()), tmp_path)


def test_other_estimates_and_types_are_named(tmp_path: Path) -> None:
    ESTIMATORS["trace"](first(), tmp_path)
    with pytest.raises(CurvescopeError, match=r"\(it is one of trace\)"):
        ESTIMATORS["lanczos"](first(), tmp_path)


# Damaged files ------------------------------------------------------------------------------------


def damaged(path: Path) -> dict[str, bytes]:
    """A checkpoint in many states of decay."""
    raw = path.read_bytes()
    tensors, _ = io.read_tensors(path)
    flipped = bytearray(raw)
    flipped[-3] ^= 1
    states = {"flipped": bytes(flipped), "empty": b"", "cut": raw[:-9], "text": b"not a state"}
    states["no claim"] = io.tensor_bytes(path, tensors)
    states["foreign claim"] = io.tensor_bytes(path, tensors, {"format": "curvescope checkpoint 9"})
    end = 8 + int.from_bytes(raw[:8], "little")
    states["huge"] = raw[:end].replace(b'"shape":[', b'"shape":[99999999999,') + raw[end:]
    states["another name"] = raw.replace(b'"state.mean"', b'"state.nean"')
    states["another claim"] = raw.replace(b"trace", b"tract")
    return states


STATES = ("flipped", "empty", "cut", "text", "no claim", "foreign claim", "huge")


@pytest.mark.parametrize("state", [*STATES, "another name", "another claim"])
def test_a_damaged_checkpoint_is_one_sentence_and_stays(state: str, tmp_path: Path) -> None:
    ESTIMATORS["trace"](first(), tmp_path)
    path = tmp_path / "state"
    path.write_bytes(damaged(path)[state])
    before = path.read_bytes()
    with pytest.raises(CurvescopeError, match=r"^trace: .*; (delete it or )?give another path"):
        ESTIMATORS["trace"](first(), tmp_path)
    assert path.read_bytes() == before
