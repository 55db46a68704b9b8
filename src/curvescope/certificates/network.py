"""The stochastic network: a forward pass whose weights are drawn from the posterior.

**Shared noise.** The weights are drawn once for the whole batch, ``W = M + U (σ ∘ ξ) Vᵀ``.

**Local noise** (local reparametrization, Kingma et al. 2015, in a rotated basis). A linear layer
that sees one input ``x`` per example needs only ``W x``. With ``z = Vᵀx`` its coordinates in the
basis U are ``(Uᵀ M x)_i + Σ_j σ_ij ξ_ij z_j``: independent Gaussians with the variances
``Σ_j σ_ij² z_j²``. So each example can have weights of its own for the price of one more matrix
product, ``y = M x + U (√((σ∘σ)(z∘z)) ∘ ε)`` with ``ε: [m]``. For one example, the layers' outputs
have exactly the joint distribution that weights drawn from the posterior would give them, because
the noises of different layers are independent. It needs a layer that is used once, on vectors; a
convolution, whose positions share their weights, has shared noise.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from curvescope._state import copied, evaluated, held
from curvescope.certificates.bases import Bases, Pair
from curvescope.certificates.blocks import Block, Layout
from curvescope.certificates.examples import logits
from curvescope.errors import ModelError
from curvescope.identity import digest
from curvescope.layers import LayerKind, matrix_kind, watched_calls
from curvescope.problem.calling import call_with, output_of
from curvescope.problem.independence import apart
from curvescope.problem.leftovers import Caches, model_digest

_TINY = 1e-20  # keeps the square root differentiable where an input is zero


class LocalLinear(nn.Module):
    """A linear layer with noise of its own for each example; its numbers are set before a pass."""

    def __init__(self, constant_bias: Tensor | None) -> None:
        super().__init__()
        self.constant_bias: Tensor | None
        self.register_buffer("constant_bias", constant_bias)
        self.has_bias = False
        self.pair: Pair = None
        self.mean: Tensor
        self.variance: Tensor
        self.noise: Tensor
        self.deviation: Tensor  # of the last pass, in the basis
        self.rotated = False

    def forward(self, x: Tensor) -> Tensor:
        """``x [M, b]ᵀ + noise``; with ``rotated`` the mean is given as ``Uᵀ [M, b] V``."""
        z = self._coordinates(x)
        self.deviation = (self._product(z.square(), self.variance) + _TINY).sqrt()
        spread = self.deviation * self.noise
        if self.pair is None:
            y = self._product(x, self.mean) + spread
        elif self.rotated:
            y = (spread + z @ self.mean.T) @ self.pair[0].T
        else:
            y = self._affine(x, self.mean) + spread @ self.pair[0].T
        return y if self.constant_bias is None else y + self.constant_bias

    def kick(self) -> Tensor:
        """What the noise added to the output of the last pass."""
        spread = self.deviation * self.noise
        return spread if self.pair is None else spread @ self.pair[0].T

    def _coordinates(self, x: Tensor) -> Tensor:
        """``Vᵀ [x; 1]`` for every example; x itself in the standard basis."""
        if self.pair is None:
            return x
        V = self.pair[1]
        return torch.addmm(V[-1], x, V[:-1]) if self.has_bias else x @ V

    def _product(self, z: Tensor, matrix: Tensor) -> Tensor:
        """``z matrixᵀ``; in the standard basis the input's last coordinate is the constant 1."""
        return self._affine(z, matrix) if self.pair is None else z @ matrix.T

    def _affine(self, x: Tensor, matrix: Tensor) -> Tensor:
        if not self.has_bias:
            return x @ matrix.T
        return torch.addmm(matrix[:, -1], x, matrix[:, :-1].T)


