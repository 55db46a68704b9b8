"""``curvescope certify``: from a run, from one's own files, verified, stopped and misused."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
import typer
from torch import nn

from curvescope import certificates, io
from curvescope.certificates import Certificate
from curvescope.certificates.certificate import posterior_file
from curvescope.cli import app as application
from curvescope.cli import certify as command
from curvescope.data import dataset
from curvescope.errors import CurvescopeError
from curvescope.experiments import certified
from curvescope.networks.names import network
from curvescope.training import Recipe, save_weights, train

app = typer.Typer()
app.command()(command.certify)

QUICK = ["--epochs", "5", "--slack", "0.05", "--quiet", "--device", "cpu"]
OWN = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))

def load():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    return 3 * torch.eye(5)[y] + torch.randn(90, 5, generator=g), y
"""


def run(*arguments: object) -> int:
    """The command as the application would run it, with its exit code."""
    main = typer.main.get_command(app)
    code = main.main([str(a) for a in arguments], prog_name="certify", standalone_mode=False)
    return code if isinstance(code, int) else 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training run on a part of the embedded digits, 0–4 against 5–9."""
    place = tmp_path_factory.mktemp("runs") / "binary"
    data = dataset("mnist-6k-2", per_class=200)
    model = network("T-10", (1, 28, 28), 1, generator=torch.Generator().manual_seed(0))
    train(model, data, Recipe(seed=0, epochs=5, lr=0.1, loss="binary_logistic"), folder=place)
    return place


def test_a_run_is_certified_and_the_file_verified(folder: Path, capsys) -> None:
    assert run(folder, *QUICK) == 0
    shown = capsys.readouterr().out
    file = folder / "certificate.json"
    certificate = Certificate.load(file)
    assert f"{certificate.bound:.4f}" in shown
    assert "not certified" in shown
    assert "drawn anew from the posterior" in shown.replace("\n", " ")
    assert certificate.source.data == "mnist-6k-2"
    assert not file.with_suffix(".parts").exists()
    assert run("--verify", file) == 0
    shown = capsys.readouterr().out
    assert "fresh draws" not in shown
    assert "not checked  network, examples, prior mean and draws" in shown
    assert "taken on trust  the examples are independent" in shown
    assert "consistent, but not verified" in shown
    assert run("--verify", file, folder, "--device", "cpu") == 0
    verified = capsys.readouterr().out
    assert "fresh draws" in verified
    assert "would be found out" in verified
    assert certificate.statement in verified
    assert verified.endswith(": verified\n")


def test_the_output_as_json(folder: Path, tmp_path: Path, capsys) -> None:
    place = tmp_path / "c.json"
    assert run(folder, *QUICK, "--json", "--out", place, "--seed", 3) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    shown = json.loads(captured.out)
    assert shown["bound"] == Certificate.load(place).bound
    assert shown["file"] == str(place)
    assert run("--verify", place, "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "consistent"


def test_a_forged_certificate_is_refuted(folder: Path, tmp_path: Path, capsys) -> None:
    place = tmp_path / "c.json"
    run(folder, *QUICK, "--out", place)
    stored = io.read_json(place)
    smaller = 0.9 * stored["bound"]
    io.write_json(place, {**stored, "bound": smaller})
    with pytest.raises(CurvescopeError, match="checksum is wrong"):
        run("--verify", place)
    certificate = Certificate.load(other := copied(place, stored))
    dataclasses.replace(certificate, bound=smaller).save(other, overwrite=True)
    assert run("--verify", other) == 1
    assert "refuted" in capsys.readouterr().out


def copied(place: Path, stored: object) -> Path:
    """The certificate as it was, under another name."""
    other = place.with_name("copy.json")
    io.write_json(other, stored)
    shutil.copy(posterior_file(place), posterior_file(other))
    return other


def test_without_its_posterior_a_certificate_is_not_verified(
    folder: Path, tmp_path: Path, capsys
) -> None:
    """Anyone could claim another divergence and compute a bound that follows from it."""
    place = tmp_path / "c.json"
    run(folder, *QUICK, "--out", place)
    posterior_file(place).unlink()
    capsys.readouterr()
    assert run("--verify", place) == 0
    shown = capsys.readouterr().out
    assert "not checked  divergence of the posterior: the posterior's file is missing" in shown
    assert "consistent, but not verified" in shown
    assert run("--verify", place, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], len(found["unchecked"])) == ("consistent", 2)


def test_ones_own_network(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_for_certify.py").write_text(OWN)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    save_weights("initial.safetensors", model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    save_weights("trained.safetensors", model)
    own = ["--model", "own_for_certify.py:build", "--data", "own_for_certify.py:load"]
    files = ["--weights", "trained.safetensors", "--initial", "initial.safetensors"]
    assert run(*own, *files, *QUICK, "--method", "iter") == 0
    assert "certificate.json" in capsys.readouterr().out
    assert run("--verify", "certificate.json", *own, *files, "--device", "cpu") == 0
    assert capsys.readouterr().out.endswith(": verified\n")
    assert Certificate.load("certificate.json").method.name == "iter"
    sys.modules.pop("own_for_certify", None)


def test_the_prior_may_be_trained_on_a_split(folder: Path, tmp_path: Path, capsys) -> None:
    place = tmp_path / "split.json"
    assert run(folder, *QUICK, "--prior-split", 0.5, "--out", place) == 0
    assert "data-dependent prior" in capsys.readouterr().out.replace("\n", " ")
    assert run("--verify", place, folder, "--device", "cpu") == 0
    assert capsys.readouterr().out.endswith(": verified\n")


def interrupt_while(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C as soon as a certification reports on this task."""
    original = certified.certify

    def stopped(*arguments: object, **settings: object) -> Certificate:
        def stop(progress: certificates.Progress) -> None:
            if progress.task == task:
                raise KeyboardInterrupt

        return original(*arguments, **{**settings, "progress": stop})

    monkeypatch.setattr(certified, "certify", stopped)


