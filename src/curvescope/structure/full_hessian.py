"""The full Hessian from the full output Hessian (DH App. B, eq. 44–51).

The outputs of all layers side by side, ``z̃``, have the Hessian ``E[M_x] = E[Gᵀ A G]``. Each of its
eigenvectors ``u``, cut into layers, gives a direction ``w = (u^(p) ⊗ E[x̃^(p)])_p`` in parameter
space that is close to an eigenvector of the Hessian when the inputs are close to their mean.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.layers import add_gram, as_stored, mirror
from curvescope.problem.problem import Problem
from curvescope.record.capture import Capture, capture
from curvescope.record.outputs import LossHessian
from curvescope.record.roots import root
from curvescope.record.samples import check_samples
from curvescope.record.selection import linear_layers, matrix_layer


@dataclass(frozen=True)
class FullOutputHessian:
    """``E[M_x]`` over the outputs of some layers (DH eq. 47), and their mean inputs.

    ``outputs`` are the numbers of outputs of the layers, in order; they sum to the dimension.
    """

    names: tuple[str, ...]
    outputs: tuple[int, ...]
    matrix: Tensor  # [m̂, m̂]
    mean_inputs: tuple[Tensor, ...]  # [n] each


def full_output_hessian(
    problem: Problem, *, layers: str | Iterable[str] | None = None
) -> FullOutputHessian:
    """The output Hessian of several fully connected layers together, in one pass over the data.

    Cost: that of :func:`kronecker_factors`, with one symmetric product of all outputs.

    Raises:
        CurvescopeError: for a layer that is not linear or is applied at several positions.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)).double()
    >>> with torch.no_grad():
    ...     _ = model[1].weight.fill_(3.0)
    >>> X, y = torch.ones(1, 1).double(), torch.zeros(1, 1).double()
    >>> problem = Problem(model, X, y, loss="mse")
    >>> full_output_hessian(problem).matrix.round(decimals=6).tolist()  # 2 (3, 1)ᵀ (3, 1)
    [[18.0, 6.0], [6.0, 2.0]]
    """
    problem.check_unchanged()
    names = linear_layers(problem, layers)
    total: Tensor | None = None
    means: dict[str, Tensor] = {}
    samples, weight = 0, 0.0
    for batch in problem.batches():
        check_samples(problem, batch, names)
        record = capture(problem, batch, names)
        check_plain("full_output_hessian", record)
        loss = problem.loss_at(record.output, batch)
        samples, weight = samples + record.samples, weight + loss.weight
        for name in names:
            inputs = record.rows(name)[:, 0].double().sum(0)
            means[name] = means[name] + inputs if name in means else inputs
        gram = _gram(record, root(LossHessian(), loss, record.output, batch.index))
        total = gram.double() if total is None else total + gram
    assert total is not None, "a problem has at least one batch"
    total, weight = problem.sum_(total), problem.whole_weight(weight)
    samples = int(problem.count(samples))
    means = {name: problem.sum_(mean) for name, mean in means.items()}
    return FullOutputHessian(
        names,
        tuple(matrix_layer(problem.model, name).matrix_shape[0] for name in names),
        (mirror(total) / weight).to(problem.dtype),
        tuple((means[name] / samples).to(problem.dtype) for name in names),
    )


def check_plain(where: str, record: Capture) -> None:
    """Refuse layers that are applied at several positions; ``where`` is the caller, for errors."""
    for name, positions in record.positions.items():
        if positions != 1:
            kind = type(record.layers[name].module).__name__
            raise CurvescopeError(
                where,
                f"layer {name!r} must be applied once to a sample",
                given=f"{kind} at {positions} positions",
                remedy="name the fully connected layers in `layers`",
            )


def _gram(record: Capture, directions: Tensor) -> Tensor:
    last = directions.shape[1] - 1
    total: Tensor | None = None
    with record.backward() as pull_back:
        for k in range(last + 1):
            pulled = pull_back(directions[:, k], k == last)
            errors = torch.cat([record.errors(name, e)[:, 0] for name, e in pulled.items()], 1)
            total = errors.new_zeros(errors.shape[1], errors.shape[1]) if total is None else total
            add_gram(total, errors.T)
    assert total is not None
    return total


@dataclass(frozen=True)
class FullApproximation:
    """Approximate top eigenpairs of the full Hessian.

    ``values[i] = σ_i ‖w_i‖²`` (DH eq. 51) with the eigenvalue ``σ_i`` of the full output Hessian,
    in the order of these; ``vectors: [P, k]`` is the Gram–Schmidt basis of the ``w_i`` (eq. 50),
    over the problem's flat parameter vector.
    """

    values: Tensor
    vectors: Tensor
    output_values: Tensor


def full_hessian_approximation(
    problem: Problem, k: int, *, layers: str | Iterable[str] | None = None
) -> FullApproximation:
    """Top eigenvalues and eigenspace of the full Hessian from ``E[M_x]`` and ``E[x̃]``.

    Compare with ``eigenpairs(Hessian(problem), k)`` by :func:`compare_eigenpairs` (DH fig. 2c, 2d,
    8). The bias of a layer takes part where it is a variable; parameters of other layers are zero
    in the vectors.

    Args:
        problem: a network of fully connected layers.
        k: how many pairs, at most the number of outputs of all layers.
        layers: names (None: all linear and convolution layers, which must then be linear).

    >>> from torch import nn
    >>> model = nn.Linear(1, 2, bias=False).double()
    >>> with torch.no_grad():
    ...     _ = model.weight.zero_()
    >>> problem = Problem(model, (torch.tensor([[2.0]]).double(), torch.tensor([0])))
    >>> full_hessian_approximation(problem, 1).values  # ½ · 2²
    tensor([2.0000], dtype=torch.float64)
    """
    k = _checks.positive_int("full_hessian_approximation", "k", k)
    full = full_output_hessian(problem, layers=layers)
    if k > len(full.matrix):
        rule = f"`k` must be at most the {len(full.matrix)} outputs of all layers"
        raise CurvescopeError("full_hessian_approximation", rule, given=k)
    sigma, u = torch.linalg.eigh(full.matrix.double())
    sigma, u = sigma.flip(0)[:k].clamp_min(0), u.flip(1)[:, :k]
    space = problem.params
    w = u.new_zeros(space.size, k)
    pieces = zip(full.names, u.split(list(full.outputs)), full.mean_inputs, strict=True)
    for name, part, mean in pieces:
        prefix = f"{name}." if name else ""
        if f"{prefix}weight" in space.names:
            outer = part.T[:, :, None] * mean.double()  # [k, m, n]
            kind = matrix_layer(problem.model, name)
            w[space.slice(f"{prefix}weight")] = as_stored(outer, transposed=kind.transposed).T
        if f"{prefix}bias" in space.names:
            w[space.slice(f"{prefix}bias")] = part
    values = sigma * w.square().sum(0)
    q, r = torch.linalg.qr(w)
    basis = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    return FullApproximation(*(t.to(problem.dtype) for t in (values, basis, sigma)))
