from typing import Any

import pytest

from curvescope import CurvescopeError
from curvescope.sweeps import Command, Task, tasks_of


def check(where: str, settings: Any) -> None:
    if settings.get("lr") == -1:
        raise CurvescopeError(where, "`lr` must be positive")


COMMANDS = {
    "train": Command(("network", "seed", "lr", "batch_size", "root"), (), check),
    "analyze": Command(("run", "steps", "checkpoint", "root"), ("run",), check),
}


def expand(**plan: Any) -> tuple[Task, ...]:
    return tasks_of("plan", plan, COMMANDS)


def names(**plan: Any) -> list[str]:
    return [task.name for task in expand(**plan)]


def test_lists_are_multiplied_and_rows_are_added() -> None:
    table = {"network": ["a", "b"], "lr": 0.1, "rows": [{"seed": 0}, {"seed": 1, "lr": 0.2}]}
    found = expand(train=table)
    assert [task.settings for task in found] == [
        {"network": "a", "lr": 0.1, "seed": 0},
        {"network": "b", "lr": 0.1, "seed": 0},
        {"network": "a", "lr": 0.2, "seed": 1},
        {"network": "b", "lr": 0.2, "seed": 1},
    ]
    assert found[3].name == "train/network=b,lr=0.2,seed=1"


def test_ranges_are_whole_numbers_or_have_a_constant_ratio() -> None:
    seeds = expand(train={"seed": {"from": 3, "to": 5}})
    assert [task.settings["seed"] for task in seeds] == [3, 4, 5]
    rates = expand(train={"lr": {"from": 0.1, "to": 0.0001, "count": 4}})
    assert [task.settings["lr"] for task in rates] == [0.1, 0.01, 0.001, 0.0001]


def test_a_reference_stands_for_the_runs_of_a_group_and_waits_for_them() -> None:
    plan = {
        "late": {"command": "analyze", "run": "train", "checkpoint": ["1", "final"]},
        "train": {"seed": [0, 1]},
    }
    found = expand(**plan)
    assert [task.name for task in found] == [
        "train/seed=0",
        "train/seed=1",
        "late/seed=0,checkpoint=1",
        "late/seed=0,checkpoint=final",
        "late/seed=1,checkpoint=1",
        "late/seed=1,checkpoint=final",
    ]
    assert found[4].needs == ("train/seed=1",)
    assert found[4].settings["run"] == "train/seed=1"


def test_what_stands_above_the_tables_is_for_all_that_have_it() -> None:
    train, analyze = expand(root="d", lr=0.5, train={"seed": 0}, analyze={"run": "elsewhere"})
    assert train.settings == {"root": "d", "lr": 0.5, "seed": 0}
    assert analyze.settings == {"root": "d", "run": "elsewhere"}
    assert analyze.needs == ()


def test_a_plan_that_grows_keeps_the_names_of_its_runs() -> None:
    small, large = names(train={"seed": [0]}), names(train={"seed": [0, 1]})
    assert small == large[:1]


def test_names_are_names_of_folders() -> None:
    (one, two) = names(train={"network": ["a/b c", "a-b c"]})
    assert one != two
    assert not set(one.removeprefix("train/")) & set("/ ")
    (long,) = names(train={"network": ["x" * 300]})
    assert len(long) < 150


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({}, "holds no table of runs; begin one with"),
        ({"train": {"sed": 0}}, r"\[train\]: train has no setting 'sed'; did you mean 'seed'"),
        ({"train": {"rows": [{"sed": 0}]}}, "did you mean 'seed'"),
        ({"trian": {"seed": 0}}, r"\[trian\]: needs 'command'; did you mean 'train'"),
        ({"x": {"command": "trian"}}, "there is no such command, got 'trian'; did you mean"),
        ({"train": {"lr": -1}}, "lr must be positive"),
        ({"train": {"lr": []}}, "'lr' is an empty list"),
        ({"train": {"lr": {"a": 1}}}, "'lr' must be a value, a list, or"),
        ({"train": {"seed": {"from": 2, "to": 1}}}, "needs whole numbers"),
        ({"train": {"lr": {"from": 0, "to": 1, "count": 3}}}, "needs positive numbers"),
        ({"train": {"seed": [1, 1]}}, "has two runs with the folder 'train/seed=1'"),
        ({"train": {"rows": 3}}, "'rows' must be a list of tables"),
        ({"queue": {"command": "train"}}, "a group needs a name"),
        ({"sed": 1, "train": {"seed": 0}}, "no group of this plan has a setting 'sed'"),
        (
            {"train": {"seed": {"from": 0, "to": 10**6}}},
            "stands for more than 10,000 runs, got 1,000,001",
        ),
        (
            {"a": {"command": "analyze", "run": "b"}, "b": {"command": "analyze", "run": "a"}},
            "groups need each other: a → b → a",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(plan: dict[str, Any], said: str) -> None:
    with pytest.raises(CurvescopeError, match=said):
        expand(**plan)
