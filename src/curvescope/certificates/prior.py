"""The prior: where its mean comes from, and when it is refused.

A PAC-Bayes bound needs a prior that was chosen without the examples it is certified on. What can be
checked is checked here; the rest is the caller's word, and the certificate says so.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curvescope import io
from curvescope._checks import CurvescopeError
from curvescope._state import evaluated
from curvescope.certificates.blocks import Layout
from curvescope.certificates.examples import as_examples, overlap, split

_EPOCHS = 20

State = Mapping[str, Tensor] | io.PathLike


@dataclass(frozen=True)
class Task:
    """What is certified: a network to start from, the prior mean, the examples."""

    start: nn.Module
    prior_mean: Tensor
    examples: tuple[Tensor, Tensor]
    prior: str
    prior_samples: int = 0
    split: tuple[float, int] | None = None  # share and seed


def prepare(
    model: nn.Module,
    initial_state: State,
    data: tuple[Tensor, Tensor],
    prior_split: float | None,
    prior_data: Any,
    generator: torch.Generator,
) -> Task:
    """The task of certifying, or a refusal where the prior would depend on the examples.

    Args:
        model: The trained network.
        initial_state: Weights before training, as a state dict or a file.
        data: All examples, on the model's device.
        prior_split: The share on which the prior mean is trained, if it is.
        prior_data: Other examples that ``initial_state`` was trained on, if any.
        generator: Decides the split and the training.

    Raises:
        CurvescopeError: See :func:`curvescope.certificates.certify.certify`.
    """
    layout = Layout.of(model)
    own = model.state_dict()
    initial, metadata = _read(initial_state)
    prior_mean = layout.flatten(initial).to(data[0].device, layout.flatten(own).dtype)
    _refuse_fitted_constants(layout, own, initial)
    _refuse_trained_prior(metadata, prior_data is not None)
    prior, prior_samples = "initial weights", 0
    if prior_data is not None:
        other, _ = as_examples("certify", prior_data, prior_mean.device, prior_mean.dtype)
        _refuse_overlap(other, data[0])
        prior, prior_samples = "weights trained on other examples", len(other)
    if prior_split is None:
        if torch.equal(prior_mean, layout.flatten(own).to(prior_mean)):
            msg = (
                "certify(initial_state): the prior weights equal the trained ones, so they depend "
                "on the examples; give the weights before training, or prior_split"
            )
            raise CurvescopeError(msg)
        return Task(model, prior_mean, data, prior, prior_samples)
    if prior_data is not None or not 0 < prior_split < 1:
        msg = (
            "certify(prior_split): must be a share between 0 and 1, and not be combined with "
            f"prior_data, got {prior_split!r}"
        )
        raise CurvescopeError(msg)
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    part, rest = split(data, prior_split, seed)
    start = _train_prior(model, layout.state(prior_mean), part, generator)
    mean = layout.flatten(start.state_dict()).clone()
    return Task(start, mean, rest, "trained on a split", len(part[0]), (prior_split, seed))


def _refuse_overlap(other: Tensor, own: Tensor) -> None:
    common = overlap(other, own)
    if common:
        msg = (
            f"certify(prior_data): {common} of the {len(own)} examples were used to choose the "
            "prior; certify on the others, or give the untrained weights and prior_split"
        )
        raise CurvescopeError(msg)


def _read(state: State) -> tuple[Mapping[str, Tensor], Mapping[str, str]]:
    if isinstance(state, Mapping):
        return state, {}
    return io.read_tensors(state)


def _refuse_trained_prior(metadata: Mapping[str, str], declared: bool) -> None:
    """A checkpoint of ours knows its epoch."""
    try:
        notes = json.loads(metadata.get("curvescope", "{}"))
    except ValueError:
        notes = {}
    epoch = notes.get("epoch", metadata.get("epoch")) if isinstance(notes, dict) else None
    if epoch is not None and int(epoch) > 0 and not declared:
        msg = (
            f"certify(initial_state): was saved after epoch {epoch}, when training had begun; give "
            "the weights of epoch 0 (initial.safetensors), or declare prior_data"
        )
        raise CurvescopeError(msg)


def _refuse_fitted_constants(
    layout: Layout, own: Mapping[str, Tensor], initial: Mapping[str, Tensor]
) -> None:
    """Everything outside the posterior must be as it was before the data were seen."""
    variables = {name for block in layout.blocks for name in (block.weight, block.bias)}
    for name, value in own.items():
        if name in variables or name.endswith("num_batches_tracked"):
            continue
        if name not in initial or not torch.equal(initial[name].to(value), value):
            msg = (
                f"certify: {name!r} is no variable of the posterior and differs from the initial "
                "state, so it was fitted to the examples; freeze batch-norm statistics and other "
                "constants at their initial values, or remove them"
            )
            raise CurvescopeError(msg)


def _train_prior(
    model: nn.Module,
    initial: Mapping[str, Tensor],
    data: tuple[Tensor, Tensor],
    generator: torch.Generator,
) -> nn.Module:
    """The network trained by Adam on the prior's part of the data."""
    start = evaluated(copy.deepcopy(model))
    with torch.no_grad():
        for name, value in initial.items():
            start.get_parameter(name).copy_(value)
    variables = [p for p in start.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(variables, lr=1e-3)
    X, y = data
    for _ in range(_EPOCHS):
        order = torch.randperm(len(X), generator=generator, device=generator.device).to(X.device)
        for chosen in order.split(128):
            z = start(X[chosen])
            if z.ndim == 1 or z.shape[1] == 1:
                target = y[chosen].to(z.dtype)
                loss = F.binary_cross_entropy_with_logits(z.reshape(-1), target)
            else:
                loss = F.cross_entropy(z, y[chosen])
            slopes = torch.autograd.grad(loss, variables)
            for variable, slope in zip(variables, slopes, strict=True):
                variable.grad = slope
            optimizer.step()
    return start
