"""``certify``: from a trained network, its initial weights and its data to a certificate.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from curvescope import _random, io
from curvescope.certificates.blocks import Layout
from curvescope.certificates.bound import Confidence, risk_bound
from curvescope.certificates.certificate import Certificate, Orientation, PriorTerm, Source
from curvescope.certificates.evaluate import Draws, evaluate, mean_error, stochastic_error
from curvescope.certificates.examples import as_examples, check_labels, home
from curvescope.certificates.methods import Method
from curvescope.certificates.optimize import Optimized, Progress, optimize
from curvescope.certificates.posterior import Posterior
from curvescope.certificates.prior import State, Task, prepare
from curvescope.certificates.request import Request, describe
from curvescope.certificates.resume import Unfinished, thinned
from curvescope.problem.soundness import check_mode


def certify(
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
    checkpoint: io.PathLike | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Certificate:
    """An upper bound on the error of a stochastic version of a trained network (DH §6).

    The weights become Gaussian: the posterior ``Q = N(m, Σ)`` starts at the trained weights and is
    optimized against the bound, with a covariance that is diagonal in the eigenbasis of each
    layer's Kronecker-factored Hessian. With the prior ``P = N(w₀, λ_l I)`` around the initial
    weights and with probability ``1 − δ − δ'``,

        ``e(Q) ≤ kl⁻¹(kl⁻¹(ê_m, log(1/δ')/m), (KL(Q‖P) + Σ_l log(π²j_l²/6) + log(2√n/δ))/n)``.

    Assumptions that the caller vouches for: the examples are independent and of one distribution;
    the initial weights, the network and all other settings were chosen without looking at them.

    Cost: ``method.epochs`` passes over the data, two to three times that of training, and the draws
    (a few passes). Memory: the data, and about 12 numbers for each parameter.

    Args:
        model: The trained network, from a tensor of inputs to logits ``[B, C]``, or ``[B, 1]`` for
            two classes, or to a mapping or object with such ``logits``. It is used in evaluation
            mode and not changed.
        initial_state: The weights before training: a state dict or a ``.safetensors`` file.
        data: The training examples ``(X, y)`` or a data set.
        generator: Decides every random number.
        method: A name (:mod:`curvescope.certificates.methods`) or a method with its settings.
        test: Other examples, for orientation only.
        confidence: δ and δ'; 0.025 and 0.01 by default.
        slack: How far above the empirical error its bound may lie, which decides the number of
            draws; by default a thirtieth of the error but at least 0.001, or 0.01 where a draw
            needs a whole set of weights.
        prior_split: Train the prior mean on this share of the data, starting from
            ``initial_state``, and certify on the rest, starting from the prior mean.
        prior_data: Other examples that ``initial_state`` was trained on; none of them may be
            among ``data``.
        checkpoint: A folder in which the optimization, the posterior and the draws are kept, to go
            on after a kill to the same certificate; for this request alone.
        progress: Called with :class:`Progress` after every epoch and between draws.

    Raises:
        CurvescopeError: If the prior is not independent of the examples: it equals the trained
            weights, was saved after training began, was trained on some of the examples, or the
            model's buffers (batch-norm statistics) or frozen weights were fitted. Also if model and
            data do not fit together, or the checkpoint belongs to another request.

    >>> from curvescope.certificates import posterior_method
    >>> X = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    >>> model = nn.Linear(2, 1)
    >>> initial = {"weight": torch.zeros(1, 2), "bias": torch.zeros(1)}
    >>> with torch.no_grad():
    ...     _ = model.weight.copy_(torch.tensor([[4.0, 0.0]])), model.bias.zero_()
    >>> certificate = certify(
    ...     model, initial, (X, (X[:, 0] > 0).long()), generator=torch.Generator().manual_seed(1),
    ...     method=posterior_method("local", epochs=20), slack=0.01)
    >>> certificate.bound < 0.15, certificate.confidence.level
    (True, 0.965)
    """
    device, dtype = home("certify", model)
    check_mode("certify", device)
    request = describe(
        model, initial_state, data, generator=generator, method=method, test=test,
        confidence=confidence, slack=slack, prior_split=prior_split, prior_data=prior_data,
    )  # fmt: skip
    examples = as_examples("certify", data, device, dtype)
    check_labels("certify", model, examples)
    others = None if test is None else as_examples("certify", test, device, dtype)
    seed = 0 if prior_split is None else _random.seed(generator)
    task = prepare(
        model, initial_state, examples, prior_split=prior_split, prior_data=prior_data, seed=seed
    )
    name = str(getattr(data, "name", ""))
    source = Source(len(task.examples[0]), name, task.prior_samples, seed)
    unfinished = Unfinished(checkpoint, request)
    child = _random.child(generator)
    optimized = unfinished.load(Layout.of(model), task.prior_mean)
    if optimized is None:
        optimized = optimize(
            task.start, task.prior_mean, task.examples, request.method, generator=child,
            delta=request.confidence.sample, progress=progress, checkpoint=unfinished.course,
        )  # fmt: skip
        unfinished.save(optimized)
    draws = evaluate(
        task.start, optimized.posterior, task.examples, generator=generator,
        delta=request.confidence.draws, slack=slack, checkpoint=unfinished.draws, progress=progress,
    )  # fmt: skip
    orientation = _orientation(task, optimized.posterior, others, generator)
    return _certificate(optimized, draws, request, source, orientation)


def _orientation(
    task: Task,
    posterior: Posterior,
    test: tuple[Tensor, Tensor] | None,
    generator: torch.Generator,
) -> Orientation:
    train = mean_error(task.start, posterior, task.examples)
    if test is None:
        return Orientation(train)
    drawn = stochastic_error(task.start, posterior, test, generator=generator)
    return Orientation(train, mean_error(task.start, posterior, test), drawn)


def _certificate(
    optimized: Optimized, draws: Draws, request: Request, source: Source, orientation: Orientation
) -> Certificate:
    method, confidence = request.method, request.confidence
    prior = _prior_terms(optimized.posterior, optimized.prior_variances, method)
    bound = risk_bound(
        draws.mean,
        draws.count,
        [term.kl for term in prior],
        [term.penalty for term in prior],
        samples=source.samples,
        confidence=confidence,
        form=method.form,
    )
    return Certificate(
        bound=bound.value,
        error_bound=bound.error_bound,
        terms=bound.terms,
        prior=prior,
        draws=draws,
        source=source,
        request=request,
        orientation=orientation,
        layout=optimized.posterior.layout.blocks,
        history=thinned(optimized.history),
        posterior=optimized.posterior,
    )


def _prior_terms(
    posterior: Posterior, variances: tuple[float, ...], method: Method
) -> tuple[PriorTerm, ...]:
    """Every prior variance on the grid: up or down, whichever is better."""
    names = tuple(block.name for block in posterior.layout.blocks)
    if method.layer_priors:
        points = posterior.best_prior(variances, method.grid)
        layers: list[tuple[str, ...]] = [(name,) for name in names]
    else:
        points = (posterior.best_common_prior(variances[0], method.grid),)
        layers = [names]
    return tuple(
        PriorTerm(blocks, point.j, point.variance, point.kl, point.penalty)
        for blocks, point in zip(layers, points, strict=True)
    )
