"""The plan of an operator: what its products will do, said before the first one."""

from __future__ import annotations

from dataclasses import dataclass

from curvescope.record.memory import readable


@dataclass(frozen=True)
class Plan:
    """How the products of an operator are made; ``print(A.plan)`` says it in words.

    Attributes:
        strategy: What runs, in a few words: ``"kept tape"``, ``"streamed tangents"``,
            ``"streamed tape"``, ``"kept closed form"``, ``"streamed closed form"``, ``"kept
            autograd graphs"``, ``"streamed autograd graphs"``, each of the kept ones perhaps as a
            captured graph.
        reason: Why this one.
        gradients: What a product with one column costs, as a multiple of the work of one gradient
            over the same data, counted in multiplications of matrix products and convolutions;
            None where there are none.
        columns: How many columns go through a batch together.
        needed: Bytes that keeping all batches takes, None where their number is not known.
        held: Bytes of them that are held already.
        free: Bytes of memory that are free.
        peak: Bytes that a streamed product with one column takes while it runs, measured on a few
            samples and continued; None where it is not streamed, or no batch can be cut.
        samples: How many samples of a batch go together where a batch is cut to fit; None: all.
        many: What is done instead by :meth:`LinearOperator.for_many`, which estimators take.
        ranks: How many ranks the data lie on; what is said of memory and work is that of this one.
        sent: Bytes that this rank sends for each column of a product.
        parts: The plans of the operators that this one is made of.

    >>> print(Plan("kept tape", "keep=True", 1.5, 16, 3 << 20, 0, 5 << 30))
    kept tape: keep=True; a product of about 1.5 gradients, up to 16 columns at a time; \
holds 3.0 MiB (0 B now, 5.0 GiB free)
    """

    strategy: str
    reason: str
    gradients: float | None = None
    columns: int | None = None
    needed: int | None = None
    held: int = 0
    free: int | None = None
    peak: int | None = None
    samples: int | None = None
    many: Plan | None = None
    ranks: int = 1
    sent: int = 0
    parts: tuple[tuple[str, Plan], ...] = ()

    @property
    def keeps(self) -> bool:
        """Whether something is held between products."""
        return "kept" in self.strategy

    def __str__(self) -> str:
        text = f"{self.strategy}: {self.reason}"
        if self.gradients is not None:
            text += f"; a product of about {self.gradients:.1f} gradients"
        if self.columns is not None:
            text += f", up to {self.columns} columns at a time"
        if self.samples is not None:
            text += f", batches in pieces of {self.samples} samples, which fit"
        if self.peak is not None:
            text += f"; takes {readable(self.peak)} while it runs"
        if self.free is not None:
            text += f"; {self._memory()}"
        lines = [text]
        if self.ranks > 1:
            lines.append(
                f"data over {self.ranks} ranks, each with its own batches: products are summed in "
                f"one exchange, {readable(self.sent)} sent by each rank for a column"
            )
        if self.many is not None:
            lines.append(f"for many products: {self.many}")
        for name, part in self.parts:
            first, *rest = str(part).split("\n")
            lines += [f"  {name}: {first}", *(f"    {line}" for line in rest)]
        return "\n".join(lines)

    def _memory(self) -> str:
        assert self.free is not None
        now = f"({readable(self.held)} now, {readable(self.free)} free)"
        if self.keeps:
            return f"holds {readable(self.needed or 0)} {now}"
        if self.needed is None:
            return f"would hold an unknown number of batches {now}"
        return f"would hold {readable(self.needed)} {now}"
