"""The prior: where its mean comes from, and when it is refused.

A PAC-Bayes bound needs a prior that was chosen without the examples it is certified on. What can be
checked is checked here; the rest is the caller's word, and the certificate says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from curvescope import io
from curvescope._state import copied, evaluated
from curvescope.certificates.blocks import Layout
from curvescope.certificates.examples import as_examples, logits, overlap, split
from curvescope.errors import CurvescopeError
from curvescope.problem.leftovers import Caches
from curvescope.problem.losses.recognize import classifier_loss

_EPOCHS = 20

State = Mapping[str, Tensor] | io.PathLike


@dataclass(frozen=True)
class Task:
    """What is certified: a network to start from, the prior mean, the examples.

    ``prior_samples`` says how many other examples the prior mean was trained on.
    """

    start: nn.Module
    prior_mean: Tensor
    examples: tuple[Tensor, Tensor]
    prior_samples: int = 0


def prepare(
    model: nn.Module,
    initial_state: State,
    data: tuple[Tensor, Tensor],
    *,
    prior_split: float | None = None,
    prior_data: Any = None,
    declared: bool = False,
    seed: int = 0,
) -> Task:
    """The task of certifying, or a refusal where the prior would depend on the examples.

    The same arguments give the same task, so that a verification prepares it anew.

    Args:
        model: The trained network.
        initial_state: Weights before training, as a state dict or a file.
        data: All examples, on the model's device.
        prior_split: The share on which the prior mean is trained, if it is.
        prior_data: Other examples that ``initial_state`` was trained on, if any.
        declared: Whether there are such examples, also where they are not given.
        seed: Decides the split and the training.

    Raises:
        CurvescopeError: See :func:`curvescope.certificates.certification.certify`.
    """
    layout = Layout.of(model)
    state = model.state_dict()
    initial, metadata = read_state(initial_state)
    trained = layout.flatten(state)
    prior_mean = layout.flatten(initial).to(data[0].device, trained.dtype)
    _refuse_infinite("model", trained)
    _refuse_infinite("initial_state", prior_mean)
    _refuse_fitted_constants(layout, state, initial)
    _refuse_trained_prior(metadata, declared or prior_data is not None)
    prior_samples = 0
    if prior_data is not None:
        other, _ = as_examples("certify", prior_data, prior_mean.device, prior_mean.dtype)
        _refuse_overlap(other, data[0])
        prior_samples = len(other)
    if prior_split is None:
        if torch.equal(prior_mean, trained.to(prior_mean)):
            rule = "the prior weights equal the trained ones, so they depend on the examples"
            remedy = "give the weights before training, or `prior_split`"
            raise CurvescopeError("certify(initial_state)", rule, remedy=remedy)
        return Task(model, prior_mean, data, prior_samples)
    if prior_data is not None:
        raise CurvescopeError("certify(prior_split)", "cannot be combined with `prior_data`")
    if not 0 < prior_split < 1:
        rule = "must be a share between 0 and 1"
        raise CurvescopeError("certify(prior_split)", rule, given=repr(prior_split))
    part, rest = split(data, prior_split, seed)
    start = _train_prior(model, layout.state(prior_mean), part, seed)
    return Task(start, layout.flatten(start.state_dict()).clone(), rest, len(part[0]))


def _refuse_infinite(name: str, flat: Tensor) -> None:
    if not bool(flat.isfinite().all()):
        rule = "the weights contain NaN or infinity"
        raise CurvescopeError(f"certify({name})", rule, remedy="give those of a good run")


def _refuse_overlap(other: Tensor, examples: Tensor) -> None:
    common = overlap(other, examples)
    if common:
        rule = f"{common} of the {len(examples)} examples were used to choose the prior"
        remedy = "certify on the others, or give the untrained weights and `prior_split`"
        raise CurvescopeError("certify(prior_data)", rule, remedy=remedy)


def read_state(state: State) -> tuple[Mapping[str, Tensor], Mapping[str, str]]:
    """A state dict and, where it comes from a file, what is noted with it."""
    if isinstance(state, Mapping):
        return state, {}
    return io.read_tensors(state)


def _refuse_trained_prior(metadata: Mapping[str, str], declared: bool) -> None:
    """A checkpoint of ours knows its epoch."""
    try:
        notes = io.parse_json(metadata.get("curvescope", "{}"), "the notes of the initial state")
    except CurvescopeError:
        notes = {}
    epoch = notes.get("epoch", metadata.get("epoch")) if isinstance(notes, dict) else None
    if epoch is not None and str(epoch) != "0" and not declared:
        rule = f"was saved after epoch {epoch}, when training had begun"
        remedy = "give the weights of epoch 0 (initial.safetensors)"
        raise CurvescopeError(
            "certify(initial_state)",
            rule,
            remedy=f"{remedy}, or declare `prior_data`",
            remedy_cli=remedy,
        )


def _refuse_fitted_constants(
    layout: Layout, state: Mapping[str, Tensor], initial: Mapping[str, Tensor]
) -> None:
    """Everything outside the posterior must be as it was before the data were seen."""
    variables = {name for block in layout.blocks for name in (block.weight, block.bias)}
    for name, value in state.items():
        if name in variables or name.endswith("num_batches_tracked"):
            continue
        if name not in initial or not torch.equal(initial[name].to(value), value):
            raise CurvescopeError(
                "certify",
                f"{name!r} is no variable of the posterior and differs from the initial state, so "
                "it was fitted to the examples",
                remedy="freeze batch-norm statistics and other constants at their initial values, "
                "or remove them",
            )


def _train_prior(
    model: nn.Module,
    initial: Mapping[str, Tensor],
    data: tuple[Tensor, Tensor],
    seed: int,
) -> nn.Module:
    """The network trained by Adam on the prior's part of the data."""
    generator = torch.Generator().manual_seed(seed + 1)  # the seed itself has cut the data
    start = evaluated(copied(model))
    with torch.no_grad():
        for name, value in initial.items():
            start.get_parameter(name).copy_(value)
    variables = [p for p in start.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(variables, lr=1e-3)
    X, y = data
    caches = Caches(start)
    caches.look_for(lambda: logits(start, X[:2]))
    for _ in range(_EPOCHS):
        order = torch.randperm(len(X), generator=generator).to(X.device)
        for chosen in order.split(128):
            with caches.emptied():
                z = logits(start, X[chosen])
                loss = classifier_loss(z).mean(z, y[chosen])
                slopes = torch.autograd.grad(loss, variables)
            for variable, slope in zip(variables, slopes, strict=True):
                variable.grad = slope
            optimizer.step()
    return start
