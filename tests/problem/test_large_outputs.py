"""Cross-entropy at large outputs, in pieces, against the same in one piece."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from curvescope.problem.losses import CrossEntropy, large
from curvescope.problem.losses.large import LargeHardAt
from curvescope.problem.losses.softmax import HardAt

CASES = {
    "rows": ((7, 5), {}, None),
    "classes last": ((3, 4, 5), {"axis": -1}, None),
    "classes second": ((3, 5, 4), {"axis": 1}, None),
    "ignored": ((3, 4, 5), {"axis": -1}, 2),
    "class weights": ((3, 4, 5), {"axis": -1, "weight": torch.rand(5).double()}, None),
    "shifted": ((3, 4, 5), {"axis": -1, "shift": 1}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_pieces_are_the_whole(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    shape, settings, ignored = CASES[case]
    z = torch.randn(shape).double()
    axis = settings.get("axis", 1) % z.ndim
    y = torch.randint(0, 5, z.movedim(axis, -1).shape[:-1])
    if ignored is not None:
        y.view(-1)[:ignored] = -100
    loss, t = CrossEntropy(**settings), torch.randn(2, *shape).double()
    whole = loss.at(z, y)
    monkeypatch.setattr(large, "LARGE", 1)
    monkeypatch.setattr(large, "PIECE", 11)
    parts = loss.at(z, y)
    assert type(whole) is HardAt
    assert type(parts) is LargeHardAt
    assert len(list(parts._parts())) > 1
    assert (parts.weight, parts.count) == (whole.weight, whole.count)
    for ours, theirs in (
        (parts.value(), whole.value()),
        (parts.gradient(), whole.gradient()),
        (parts.hessian(t), whole.hessian(t)),
        (parts.slopes(), whole.slopes()),
        (parts.root(), whole.root()),
        (parts.each().losses, whole.each().losses),
        (parts.each().weights, whole.each().weights),
        (parts.each().wrong, whole.each().wrong),
        (parts.terms(t), whole.terms(t)),
        (parts.scatter(parts.terms(t), t), t),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)


def test_draws_are_of_the_model_s_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "LARGE", 1)
    monkeypatch.setattr(large, "PIECE", 6)
    torch.manual_seed(0)
    z, y = torch.randn(4, 3).double(), torch.arange(4) % 3
    at = CrossEntropy().at(z, y)
    g = at.sample(20000, torch.Generator().manual_seed(1))
    p = F.softmax(z, 1)
    second = torch.einsum("snc,snd->ncd", g, g) / len(g)
    wanted = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    assert float((second - wanted).abs().max()) < 4 * 0.5 / 20000**0.5