def test_an_interrupted_certification_goes_on_to_the_same_end(
    folder: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    out = tmp_path / "c.json"
    arguments = ["certify", str(folder), *QUICK, "--out", str(out)]
    with monkeypatch.context() as patch:
        interrupt_while("draw", patch)
        assert application.run(arguments) == 130
    said = capsys.readouterr().err
    assert f"what is finished lies in {out.with_suffix('.parts')}: the same command goes" in said
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["c.parts"]
    with monkeypatch.context() as patch:
        patch.setattr(
            sys.modules["curvescope.certificates.certification"], "optimize", None
        )  # it is finished
        assert application.run(arguments) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.json", "c.posterior.safetensors"]
    assert application.run([*arguments[:-1], str(tmp_path / "whole.json")]) == 0
    assert Certificate.load(tmp_path / "whole.json") == Certificate.load(out)


def test_interrupted_while_it_optimizes_it_goes_on(
    folder: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr("curvescope.certificates.optimize.EVERY", 0.0)
    out = tmp_path / "c.json"
    arguments = ["certify", str(folder), *QUICK, "--out", str(out)]
    with monkeypatch.context() as patch:
        interrupt_while("optimize", patch)
        assert application.run(arguments) == 130
    assert "the same command goes on from there" in capsys.readouterr().err
    assert (tmp_path / "c.parts" / "course.safetensors").exists()
    assert application.run(arguments) == 0
    assert application.run([*arguments[:-1], str(tmp_path / "whole.json")]) == 0
    assert Certificate.load(tmp_path / "whole.json") == Certificate.load(out)


def test_interrupted_at_once_it_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    interrupt_while("optimize", monkeypatch)
    out = str(tmp_path / "c.json")
    assert application.run(["certify", str(folder), *QUICK, "--out", out]) == 130
    assert capsys.readouterr().err == "curvescope: interrupted; nothing was written\n"
    assert list(tmp_path.iterdir()) == []


# What is there already ------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made") / "c.json"
    assert application.run(["certify", str(folder), *QUICK, "--json", "--out", str(place)]) == 0
    return place


@pytest.fixture
def before_command(made: Path, folder: Path, tmp_path: Path, capsys) -> list[str]:
    """A finished certificate; the command that made it."""
    for file in made.parent.iterdir():
        shutil.copy(file, tmp_path)
    return ["certify", str(folder), *QUICK, "--out", str(tmp_path / "c.json")]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_finished_certificate_is_shown_and_not_computed_again(
    before_command: list[str], tmp_path: Path, monkeypatch, capsys
) -> None:
    before = contents(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(certified, "certify", None)
        assert application.run(before_command) == 0
        shown = capsys.readouterr().out
        assert "certified before with the same settings and checked again; --again" in shown
        assert f"{Certificate.load(tmp_path / 'c.json').bound:.4f}" in shown
        assert application.run([*before_command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["file"] == str(tmp_path / "c.json")
    assert contents(tmp_path) == before
    assert application.run([*before_command, "--again"]) == 0
    assert "certified before" not in capsys.readouterr().out
    assert contents(tmp_path) == before  # the same seed gives the same certificate


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (["--seed", "4"], "seed is 0 there and 4 here"),
        (["--epochs", "6"], "--epochs is 5 there and 6 here"),
        (["--delta", "0.05"], "--delta is 0.025 there and 0.05 here"),
        (["--slack", "0.04"], "slack is 0.05 there and 0.04 here"),
        (["--prior-split", "0.5"], "prior-split is None there and 0.5 here"),
        (["--method", "iter"], "method.name is 'local' there and 'iter' here"),
        (["--data", "mnist-6k-2"], "samples is 400 there and 5000 here"),
    ],
)
def test_another_configuration_is_refused_with_the_difference(
    before_command: list[str], tmp_path: Path, capsys, options: list[str], difference: str
) -> None:
    before = contents(tmp_path)
    assert application.run([*before_command, *options]) == 2
    said = capsys.readouterr().err
    assert difference in said
    assert "name another file with --out, or replace it with --again" in said
    assert said.count("\n") == 1
    assert contents(tmp_path) == before


def test_again_replaces_and_parts_of_another_method_are_not_lost_silently(
    before_command: list[str], tmp_path: Path, monkeypatch, capsys
) -> None:
    before = contents(tmp_path)
    other = [*before_command, "--method", "appr", "--again"]
    with monkeypatch.context() as patch:
        interrupt_while("draw", patch)
        assert application.run(other) == 130
    parts = tmp_path / "c.parts"
    kept = contents(parts)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert application.run(before_command) == 0  # the finished one is as it was
    assert contents(parts) == kept
    for name in before:
        (tmp_path / name).unlink()
    capsys.readouterr()
    assert application.run(before_command) == 2
    said = capsys.readouterr().err
    assert "holds an unfinished certificate with another configuration" in said
    assert "method.name is 'appr' there and 'local' here" in said
    assert contents(parts) == kept
    with monkeypatch.context() as patch:
        patch.setattr(
            sys.modules["curvescope.certificates.certification"], "optimize", None
        )  # goes on from the parts
        assert application.run(other) == 0
    assert Certificate.load(tmp_path / "c.json").method.name == "appr"
    assert not parts.exists()


def test_a_certificate_that_does_not_say_how_it_was_made_is_not_replaced(
    before_command: list[str], tmp_path: Path, capsys
) -> None:
    stored = io.read_json(tmp_path / "c.json")
    del stored["request"]
    io.write_json(tmp_path / "c.json", stored)
    before = contents(tmp_path)
    assert application.run(before_command) == 2
    assert "is damaged" in capsys.readouterr().err
    (tmp_path / "c.json").write_text("my notes")
    assert application.run(before_command) == 2
    assert "is not JSON" in capsys.readouterr().err
    assert (tmp_path / "c.posterior.safetensors").read_bytes() == before["c.posterior.safetensors"]
    assert application.run([*before_command, "--again"]) == 0


@pytest.mark.parametrize("failing", ["write_bytes", "write_text"])
def test_a_full_disk_leaves_the_old_certificate(
    before_command: list[str], tmp_path: Path, monkeypatch, capsys, failing: str
) -> None:
    before = contents(tmp_path)
    certificate = Certificate.load(tmp_path / "c.json")
    original = getattr(Path, failing)

    def full(self: Path, *arguments: object, **settings: object) -> int:
        if self.name.endswith(".part"):
            raise OSError(28, "No space left on device")
        return original(self, *arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(Path, failing, full)
        with pytest.raises(CurvescopeError, match=r"cannot be written .No space left"):
            certificate.save(tmp_path / "c.json")
    assert contents(tmp_path) == before


def test_no_moment_shows_files_of_two_certificates(
    before_command: list[str], folder: Path, tmp_path: Path, monkeypatch
) -> None:
    """A kill between any two moves of files leaves a certificate that loads, or none."""
    other = tmp_path / "d.json"
    assert run(folder, *QUICK, "--out", other, "--seed", 5) == 0
    new, place = Certificate.load(other), tmp_path / "c.json"
    original, seen = Path.replace, []

    def watched(self: Path, target: Path) -> Path:
        result = original(self, target)
        seen.append(Certificate.load(place) == new if place.exists() else None)
        return result

    monkeypatch.setattr(Path, "replace", watched)
    with pytest.raises(CurvescopeError, match="holds another certificate"):
        new.save(place)
    new.save(place, overwrite=True)
    assert seen == [None, True]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ([], "needs the folder of a run, or --model"),
        (["{folder}", "--model", "LeNet5"], "give either RUN or --model"),
        (["{folder}/weights"], "not the folder of a training run"),
        (["{folder}", "--method", "magic"], "name must be one of"),
        (["{folder}", "--delta", "2"], "between 0 and 1"),
        (["{folder}", "--prior-split", "2"], "--prior-split must be a share between 0 and 1"),
        (["{folder}", "--out", "{folder}/none/c.json"], "none' is not a folder that exists"),
        (["{folder}", "--out", "{folder}/c.safetensors"], "must be a file for the certificate"),
        (["--verify", "{folder}/config.json"], "holds no Certificate, but a Training"),
        (["--verify", "{folder}/nothing.json"], "cannot be read"),
    ],
)
def test_misuse_is_one_sentence(folder: Path, arguments: list[str], match: str) -> None:
    with pytest.raises(CurvescopeError, match=match):
        run(*(a.format(folder=folder) for a in arguments))


def test_a_verification_needs_model_and_data_together(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "c.json"
    run(folder, *QUICK, "--out", place)
    with pytest.raises(CurvescopeError, match="or --model, --weights, --initial and --data"):
        run("--verify", place, "--data", "mnist-6k")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"--slack": "-1"}, "slack must be positive"),
        ({"--out": ""}, "must be a file for the certificate"),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_work(
    folder: Path, tmp_path: Path, wrong: dict[str, str], sentence: str
) -> None:
    before = sorted(folder.rglob("*"))
    options = {"--slack": "0.05", "--out": "c.json"} | wrong
    place = tmp_path / options["--out"]
    with pytest.raises(CurvescopeError, match=sentence):
        run(folder, "--out", place, "--slack", options["--slack"], "--epochs", "1", "--quiet")
    assert sorted(folder.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.parent.glob(f"{tmp_path.name}.*")) == []
