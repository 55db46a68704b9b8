"""``curvescope compare``: what it reads, measures, prints and writes, and how it fails."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch

from curvescope.cli.app import run as curvescope
from curvescope.data import dataset
from curvescope.errors import CurvescopeError
from curvescope.experiments import measured
from curvescope.experiments.configuration import Analysis, DataNote, ModelNote, Settings
from curvescope.experiments.measured import FILE
from curvescope.experiments.stages.sharpness import Sharpness
from curvescope.experiments.store import Outcome, open_for_work
from curvescope.flatness import SharpnessReport, scores, sharpness
from curvescope.flatness.ranks import kendall
from curvescope.problem import Problem
from curvescope.training import load_network

TRAIN = ["train", "F-6", "--data", "digits", "--per-class", "12", "--epochs", "12", "--lr", "0.3"]
DECAYS = ("0", "0.01", "0.1")


def trained(folder: Path, *options: str, network: str = "F-6") -> Path:
    command = [*TRAIN, "--quiet", "--out", str(folder), *options]
    command[1] = network
    assert curvescope(command) == 0
    return folder


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    root = tmp_path_factory.mktemp("runs")
    return tuple(trained(root / f"wd{decay}", "--weight-decay", decay) for decay in DECAYS)


@pytest.fixture
def folders(trainings: tuple[Path, ...], tmp_path: Path) -> list[str]:
    """Fresh copies: a comparison leaves its numbers in the folders."""
    copies = [tmp_path / folder.name for folder in trainings]
    for source, copy in zip(trainings, copies, strict=True):
        shutil.copytree(source, copy)
    return [str(copy) for copy in copies]


def invoke(*arguments: str) -> None:
    assert curvescope(["compare", *arguments, "--debug"]) == 0


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    capsys.readouterr()
    invoke(*arguments, "--json")
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_numbers_are_those_of_the_networks(folders, capsys) -> None:
    found = as_json(capsys, *folders)
    assert [r["source"] for r in found["runs"]] == ["measured"] * 3
    assert [r["training"]["weight_decay"] for r in found["runs"]] == [0.0, 0.01, 0.1]
    data, test = dataset("digits", per_class=12), dataset("digits", split="test")
    errors = []
    for i, folder in enumerate(folders):
        model = load_network(folder)
        errors.append(float((model(test.X).argmax(1) != test.y).double().mean()))
        largest = _largest(model.double(), data.X.double(), data.y)
        assert found["table"]["λ_max(H)"][i]["value"] == pytest.approx(largest, rel=1e-4)
        assert found["table"]["test error"][i]["value"] == pytest.approx(errors[-1], abs=1e-9)
    sharp = [column["value"] for column in found["table"]["λ_max(H)"]]
    (correlation,) = [
        c
        for c in found["correlations"]
        if (c["measure"], c["generalization"]) == ("λ_max(H)", "test error")
    ]
    assert correlation["kendall"] == pytest.approx(kendall(sharp, errors))


def _largest(model: torch.nn.Module, X: torch.Tensor, y: torch.Tensor) -> float:
    """Power iteration with autograd's own products."""
    params = list(model.parameters())
    loss = torch.nn.functional.cross_entropy(model(X), y)
    slopes = torch.autograd.grad(loss, params, create_graph=True)
    g = torch.Generator().manual_seed(0)
    v = [torch.randn(p.shape, generator=g, dtype=p.dtype) for p in params]
    for _ in range(300):
        norm = sum(float(t.square().sum()) for t in v) ** 0.5
        v = [t / norm for t in v]
        v = [t.detach() for t in torch.autograd.grad(slopes, params, v, retain_graph=True)]
    return sum(float(t.square().sum()) for t in v) ** 0.5


