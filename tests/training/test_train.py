"""Training: what it promises about results, about the model and about everything else."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from curvescope import Hessian
from curvescope.data import load_embedded
from curvescope.errors import CurvescopeError
from curvescope.networks import network
from curvescope.problem import Problem
from curvescope.training import Fit, Progress, Recipe, evaluate, train, train_many
from curvescope.training import loop as training_loop
from curvescope.training.engine import Engine, RecordedEngine, stretches, undone
from curvescope.training.learner import Learner
from curvescope.training.objective import refresh_batch_norm
from tests.training.problems import CLASSES, FEATURES, data, flat, model

RECIPE = Recipe(seed=0, epochs=3, lr=0.1, batch_size=16)


def test_it_learns_digits() -> None:
    X, y = load_embedded("mnist-6k")
    net = network("F-64", (1, 28, 28), 10, generator=torch.Generator().manual_seed(0))
    recipe = Recipe(seed=0, epochs=5, lr=3e-3, batch_size=50, optimizer="adam")
    trained = train(net, (X, y), recipe, test=load_embedded("mnist-6k", split="test"))
    assert trained.test.accuracy > 0.9
    assert trained.train.accuracy > trained.history[0].accuracy
    assert trained.test == evaluate(net, load_embedded("mnist-6k", split="test"))


def test_the_same_recipe_gives_the_same_bits_and_another_seed_others() -> None:
    nets = [model() for _ in range(3)]
    for net, seed in zip(nets, (0, 0, 1), strict=True):
        train(net, data(), replace(RECIPE, seed=seed))
    assert torch.equal(flat(nets[0]), flat(nets[1]))
    assert not torch.equal(flat(nets[0]), flat(nets[2]))


def test_the_final_figures_are_those_of_the_final_weights() -> None:
    net = model()
    trained = train(net, data(), RECIPE, test=data(seed=1))
    assert trained.train == evaluate(net, data())
    assert trained.test == evaluate(net, data(seed=1))
    last = trained.history[-1]
    assert (last.test_loss, last.test_accuracy) == (trained.test.loss, trained.test.accuracy)
    assert [epoch.epoch for epoch in trained.history] == [1, 2, 3]


def test_evaluate_is_the_mean_over_samples() -> None:
    X, y = data(2500)
    net = model()
    output = net(X).detach()
    expected = nn.functional.cross_entropy(output, y).item()
    fit = evaluate(net, (X, y))
    assert fit.loss == pytest.approx(expected, rel=1e-12)
    assert fit.accuracy == (output.argmax(1) == y).double().mean().item()


def test_a_loss_with_class_weights_is_refused_with_what_to_do_instead() -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.linspace(1, 2, CLASSES).double())
    net = model()
    with pytest.raises(CurvescopeError, match=r"which the mean over the samples does not; leave "):
        evaluate(net, data(), loss=weighted)
    with pytest.raises(CurvescopeError, match=r"the mean of an epoch does not; train with a loss"):
        train(net, data(), RECIPE, loss=weighted)
    assert Problem(net, data(), loss=weighted).value() > 0  # what the first refusal names


def test_the_logistic_loss_has_one_output() -> None:
    X, y = data()
    net = network("T-8", FEATURES, 1, generator=torch.Generator().manual_seed(0)).double()
    binary = (X, (y == 0).long())
    trained = train(net, binary, replace(RECIPE, epochs=60, lr=0.5, loss="binary_logistic"))
    assert trained.train.accuracy > 0.85
    z = net(X).detach().flatten()
    expected = nn.functional.binary_cross_entropy_with_logits(z, binary[1].double())
    assert trained.train.loss == pytest.approx(expected.item(), rel=1e-12)
    assert trained.train.accuracy == ((z > 0) == (y == 0)).double().mean().item()


# What stays as it was ----------------------------------------------------------------------


def test_the_model_keeps_its_tensors() -> None:
    net = model("F-8-BN")
    before = {name: p.data_ptr() for name, p in net.named_parameters()}
    parameters = list(net.parameters())
    train(net, data(), RECIPE)
    assert {name: p.data_ptr() for name, p in net.named_parameters()} == before
    assert all(a is b for a, b in zip(parameters, net.parameters(), strict=True))
    assert all(p.grad is None for p in net.parameters())
    assert not net.training
    copy.deepcopy(net)


def test_no_trace_in_torchs_generator_or_settings() -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    net = nn.Sequential(nn.Linear(FEATURES, 5), nn.Dropout(0.5), nn.Linear(5, CLASSES)).double()
    after_init = torch.random.get_rng_state()
    train(net, data(), RECIPE)
    assert torch.equal(torch.random.get_rng_state(), after_init)
    assert not torch.equal(before, after_init)


def test_dropout_is_reproducible() -> None:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(FEATURES, 5), nn.Dropout(0.5), nn.Linear(5, CLASSES)).double()
    second = copy.deepcopy(first)
    train(first, data(), RECIPE)
    torch.rand(3)  # somebody else draws in between
    train(second, data(), RECIPE)
    assert torch.equal(flat(first), flat(second))


def test_frozen_and_unused_and_tied_parameters() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(FEATURES, FEATURES)
            self.again = self.first
            self.frozen = nn.Linear(FEATURES, CLASSES).requires_grad_(False)
            self.unused = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.frozen(self.again(self.first(x).relu()))

    net = Net().double()
    start = copy.deepcopy(net.state_dict())
    train(net, data(), RECIPE)
    end = net.state_dict()
    assert not torch.equal(end["first.weight"], start["first.weight"])
    assert torch.equal(end["again.weight"], end["first.weight"])
    for name in ("frozen.weight", "frozen.bias", "unused.weight"):
        assert torch.equal(end[name], start[name])


def test_the_users_gradients_are_left_alone() -> None:
    net = model()
    nn.functional.cross_entropy(net(data()[0]), data()[1]).backward()
    gradients = [p.grad for p in net.parameters()]
    values = [g.clone() for g in gradients]
    train(net, data(), RECIPE)
    for p, gradient, value in zip(net.parameters(), gradients, values, strict=True):
        assert p.grad is gradient
        assert torch.equal(gradient, value)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "gadam"])
def test_every_step_counts_as_a_change(optimizer: str) -> None:
    """Torch's fused kernels write without a word to autograd."""
    start = 1 if optimizer == "gadam" else None
    net, versions = model("F-8-BN"), []

    def note(progress: Progress) -> None:
        versions.append([t._version for t in (*net.parameters(), *net.buffers())])

    train(net, data(), replace(RECIPE, optimizer=optimizer, average_from=start), tell=note)
    for before, after in pairwise(versions):
        assert all(a < b for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["F-8", "F-8-BN"])