class StochasticNetwork:
    """A model as a function of its input and of a Gaussian over its weights.

    The model itself is not touched: a copy in evaluation mode does the work.

    Args:
        model: Any module from a tensor of inputs to logits ``[B]``, ``[B, 1]`` or ``[B, C]``.
        layout: The layout of its parameters.
        example: A few inputs, on which the copy is tried out.
        local: Whether linear layers get noise of their own for each example where they can.

    Raises:
        ModelError: If the copy does not compute what the model computes.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, example: Tensor, *, local: bool = True
    ) -> None:
        self.layout = layout
        self._copy = evaluated(copied(model)).requires_grad_(False)
        state = {name: p.detach() for name, p in model.named_parameters()}
        run = partial(logits, self._copy)
        self._caches = Caches(self._copy)
        with torch.no_grad():
            reference = run(example[:4])
            separate = apart(run, example[:4], reference)
        self._caches.look_for(partial(run, example[:4]))
        self._local: dict[int, LocalLinear] = {}
        self._output: LocalLinear | None = None  # whose one output is the model's
        if local:
            self._make_local(example[:4])
        self._shared = [i for i in range(len(layout.blocks)) if i not in self._local]
        self._shared_size = sum(layout.sizes[i] for i in self._shared)
        self._widths = [layout.blocks[i].rows for i in self._local]
        self._caches.empty()  # for good: the copy is ours
        if separate is False:
            raise ModelError(
                "certify(model)",
                "the output for an example must not depend on the rest of its batch",
                remedy="batch norm needs running statistics, fixed before the data were seen",
            )
        self._check(layout.flatten(state), example[:4], reference)

    @property
    def independent(self) -> bool:
        """Whether every example of a batch gets weights of its own."""
        return not self._shared

    def noise_size(self, examples: int) -> int:
        """How many standard normal numbers a pass over a batch needs."""
        return self._shared_size + examples * sum(self._widths)

    def __call__(
        self,
        x: Tensor,
        mean: Tensor,
        deviation: Tensor,
        bases: Bases,
        noise: Tensor,
        *,
        rotated: bool = False,
    ) -> Tensor:
        """The output for weights ``mean + B (deviation ∘ ξ)``, differentiable in both.

        Args:
            x: The inputs.
            mean: Flat; in the standard basis, or in ``bases`` with ``rotated``.
            deviation: σ, flat, in ``bases``.
            bases: One pair for each block.
            noise: ``noise_size(len(x))`` standard normal numbers.
            rotated: In which basis ``mean`` is given.
        """
        means, sigmas = self.layout.split(mean), self.layout.split(deviation)
        shared, local = noise[: self._shared_size], noise[self._shared_size :]
        pieces = local.split([len(x) * width for width in self._widths])
        for (i, layer), piece in zip(self._local.items(), pieces, strict=True):
            layer.mean, layer.variance = means[i], sigmas[i].square()
            layer.pair, layer.rotated = bases.pairs[i], rotated
            layer.noise = piece.view(len(x), -1)
        overrides: dict[str, Tensor] = {}
        draws = shared.split([self.layout.sizes[i] for i in self._shared])
        for i, draw in zip(self._shared, draws, strict=True):
            block, pair = self.layout.blocks[i], bases.pairs[i]
            kick = sigmas[i] * draw.view(block.rows, block.columns)
            overrides.update(_parameters(block, _weights(means[i], kick, pair, rotated)))
        with self._caches.emptied():
            return output_of("certify(model)", call_with(self._copy, overrides, (x,)))

    def release(self) -> None:
        """Forget the last pass, so that no graph of derivatives stays alive between steps."""
        for layer in self._local.values():
            del layer.mean, layer.variance, layer.noise, layer.deviation

    @property
    def integrable(self) -> bool:
        """Whether the output is one number from a layer with local noise (two classes)."""
        return self._output is not None

    def expected_error(self, output: Tensor, target: Tensor) -> Tensor:
        """The last pass's probability of error, the last layer's noise integrated out.

        Given its input h, the one output is Gaussian with mean ``μ(h)`` and deviation ``s(h)``, so
        it has the wrong sign with probability ``Φ(−y μ/s)``, y = ±1: the error itself, and it is
        differentiable. Needs :attr:`integrable`.

        Args:
            output: What the last call returned.
            target: Labels 0 and 1.
        """
        assert self._output is not None
        mean = (output.reshape(-1, 1) - self._output.kick()).reshape(-1)
        score = mean * (2 * target - 1) / self._output.deviation.reshape(-1)
        return torch.special.ndtr(-score).mean()

    def _make_local(self, example: Tensor) -> None:
        """Replace every layer that is used once, on vectors as they are, by one with noise."""
        modules = dict(self._copy.named_modules(remove_duplicate=False))
        calls: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in modules}
        with (
            torch.no_grad(),
            watched_calls(modules, lambda name, x, y: calls[name].append((x, y))),
        ):
            final = logits(self._copy, example)
        for i, block in enumerate(self.layout.blocks):
            path = block.weight.rpartition(".")[0]
            kind = matrix_kind(modules[path]) if block.layer else None
            if kind is None or not _on_vectors(kind, calls[path], len(example)):
                continue
            constant = kind.module.bias if block.bias is None else None
            layer = LocalLinear(constant.detach() if isinstance(constant, Tensor) else None)
            layer.has_bias = block.bias is not None
            parent, _, name = path.rpartition(".")
            if path:
                setattr(modules[parent], name, layer)
            else:
                self._copy = layer
            self._local[i] = layer
            # The calls are kept alive, so that no two share their memory by chance.
            if block.rows == 1 and calls[path][0][1].data_ptr() == final.data_ptr():
                self._output = layer

    def _check(self, mean: Tensor, example: Tensor, reference: Tensor) -> None:
        """Without noise the copy must compute what the model computes."""
        zero = torch.zeros_like(mean)
        noise = torch.zeros(self.noise_size(len(example)), dtype=mean.dtype, device=mean.device)
        where = "certify(model)"
        try:
            with torch.no_grad():
                ours = self(example, mean, zero, Bases.standard(self.layout), noise)
        except AttributeError as error:
            rule = f"its forward looks into a layer instead of calling it ({error})"
            raise ModelError(where, rule) from error
        shape = tuple(reference.shape)
        if len(shape) not in (1, 2) or shape[0] != len(example):
            rule = "the output must be [B], [B, 1] or [B, C]"
            raise ModelError(where, rule, given=list(shape))
        if not torch.allclose(ours, reference, rtol=1e-3, atol=1e-5):
            raise ModelError(
                where,
                "its output is not a function of input and weights alone",
                remedy="it must call its layers as modules and draw no random numbers in "
                "evaluation mode",
            )


def network_digest(model: nn.Module, X: Tensor) -> str:
    """A model with its code, its numbers, and what of it is trainable.

    Args:
        model: The model; what a pass leaves in it does not count.
        X: Inputs, on a few of which it is evaluated.

    >>> a, b = nn.Sequential(nn.Linear(2, 1), nn.ReLU()), nn.Sequential(nn.Linear(2, 1), nn.Tanh())
    >>> _ = b.load_state_dict(a.state_dict())
    >>> network_digest(a, torch.ones(1, 2)) == network_digest(b, torch.ones(1, 2))
    False
    """

    def run() -> None:
        with held(model, "eval"), torch.no_grad():
            logits(model, X[:4])

    caches = Caches(model)
    caches.look_for(run)
    return digest(model_digest(model, caches, run), Layout.of(model).blocks)


def _on_vectors(kind: LayerKind, calls: list[tuple[Tensor, Tensor]], examples: int) -> bool:
    """Whether a layer is ``W x + b`` of the one vector per example that it gets."""
    if len(calls) != 1 or kind.transposed:
        return False
    x, y = calls[0]
    plain = x.ndim == y.ndim == 2 and len(x) == len(y) == examples
    return plain and torch.equal(kind.rows(x, examples)[:, 0], x)


def _weights(mean: Tensor, kick: Tensor, pair: Pair, rotated: bool) -> Tensor:
    if pair is None:
        return mean + kick
    if rotated:
        return pair[0] @ (mean + kick) @ pair[1].T
    return mean + pair[0] @ kick @ pair[1].T


def _parameters(block: Block, matrix: Tensor) -> dict[str, Tensor]:
    if block.bias is None:
        return {block.weight: matrix.reshape(block.shape)}
    weight = matrix[:, :-1].reshape(block.shape)
    return {block.weight: weight, block.bias: matrix[:, -1]}
