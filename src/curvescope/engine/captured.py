"""What is special to CUDA: products replayed as one graph."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

MOST_GRAPHS = 8


class CapturedProducts:
    """A few captured products, each for its own operator and number of columns.

    Each holds the memory of one product, so that of too many the oldest is forgotten.
    """

    def __init__(self) -> None:
        self._by_key: dict[object, CapturedProduct] = {}

    def product(self, key: object, apply: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """``apply(rows)``, captured when it is asked for the first time."""
        graph = self._by_key.get(key)
        if graph is None:
            for oldest in [*self._by_key][: 1 - MOST_GRAPHS]:
                self._by_key.pop(oldest, None)
            graph = self._by_key[key] = CapturedProduct(apply, rows)
        return graph(rows)

    def clear(self) -> None:
        """Forget all."""
        self._by_key = {}


class CapturedProduct:
    """A product captured as a CUDA graph: one launch instead of hundreds.

    Worth it for small models, where launching kernels takes longer than running them. The graph
    holds the memory of one product.
    """

    _capturing = threading.Lock()  # one capture at a time on a device

    def __init__(self, apply: Callable[[Tensor], Tensor], rows: Tensor) -> None:
        self._replaying = threading.Lock()  # input and output have one place each
        self._input = rows.clone()
        with self._capturing:
            self._capture(apply, rows)

    def _capture(self, apply: Callable[[Tensor], Tensor], rows: Tensor) -> None:
        stream = torch.cuda.Stream(rows.device)
        stream.wait_stream(torch.cuda.current_stream(rows.device))
        with torch.cuda.stream(stream):  # kernels are chosen and loaded before the capture
            for _ in range(2):
                apply(self._input)
        torch.cuda.current_stream(rows.device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._output = apply(self._input)

    def __call__(self, rows: Tensor) -> Tensor:
        """The product with new columns."""
        with self._replaying:
            self._input.copy_(rows)
            self._graph.replay()
            return self._output.clone()