def test_an_operator_from_before_a_training_is_refused_after_it(name: str) -> None:
    net = model(name)
    problem = Problem(net, data(), loss="cross_entropy")
    H = Hessian(problem)
    v = torch.ones(H.shape[1], 3, dtype=torch.float64)
    for _ in range(3):  # streamed, kept, kept
        H @ v
    train(net, data(), RECIPE)
    with pytest.raises(CurvescopeError, match="changed"):
        H @ v
    fresh = Hessian(Problem(net, data(), loss="cross_entropy")) @ v
    assert bool(fresh.isfinite().all())


def test_an_error_in_the_middle_gives_the_model_back() -> None:
    net = model()
    pointers = [p.data_ptr() for p in net.parameters()]

    def stop(progress: Progress) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        train(net, data(), RECIPE, tell=stop)
    assert [p.data_ptr() for p in net.parameters()] == pointers


# Averages, batch norms, penalties -------------------------------------------------------------


def test_the_average_gets_batch_norm_statistics_of_its_own() -> None:
    recipe = replace(RECIPE, epochs=4, optimizer="gadam", lr=0.01, average_from=2)
    net, X = model("F-8-BN"), data()[0]
    train(net, data(), recipe)
    reference = copy.deepcopy(net)
    batches = torch.utils.data.DataLoader(X, batch_size=16)
    torch.optim.swa_utils.update_bn(batches, reference)
    for (name, ours), theirs in zip(net.named_buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)


