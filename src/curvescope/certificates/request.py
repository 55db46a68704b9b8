"""What decides a certificate: network, weights, examples, settings and random numbers.

Two certifications with the same request are the same work and end at the same certificate; with
another one, nothing of what was kept may be used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from curvescope import _checks
from curvescope.certificates.bound import Confidence
from curvescope.certificates.evaluate import check_slack
from curvescope.certificates.examples import as_examples, home
from curvescope.certificates.methods import Method, posterior_method
from curvescope.certificates.network import network_digest
from curvescope.certificates.prior import State, read_state
from curvescope.identity import digest


@dataclass(frozen=True)
class Request:
    """Everything that a certificate follows from.

    Args:
        network: The digest of the model: code, weights, buffers, and what is trainable.
        weights: The digest of its state alone, which does not depend on the version of Python.
        initial: The digest of the state that the prior mean comes from.
        samples: How many examples there are in all.
        data: The digest of inputs and labels.
        test: That of the examples for orientation, if any.
        prior_data: That of the examples that the initial state was trained on, if any.
        prior_split: The share of the examples on which the prior mean is trained, if it is.
        method: How the posterior is optimized, and on which grid its prior lies.
        confidence: δ and δ'.
        slack: How far above the empirical error its bound may lie.
        seed: What the generator was seeded with.
        generator: The digest of its state at the beginning.
    """

    network: str
    weights: str
    initial: str
    samples: int
    data: str
    test: str | None
    prior_data: str | None
    prior_split: float | None
    method: Method
    confidence: Confidence
    slack: float | None
    seed: int
    generator: str


def describe(
    model: nn.Module,
    initial_state: State,
    data: Any,
    *,
    generator: torch.Generator,
    method: str | Method = "local",
    test: Any = None,
    confidence: Confidence | None = None,
    slack: float | None = None,
    prior_split: float | None = None,
    prior_data: Any = None,
) -> Request:
    """What :func:`~curvescope.certificates.certification.certify` is asked for; same arguments.

    Nothing is drawn from the generator. Cost: reading weights and data once.

    Raises:
        CurvescopeError: If data or settings are not of the kind that can be certified.
    """
    where = "certify"
    generator = _checks.generator(where, generator)
    device, dtype = home(where, model)
    X, y = as_examples(where, data, device, dtype)
    chosen = posterior_method(method) if isinstance(method, str) else method
    return Request(
        network=network_digest(model, X),
        weights=state_digest(model.state_dict()),
        initial=state_digest(read_state(initial_state)[0]),
        samples=len(X),
        data=digest(X, y),
        test=_digest_of(test, device, dtype),
        prior_data=_digest_of(prior_data, device, dtype),
        prior_split=None if prior_split is None else float(prior_split),
        method=chosen,
        confidence=confidence or Confidence(),
        slack=check_slack(slack),
        seed=generator.initial_seed(),
        generator=digest(generator),
    )


def state_digest(state: Any) -> str:
    """Names, shapes and numbers of a state dict.

    >>> state_digest({"w": torch.zeros(2)}) == state_digest({"w": torch.zeros(2, 1)})
    False
    """
    return digest({str(name): tensor for name, tensor in dict(state).items()})


def _digest_of(data: Any, device: torch.device, dtype: torch.dtype) -> str | None:
    if data is None:
        return None
    pair: tuple[Tensor, Tensor] = as_examples("certify", data, device, dtype)
    return digest(*pair)
