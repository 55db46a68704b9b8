"""``Dataset``: samples and their labels, as tensors in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from curvescope._checks import one_of, positive_int
from curvescope.data.labels import SPLITS, balanced_positions, stream
from curvescope.data.normalize import Normalization, unnormalized
from curvescope.errors import CurvescopeError


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """One split of a data set: ``X``, one sample in each row, and the class of each in ``y``.

    Both tensors lie in memory, on one device. Any such tensors can be made a data set.

    Args:
        X: Samples ``[N, …]``, images ``[N, C, H, W]``, floating point and finite; tokens ``[N, T]``
            are ``int64``.
        y: Classes ``[N]``, ``int64``, from 0 to ``classes`` − 1; of tokens ``[N, T]``, a class at
            each position.
        classes: The number of classes, including those without a sample.
        name: The name of the set.
        split: ``"train"`` or ``"test"``.
        normalization: How the pixels were normalized, with the constants.
        vocabulary: Of text: the character that each class stands for.

    Raises:
        CurvescopeError: If the tensors do not fit together.

    >>> data = Dataset(torch.eye(4), torch.tensor([0, 1, 1, 0]), classes=2, name="corners")
    >>> data
    Dataset('corners', train: 4 samples of shape 4, 2 classes, float32 on cpu)
    >>> data.input_shape, [len(X) for X, y in data.batches(3)]
    ((4,), [3, 1])
    >>> data.per_class(1).y
    tensor([0, 1])
    """

    X: Tensor
    y: Tensor
    classes: int
    name: str
    split: str = "train"
    normalization: Normalization = field(default_factory=unnormalized)
    vocabulary: str = ""

    def __post_init__(self) -> None:
        where = f"Dataset({self.name!r})"
        positive_int(where, "classes", self.classes)
        one_of(where, "split", self.split, SPLITS)
        X, y = self.X, self.y
        tokens = X.dtype == torch.int64 and X.ndim == 2
        if X.ndim < 2 or X.numel() == 0 or not (X.dtype.is_floating_point or tokens):
            rule = "`X` must be floating point [N, …] or int64 tokens [N, T] with N > 0"
            raise CurvescopeError(where, rule, given=_kind(X))
        shapes = (X.shape[:1], X.shape) if tokens else (X.shape[:1],)
        if y.dtype != torch.int64 or y.shape not in shapes or y.device != X.device:
            each = f"[{len(X)}]{f' or {list(X.shape)}' if tokens else ''}"
            rule = f"int64 {each} on {X.device}, one class for each sample"
            raise CurvescopeError(where, f"`y` must be {rule}", given=f"{_kind(y)} on {y.device}")
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= self.classes:
            rule = f"`classes` must lie in 0 … {self.classes - 1}"
            raise CurvescopeError(where, rule, given=f"{low} … {high}")
        if self.vocabulary and len(self.vocabulary) != self.classes:
            rule = "`vocabulary` must have a character for each class"
            raise CurvescopeError(where, rule, given=len(self.vocabulary))
        if not bool(torch.isfinite(torch.stack(torch.aminmax(X))).all()):
            raise CurvescopeError(where, "`X` must be finite, it holds NaN or infinity")

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.input_shape))
        kind = self.normalization.kind
        normalized = "" if kind == "none" else f", normalized by {kind}"
        return (
            f"Dataset({self.name!r}, {self.split}: {len(self):,} samples of shape {shape}, "
            f"{self.classes} classes, {str(self.X.dtype).removeprefix('torch.')} on "
            f"{self.X.device}{normalized})"
        )

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """``(X, y)``, as :class:`curvescope.Problem` and ``TensorDataset(*…)`` take them."""
        return self.X, self.y

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.X.shape[1:])

    def decode(self, tokens: Tensor) -> str:
        """The text that a row of tokens or classes stands for, by the vocabulary."""
        return "".join(self.vocabulary[i] for i in tokens.tolist())

    def batches(self, size: int) -> list[tuple[Tensor, Tensor]]:
        """The set in pieces of ``size`` samples, in order; views, the last one may be shorter."""
        size = positive_int("Dataset.batches", "size", size)
        return list(zip(self.X.split(size), self.y.split(size), strict=True))

    def per_class(self, n: int, *, seed: int | None = None) -> Dataset:
        """A class-balanced sub-sample, in the order of the set.

        Args:
            n: How many samples of each class.
            seed: Draws them without replacement; without a seed they are the first ``n``.

        Raises:
            CurvescopeError: If a class has fewer than ``n`` samples.
        """
        where = "Dataset.per_class"
        check_one_class(where, self.y)
        generator = None if seed is None else stream(where, seed, "sub-sample", self.split)
        chosen = balanced_positions(where, self.y.cpu(), self.classes, n, generator)
        chosen = chosen.to(self.X.device)
        return replace(self, X=self.X[chosen], y=self.y[chosen])

    def to(self, device: torch.device | str) -> Dataset:
        """The set on another device; itself where it is there already."""
        X, y = self.X.to(device), self.y.to(device)
        return self if X is self.X and y is self.y else replace(self, X=X, y=y)


def check_one_class(where: str, y: Tensor) -> None:
    """Refuse to choose samples by their class where they have several."""
    if y.ndim > 1:
        rule = "`per_class` needs one class for each sample"
        raise CurvescopeError(where, rule, given=_kind(y))


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
