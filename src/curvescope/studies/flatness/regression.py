"""Multinomial logistic regression with several weight decays at once: one product serves all.

A step of a network of one layer is two products with the batch. Stacked, the weights of ``R`` runs
make them ``R`` times wider, which takes hardly longer, and there is no graph to record: 1000 epochs
on 45,000 digits take minutes on one core.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from curvescope.data import Dataset
from curvescope.networks import network
from curvescope.training import Recipe


@torch.no_grad()
def regressions(
    data: Dataset, recipes: Sequence[Recipe], *, generator: torch.Generator
) -> list[dict[str, Tensor]]:
    """The state of ``network("logistic", …)`` after each recipe, from the same first weights.

    All runs see the samples in the same order, drawn anew for each epoch. The steps are those of
    :func:`curvescope.training.train`: ``m ← μ m + (g + γ w)``, ``w ← w − α m``.

    Args:
        data: The training data, on any device.
        recipes: SGD with momentum; they differ in weight decay alone.
        generator: The source of the order.
    """
    first = recipes[0]
    model = network(
        "logistic", data.input_shape, data.classes, generator=torch.Generator().manual_seed(0)
    )
    start = model.state_dict()
    names = list(start)  # weight, then bias
    W = torch.cat([start[names[0]], start[names[1]][:, None]], 1).to(data.X)
    W = W.repeat(len(recipes), 1)  # [runs · classes, inputs + 1]
    decays = torch.tensor([r.weight_decay for r in recipes]).to(data.X)
    decay = decays.repeat_interleave(data.classes)[:, None]
    X = torch.cat([data.X.flatten(1), data.X.new_ones(len(data), 1)], 1)
    hot = torch.nn.functional.one_hot(data.y, data.classes).to(X.dtype)
    momentum = torch.zeros_like(W)
    for epoch in range(1, first.epochs + 1):
        order = torch.randperm(len(data), generator=generator).to(X.device)
        shuffled, targets = X[order], hot[order]
        for x, t in zip(
            shuffled.split(first.batch_size), targets.split(first.batch_size), strict=True
        ):
            p = torch.softmax((x @ W.T).unflatten(1, (len(recipes), -1)), -1)
            errors = (p - t[:, None]).flatten(1)
            gradient = torch.addmm(decay * W, errors.T, x, alpha=1 / len(x))
            W -= first.rate(epoch) * momentum.mul_(first.momentum).add_(gradient)
    parts = W.unflatten(0, (len(recipes), -1))
    return [
        {names[0]: part[:, :-1].contiguous(), names[1]: part[:, -1].contiguous()} for part in parts
    ]