def test_refreshing_leaves_the_momentum_and_ignores_a_lonely_sample() -> None:
    net, X = model("F-8-BN"), data(33)[0]
    refresh_batch_norm(net, X, 16)
    norm = net.get_submodule("bn-fc1")
    assert norm.momentum == 0.1
    assert norm.num_batches_tracked == 2


def test_without_batch_norm_refreshing_does_nothing() -> None:
    net = model()
    before = flat(net)
    refresh_batch_norm(net, data()[0], 16)
    assert torch.equal(flat(net), before)


def test_a_quadratic_penalty_is_weight_decay() -> None:
    def shrink(net: nn.Module, X: Tensor, y: Tensor) -> Tensor:
        return sum((p**2).sum() for p in net.parameters()) * 0.1 / 2

    penalized, decayed = model(), model()
    result = train(penalized, data(), RECIPE, penalty=shrink)
    same = train(decayed, data(), replace(RECIPE, weight_decay=0.1))
    torch.testing.assert_close(flat(penalized), flat(decayed), rtol=1e-11, atol=1e-13)
    assert result.history[0].loss == pytest.approx(same.history[0].loss)  # the loss alone


def test_a_penalty_may_differentiate_twice() -> None:
    def gradient_norm(net: nn.Module, X: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(net(X), y)
        gradient = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        return sum((g**2).sum() for g in gradient)

    plain, flatter = model(), model()
    train(plain, data(), replace(RECIPE, epochs=20))
    train(flatter, data(), replace(RECIPE, epochs=20), penalty=gradient_norm)
    assert not torch.equal(flat(plain), flat(flatter))


def test_divergence_is_data_in_the_result() -> None:
    trained = train(model(), data(), replace(RECIPE, lr=1e200))
    assert trained.diverged == 1
    assert trained.train is None
    assert trained.history == ()


# Several at once, and recorded stretches --------------------------------------------------------


def test_side_by_side_is_the_same_as_one_after_the_other() -> None:
    recipes = [replace(RECIPE, seed=seed, lr=0.1 / (seed + 1)) for seed in range(3)]
    recipes[2] = replace(recipes[2], optimizer="adam", weight_decay=0.01)
    together = [model(name, seed=i) for i, name in enumerate(("F-8", "F-5^2", "F-8-BN"))]
    alone = copy.deepcopy(together)
    many = train_many(together, data(), recipes, test=data(seed=1))
    for net, lone, recipe, result in zip(together, alone, recipes, many, strict=True):
        single = train(lone, data(), recipe, test=data(seed=1))
        assert torch.equal(flat(net), flat(lone))
        assert [epoch.test_loss for epoch in result.history] == [
            epoch.test_loss for epoch in single.history
        ]


def test_one_diverging_run_leaves_the_others_alone() -> None:
    good, bad = train_many([model(), model(seed=1)], data(), [RECIPE, replace(RECIPE, lr=1e200)])
    assert good.diverged is None
    assert len(good.history) == 3
    assert bad.diverged == 1


def test_recorded_stretches_take_the_same_steps() -> None:
    """The fixed places and the kinds of stretches, with an ordinary call in place of a graph."""
    recipe = replace(RECIPE, batch_size=1, momentum=0.9)  # 70 steps: stretches of 32, 32 and 6
    X, y = data(70)
    generator = torch.Generator().manual_seed(0)
    kinds = []

    def record(learners, branches):
        kinds.append(len(branches))
        return lambda: [branch() for branch in branches]

    outcomes = []
    for make in (Engine, lambda *arguments: RecordedEngine(*arguments, record)):
        nets = [model(seed=0), model(seed=1)]
        learners = [Learner(net, recipe) for net in nets]
        engine = make(learners, X, y)
        generator.manual_seed(0)
        for _ in range(2):
            orders = torch.stack([torch.randperm(70, generator=generator) for _ in nets])
            for learner in learners:
                learner.optimizer.rate.fill_(torch.rand((), generator=generator) * 0.1)
            *_, steps = engine.epoch(orders)
            assert steps == engine.steps == 70
        outcomes.append([(flat(learner.model), learner.totals) for learner in learners])
    assert kinds == [2, 2]
    for (weights, totals), (recorded, recorded_totals) in zip(*outcomes, strict=True):
        assert torch.equal(weights, recorded)
        torch.testing.assert_close(totals, recorded_totals)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "gadam"])
