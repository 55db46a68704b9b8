"""The sharpness report against dense matrices, and its conventions at the edges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import curvescope as cs
from curvescope import io
from curvescope.flatness.report import SharpnessReport, sharpness, sharpness_by_mode
from tests.cases import BY_NAME, build
from tests.tolerances import STANDARD_ERRORS

EXACT = 1e-8  # relative


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(seed: int = 0, hidden: int = 8) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    return model.double()


def data(samples: int = 30, seed: int = 1) -> tuple[Tensor, Tensor]:
    g = generator(seed)
    X = torch.randn(samples, 5, generator=g, dtype=torch.float64)
    return X, (X[:, :3] + 0.5 * torch.randn(samples, 3, generator=g).double()).argmax(1)


def expected(matrix: Tensor) -> dict[str, float]:
    values = torch.linalg.eigvalsh(matrix)
    return {
        "largest": float(values[-1]),
        "smallest": float(values[0]),
        "trace": float(matrix.trace()),
        "square_sum": float((matrix @ matrix).trace()),
        "absolute_sum": float(values.abs().sum()),
        "mean_eigenvalue": float(values.mean()),
        "mean_square": float(values.square().mean()),
        "frobenius": float(torch.linalg.matrix_norm(matrix)),
        "spectral_norm": float(torch.linalg.matrix_norm(matrix, 2)),
        "effective_rank": float(values.abs().sum() ** 2 / values.square().sum()),
    }


@pytest.mark.parametrize(
    "name", ["cross_entropy", "logistic", "mse", "cross_entropy-ignored", "batch-norm-train"]
)
def test_exact_measures_of_both_matrices(name: str) -> None:
    case = BY_NAME[name]
    reference = case.reference()
    H, G = reference.hessian(), reference.gauss_newton()
    report = sharpness(case.problem(), generator=generator(), damping=0.1)
    assert report.method == "exact"
    for measures, matrix in ((report.hessian, H), (report.gauss_newton, G)):
        scale = float(torch.linalg.matrix_norm(matrix))
        for what, value in expected(matrix).items():
            found = getattr(measures, what)
            assert found.value == pytest.approx(value, rel=EXACT, abs=EXACT * scale), what
            assert found.stderr == 0.0
    damped = G + 0.1 * torch.eye(len(G), dtype=torch.float64)
    assert report.log_determinant.value == pytest.approx(float(torch.logdet(damped)), rel=EXACT)
    assert report.train.loss.value == pytest.approx(reference.value().item(), rel=EXACT)
    flat = torch.cat([p.detach().reshape(-1) for p in reference.parameters])
    assert report.weights.norm == pytest.approx(float(flat.norm()), rel=EXACT)


def test_estimates_agree_with_the_dense_matrix() -> None:
    X, y = data(60)
    model = network(hidden=40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
    problem = cs.Problem(model, (X, y))
    H, G = cs.Hessian(problem).dense(), cs.GaussNewton(problem).dense()
    report = sharpness(
        problem, generator=generator(), method="estimate", probes=24, steps=48, tol=1e-9
    )
    for measures, matrix in ((report.hessian, H), (report.gauss_newton, G)):
        values = expected(matrix)
        assert measures.largest.value == pytest.approx(values["largest"], rel=EXACT)
        assert abs(measures.smallest.value - values["smallest"]) <= EXACT * values["largest"]
        for what in ("trace", "square_sum", "frobenius", "mean_eigenvalue", "mean_square"):
            found = getattr(measures, what)
            assert abs(found.value - values[what]) <= STANDARD_ERRORS * found.stderr, what
            assert 0 < found.stderr < 0.05 * values[what], what
        assert measures.effective_rank.value == pytest.approx(values["effective_rank"], rel=0.1)
    damped = G + report.damping * torch.eye(len(G), dtype=torch.float64)
    found = report.log_determinant
    error = STANDARD_ERRORS * found.stderr + found.bias
    assert abs(found.value - float(torch.logdet(damped))) <= error


def test_the_trace_of_h_is_taken_from_g_where_the_diagonals_agree() -> None:
    X, y = data(60)
    for activation, same in ((nn.ReLU(), True), (nn.Tanh(), False)):
        model = network(hidden=40)
        model[1] = activation
        problem = cs.Problem(model, (X, y))
        report = sharpness(problem, generator=generator(), method="estimate", probes=32)
        assert (report.hessian.trace == report.gauss_newton.trace) == same
        exact = float(cs.Hessian(problem).dense().trace())
        error = STANDARD_ERRORS * report.hessian.trace.stderr
        assert abs(report.hessian.trace.value - exact) <= error


def test_the_lower_end_is_found_at_a_coarse_tolerance() -> None:
    X, y = data(60)
    problem = cs.Problem(network(hidden=40), (X, y))
    exact = torch.linalg.eigvalsh(cs.Hessian(problem).dense())[0]
    report = sharpness(problem, generator=generator(), method="estimate", tol=1e-2)
    assert exact < 0
    assert report.hessian.smallest.value == pytest.approx(float(exact), rel=0.05)


def test_losses_errors_and_gaps_of_both_splits() -> None:
    model, (X, y), (Xt, yt) = network(), data(), data(20, seed=2)
    report = sharpness(cs.Problem(model, (X, y)), test=(Xt, yt), generator=generator())
    with torch.no_grad():
        z, zt = model(X), model(Xt)
    losses = F.cross_entropy(zt, yt, reduction="none")
    wrong = (zt.argmax(1) != yt).double()
    assert report.test is not None
    assert report.test.loss.value == pytest.approx(float(losses.mean()))
    assert report.test.loss.stderr == pytest.approx(float(losses.std() / 20**0.5))
    assert report.test.error.value == pytest.approx(float(wrong.mean()))
    assert report.error_gap.value == pytest.approx(
        float(wrong.mean() - (z.argmax(1) != y).double().mean())
    )
    assert report.loss_gap.value == pytest.approx(float(losses.mean() - F.cross_entropy(z, y)))
    spread = report.train.loss.stderr**2 + report.test.loss.stderr**2
    assert report.loss_gap.stderr == pytest.approx(spread**0.5)
    other = sharpness(
        cs.Problem(model, (X, y)), test=cs.Problem(model, (Xt, yt)), generator=generator()
    )
    assert other.test == report.test


def test_without_test_data_and_without_right_answers() -> None:
    model = nn.Linear(5, 3).double()
    X, _ = data()
    report = sharpness(cs.Problem(model, (X, X[:, :3]), loss="mse"), generator=generator())
    assert report.test is None
    assert report.loss_gap is None
    assert report.train.error is None
    residuals = (model(X) - X[:, :3]).detach().square().mean(1)
    assert report.train.loss.stderr == pytest.approx(float(residuals.std() / 30**0.5))


def test_a_callable_loss_does_not_show_its_terms() -> None:
    problem = BY_NAME["callable-label-smoothing"].problem()
    report = sharpness(problem, generator=generator())
    assert report.train.loss.stderr == float("inf")
    assert report.train.error is None


# Edges ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["exact", "estimate"])
def test_perfect_fit_with_zero_loss(method: str) -> None:
    """Outputs so confident that loss and curvature underflow: everything is zero, nothing fails."""
    model, (X, _) = nn.Linear(5, 3).double(), data()
    y = model(X).argmax(1)
    with torch.no_grad():
        model.weight.mul_(1e7)
        model.bias.mul_(1e7)
    report = sharpness(
        cs.Problem(model, (X, y)), test=(X, y), generator=generator(), method=method, damping=0.5
    )
    assert report.train.loss.value == 0.0
    assert report.train.error.value == 0.0
    assert report.loss_gap.value == 0.0
    for measures in (report.hessian, report.gauss_newton):
        assert measures.largest.value == 0.0
        assert measures.trace.value == 0.0
        assert measures.frobenius.value == 0.0
        assert measures.effective_rank.value == 0.0
    assert report.log_determinant.value == pytest.approx(18 * torch.tensor(0.5).log().item())


def test_singular_matrix_without_damping_has_no_determinant() -> None:
    model, (X, y) = network(), data(3)
    report = sharpness(cs.Problem(model, (X, y)), generator=generator(), damping=0.0)
    assert report.gauss_newton.smallest.value == pytest.approx(0.0, abs=1e-14)
    assert report.log_determinant.value < -1000  # log of rounding, or minus infinity
    assert report.damping == 0.0


def test_weight_decay_of_the_optimizer_is_not_in_the_curvature() -> None:
    model, (X, y) = network(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
    report = sharpness(cs.Problem(model, (X, y)), generator=generator())
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    def loss(w: Tensor) -> Tensor:
        parts, start = {}, 0
        for name, p in model.named_parameters():
            parts[name] = w[start : start + p.numel()].reshape(p.shape)
            start += p.numel()
        return F.cross_entropy(torch.func.functional_call(model, parts, (X,)), y)

    H = torch.autograd.functional.hessian(loss, flat)
    assert report.hessian.trace.value == pytest.approx(float(H.trace()), rel=EXACT)


@pytest.mark.parametrize("norm", [True, False])
def test_both_modes(norm: bool) -> None:
    """With batch norm the two modes differ; without, train mode is eval mode."""
    model = nn.Sequential(
        nn.Linear(5, 4), nn.BatchNorm1d(4) if norm else nn.Identity(), nn.ReLU(), nn.Linear(4, 3)
    ).double()
    (X, y), (Xt, yt) = data(), data(20, seed=2)
    model.train()(X)
    problem = cs.Problem(model.eval(), [(X[:15], y[:15]), (X[15:], y[15:])])
    reports = sharpness_by_mode(problem, test=(Xt, yt), generator=generator())
    assert [reports[mode].mode for mode in ("eval", "train")] == ["eval", "train"]
    for mode, report in reports.items():
        batches = [(X[:15], y[:15]), (X[15:], y[15:])]
        H = cs.Hessian(cs.Problem(model, batches, mode=mode)).dense()
        assert report.hessian.trace.value == pytest.approx(float(H.trace()), rel=EXACT)
        assert report.test.samples == 20
    same = reports["eval"].hessian.trace.value == reports["train"].hessian.trace.value
    assert same == (not norm)


def test_a_report_survives_json(tmp_path: Path) -> None:
    report = sharpness(cs.Problem(network(), data()), test=data(), generator=generator())
    io.save(tmp_path / "report.json", report)
    assert io.load(tmp_path / "report.json", SharpnessReport) == report
    with pytest.raises(cs.CurvescopeError, match="must be a SharpnessReport with"):
        io.decode(SharpnessReport, {"mode": "eval"})


def test_same_generator_same_report() -> None:
    problem = cs.Problem(network(hidden=20), data())
    first, second = (
        sharpness(problem, generator=generator(3), method="estimate") for _ in range(2)
    )
    assert first == second


def test_refusals() -> None:
    problem = cs.Problem(network(), data())
    with pytest.raises(cs.CurvescopeError, match="needs a Problem, got Linear"):
        sharpness(nn.Linear(2, 2), generator=generator())
    with pytest.raises(cs.CurvescopeError, match=r"generator must be a torch\.Generator"):
        sharpness(problem, generator=None)
    with pytest.raises(cs.CurvescopeError, match="method must be one of"):
        sharpness(problem, generator=generator(), method="guess")
    with pytest.raises(cs.CurvescopeError, match="damping must be at least 0"):
        sharpness(problem, generator=generator(), damping=-1.0)
    with pytest.raises(cs.CurvescopeError, match="got a Problem, which has a mode of its own"):
        sharpness_by_mode(problem, test=problem, generator=generator())


def test_the_same_data_twice_has_no_gap() -> None:
    model = build(BY_NAME["conv-stride-padding"].make_model, torch.float64)
    problem = cs.Problem(model, BY_NAME["conv-stride-padding"].data())
    report = sharpness(problem, test=BY_NAME["conv-stride-padding"].data(), generator=generator())
    assert report.train == report.test
