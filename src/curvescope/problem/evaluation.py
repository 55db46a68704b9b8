"""The state of a model while it is differentiated."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from curvescope import _state


@contextmanager
def differentiated(
    parameters: Sequence[tuple[str, nn.Parameter]],
    variables: Container[str],
    statistics: Sequence[nn.Module],
) -> Iterator[None]:
    """In the block only ``variables`` require grad, and buffers of ``statistics`` are copies.

    A checkpoint runs its layers again in the backward pass, on the tensors of the model itself: the
    same parameters must be variables there, or it would save other tensors than before and
    derivatives would be wrong; and running statistics must not be written to.
    """
    others = [p for name, p in parameters if p.requires_grad != (name in variables)]
    if not others and not statistics:
        yield
        return
    flags = [(p, p.requires_grad) for p in others]
    buffers = [(module, dict(module._buffers)) for module in statistics]

    def put_back() -> None:
        for p, flag in flags:
            p.requires_grad_(flag)
        for module, before in buffers:
            module._buffers.update(before)

    with _state.undone(put_back):
        for p, flag in flags:
            p.requires_grad_(not flag)
        for module, before in buffers:
            module._buffers.update({n: b if b is None else b.clone() for n, b in before.items()})
        yield
