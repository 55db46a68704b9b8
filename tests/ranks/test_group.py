"""Collectives of a group, what they send, and what becomes of a rank that cannot go on."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from copy import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from curvescope.errors import CurvescopeError
from curvescope.ranks import Group, RankError, Traffic, traffic
from tests.ranks.processes import on_ranks

pytestmark = pytest.mark.ranks


def _sent_by_kernel() -> int:
    """Bytes that the TCP sockets of this process have sent, by the kernel's count."""
    total = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(fd))) as each:
                info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                sent, again = struct.unpack_from("<QQ", info, 200)
                total += sent - again
        except OSError:
            continue
    return total


def _values(rank: int, rows: int, columns: int = 3) -> Tensor:
    g = torch.Generator().manual_seed(rank)
    return torch.randn(rows, columns, generator=g, dtype=torch.float64)


def _collectives(rank: int, size: int) -> None:
    group = Group.of("world")
    assert group is Group.of(True)
    assert Group.of(group) is group
    assert (group.rank, group.size, group.alone) == (rank, size, False)

    whole = torch.stack([_values(r, 5) for r in range(size)])
    total = group.sum(_values(rank, 5))
    assert (total - whole.sum(0)).abs().max() < 1e-14
    bits = group.concatenate(total[None])
    assert all(torch.equal(each, total) for each in bits)  # the same bits on every rank
    assert group.sum(torch.tensor([rank + 1])).item() == size * (size + 1) // 2
    for dtype in (torch.float32, torch.bfloat16):
        ones = group.sum(torch.ones(4, dtype=dtype))
        assert (ones.dtype, ones.tolist()) == (dtype, [size] * 4)

    counts = [r % 3 for r in range(size)]  # rank 0 has none
    rows = group.concatenate(_values(rank, counts[rank]))
    assert torch.equal(rows, torch.cat([_values(r, n) for r, n in enumerate(counts)]))
    assert group.concatenate(torch.zeros(0, 2)).shape == (0, 2)

    parts = [r + 1 for r in range(size)]
    own = group.scatter_sum(_values(rank, sum(parts)), parts)
    summed = sum(_values(r, sum(parts)) for r in range(size))
    assert (own - summed.split(parts)[rank]).abs().max() < 1e-14

    assert torch.equal(group.broadcast(_values(rank, 4), size - 1), _values(size - 1, 4))
    assert group.plain({"a": [rank, 1.5, "x"]}, 1) == {"a": [1, 1.5, "x"]}
    assert group.plain_of_all(["é" * rank, None]) == [["é" * r, None] for r in range(size)]
    assert [group.agree(True), group.agree(rank == 0)] == [True, False]


def _bytes(rank: int, size: int) -> None:
    group, x = Group.of("world"), torch.ones(30_000, 6, dtype=torch.float64)
    part = [len(x) // size] * size
    part[0] += len(x) - sum(part)
    for act, formula in [
        (lambda: group.sum(x), traffic.all_reduce(size, x.nbytes)),
        (lambda: group.concatenate(x, [len(x)] * size), traffic.all_gather(size, x.nbytes)),
        (lambda: group.broadcast(x, 0), traffic.broadcast(size, rank, x.nbytes)),
        (lambda: group.scatter_sum(x, part), (len(x) - part[rank]) * 48),
    ]:
        group.agree(True)
        before, counted = _sent_by_kernel(), copy(group.traffic)
        act()
        assert group.traffic.since(counted) == Traffic(1, formula)
        group.agree(True)  # what was sent has left
        sent = _sent_by_kernel() - before
        assert formula <= sent <= formula + 4000, (formula, sent)


def _raising(rank: int, size: int) -> str:
    group = Group.of("world")
    with pytest.raises(ValueError, match="the same mistake"), group.together():
        raise ValueError("the same mistake everywhere")
    assert group.agree(True)  # which leaves the group as it was
    try:
        with group.together():
            if rank == size - 1:
                raise CurvescopeError("data", "sample 7 is NaN")
        group.sum(torch.ones(2))
    except CurvescopeError as error:
        with pytest.raises(RankError, match=f"rank {size - 1} of {size}: data: sample 7 is NaN"):
            group.sum(torch.ones(2))  # the group is over
        return str(error)
    return "nothing"


def _killed(rank: int, size: int, victim: int, moment: str) -> tuple[str, float]:
    group = Group.of("world")
    group.agree(True)
    if rank == victim:
        if moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()

    def go_on() -> None:
        for _ in range(10_000):
            group.sum(torch.ones(1000))

    with pytest.raises(RankError) as caught:
        go_on()
    return str(caught.value), time.monotonic() - started


def _never(rank: int, size: int) -> str:
    from torch import distributed

    group = Group(distributed.group.WORLD, limit=0.5)
    if rank == 0:
        time.sleep(1.5)
        return ""
    with pytest.raises(RankError) as caught:
        group.sum(torch.ones(2))
    return str(caught.value)


def test_alone() -> None:
    group, x = Group.of(None), torch.ones(2)
    assert group is Group.of(False)
    assert group.alone
    assert all(each is x for each in (group.sum(x), group.concatenate(x), group.broadcast(x)))
    assert (group.plain_of_all("a"), group.agree(True), group.agree(False)) == (["a"], True, False)
    with pytest.raises(CurvescopeError, match="has not been initialized; start the processes"):
        Group.of("world")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_collectives(size: int, tmp_path: Path) -> None:
    assert on_ranks(size, tmp_path, _collectives) == [None] * size


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="needs the kernel's count of bytes")
@pytest.mark.parametrize("size", [2, 3])
def test_bytes_are_those_of_the_formula(size: int, tmp_path: Path) -> None:
    assert on_ranks(size, tmp_path, _bytes) == [None] * size


def test_a_rank_that_raises_ends_all(tmp_path: Path) -> None:
    sentence = "data: sample 7 is NaN"
    assert on_ranks(3, tmp_path, _raising) == [f"rank 2 of 3: {sentence}"] * 2 + [sentence]


@pytest.mark.parametrize(("victim", "moment"), [(0, "before"), (2, "during"), (1, "during")])
def test_a_killed_rank_ends_all(victim: int, moment: str, tmp_path: Path) -> None:
    results = on_ranks(3, tmp_path, _killed, victim, moment)
    for rank, result in enumerate(results):
        if rank == victim:
            assert result is None
        else:
            sentence, seconds = result
            assert sentence.startswith(f"rank {victim} of 3: has ended without a word"), sentence
            assert seconds < 5


def test_time_limit(tmp_path: Path) -> None:
    results = on_ranks(2, tmp_path, _never)
    assert "took longer than the limit of 0.5 s" in results[1]


def _late(rank: int, size: int) -> int:
    time.sleep(1.2 * rank)  # longer than the time between two looks at the others
    return Group.of(True).size


def test_a_rank_may_come_late_to_the_first_meeting(tmp_path: Path) -> None:
    assert on_ranks(2, tmp_path, _late) == [2, 2]
