"""The linear operator: an immutable matrix that you can multiply with.

One vector format everywhere: flat columns, ``x: [n]`` or ``X: [n, k]``. An operator knows its
``shape``, ``dtype``, ``device`` and two declared facts, ``symmetric`` and ``psd``. Algorithms are
not methods of it: they are functions in :mod:`curvescope.spectra`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, overload

import torch
from torch import Tensor

from curvescope import _checks
from curvescope._random import gaussian
from curvescope._state import without_gradients
from curvescope.engine.plan import Plan
from curvescope.errors import CurvescopeError
from curvescope.identity import digest

if TYPE_CHECKING:
    import scipy.sparse.linalg


class Dual(Protocol):
    """The Gram form of ``A = Rᵀ R``: the matrix ``K = R Rᵀ``, with the same non-zero spectrum."""

    @property
    def size(self) -> int:
        """Rows of ``K``, known before it is made."""

    def matrix(self) -> Tensor:
        """``K: [size, size]``, in float64."""


class LinearOperator(ABC):
    """A real ``m × n`` matrix known through its products.

    Subclasses implement ``_matmat(X: [n, k]) -> [m, k]`` and, unless they are symmetric,
    ``_rmatmat(Y: [m, k]) -> [n, k]``. Applying an operator twice gives the same answer.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        symmetric: bool = False,
        psd: bool = False,
    ) -> None:
        if symmetric and shape[0] != shape[1]:
            rule = "a symmetric operator is square"
            raise CurvescopeError(type(self).__name__, rule, given=f"shape {shape}")
        self.shape = (int(shape[0]), int(shape[1]))
        self.dtype = dtype
        # Indices are made explicit ('cuda' -> 'cuda:0') so that devices compare equal.
        self.device = torch.empty(0, device=device).device
        self.symmetric = symmetric or psd
        self.psd = psd

    @abstractmethod
    def _matmat(self, X: Tensor) -> Tensor:
        """Product with a block ``X: [n, k]``; the input is already checked."""

    def _rmatmat(self, Y: Tensor) -> Tensor:
        """Product of the transpose with a block ``Y: [m, k]``."""
        if self.symmetric:
            return self._matmat(Y)
        rule = "products with the transpose are not available"
        raise CurvescopeError(type(self).__name__, rule)

    def block(self, name: str) -> LinearOperator:
        """The diagonal block of a layer or parameter, for operators over named parameters."""
        rule = "this operator has no named blocks"
        raise CurvescopeError(f"{type(self).__name__}.block({name!r})", rule)

    def dual(self) -> Dual | None:
        """The Gram form of this operator, or None where it has none."""
        from curvescope.operators.gram import dual_of

        return dual_of(self)

    # What a matrix is ---------------------------------------------------------------------------

    def _decided_by(self) -> tuple[object, ...] | None:
        """All that decides the matrix, for :attr:`identity`; None where only a product can say."""
        return None

    def _identity_parts(self) -> tuple[object, ...] | None:
        """What decides the matrix, unless a subclass multiplies otherwise and does not say how."""
        kinds = [vars(self), *map(vars, type(self).__mro__)]
        says = next(i for i, kind in enumerate(kinds) if "_decided_by" in kind)
        products = ("_matmat", "_rmatmat")
        silent = any(name in kind for name in products for kind in kinds[:says])
        return None if silent else self._decided_by()

    @property
    def identity(self) -> str:
        """A digest by which this matrix is recognized, in this process or in another one.

        For curvature matrices it is that of the problem and of which matrix it is, for matrices of
        numbers that of the numbers, for algebra that of the parts. For any other operator it is
        that of one product with a fixed vector, to the last bit: a subclass whose products are not
        the same to the bit everywhere should return what decides them from ``_decided_by``.

        >>> from curvescope.operators.simple import Diagonal
        >>> A = Diagonal(torch.tensor([1.0, 2.0]))
        >>> A.identity == Diagonal(torch.tensor([1.0, 2.0])).identity != (7 * A).identity
        True
        """
        parts = self._identity_parts()
        if parts is None:
            fixed = torch.Generator().manual_seed(0)
            x = gaussian((self.shape[1], 1), fixed, self.dtype, self.device)
            with without_gradients():
                parts = ("product", self._matmat(x))
        return digest(*parts)

    @property
    def identity_products(self) -> int:
        """How many products :attr:`identity` takes: one for each part that is not known."""
        parts = self._identity_parts()
        if parts is None:
            return 1
        return sum(part.identity_products for part in parts if isinstance(part, LinearOperator))

    # Two hooks by which `algebra` lets an operator represent its own multiples and sums; None means
    # that it cannot, and a generic Sum is made.

    def _scaled(self, factor: float) -> LinearOperator | None:
        """``factor · A`` as one operator of the same kind."""
        return None

    def _merged(self, a: float, b: float, other: LinearOperator) -> LinearOperator | None:
        """``a · A + b · other`` as one operator that shares the work of both."""
        return None

    # Products ---------------------------------------------------------------------------------

    @overload
    def __matmul__(self, x: Tensor) -> Tensor: ...

    @overload
    def __matmul__(self, x: LinearOperator) -> LinearOperator: ...

    def __matmul__(self, x: Tensor | LinearOperator) -> Tensor | LinearOperator:
        """``A @ x`` for a vector or a block of columns, ``A @ B`` for another operator."""
        if isinstance(x, LinearOperator):
            from curvescope.operators.algebra import Product

            return Product(self, x)
        x = _checks.columns(f"{self} @ x", x, self.shape[1], self.dtype, self.device)
        with without_gradients():
            y = self._matmat(x.detach() if x.ndim == 2 else x.detach()[:, None])
        return y if x.ndim == 2 else y[:, 0]

    def quadratic(self, X: Tensor) -> Tensor:
        """``x_jᵀ A x_j`` for each column of ``X: [n, k]``, in float64: ``[k]``.

        A matrix ``Jᵀ B J`` needs the first half of a product for it.

        >>> from curvescope.operators.simple import Diagonal
        >>> Diagonal(torch.tensor([1.0, 2.0])).quadratic(torch.tensor([[1.0, 3.0], [1.0, 0.0]]))
        tensor([3., 9.], dtype=torch.float64)
        """
        X = _checks.columns(f"{self}.quadratic(X)", X, self.shape[1], self.dtype, self.device)
        with without_gradients():
            return self._quadratic(X.detach())

    def _quadratic(self, X: Tensor) -> Tensor:
        return (X.double() * self._matmat(X)).sum(0)

    def same_diagonal(self) -> LinearOperator:
        """An operator with the same diagonal, hence trace, that may be cheaper to multiply with."""
        return self

    # How products are made -----------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """What products will do, before the first one: ``print(A.plan)``.

        Asking changes nothing about them.
        """
        parts = tuple((type(A).__name__, A.plan) for A in self._parts())
        if parts:
            return Plan("part by part", "each part has a plan of its own", parts=parts)
        return Plan("direct", "the operator needs no data")

    def for_many(self, *, forms: bool = False) -> LinearOperator:
        """The same matrix, with what is worth keeping for many products kept.

        Estimators take their products with it. It is decided now and for good, so that a product
        does not depend on what was done before; what is kept is filled now. A matrix that keeps
        nothing is returned as it is. ``forms`` says that only quadratic forms are wanted, for which
        less is worth keeping.
        """
        if self._many is None:
            prepared = self._prepared()
            if prepared is self:
                return self  # not stored: a reference to itself would outlive its last user
            self._many = prepared
        return self._many

    _many: LinearOperator | None = None

    def _prepared(self) -> LinearOperator:
        """This operator made of parts for many products."""
        mine = self._attributes()
        ready = {name: _for_many(value) for name, value in mine.items()}
        if all(value is mine[name] for name, value in ready.items()):
            return self
        twin = copy.copy(self)
        vars(twin).update(ready)
        return twin

    def _attributes(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_many"}

    def _parts(self) -> list[LinearOperator]:
        """The operators that this one is made of."""
        return [A for value in self._attributes().values() for A in _operators(value)]

    @property
    def keeping(self) -> str:
        """``"kept"`` or ``"streamed"``, empty where there is no choice; for sums, of each part.

        Both give the same products up to rounding, so that it belongs to an estimate's checkpoint.
        """
        words = dict.fromkeys(A.keeping for A in self._parts())
        return ", ".join(word for word in words if word)

    def release(self) -> None:
        """Let go what is kept for products; the next one that needs it makes it again."""
        for A in self._parts():
            A.release()

    @property
    def T(self) -> LinearOperator:
        """The transpose."""
        if self.symmetric:
            return self
        from curvescope.operators.algebra import Transpose

        return Transpose(self)

    def dense(self) -> Tensor:
        """The whole matrix, from ``n`` products; memory ``m·n`` numbers."""
        identity = torch.eye(self.shape[1], dtype=self.dtype, device=self.device)
        with without_gradients():
            return self._matmat(identity)

    def to_scipy(self) -> scipy.sparse.linalg.LinearOperator:
        """The same operator for SciPy (NumPy arrays in, NumPy arrays out, on the CPU).

        SciPy takes many products, so that what is worth it is kept, see :meth:`for_many`.
        """
        import scipy.sparse.linalg

        A = self.for_many()

        def product(apply: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
            def call(x: Any) -> Any:
                tensor = torch.as_tensor(x).to(self.device, self.dtype)
                with without_gradients():
                    y = apply(tensor if tensor.ndim == 2 else tensor[:, None])
                return (y if tensor.ndim == 2 else y[:, 0]).cpu().numpy()

            return call

        forward, adjoint = product(A._matmat), product(A._rmatmat)
        dtype = torch.empty(0, dtype=self.dtype).numpy().dtype
        return scipy.sparse.linalg.LinearOperator(
            self.shape, forward, rmatvec=adjoint, matmat=forward, rmatmat=adjoint, dtype=dtype
        )

    # Algebra: always a new operator -------------------------------------------------------------

    def __add__(self, other: LinearOperator) -> LinearOperator:
        from curvescope.operators.algebra import add

        return add(self, other)

    def __sub__(self, other: LinearOperator) -> LinearOperator:
        from curvescope.operators.algebra import add

        if not isinstance(other, LinearOperator):
            return NotImplemented
        return add(self, -1.0 * other)

    def __mul__(self, factor: float) -> LinearOperator:
        from curvescope.operators.algebra import scale

        return scale(self, factor)

    __rmul__ = __mul__

    def __truediv__(self, factor: float) -> LinearOperator:
        return self * (1.0 / factor)

    def __neg__(self) -> LinearOperator:
        return self * -1.0

    def __repr__(self) -> str:
        facts = ", psd" if self.psd else ", symmetric" if self.symmetric else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{type(self).__name__}({self.shape[0]}×{self.shape[1]}, {dtype}, {self.device}{facts})"
        )


def _for_many(value: object) -> object:
    """An attribute with its operators made for many products; the same object where it has none."""
    if isinstance(value, LinearOperator):
        return value.for_many()
    if isinstance(value, list | tuple) and _operators(value):
        ready = [_for_many(thing) for thing in value]
        changed = any(a is not b for a, b in zip(ready, value, strict=True))
        return type(value)(ready) if changed else value
    return value


def _operators(value: object) -> list[LinearOperator]:
    """The operators that an attribute holds."""
    if isinstance(value, list | tuple):
        return [A for thing in value for A in _operators(thing)]
    return [value] if isinstance(value, LinearOperator) else []