def test_a_second_call_reads(folders, capsys, monkeypatch) -> None:
    first = as_json(capsys, *folders)
    monkeypatch.setattr(measured, "sharpness", None)  # would fail if called
    second = as_json(capsys, *folders)
    assert [r["source"] for r in second["runs"]] == ["stored"] * 3
    assert second["table"] == first["table"]
    with pytest.raises(TypeError, match="not callable"):
        invoke(*folders, "--samples", "50")  # other numbers must be measured
    with pytest.raises(TypeError, match="not callable"):
        invoke(*folders, "--again")


def test_curvature_on_some_samples_leaves_the_gaps(folders, capsys) -> None:
    whole, part = as_json(capsys, *folders), as_json(capsys, *folders, "--samples", "40")
    assert part["table"]["loss gap"] == whole["table"]["loss gap"]
    assert part["table"]["training loss"] == whole["table"]["training loss"]
    assert part["table"]["tr H"] != whole["table"]["tr H"]


def test_a_table_and_one_sentence(folders, capsys) -> None:
    invoke(*folders)
    shown = capsys.readouterr().out
    assert "F-6 (460 parameters) on digits" in shown
    for word in ("weight decay", "optimizer", "test error", "λ_max(H)", "tr H² / P", "wd0.01"):
        assert word in shown
    sentence = shown.strip().splitlines()[-1]
    assert sentence.count("Kendall's τ") == 1
    assert sentence.endswith(".")
    assert "epochs" not in shown  # the same for all runs
    assert max(map(len, shown.splitlines()[:-1])) <= 80