def test_steps_before_a_recording_are_undone(optimizer: str) -> None:
    """All that steps change is there from the beginning, at a place that it keeps."""
    momentum, start = (0.9, None) if optimizer == "sgd" else (0.0, 0)
    recipe = replace(RECIPE, optimizer=optimizer, momentum=momentum, average_from=start)
    net, (X, y) = model("F-8-BN").train(), data()
    learner = Learner(net, recipe)
    engine = Engine([learner], X, y)
    places = {name: tensor.data_ptr() for name, tensor in learner.tensors().items()}
    before = {name: tensor.clone() for name, tensor in learner.tensors().items()}
    with undone([learner]):
        list(engine.epoch(torch.arange(len(y))[None]))
        changed = [
            name for name, t in learner.tensors().items() if not torch.equal(t, before[name])
        ]
        assert {"parameter.fc1.weight", "buffer.bn-fc1.running_mean"} <= set(changed)
        assert any(name.startswith("optimizer") for name in changed)
    after = learner.tensors()
    assert {name: tensor.data_ptr() for name, tensor in after.items()} == places
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())
    assert {id(p) for p in net.parameters()} == {id(p) for p in learner.parameters}


def test_a_recorded_training_is_the_same_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does, with calls in place of graphs: rehearsed, undone, then replayed."""

    def record(learners, branches):
        with undone(learners):
            for branch in [*branches, *branches]:
                branch()
        return lambda: [branch() for branch in branches]

    recipe = replace(
        RECIPE, epochs=4, batch_size=3, optimizer="gadam", lr=0.01, schedule="step",
        weight_decay=0.1, average_from=1,
    )  # fmt: skip
    plain, recorded = model("F-8-BN"), model("F-8-BN")
    expected = train(plain, data(), recipe, test=data(seed=1))
    monkeypatch.setattr(
        training_loop,
        "make_engine",
        lambda learners, X, y, capture: RecordedEngine(learners, X, y, record),
    )
    trained = train(recorded, data(), recipe, test=data(seed=1))
    for name, tensor in plain.state_dict().items():
        assert torch.equal(recorded.state_dict()[name], tensor), name
    assert (trained.train, trained.test) == (expected.train, expected.test)


@pytest.mark.parametrize(
    ("samples", "size", "length"), [(10, 3, 2), (12, 4, 8), (5, 9, 3), (8, 2, 2)]
)
def test_stretches_cover_every_sample_once(samples: int, size: int, length: int) -> None:
    parts = stretches(samples, size, length, torch.device("cpu"))
    sizes = [n for part in parts for n in part.sizes]
    assert sum(sizes) == samples
    assert all(n == size for n in sizes[:-1])
    assert all(len(part.sizes) == length for part in parts[:-1])
    assert all(part.counts.tolist() == list(part.sizes) for part in parts)


def test_progress_counts_every_step() -> None:
    seen: list[Progress] = []
    train(model(), data(), RECIPE, tell=seen.append)
    assert [progress.done for progress in seen] == list(range(1, 13))
    assert {progress.total for progress in seen} == {12}
    assert seen[3].epochs == (None,)
    assert seen[4].epochs[0].epoch == 1


# Mistakes ----------------------------------------------------------------------------------------


def broken(**changes: object) -> tuple[Tensor, Tensor]:
    X, y = data()
    return changes.get("X", X), changes.get("y", y)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (data()[0], "data must be a pair of tensors"),
        (broken(y=[0] * 50), "inputs and targets must be tensors"),
        (broken(y=torch.zeros(49).long()), r"got inputs \[50, 6\] and labels \[49\]"),
        (broken(X=torch.zeros(0, 6), y=torch.zeros(0).long()), "with N ≥ 1"),
        (broken(y=torch.zeros(50)), "labels must be integers"),
        (
            broken(y=torch.full((50,), 3)),
            r"labels must lie in 0 … 2 \(the model has 3 outputs\), got 3",
        ),
        (broken(y=torch.full((50,), -1)), "got -1"),
        (broken(X=torch.full((50, 6), torch.nan)), "the inputs contain NaN or infinity"),
        (broken(X=torch.zeros(50, 7)), r"the model does not take inputs of shape \[7\]"),
    ],
)
def test_bad_data_is_one_sentence(bad: object, message: str) -> None:
    net = model()
    before = flat(net)
    for call in (lambda: train(net, bad, RECIPE), lambda: evaluate(net, bad)):
        with pytest.raises(CurvescopeError, match=message):
            call()
    assert torch.equal(flat(net), before)


def test_bad_test_data_is_found_before_training() -> None:
    with pytest.raises(CurvescopeError, match=r"train\(test\): the inputs contain NaN"):
        train(model(), data(), RECIPE, test=broken(X=torch.full((50, 6), torch.nan)))


def test_models_that_cannot_be_trained() -> None:
    frozen = model().requires_grad_(False)
    with pytest.raises(CurvescopeError, match="no parameter of the model requires a gradient"):
        train(frozen, data(), RECIPE)
    with pytest.raises(CurvescopeError, match="the model has no parameters"):
        train(nn.ReLU(), data(), RECIPE)
    mixed = model()
    mixed.get_submodule("fc2").float()
    with pytest.raises(CurvescopeError, match="must share one device and one dtype, got"):
        train(mixed, data(), RECIPE)
    poisoned = model()
    with torch.no_grad():
        poisoned.get_submodule("fc1").weight[0, 0] = torch.inf
    with pytest.raises(CurvescopeError, match=r"fc1\.weight contains NaN or infinity"):
        train(poisoned, data(), RECIPE)
    with pytest.raises(CurvescopeError, match="binary_logistic' needs one output, the model has 3"):
        train(model(), data(), replace(RECIPE, loss="binary_logistic"))
    with pytest.raises(CurvescopeError, match="49 samples in batches of 16 leave one sample alone"):
        train(model("F-8-BN"), data(49), RECIPE)
    frozen = model("F-8-BN").train()
    frozen.get_submodule("bn-fc1").eval()
    assert train(frozen, data(49), RECIPE).diverged is None  # its statistics are not the batch's
    with pytest.raises(CurvescopeError, match="must give one row of outputs for each input"):
        train(nn.Sequential(nn.Linear(6, 3).double(), nn.Flatten(0)), data(), RECIPE)


def test_runs_that_do_not_fit_together() -> None:
    with pytest.raises(CurvescopeError, match="got 2 models, 1 recipes, 0 folders"):
        train_many([model(), model()], data(), [RECIPE])
    with pytest.raises(CurvescopeError, match="must have the same epochs and batch_size"):
        train_many([model(), model()], data(), [RECIPE, replace(RECIPE, epochs=9)])
    net = model()
    with pytest.raises(CurvescopeError, match="every run needs a model of its own"):
        train_many([net, net], data(), [RECIPE, RECIPE])
    with pytest.raises(CurvescopeError, match="all models must share one device and one dtype"):
        train_many([model(), model(dtype=torch.float32)], data(), [RECIPE, RECIPE])
    dropout = [nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.1)).double() for _ in range(2)]
    with pytest.raises(CurvescopeError, match="train_many: dropout, or a penalty"):
        train_many(dropout, data(), [RECIPE, RECIPE])


def test_a_fit_is_a_plain_record() -> None:
    assert Fit.of([3.0, 2.0], 4) == Fit(loss=0.75, accuracy=0.5)
