"""What a spectral density of a large model takes on many GPUs, on paper.

``python tools/arithmetic.py`` prints the tables of ``docs/guides/many.md``; a test holds the page
against them. Every number follows from counts: parameters ``P``, probes ``k``, Lanczos steps ``m``,
ranks ``R``, bytes of a number ``b``.

========================= =====================================================================
weights, one copy         ``b P``, or ``b P / R`` where the model is sharded
a product, working        ``2 b P`` for a column and its result, ``2 b P / R`` sharded
three rows of Lanczos     ``3 b k P / R``: what a density needs without orthogonalization
a kept basis              ``b k m P / R``: what full orthogonalization needs
a product sends           replicated: the column is gathered and the sum over the data scattered,
                          ``2 (R − 1)/R · b P``; sharded (reverse over reverse):
                          weights gathered for each of three passes, the vector once, the gradient
                          and the result scattered, ``6 (R − 1)/R · b P``
a density sends           ``k m`` products, and for each step ``k`` inner products, ``k`` norms and
                          how far each rank is
========================= =====================================================================

Activations depend on the batch and are left out; so is what the network adds to a payload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from curvescope.ranks.traffic import all_gather, all_reduce

BYTES = 4
PROBES, STEPS = 8, 100
GIB = 1 << 30
GPU = 80 * 10**9
"""Bytes of the memory of a GPU, as sold."""
LINK = 50e9
"""Bytes a second that each GPU sends, in one direction: 400 Gbit/s."""


@dataclass(frozen=True)
class Cost:
    """Bytes on each rank, or sent by each rank."""

    weights: int
    working: int
    rows: int
    basis: int
    product: int
    density: int
    collectives: int


def cost(parameters: int, ranks: int, *, sharded: bool, probes: int = PROBES) -> Cost:
    """What a density takes on each rank."""
    whole = BYTES * parameters
    share = -(-whole // ranks)
    gathered, scattered = all_gather(ranks, share), all_reduce(ranks, whole) // 2
    product = 4 * gathered + 2 * scattered if sharded else gathered + scattered
    count = probes * STEPS
    small = 2 * all_reduce(ranks, 8 * probes) + all_reduce(ranks, 8 * ranks)
    return Cost(
        weights=share if sharded else whole,
        working=2 * (share if sharded else whole),
        rows=3 * probes * share,
        basis=probes * STEPS * share,
        product=product,
        density=count * product + STEPS * small,
        collectives=(6 if sharded else 2) * count + 3 * STEPS,
    )


def gib(count: int) -> str:
    """Bytes as GiB, with three digits."""
    amount = count / GIB
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def memory() -> Iterator[str]:
    """The table of what each rank holds, in GiB."""
    names = "parameters", "GPUs", "model", "weights", "working", "1 probe", "8 probes", "basis"
    yield f"| {' | '.join(names)} | fits |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for parameters, ranks, sharded in cases():
        one, c = (cost(parameters, ranks, sharded=sharded, probes=k) for k in (1, PROBES))
        always = c.weights + c.working
        ways = {"8 probes with a basis": c.basis, "8 probes": c.rows, "a probe at a time": one.rows}
        fits = next((way for way, rows in ways.items() if always + rows < GPU), "no")
        cells = [gib(each) for each in (c.weights, c.working, one.rows, c.rows, c.basis)]
        yield f"| {named(parameters)} | {ranks} | {kind(sharded)} | {' | '.join(cells)} | {fits} |"


def communication() -> Iterator[str]:
    """The table of what each rank sends, in GiB, and the time at 50 GB/s."""
    yield "| parameters | GPUs | model | a product | seconds | a density | collectives | minutes |"
    yield "|---|---|---|---|---|---|---|---|"
    for parameters, ranks, sharded in cases():
        c = cost(parameters, ranks, sharded=sharded)
        seconds, minutes = c.product / LINK, c.density / LINK / 60
        cells = gib(c.product), f"{seconds:.2g}", gib(c.density), f"{c.collectives:,}"
        yield (
            f"| {named(parameters)} | {ranks} | {kind(sharded)} | {' | '.join(cells)} "
            f"| {minutes:.0f} |"
        )


def cases() -> Iterator[tuple[int, int, bool]]:
    """A model of 10⁹ and one of 7 · 10¹⁰ parameters, on 8 and on 64 GPUs, whole and sharded."""
    for parameters in (10**9, 70 * 10**9):
        for sharded in (False, True):
            for ranks in (8, 64):
                yield parameters, ranks, sharded


def named(parameters: int) -> str:
    """A number of parameters as one says it."""
    return f"{parameters // 10**9} B"


def kind(sharded: bool) -> str:
    """How the model lies on the ranks."""
    return "sharded" if sharded else "a copy each"


def page() -> str:
    """Both tables, as they stand in the guide."""
    return "\n".join([*memory(), "", *communication()])


if __name__ == "__main__":
    print(page())
