"""The linear operator: an immutable matrix that you can multiply with.

One vector format everywhere: flat columns, ``x: [n]`` or ``X: [n, k]``. An operator knows its
``shape``, ``dtype``, ``device`` and two declared facts, ``symmetric`` and ``psd``. Algorithms are
not methods of it: they are functions in :mod:`curvescope.spectra`. They multiply rows that may be
spread over ranks, ``A.on_rows(X)``, and ask the ``domain`` of the operator how they lie.
"""

from __future__ import annotations

import copy
import sys
import time
import warnings
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, overload

import torch
from torch import Tensor

from curvescope import _checks
from curvescope._random import gaussian
from curvescope._state import without_gradients
from curvescope.engine.plan import Plan
from curvescope.errors import CurvescopeError
from curvescope.identity import digest
from curvescope.vectors import Space

if TYPE_CHECKING:
    import scipy.sparse.linalg
    from numpy.typing import NDArray

    from curvescope.problem.params import ParamSpace


_TRIED = 8  # columns by which the time of a dense matrix is forecast
_LONG = 30.0  # seconds, from which on a call warns before it begins
_FUNCTIONS = {
    "diag": "cs.diagonal(A)",
    "diagonal": "cs.diagonal(A)",
    "trace": "cs.trace(A)",
    "eig": "cs.eigenpairs(A, k=5)",
    "eigh": "cs.eigenpairs(A, k=5), or torch.linalg.eigh(A.dense()) of a small one",
    "eigenvalues": "cs.eigenpairs(A, k=5).values",
    "eigenvectors": "cs.eigenpairs(A, k=5).vectors",
    "eigenpairs": "cs.eigenpairs(A, k=5)",
    "top_eigenvalues": "cs.eigenpairs(A, k=5).values",
    "density": "cs.spectral_measure(A).density()",
    "spectrum": "cs.spectral_measure(A)",
    "spectral_measure": "cs.spectral_measure(A)",
    "norm": "cs.frobenius(A)",
    "frobenius": "cs.frobenius(A)",
    "logdet": "cs.logdet(A)",
    "rank": "cs.rank_degeneracy(A)",
    "plot": "cs.plot(cs.spectral_measure(A))",
}


