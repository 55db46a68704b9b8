"""``curvescope data``: its tables, its JSON, its exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from curvescope.cli import app as application
from curvescope.cli import data as command
from curvescope.data import download
from curvescope.data.sources import SOURCES
from tests.data.builders import everything, tiny_mnist, write


@pytest.fixture
def run(monkeypatch, tmp_path_factory) -> Callable[..., int]:
    """The command below an application of the tests' own, with the real one's error handling."""
    app = typer.Typer()
    app.add_typer(command.data, name="data")
    monkeypatch.setattr(application, "app", app)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("CURVESCOPE_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: application.run(["data", *map(str, arguments)])


@pytest.fixture
def root(monkeypatch, tmp_path: Path) -> Path:
    """A folder with a tiny MNIST, which the catalog believes to be the real one."""
    source, contents, _ = tiny_mnist()
    monkeypatch.setitem(SOURCES, "mnist", source)
    write(tmp_path / "mnist", contents)
    return tmp_path


def damage(root: Path) -> None:
    path = root / "mnist" / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1])


def test_without_a_command_it_shows_its_help(run, capsys) -> None:
    assert run() == 0
    shown = capsys.readouterr().out
    for word in ("list", "verify", "fetch"):
        assert word in shown


def test_list_shows_what_is_here_and_what_is_missing(run, capsys, root: Path) -> None:
    assert run("list", "--root", root) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = {line.split()[0]: line for line in captured.out.splitlines() if line.strip()}
    assert lines["mnist"].split() == ["mnist", "10", "60", "30", "1×5×4", str(root / "mnist")]
    assert lines["digits"].split()[1:5] == ["10", "1,437", "360", "1×8×8"]
    assert "in the package" in lines["digits"]
    assert "missing (170 MB)" in lines["cifar-10"]
    assert "curvescope data fetch NAME" in captured.out


def test_list_as_json_and_as_names(run, capsys, root: Path) -> None:
    assert run("list", "--root", root, "--json") == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert entries["mnist"]["location"] == str(root / "mnist")
    assert entries["mnist"]["train"] == 60
    assert entries["cifar-10"]["location"] is None
    assert entries["cifar-10"]["megabytes"] == 170.5
    assert entries["digits"]["location"] == "package"
    assert run("list", "--root", root, "--quiet") == 0
    names = capsys.readouterr().out.split()
    assert names == ["mnist-6k", "fashion-mnist-3k", "digits", "python-topics", "mnist"]


def test_a_folder_in_brackets_is_shown_as_it_is(run, capsys, monkeypatch, root: Path) -> None:
    (root / "[bold]").mkdir()
    (root / "mnist").rename(root / "[bold]" / "mnist")
    assert run("list", "--root", root / "[bold]") == 0
    assert str(root / "[bold]" / "mnist") in capsys.readouterr().out


def test_verify_takes_what_is_here(run, capsys, root: Path) -> None:
    assert run("verify", "--root", root) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "mnist: right (4 files)"
    assert "digits: right (1 file)" in lines
    assert run("verify", "mnist", "--root", root, "--quiet") == 0
    assert capsys.readouterr().out == ""


def test_a_wrong_file_is_code_1(run, capsys, root: Path) -> None:
    damage(root)
    before = everything(root)
    assert run("verify", "digits", "mnist", "--root", root) == 1
    captured = capsys.readouterr()
    first, second = captured.out.splitlines()
    assert first == "digits: right (1 file)"
    assert second.startswith(f"mnist: WRONG, {root}")
    assert "t10k-labels-idx1-ubyte is not the published file" in second
    assert captured.err == ""
    assert run("verify", "--root", root, "--quiet") == 1
    assert capsys.readouterr().out.count("\n") == 1
    assert run("verify", "mnist", "--root", root, "--json") == 1
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["name"] == "mnist"
    assert "is not the published file" in shown["error"]
    assert "verify(" not in shown["error"]
    assert everything(root) == before


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["verify", "cifar-10"], "curvescope data fetch cifar-10"),
        (["verify", "nothing"], "a data set must be one of"),
        (["verify", "--root", "/no/such/folder"], "--root must be a folder"),
        (["list", "--root", "/no/such/folder"], "--root must be a folder"),
        (["list", "extra"], "extra"),
        (["fetch"], "NAME"),
        (["fetch", "digits"], "nothing to fetch"),
        (["fetch", "nothing"], "a data set must be one of"),
        (["remove", "mnist"], "remove"),
    ],
)
def test_a_mistake_is_one_sentence_and_code_2(run, capsys, arguments, named: str) -> None:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("curvescope: ")
    assert captured.err.count("\n") == 1
    assert named in captured.err


def test_fetch_prints_where_the_files_are(run, capsys, root: Path, monkeypatch) -> None:
    asked = []

    def fetched(name: str, where: Path | None, *, progress: bool) -> Path:
        asked.append((name, where, progress))
        return Path("/data") / name

    monkeypatch.setattr(download, "fetch", fetched)
    assert run("fetch", "mnist", "cifar-10", "--root", root) == 0
    assert capsys.readouterr().out == "/data/mnist\n/data/cifar-10\n"
    assert run("fetch", "mnist", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"mnist": "/data/mnist"}
    assert run("fetch", "mnist", "-q") == 0
    assert asked == [
        ("mnist", root, True),
        ("cifar-10", root, True),
        ("mnist", None, False),
        ("mnist", None, False),
    ]


def test_fetch_takes_what_is_there(run, capsys, root: Path) -> None:
    assert run("fetch", "mnist", "--root", root) == 0
    assert capsys.readouterr().out == f"{root / 'mnist'}\n"


def test_debug_lets_the_traceback_through(run) -> None:
    with pytest.raises(ValueError, match="nothing to fetch"):
        run("fetch", "digits", "--debug")
