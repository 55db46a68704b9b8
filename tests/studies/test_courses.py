"""Trainings that a study follows: their history, checkpoints and penalties."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from curvescope.errors import CurvescopeError
from curvescope.flatness import TraceRegularizer
from curvescope.studies.courses import courses
from curvescope.studies.networks import fresh
from curvescope.studies.run import Result, Run
from curvescope.studies.study import Study

TEXT = """
name = "toys/toy"
shows = "Nothing."

[scale.smoke]
cost = "1 s"
subject = "F-5"

[networks.toy]
network = "F-5"
data = "mnist-6k"
samples = 60
held_out = { split = "test", samples = 40 }
seeds = 2
recipe = { epochs = 4, lr = 0.1, batch_size = 20, checkpoints = [2] }

[networks.alone]
network = "F-5"
data = "mnist-6k"
samples = 60
recipe = { epochs = 1 }
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    study = Study.parse(TEXT, lambda run: Result({}))
    return Run(study, "smoke", tmp_path)


def test_weights_at_the_start_at_a_checkpoint_and_at_the_end(run: Run) -> None:
    made = courses(run, "toy")
    assert [course.seed for course in made.runs] == [0, 1]
    for course in made.runs:
        end = {name: p.clone() for name, p in course.model.state_dict().items()}
        start = fresh(made.description, made.data, course.seed).state_dict()
        for name, p in course.at(0).state_dict().items():
            torch.testing.assert_close(p, start[name])
        between = {name: p.clone() for name, p in course.at(2).state_dict().items()}
        assert not torch.equal(between["fc1.weight"], end["fc1.weight"])
        assert torch.equal(course.at(4).state_dict()["fc1.weight"], end["fc1.weight"])
        assert [epoch.epoch for epoch in course.trained.history] == [1, 2, 3, 4]
        assert course.fits[1].accuracy == course.trained.history[-1].test_accuracy
        with pytest.raises(CurvescopeError):
            course.at(3)


def test_a_finished_training_is_read(run: Run) -> None:
    first = courses(run, "toy")
    seconds = [[e.seconds for e in course.trained.history] for course in first.runs]
    again = courses(run, "toy")
    assert [[e.seconds for e in course.trained.history] for course in again.runs] == seconds


def test_further_seeds_leave_those_that_are_there(run: Run) -> None:
    described = run.describe("toy")
    (one,) = courses(run, "toy", replace(described, seeds=1, start=1)).runs
    two = courses(run, "toy", described).runs
    assert [course.folder for course in two if course.seed == 1] == [one.folder]


def test_a_penalty_has_folders_of_its_own(run: Run) -> None:
    plain = courses(run, "toy")

    def penalty(seed: int) -> TraceRegularizer:
        g = torch.Generator().manual_seed(seed)
        return TraceRegularizer("ggn", weight=0.1, generator=g)

    heavy = courses(run, "toy", penalty=penalty)
    pairs = list(zip(plain.runs, heavy.runs, strict=True))
    assert all(a.folder != b.folder for a, b in pairs)
    assert all(b.fits[0].loss > a.fits[0].loss for a, b in pairs)  # it costs some of the fit


def test_without_held_out_data_there_is_no_fit(run: Run) -> None:
    (course,) = courses(run, "alone").runs
    with pytest.raises(CurvescopeError, match="has no fit of training and held-out data"):
        _ = course.fits


def test_workers_train_the_seeds_as_one_process_does(run: Run, tmp_path: Path) -> None:
    alone = courses(run, "toy").runs
    shared = replace(run, work=tmp_path / "shared", jobs=2)
    many = courses(shared, "toy").runs
    for one, other in zip(alone, many, strict=True):
        assert one.trained.train == other.trained.train
        assert one.trained.test == other.trained.test
        torch.testing.assert_close(one.at(2).state_dict(), other.at(2).state_dict())
    logs = sorted((tmp_path / "shared" / "queue").rglob("log.jsonl"))
    assert [log.read_text().count("finished") for log in logs] == [1, 1]
    # a third seed alone is trained here, and the others are read
    description = replace(shared.describe("toy"), seeds=3)
    assert [course.seed for course in courses(shared, "toy", description).runs] == [0, 1, 2]
    assert [log.read_text().count("began") for log in logs] == [1, 1]
