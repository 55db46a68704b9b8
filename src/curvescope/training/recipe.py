"""How a network is trained: a frozen description that is saved with the weights.

References:
    DH: Wu, Zhu, Wu, Wang and Ge (2020), *Dissecting Hessian*.
    TR: Papyan (2020), *Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra*.
    FF: Granziol (2020), *Flatness is a False Friend*.
    GPT-3: Brown et al. (2020), *Language Models are Few-Shot Learners*.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.problem.losses import BY_NAME, Loss, as_loss

OPTIMIZERS = ("sgd", "adam", "adamw", "gadam")
SCHEDULES = ("constant", "linear", "averaging", "step", "cosine")

_FINAL_RATIO = 0.01  # r of FF eq. 12
_AVERAGING_RATIO = 0.5  # α_avg / α_0 of FF eq. 13
_COSINE_RATIO = 0.1  # as in GPT-3, App. B


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides the outcome of training, apart from network, data and first weights.

    The defaults are DH's: plain SGD with batches of 128 at the constant learning rate 0.01.

    Args:
        seed: Decides the order of the samples.
        epochs: Passes over the data.
        lr: The initial learning rate α₀.
        batch_size: Samples in a step; the last step of an epoch takes what is left.
        optimizer: ``"sgd"``; ``"adam"`` (β = 0.9, 0.999, ε = 1e-8); ``"adamw"``, the same with
            decoupled weight decay; ``"gadam"``, AdamW with averaged weights (FF §5).
        momentum: Of SGD.
        weight_decay: γ. For SGD and Adam the gradient of ``γ‖w‖²/2`` is added to that of the loss;
            for AdamW and Gadam each step multiplies the weights by ``1 − α γ``.
        schedule: ``"constant"``, ``"linear"`` (FF eq. 12), ``"averaging"`` (FF eq. 13),
            ``"step"`` (TR D.1) or ``"cosine"`` (GPT-3 App. B); see :meth:`rate`.
        warmup: Epochs, also parts of one, during which the rate grows from 0 with every step.
        average_from: ``T_avg``, the epoch after which the weights at the end of each epoch are
            averaged; the average is the result, with batch-norm statistics of its own.
        loss: By its name, as for :class:`curvescope.Problem`; None where :func:`train` is given
            one.
        checkpoints: Epochs after which the weights are kept.

    Raises:
        CurvescopeError: If a value is out of range or two of them contradict each other.

    >>> recipe = Recipe(seed=0, epochs=300, lr=0.1, schedule="linear")
    >>> [round(recipe.rate(epoch), 6) for epoch in (150, 210, 270, 300)]
    [0.1, 0.0505, 0.001, 0.001]
    >>> recipe = Recipe(seed=0, epochs=5, lr=0.1, schedule="cosine", warmup=1)
    >>> [round(rate, 6) for epoch in (1, 3, 5) for rate in recipe.rates(epoch, 2)]
    [0.05, 0.1, 0.072221, 0.055, 0.013425, 0.01]
    """

    seed: int
    epochs: int
    lr: float = 0.01
    batch_size: int = 128
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"
    warmup: float = 0.0
    average_from: int | None = None
    loss: str | None = "cross_entropy"
    checkpoints: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Normalize and check every field."""
        where = "Recipe"
        for name, least in (("seed", 0), ("epochs", 1), ("batch_size", 1)):
            self._set(name, _checks.positive_int(where, name, getattr(self, name), least))
        for name in ("lr", "momentum", "weight_decay", "warmup"):
            self._set(name, _checks.finite_float(where, name, getattr(self, name), 0.0))
        _checks.one_of(where, "optimizer", self.optimizer, OPTIMIZERS)
        _checks.one_of(where, "schedule", self.schedule, SCHEDULES)
        if self.loss is not None:
            _checks.one_of(where, "loss", self.loss, BY_NAME)
        if self.momentum >= 1 or (self.momentum and self.optimizer != "sgd"):
            rule = "`momentum` is for `optimizer='sgd'` and less than 1"
            raise CurvescopeError(where, rule, given=f"{self.momentum} for {self.optimizer!r}")
        if self.warmup >= self.epochs:
            rule = f"`warmup` must be less than `epochs={self.epochs}`"
            raise CurvescopeError(where, rule, given=f"{self.warmup:g}")
        self._check_averaging(where)
        checkpoints = [
            _checks.positive_int(where, "each of `checkpoints`", e) for e in self.checkpoints
        ]
        if any(epoch > self.epochs for epoch in checkpoints):
            rule = f"`checkpoints` must not lie after epoch {self.epochs}"
            raise CurvescopeError(where, rule, given=max(checkpoints))
        self._set("checkpoints", tuple(sorted(set(checkpoints))))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_averaging(self, where: str) -> None:
        needed = [
            f"`{name}={value!r}`"
            for name, value in (("optimizer", self.optimizer), ("schedule", self.schedule))
            if value in ("gadam", "averaging")
        ]
        if self.average_from is None:
            if needed:
                raise CurvescopeError(
                    where,
                    f"{needed[0]} needs `average_from`, the epoch after which weights are averaged",
                )
            return
        self._set("average_from", _checks.positive_int(where, "average_from", self.average_from, 0))
        if self.average_from >= self.epochs:
            rule = f"`average_from` must be less than `epochs={self.epochs}`"
            raise CurvescopeError(where, rule, given=self.average_from)

    def rate(self, epoch: int) -> float:
        """The learning rate of the ``epoch``-th epoch, counted from 1; of its last step.

        With ``s = t/T``: ``"linear"`` keeps α₀ until s = 0.5, falls linearly to 0.01 α₀ at s = 0.9
        and stays there (FF eq. 12). ``"averaging"`` is the same with ``s = t/T_avg`` and the end
        value α₀/2 (FF eq. 13, whose middle line prints t/T; only t/T_avg makes it continuous).
        ``"step"`` divides by 10 after a third and again after two thirds of the epochs (TR D.1).
        ``"cosine"`` changes with every step: with ``t`` the epochs and parts of one that are done
        after it, ``T`` all of them and ``W`` those of the warm-up, it is
        ``α₀ (0.55 + 0.45 cos π (t − W)/(T − W))``. During the warm-up every rate is multiplied by
        ``t/W``, the cosine's being ``α₀``.
        """
        return self.rates(epoch, 1)[0]

    def rates(self, epoch: int, steps: int) -> list[float]:
        """The learning rates of the steps of the ``epoch``-th epoch, see :meth:`rate`."""
        ends = [epoch - 1 + step / steps for step in range(1, steps + 1)]
        return [self._scheduled(epoch, t) * self._warm(t) for t in ends]

    def _warm(self, t: float) -> float:
        return min(1.0, t / self.warmup) if self.warmup else 1.0

    def _scheduled(self, epoch: int, t: float) -> float:
        """The rate of a step without the warm-up; ``t`` epochs are done after it."""
        if self.schedule == "cosine":
            done = max(0.0, t - self.warmup) / (self.epochs - self.warmup)
            return self.lr * (_COSINE_RATIO + (1 - _COSINE_RATIO) * (1 + cos(pi * done)) / 2)
        if self.schedule == "step":
            steps = (3 * epoch > self.epochs) + (3 * epoch > 2 * self.epochs)
            return self.lr * 0.1**steps
        if self.schedule == "constant":
            return self.lr
        total, end = self.epochs, _FINAL_RATIO
        if self.schedule == "averaging":
            total, end = self.average_from or 0, _AVERAGING_RATIO
        if 2 * epoch <= total:
            return self.lr
        if 10 * epoch <= 9 * total:
            return self.lr * (1 - (1 - end) * (epoch / total - 0.5) / 0.4)
        return self.lr * end

    def minimized(self, where: str) -> Loss:
        """The loss of this name; ``where`` is the caller, for errors."""
        if self.loss is None:
            remedy = "name one in the recipe, or give `loss`"
            raise CurvescopeError(where, "the recipe has no loss", remedy=remedy)
        return as_loss(self.loss)

    def averages(self, epoch: int) -> bool:
        """Whether the weights after this epoch enter the average."""
        return self.average_from is not None and epoch > self.average_from