class CostWarning(UserWarning):
    """A call that will take long says so before it begins."""


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
        self._dtype = dtype
        # Indices are made explicit ('cuda' -> 'cuda:0') so that devices compare equal.
        self.device = torch.empty(0, device=device).device
        self.symmetric = symmetric or psd
        self.psd = psd

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers that are multiplied.

        SciPy's functions look here before they ask for anything that could be of another name, and
        want NumPy's type: ``scipy.sparse.linalg.eigsh(A)``.
        """
        if sys._getframe(1).f_globals.get("__name__", "").startswith("scipy."):
            from curvescope.operators.formats import numpy_dtype

            return numpy_dtype(self._dtype)  # type: ignore[return-value]
        return self._dtype

    @property
    def parameters(self) -> ParamSpace | None:
        """The parameters over which the matrix lies, or None."""
        spaces = {space.names: space for A in self._parts() if (space := A.parameters)}
        same = len(spaces) == 1 and self.shape[0] == self.shape[1]
        return next(iter(spaces.values())) if same else None

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

    @overload
    def __matmul__(self, x: NDArray[Any]) -> NDArray[Any]: ...

    @overload
    def __matmul__(self, x: list[Tensor]) -> list[Tensor]: ...

    @overload
    def __matmul__(self, x: dict[str, Tensor]) -> dict[str, Tensor]: ...

    def __matmul__(self, x: Any) -> Any:
        """``A @ x`` for a vector or a block of columns, ``A @ B`` for another operator."""
        if isinstance(x, LinearOperator):
            from curvescope.operators.algebra import Product

            return Product(self, x)
        if not isinstance(x, Tensor):
            from curvescope.operators.formats import translated

            return translated(self, x)
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

    # Products with vectors that are spread over ranks -------------------------------------------

    @property
    def domain(self) -> Space:
        """How the vectors that it multiplies lie over ranks: all of them here, or spread by rows.

        An operator is spread if one of its parts is, as curvature matrices of a problem whose data
        is. See :class:`curvescope.vectors.Space`.
        """
        if self._domain is None:
            self._domain = self._layout()
        return self._domain

    _domain: Space | None = None

    def _layout(self) -> Space:
        """The :attr:`domain`: that of a part of this shape, or an equal share for each rank."""
        n, spread = self.shape[1], [A.domain for A in self._parts() if not A.domain.alone]
        for space in spread:
            if space.size == n:
                return space
        group = spread[0].group if spread else None
        return Space(n, dtype=self.dtype, device=self.device, group=group)

    def on_rows(self, rows: Tensor) -> Tensor:
        """The product of a square operator with each of some rows, ``[k, count] -> [k, count]``.

        Of every vector this rank holds the numbers that ``domain`` says; in one process it is
        ``(A @ rows.T).T``. All ranks call it together.

        >>> from curvescope.operators.simple import Diagonal
        >>> Diagonal(torch.tensor([1.0, 2.0])).on_rows(torch.tensor([[1.0, 1.0], [0.0, 3.0]]))
        tensor([[1., 2.],
                [0., 6.]])
        """
        rows = _checks.rows(f"{self}.on_rows(X)", rows, self.domain.count, self.dtype, self.device)
        with without_gradients():
            return self._on_rows(rows.detach())

    def forms_on_rows(self, rows: Tensor) -> Tensor:
        """``x_jᵀ A x_j`` for each of some rows ``[k, count]``, in float64: :meth:`quadratic`."""
        where, space = f"{self}.forms_on_rows(X)", self.domain
        rows = _checks.rows(where, rows, space.count, self.dtype, self.device)
        with without_gradients():
            return self._quadratic(space.gather(rows.detach()).T)

    def _on_rows(self, rows: Tensor) -> Tensor:
        """By a whole product on every rank; spread operators have a cheaper way."""
        return self._through_whole(self, rows)

    def _part_on_rows(self, A: LinearOperator, rows: Tensor) -> Tensor:
        """The product of a part with rows of this operator's domain."""
        return A._on_rows(rows) if A.domain.like(self.domain) else self._through_whole(A, rows)

    def _through_whole(self, A: LinearOperator, rows: Tensor) -> Tensor:
        space = self.domain
        whole = space.gather(rows)
        if len(rows) == 1:  # a vector, as A @ x has it: the layout decides how products are summed
            return space.local(A._matmat(whole[0][:, None])[:, 0][None])
        return space.local(A._matmat(whole.T).T)

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
        """The whole matrix, from ``n`` products; memory ``m·n`` numbers.

        Where that will take more than half a minute, a :class:`CostWarning` says so before.
        """
        self._warn_of_cost("dense()", self.shape[1])
        identity = torch.eye(self.shape[1], dtype=self.dtype, device=self.device)
        with without_gradients():
            return self._matmat(identity)

    def _warn_of_cost(self, call: str, columns: int) -> None:
        """Try a small block, and warn where all columns will take long."""
        if columns < 64 * _TRIED:  # the trial would cost more than it tells
            return
        block = torch.eye(self.shape[1], _TRIED, dtype=self.dtype, device=self.device)
        begun = time.perf_counter()
        with without_gradients():
            self._matmat(block)[0].sum().item()
        seconds = (time.perf_counter() - begun) * columns / _TRIED
        if seconds > _LONG:
            message = (
                f"{type(self).__name__}.{call} takes {columns:,} products, up to "
                f"{seconds / 60:.0f} min here; cs.eigenpairs, cs.trace and cs.spectral_measure "
                "need some dozens"
            )
            warnings.warn(message, CostWarning, stacklevel=3)

    def to_scipy(self) -> scipy.sparse.linalg.LinearOperator:
        """The same operator for SciPy (NumPy arrays in, NumPy arrays out, on the CPU).

        SciPy takes many products, so that what is worth it is kept, see :meth:`for_many`.
        """
        from curvescope.operators.formats import to_scipy

        return to_scipy(self)

    def matvec(self, x: NDArray[Any]) -> NDArray[Any]:
        """``A x`` of arrays, under SciPy's name; see :meth:`to_scipy`."""
        return self.to_scipy().matvec(x)

    def rmatvec(self, x: NDArray[Any]) -> NDArray[Any]:
        """``Aᵀ x`` of arrays, under SciPy's name."""
        return self.to_scipy().rmatvec(x)

    def matmat(self, X: NDArray[Any]) -> NDArray[Any]:
        """``A X`` of arrays, under SciPy's name."""
        return self.to_scipy().matmat(X)

    def rmatmat(self, X: NDArray[Any]) -> NDArray[Any]:
        """``Aᵀ X`` of arrays, under SciPy's name."""
        return self.to_scipy().rmatmat(X)

    # Algebra: always a new operator -------------------------------------------------------------

    def __add__(self, other: LinearOperator | float) -> LinearOperator:
        """``A + B``; a number ``c`` stands for ``c · I``."""
        from curvescope.operators.algebra import add

        return add(self, other)

    __radd__ = __add__

    def __sub__(self, other: LinearOperator | float) -> LinearOperator:
        from curvescope.operators.algebra import add

        return add(self, -1.0 * other)

    def __rsub__(self, other: float) -> LinearOperator:
        return -self + other

    def __mul__(self, factor: float) -> LinearOperator:
        from curvescope.operators.algebra import scale

        return scale(self, factor)

    __rmul__ = __mul__

    def __truediv__(self, factor: float) -> LinearOperator:
        return self * (1.0 / factor)

    def __neg__(self) -> LinearOperator:
        return self * -1.0

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Algorithms are functions of an operator: say so where one looks for a method."""
            call = _FUNCTIONS.get(name)
            hint = f": estimates are functions of an operator, {call}" if call else ""
            rule = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
            raise AttributeError(rule, name=name, obj=self)

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
