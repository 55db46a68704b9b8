"""Extended gradients in output space, and batches taken apart into samples."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope.errors import CurvescopeError
from curvescope.problem import Problem
from curvescope.problem.losses import BinaryLogistic, CrossEntropy, MeanSquare
from curvescope.record.extended import class_directions, extended, merge
from curvescope.record.samples import choose, join, pieces

F64 = torch.float64


def test_directions_are_loss_gradients_at_every_label() -> None:
    z = torch.randn(4, 3, dtype=F64, requires_grad=True)
    y = torch.tensor([2, 0, 1, 1])
    e = extended(CrossEntropy(), z.detach(), y)
    assert e.labels.tolist() == y.tolist()
    for k in range(3):
        loss = F.cross_entropy(z, torch.full_like(y, k), reduction="sum")
        (slope,) = torch.autograd.grad(loss, z)
        torch.testing.assert_close(e.directions[:, k], slope)
    z1 = torch.randn(4, 1, dtype=F64, requires_grad=True)
    e = extended(BinaryLogistic(), z1.detach(), torch.tensor([1, 0, 0, 1]))
    assert e.labels.tolist() == [1, 0, 0, 1]
    for k in (0.0, 1.0):
        loss = F.binary_cross_entropy_with_logits(z1, torch.full_like(z1, k), reduction="sum")
        (slope,) = torch.autograd.grad(loss, z1)
        torch.testing.assert_close(e.directions[:, int(k)], slope)


@pytest.mark.parametrize("loss", [CrossEntropy(), BinaryLogistic()])
def test_roots_make_the_output_hessian(loss: CrossEntropy | BinaryLogistic) -> None:
    width = 3 if isinstance(loss, CrossEntropy) else 1
    z, y = torch.randn(5, width, dtype=F64), torch.tensor([0, 1, 1, 0, 1])
    u = class_directions(loss, z, y)
    H = torch.einsum("bkc,bkd->bcd", u, u)
    for c in range(width):
        unit = torch.zeros_like(z)
        unit[:, c] = 1
        torch.testing.assert_close(H[:, :, c], loss.at(z, y).hessian(unit[None])[0])


def test_labels_at_positions_and_ignored_ones() -> None:
    z = torch.randn(2, 3, 4, dtype=F64)  # two samples, three positions, four classes
    y = torch.tensor([[1, -100, 3], [0, 2, -100]])
    e = extended(CrossEntropy(), z, y)
    assert e.labels.tolist() == [1, -1, 3, 0, 2, -1]
    assert e.count == 4
    assert bool((e.roots()[e.labels < 0] == 0).all())
    u = class_directions(CrossEntropy(), z, y)
    assert u.shape == (2, 12, 3, 4)
    # direction t·C + c' lives at position t alone
    for t in range(3):
        elsewhere = [s for s in range(3) if s != t]
        assert float(u[:, 4 * t : 4 * t + 4, elsewhere].abs().max()) == 0.0
    # torch's layout, classes second, says the same
    v = class_directions(CrossEntropy(), z.movedim(-1, 1), y)
    torch.testing.assert_close(v, u.movedim(-1, 2))


def test_a_label_that_is_fitted_is_not_an_ignored_one() -> None:
    z = torch.tensor([[200.0, 0.0, 0.0]])  # p = (1, 0, 0): the gradient at its own label is 0
    e = extended(CrossEntropy(), z, torch.tensor([0]))
    assert e.labels.tolist() == [0]
    assert e.count == 1
    assert e.log_p[0, 1].item() == pytest.approx(-200.0)


def test_small_probabilities_are_not_lost_in_one_minus_p() -> None:
    z = torch.tensor([[25.0, 0.0, -1.0]])
    exact = extended(CrossEntropy(), z.double(), torch.tensor([0])).directions[0, 0]
    ours = extended(CrossEntropy(), z, torch.tensor([0])).directions[0, 0]
    torch.testing.assert_close(ours.double(), exact, rtol=1e-6, atol=0)
    plain = torch.softmax(z, 1)[0] - torch.tensor([1.0, 0.0, 0.0])
    assert plain[0] == 0.0  # what float32 makes of it


def test_weights_that_underflow_still_merge() -> None:
    a, b = torch.tensor([-2000.0, -torch.inf, 0.0]), torch.tensor([-2000.0, -torch.inf, -torch.inf])
    total, kept, added = merge(a.double(), b.double())
    torch.testing.assert_close(kept, torch.tensor([0.5, 0.0, 1.0], dtype=F64))
    torch.testing.assert_close(added, torch.tensor([0.5, 0.0, 0.0], dtype=F64))
    assert total[0].item() == pytest.approx(-2000 + torch.log(torch.tensor(2.0)).item())


def test_other_losses_have_no_classes() -> None:
    with pytest.raises(CurvescopeError, match=r"where: needs a loss that tells .* got 'mse'"):
        extended(MeanSquare(), torch.zeros(2, 3), torch.zeros(2, 3), "where")


# Samples -----------------------------------------------------------------------------------------


class Centered(nn.Module):
    """Every sample sees the mean of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(0))


def test_independence_is_tried_out() -> None:
    X, y = torch.randn(6, 3), torch.arange(6) % 2
    for model, expected in ((nn.Linear(3, 2), True), (Centered(), False)):
        problem = Problem(model, (X, y))
        (batch,) = problem.batches()
        assert problem.samples_apart(batch) == expected
        sizes = [len(p.target) for p in pieces(problem, batch, 4)]
        assert sizes == ([4, 2] if expected else [6])
    norm = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    problem = Problem(norm, [(X, y)], mode="train")
    (batch,) = problem.batches()
    assert not problem.samples_apart(batch)


def test_batches_are_cut_and_joined() -> None:
    data = [({"x": torch.arange(6.0).reshape(3, 2)}, torch.tensor([0, 1, 0]))]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    (batch,) = Problem(Model(), data).batches()
    zeros = choose(batch, batch.target == 0)
    assert zeros.inputs["x"].tolist() == [[0.0, 1.0], [4.0, 5.0]]
    both = join([zeros, choose(batch, slice(1, 2))])
    assert both.inputs["x"].tolist() == [[0.0, 1.0], [4.0, 5.0], [2.0, 3.0]]
    assert both.target.tolist() == [0, 0, 1]
