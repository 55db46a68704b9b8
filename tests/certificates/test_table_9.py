"""The script behind DH table 9, on a small part of the embedded digits."""

import importlib.util
from pathlib import Path

import pytest
import torch

from curvescope import io
from curvescope.certificates.certificate import Certificate

SCRIPT = Path(__file__).parents[2] / "reproductions/dissecting-hessian/table-9/run.py"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("table_9", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    full = module.dataset
    monkeypatch.setattr(module, "dataset", lambda *a, **k: full(*a, **k, per_class=60))
    before = torch.get_float32_matmul_precision()
    yield module
    torch.set_float32_matmul_precision(before)


def test_rows_are_made_written_and_not_repeated(script, tmp_path: Path, capsys) -> None:
    arguments = ["--data", "mnist-6k", "--out", str(tmp_path), "--budget", "0.2", "--device", "cpu"]
    arguments += ["--sgd-epochs", "2", "--slack", "0.05"]
    script.main([*arguments, "--rows", "T-6:LOCAL,R-6:ITER:0.1,T-6_10:ITER.M"])
    shown = capsys.readouterr().out
    assert "T-6:LOCAL: bound" in shown
    rows = io.read_json(tmp_path / "rows.json")
    assert list(rows) == ["T-6:LOCAL", "R-6:ITER", "T-6_10:ITER.M"]
    for row in rows.values():
        assert Certificate.from_json(row["certificate"]).verify().passed
    assert (tmp_path / "table.md").read_text().count("\n") == 5
    script.main([*arguments, "--rows", "T-6:LOCAL"])
    assert "is there already" in capsys.readouterr().out


def test_the_paper_s_numbers_are_those_of_its_table_1(script) -> None:
    """DH table 1 repeats table 9 to three digits, but for APPR and one BASE (the lower is ours)."""
    table_1 = {
        "T-600": {"BASE": 0.154, "ITER": 0.120, "ITER.M": 0.126},
        "T-1200": {"BASE": 0.175, "ITER": 0.142, "ITER.M": 0.149, "APPR": 0.173},
        "T-300^2": {"BASE": 0.169, "ITER": 0.125, "ITER.M": 0.131},
        "T-600^2": {"BASE": 0.192, "ITER": 0.146, "ITER.M": 0.150},
        "R-600": {"BASE": 0.605, "APPR": 0.565, "ITER(D)": 0.568, "ITER.M": 0.562},
        "T-600_10": {"ITER": 0.213, "ITER.M": 0.223, "APPR": 0.242},
        "T-200^2_10": {"BASE": 0.417, "ITER": 0.215, "ITER.M": 0.273},
    }
    for name, methods in table_1.items():
        for method, bound in methods.items():
            assert script.PAPER[name][method][0] == pytest.approx(bound, abs=6e-4)
