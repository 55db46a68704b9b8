"""Errors, margins, and the differentiable stand-ins for the error.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def single(output: Tensor) -> bool:
    """Whether logits ``[B]`` or ``[B, 1]`` decide between two classes, by their sign."""
    return output.ndim == 1 or output.shape[1] == 1


def error_rate(output: Tensor, target: Tensor) -> Tensor:
    """Whether each example is classified wrongly, as 0 or 1 (DH eq. 59 with ``≠``).

    One output per example: the positive class is predicted above zero. Several: the largest one;
    an output that is not a number counts as an error.

    >>> error_rate(torch.tensor([[0.2], [-3.0]]), torch.tensor([1, 1])).tolist()
    [0.0, 1.0]
    """
    if single(output):
        flat = output.reshape(-1)
        right = ((flat > 0) == (target > 0)) & ~flat.isnan()
    else:
        right = (output.argmax(1) == target) & ~output.isnan().any(1)
    return (~right).to(output.dtype)


def margins(output: Tensor, target: Tensor) -> Tensor:
    """By how much the right answer's logit exceeds the others'; negative for an error.

    >>> margins(torch.tensor([[2.0, -1.0, 0.5]]), torch.tensor([0])).tolist()
    [1.5]
    """
    if single(output):
        return output.reshape(-1) * (2 * target - 1)
    right = output.gather(1, target[:, None])
    others = output.scatter(1, target[:, None], -torch.inf)
    return right[:, 0] - others.amax(1)


def surrogate(output: Tensor, target: Tensor, *, kind: str, temperature: float | Tensor) -> Tensor:
    """A differentiable stand-in for the error, averaged over the batch.

    ``"cross_entropy"``: the training loss itself, as DH alg. 1 has it. ``"logistic"``: that divided
    by log 2, an upper bound of the error (Dziugaite & Roy 2017). ``"sigmoid"``:
    ``1 − softmax(z/T)_y``, which tends to the error itself as the temperature T falls; the
    posterior's own noise smooths what is left.

    >>> z, y = torch.tensor([[0.0]]), torch.tensor([1])
    >>> surrogate(z, y, kind="logistic", temperature=1.0).item()
    1.0
    >>> surrogate(z, y, kind="sigmoid", temperature=0.5).item()
    0.5
    """
    binary = single(output)
    margin = output.reshape(-1) * (2 * target - 1) if binary else output
    if kind == "sigmoid":
        if binary:
            return torch.sigmoid(-margin / temperature).mean()
        return 1 - torch.softmax(output / temperature, 1).gather(1, target[:, None]).mean()
    entropy = F.softplus(-margin).mean() if binary else F.cross_entropy(output, target)
    return entropy / math.log(2) if kind == "logistic" else entropy
