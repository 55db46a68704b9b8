"""Queues and workers, on runs without a network."""

import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from curvescope import CurvescopeError
from curvescope.sweeps import Ended, Queue, Task, work
from tests.sweeps.toy import events, perform, tasks, worker


def states(queue: Queue) -> dict[str, str]:
    return {name.rpartition("/")[2]: state for name, (state, _) in queue.states().items()}


def test_a_worker_takes_each_run_once(tmp_path: Path) -> None:
    todo = tasks(3)
    queue = Queue.add(tmp_path, todo)
    assert set(states(queue).values()) == {"waiting"}
    work(queue, perform)
    work(Queue.add(tmp_path, todo), perform)
    assert set(states(queue).values()) == {"finished"}
    assert set(map(tuple, events(queue, todo).values())) == {("began", "finished")}
    assert "worked on toy/seed=1" in (tmp_path / "queue/toy/seed=1/output.txt").read_text()


def test_a_plan_that_grows_does_the_new_runs_alone(tmp_path: Path) -> None:
    work(Queue.add(tmp_path, tasks(2)), perform)
    more = Queue.add(tmp_path, tasks(3))
    assert list(states(more).values()) == ["finished", "finished", "waiting"]


def test_a_run_with_other_settings_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    work(Queue.add(tmp_path, tasks(1)), perform)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CurvescopeError, match=r"holds a run with another configuration .*steps"):
        Queue.add(tmp_path, tasks(2, steps=5))
    foreign = Task("other/run", "toy", {})
    (tmp_path / "other" / "run").mkdir(parents=True)
    (tmp_path / "other" / "run" / "notes.txt").touch()
    with pytest.raises(CurvescopeError, match="was not made by a sweep"):
        Queue.add(tmp_path, [foreign])
    assert sorted(set(tmp_path.rglob("*")) - set(before)) == [
        tmp_path / "other", tmp_path / "other/run", tmp_path / "other/run/notes.txt",
    ]  # fmt: skip


def test_a_failure_is_written_down_and_stops_only_what_needs_it(tmp_path: Path) -> None:
    bad, good = tasks(2)
    bad = replace(bad, settings={**bad.settings, "fails": True})
    needs = Task("next/run", "toy", {"seed": 9}, (bad.name,))
    fine = Task("next/fine", "toy", {"seed": 9}, (good.name,))
    queue = Queue.add(tmp_path, [bad, good, needs, fine])
    work(queue, perform)
    assert states(queue) == {
        "seed=0": "failed", "seed=1": "finished", "run": "blocked", "fine": "finished"
    }  # fmt: skip
    result = queue.result(bad)
    assert result is not None
    assert result.problem == "it fails"
    work(queue, perform)
    assert events(queue, [bad])[bad.name] == ["began", "failed"]
    queue.retry(queue.tasks)
    assert states(queue)["run"] == "waiting"
    work(queue, lambda task, folder: Ended(True) if task is bad else perform(task, folder))
    assert events(queue, [bad])[bad.name] == ["began", "failed", "retry", "began", "failed"]


def test_a_finished_run_whose_folder_is_gone_is_to_do_again(tmp_path: Path) -> None:
    queue = Queue.add(tmp_path, tasks(1))
    work(queue, perform)
    for file in (tmp_path / "toy/seed=0").iterdir():
        file.unlink()
    (tmp_path / "toy/seed=0").rmdir()
    assert states(queue) == {"seed=0": "waiting"}


def test_a_run_in_which_workers_die_counts_as_failed(tmp_path: Path) -> None:
    (task,) = tasks(1)
    queue = Queue.add(tmp_path, [task])
    for _ in range(3):
        queue.log(task, "began", "vm:1")
    work(queue, perform)
    result = queue.result(task)
    assert result is not None
    assert (result.state, result.problem) == (
        "failed", "3 workers were killed in it, out of memory perhaps"
    )  # fmt: skip


def test_an_interrupted_run_is_free_and_not_counted(tmp_path: Path) -> None:
    (task,) = tasks(1)
    queue = Queue.add(tmp_path, [task])

    def interrupted(task: Task, folder: Path) -> Ended:
        raise KeyboardInterrupt

    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            work(queue, interrupted)
    assert states(queue) == {"seed=0": "waiting"}
    work(queue, perform)
    assert states(queue) == {"seed=0": "finished"}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CurvescopeError("here", "is wrong"), "here: is wrong"),
        (KeyError("x"), "unexpected KeyError"),
    ],
)
def test_what_a_run_raises_is_how_it_failed(tmp_path: Path, error: Exception, said: str) -> None:
    todo = tasks(2)
    queue = Queue.add(tmp_path, todo)

    def raising(task: Task, folder: Path) -> Ended:
        if task is queue.tasks[0]:
            raise error
        return perform(task, folder)

    work(queue, raising)
    assert states(queue) == {"seed=0": "failed", "seed=1": "finished"}
    result = queue.result(todo[0])
    assert result is not None
    assert said in result.problem
    assert "Traceback" in (tmp_path / "queue/toy/seed=0/output.txt").read_text()


def test_a_folder_that_another_process_works_in_is_asked_again_later(tmp_path: Path) -> None:
    (task,) = tasks(1)
    queue, tries = Queue.add(tmp_path, [task]), []

    def busy_at_first(task: Task, folder: Path) -> Ended:
        tries.append(task)
        return Ended(False, busy=True) if len(tries) < 3 else perform(task, folder)

    work(queue, busy_at_first)
    assert events(queue, [task])[task.name] == ["began", "stopped"] * 2 + ["began", "finished"]


def test_killed_workers_leave_the_numbers_of_an_undisturbed_sweep(tmp_path: Path) -> None:
    """Kill -9 of one of three workers, at several moments: nothing is lost, nothing done twice."""
    chance = random.Random(0)
    todo = tasks(9, steps=10, pause=0.004)
    queue = Queue.add(tmp_path, todo)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.sweeps.toy"])

    def start() -> multiprocessing.process.BaseProcess:
        process = context.Process(target=worker, args=(str(tmp_path), queue.plan))
        process.start()
        return process

    processes, killed = [start() for _ in range(3)], 0
    while killed < 4:
        before = sum(line == "began" for lines in events(queue, todo).values() for line in lines)
        unfinished = [lines for lines in events(queue, todo).values() if "finished" not in lines]
        # A run in which three workers die has failed: none dies in one that has begun twice.
        rest = any(lines.count("began") > 1 for lines in unfinished)
        if before > killed and not rest:  # somebody works
            time.sleep(chance.uniform(0, 0.03))
            victim = processes.pop(chance.randrange(3))
            os.kill(victim.pid or 0, signal.SIGKILL)
            victim.join()
            killed += 1
            processes.append(start())
        time.sleep(0.005)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    for task in todo:
        # every step stands there once, whoever did it
        lines = (tmp_path / task.name / "steps.txt").read_text().split()
        assert lines == [str(step) for step in range(10)]
        log = events(queue, [task])[task.name]
        assert log.count("finished") == 1
        assert log[-1] == "finished"
    began = sum(log.count("began") for log in events(queue, todo).values())
    assert len(todo) <= began <= len(todo) + killed