def test_files(folders, capsys, tmp_path) -> None:
    out = tmp_path / "out"
    found = as_json(capsys, *folders, "--out", str(out), "--against", "loss gap")
    names = sorted(path.name for path in out.iterdir())
    assert names == ["comparison.csv", "comparison.md", "sharpness.png", "sharpness.svg"]
    assert found["written"] == [str(out / n) for n in ("sharpness.svg", "sharpness.png")] + [
        str(out / n) for n in ("comparison.md", "comparison.csv")
    ]
    with (out / "comparison.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["run"] for line in lines] == ["wd0", "wd0.01", "wd0.1"]
    values = [float(line["tr H"]) for line in lines]
    assert values == [column["value"] for column in found["table"]["tr H"]]
    page = (out / "comparison.md").read_text(encoding="utf-8")
    assert found["findings"]["eval"][1:] in page
    assert "| weight decay | 0 | 0.01 | 0.1 |" in page


def test_batch_norms_in_both_modes(tmp_path, capsys) -> None:
    runs = [
        str(trained(tmp_path / f"bn{decay}", "--weight-decay", decay, network="F-6-BN"))
        for decay in DECAYS[:2]
    ]
    found = as_json(capsys, *runs)
    assert [r["mode"] for r in found["runs"]] == ["eval", "train"] * 2
    sharp = [column["value"] for column in found["table"]["λ_max(H)"]]
    assert sharp[0] != sharp[1]
    errors = [column["value"] for column in found["table"]["test error"]]
    assert errors[0] == errors[1]  # the network predicts in eval mode
    assert list(found["findings"]) == ["eval", "train"]
    invoke(*runs)
    assert "With batch norms in train mode" in capsys.readouterr().out


def analysis(folder: Path, report: SharpnessReport, name: str = "own") -> None:
    """What an analysis leaves of its stage sharpness."""
    config = Analysis(
        stages=("sharpness",), seed=0, model=ModelNote(name, {}, ""), loss="cross_entropy",
        loss_identity="", mode="eval", dtype="float32",
        data=DataNote("digits", round(1 / report.damping), ""),
        test=None, layers=(), settings=Settings(),
    )  # fmt: skip
    with open_for_work(folder, config) as run:
        run.compute("sharpness", Sharpness, lambda work: Outcome(Sharpness((report,))), seed=0)


def test_an_analysis_is_used(folders, capsys, tmp_path) -> None:
    data, test = dataset("digits", per_class=12), dataset("digits", split="test")
    model = load_network(folders[0])
    g = torch.Generator().manual_seed(3)
    report = sharpness(Problem(model, data), test=Problem(model, test), generator=g, tol=1e-3)
    analysis(Path(folders[0]) / "analysis", report)
    analysis(tmp_path / "elsewhere", report)
    found = as_json(capsys, *folders, str(tmp_path / "elsewhere"))
    assert [r["source"] for r in found["runs"]] == ["analysis", "measured", "measured", "analysis"]
    assert found["runs"][0]["training"]["weight_decay"] == 0.0
    assert "weight_decay" not in found["runs"][3]["training"]
    column = found["table"]["tr H"]
    assert column[0]["value"] == column[3]["value"] == report.hessian.trace.value
    assert found["table"]["training loss"][0]["value"] == pytest.approx(
        scores(Problem(model, data)).loss.value
    )


def test_mistakes_are_one_sentence(folders, tmp_path) -> None:
    other = trained(tmp_path / "wider", network="F-7")
    cases = [
        (folders[:1], "needs at least two runs, got 1"),
        ([folders[0], folders[0]], "is named twice"),
        ([folders[0], str(tmp_path / "nowhere")], "is not the folder of a run"),
        ([folders[0], str(other)], "the number of parameters must be the same, 'wd0' has 460"),
        ([*folders, "--against", "luck"], "against must be one of"),
    ]
    for arguments, message in cases:
        with pytest.raises(CurvescopeError, match=message):
            invoke(*arguments)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text("{}")
    with pytest.raises(CurvescopeError, match="is neither a training nor an analysis"):
        invoke(folders[0], str(tmp_path / "foreign"))
    (Path(folders[1]) / "weights" / "final.safetensors").unlink()
    with pytest.raises(CurvescopeError, match="has no final weights"):
        invoke(*folders)


def test_a_mistake_on_the_command_line(folders, capsys) -> None:
    assert curvescope(["compare", folders[0]]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "curvescope: compare: needs at least two runs, got 1\n"


def test_ctrl_c_says_how_to_go_on(folders, capsys, monkeypatch) -> None:
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(measured, "sharpness", interrupted)
    assert curvescope(["compare", *folders]) == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_curvature_of_other_samples_is_refused(folders, capsys) -> None:
    data, test = dataset("digits", per_class=5), dataset("digits", split="test")
    model, g = load_network(folders[0]), torch.Generator().manual_seed(3)
    report = sharpness(Problem(model, data), test=Problem(model, test), generator=g, tol=1e-2)
    analysis(Path(folders[0]) / "analysis", report)
    with pytest.raises(CurvescopeError, match=r"samples behind the curvature .* --again"):
        invoke(*folders)
    assert as_json(capsys, *folders, "--again")["runs"][0]["source"] == "measured"


def test_training_errors_of_other_samples_are_refused(folders, capsys) -> None:
    """An analysis of a part has its errors on that part, a training on all it had."""
    options = ["--samples", "40", "--steps", "8", "--probes", "4", "--no-figures", "--quiet"]
    assert curvescope(["analyze", "--run", folders[0], *options]) == 0
    capsys.readouterr()
    assert curvescope(["compare", *folders[:2], "--samples", "40"]) == 2
    said = capsys.readouterr().err
    assert "samples behind the training loss must be the same" in said
    assert "40" in said
    assert "120" in said
    assert "--again" in said


def test_damaged_and_foreign_measurements_are_refused(folders, capsys) -> None:
    as_json(capsys, *folders)
    file, other = (Path(folder) / FILE for folder in folders[:2])
    whole = file.read_text()
    for text in ('{"format": 0}', whole.replace('"value": ', '"value": 1', 1), "["):
        file.write_text(text)
        assert curvescope(["compare", *folders]) == 2
        assert "--again measures it anew" in capsys.readouterr().err or text == "["
    found = as_json(capsys, *folders, "--again")
    assert [r["source"] for r in found["runs"]] == ["measured"] * 3
    file.write_text(other.read_text())  # of another training: not taken for this one's
    found = as_json(capsys, *folders)
    assert [r["source"] for r in found["runs"]] == ["measured", "stored", "stored"]
