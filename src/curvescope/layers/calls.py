"""What goes into modules and comes out of them while a model runs.

Nothing else in the package puts hooks on a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

Seen = Callable[[str, Tensor, Tensor], Tensor | None]


@contextmanager
def watched_calls(modules: Mapping[str, nn.Module], see: Seen) -> Iterator[None]:
    """``see(name, x, y)`` at each call of one of these modules, with its first input and output.

    ``y`` is the module's own output, before other hooks or in-place functions change it; a tensor
    that ``see`` returns takes its place. Calls with an input or an output that is no tensor are
    passed over.

    >>> import torch
    >>> double = nn.Linear(1, 1, bias=False).requires_grad_(False)
    >>> with watched_calls({"it": double}, lambda name, x, y: print(name, x.item())):
    ...     _ = double(torch.ones(1, 1))
    it 1.0
    """

    def hook(name: str) -> Callable[..., None]:
        def after(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], y: Any) -> Any:
            x = next(iter((*args, *kwargs.values())), None)
            if isinstance(x, Tensor) and isinstance(y, Tensor):
                return see(name, x, y)
            return None

        return after

    with ExitStack() as stack:
        for name, module in modules.items():
            # First in the queue, before hooks of the user's.
            handle = module.register_forward_hook(hook(name), prepend=True, with_kwargs=True)
            stack.callback(handle.remove)
        yield
