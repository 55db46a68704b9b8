"""Torch's switches, which all threads of a process share.

Several threads may need a switch at once. The first that comes sets it and the last that goes puts
it back; of two precisions wanted at the same time the stricter one holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch.backends import cuda

from curvescope._state.undo import PutBack, undone
from curvescope.errors import CurvescopeError


class Shared:
    """A setting that several threads may hold at once, made once for all of them.

    Args:
        remember: Notes what is there, and returns what puts it back.
        change: Makes the setting.
    """

    def __init__(
        self, remember: Callable[[], PutBack], change: Callable[[], None] = lambda: None
    ) -> None:
        self._remember, self._change = remember, change
        self._lock = threading.Lock()
        self._holders: set[object] = set()
        self._put_back: PutBack | None = None

    @property
    def on(self) -> bool:
        """Whether somebody holds the setting."""
        return bool(self._holders)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold the setting."""
        token = object()
        with undone(lambda: self._leave(token)):
            with self._lock:
                if self._put_back is None:
                    self._put_back = self._remember()  # first: the change may be interrupted
                    self._change()
                self._holders.add(token)
            yield

    def _leave(self, token: object) -> None:
        with self._lock:
            self._holders.discard(token)
            if not self._holders and self._put_back is not None:
                self._put_back()
                self._put_back = None


# Gradients and attention ------------------------------------------------------------------------

_SDPA: dict[str, tuple[Callable[[], bool], Callable[[bool], None]]] = {
    "flash": (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    "memory-efficient": (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    "cuDNN": (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    "math": (cuda.math_sdp_enabled, cuda.enable_math_sdp),
}


def _kernels() -> PutBack:
    before = {name: enabled() for name, (enabled, _) in _SDPA.items()}

    def put_back() -> None:
        for name, (_, enable) in _SDPA.items():
            enable(before[name])

    return put_back


def _only_math() -> None:
    for name, (_, enable) in _SDPA.items():
        enable(name == "math")


_unfused = Shared(_kernels, _only_math)


def refuse_inference_mode(where: str) -> None:
    """Refuse to differentiate where torch keeps no graph, which cannot be switched back on."""
    if torch.is_inference_mode_enabled():
        rule = "nothing can be differentiated under torch.inference_mode"
        remedy = "leave it, or use torch.no_grad, which does no harm here"
        raise CurvescopeError(where, rule, remedy=remedy)


@contextmanager
def differentiable() -> Iterator[None]:
    """Gradients on, and attention by the kernel that has a second derivative; fused ones have none.

    >>> with torch.no_grad(), differentiable():
    ...     torch.is_grad_enabled(), torch.backends.cuda.flash_sdp_enabled()
    (True, False)
    """
    refuse_inference_mode("torch")
    with _gradients(enabled=True), _unfused():
        yield


@contextmanager
def without_gradients() -> Iterator[None]:
    """``torch.no_grad()``, undone even after a ctrl-C."""
    with _gradients(enabled=False):
        yield


@contextmanager
def _gradients(*, enabled: bool) -> Iterator[None]:
    before = torch.is_grad_enabled()
    with undone(lambda: torch._C._set_grad_enabled(before)):
        torch._C._set_grad_enabled(enabled)
        yield


@contextmanager
def without_autocast(device: torch.device) -> Iterator[None]:
    """Numbers in their own type for a while, inside of a caller's ``torch.autocast``.

    >>> with torch.autocast("cpu", torch.bfloat16), without_autocast(torch.device("cpu")):
    ...     torch.is_autocast_enabled("cpu")
    False
    """
    before = torch.is_autocast_enabled(device.type)
    with undone(lambda: torch.set_autocast_enabled(device.type, before)):
        torch.set_autocast_enabled(device.type, False)
        yield


# Kernels ----------------------------------------------------------------------------------------


def _benchmark(*, on: bool) -> None:
    torch.backends.cudnn.benchmark = on


_tuned = Shared(lambda: partial(_benchmark, on=False), partial(_benchmark, on=True))


@contextmanager
def tuned_kernels(device: torch.device) -> Iterator[None]:
    """Let cuDNN measure which convolution kernel is fastest for each new shape, once.

    Its rule of thumb can be far off for the small images of deep layers: on an H200 the gradient of
    a VGG11 took 63.5 ms with it and 28.7 ms with measured kernels. Worth its set-up only for
    products that are repeated; left alone where the user asked for determinism.
    """
    settings = torch.backends.cudnn
    chosen = settings.deterministic or (settings.benchmark and not _tuned.on)
    if device.type != "cuda" or chosen:
        yield
        return
    with _tuned():
        yield


# Precision --------------------------------------------------------------------------------------

_BY_STRICTNESS = ("tf32", "user", "ieee")
_CUDA = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
_CPU = (torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _Wish:
    """How precise products and convolutions of float32 numbers are to be."""

    matmul: str = "user"
    conv: str = "user"


class _Precision:
    """The precisions that threads hold, and the user's before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wishes: dict[int, list[_Wish]] = {}
        self._before: list[str] = []

    @contextmanager
    def wish(self, *, matmul: str | None = None, conv: str | None = None) -> Iterator[None]:
        """Hold a wish; what it leaves open is as this thread wished before, or the user's."""
        thread = threading.get_ident()
        outer = self._wishes.get(thread, [])
        above = outer[-1] if outer else _Wish()
        wish = _Wish(matmul or above.matmul, conv or above.conv)
        with undone(lambda: self._change(thread, outer)):
            self._change(thread, [*outer, wish])
            yield

    def _change(self, thread: int, wishes: list[_Wish]) -> None:
        with self._lock:
            if not self._wishes:
                self._before = [backend.fp32_precision for backend in (*_CUDA, *_CPU)]
            if wishes:
                self._wishes[thread] = wishes
            else:
                self._wishes.pop(thread, None)
            latest = [stack[-1] for stack in self._wishes.values()]
            matmul = max((w.matmul for w in latest), key=_BY_STRICTNESS.index, default="user")
            conv = max((w.conv for w in latest), key=_BY_STRICTNESS.index, default="user")
            precisions = zip((*_CUDA, *_CPU), (matmul, conv) * 2, self._before, strict=True)
            for backend, precision, before in precisions:
                # Only tensor cores may round to TF32: the processor serves all other threads.
                unchanged = precision == "user" or (precision == "tf32" and backend in _CPU)
                value = before if unchanged else precision
                if backend.fp32_precision != value:
                    backend.fp32_precision = value


_precision = _Precision()


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Keep cuDNN's convolutions from rounding their factors to TF32, as they do by default.

    TF32 keeps 10 bits. A spectrum from rows of that precision was off by 6e-5 of its largest
    eigenvalue on a VGG11, which is where the bulk begins. Matrix products are left alone: torch
    runs them in full precision unless it is told otherwise.
    """
    if device.type != "cuda":
        yield
        return
    with _precision.wish(conv="ieee"):
        yield


@contextmanager
def strict_precision() -> Iterator[None]:
    """Products and convolutions in full float32 for a while, whatever tensor cores may do.

    For drawing from a posterior and turning its mean into another basis. The user's settings come
    back.
    """
    with _precision.wish(matmul="ieee", conv="ieee"):
        yield


@contextmanager
def fast_precision() -> Iterator[None]:
    """Products and convolutions in TF32 for a while, where the device has it.

    For the steps of optimizing a posterior: whatever comes out is certified in full precision
    afterwards. The user's settings come back.
    """
    with _precision.wish(matmul="tf32", conv="tf32"):
        yield
