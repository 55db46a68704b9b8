"""The ranks that share one computation, and what they exchange.

All ranks run the same program on their own data and call the same collectives in the same order. A
:class:`Group` adds three things to ``torch.distributed``: it counts what is sent, it turns whatever
happens to a rank into one error on all of them, and a group of one is free.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union

import torch
from torch import Tensor

from curvescope import _checks
from curvescope.errors import CurvescopeError
from curvescope.ranks import failure, traffic
from curvescope.ranks.mailbox import Mailbox, Unopened
from curvescope.ranks.traffic import Traffic

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

LIMIT = 1800.0  # seconds, torch's own for gloo
_POLL = 0.5  # seconds between looks at the mailbox while a collective is awaited
_LOOK = 5.0  # seconds between looks at whether all ranks are still there

GroupLike = Union["Group", "ProcessGroup", str, bool, None]


class Group:
    """The processes of one computation; ``Group.of(None)`` is this process alone.

    Args:
        processes: the process group, None for this process alone.
        limit: seconds that a collective waits for the other ranks, whose work before it counts;
            those that have ended or raised are noticed at once.

    Attributes:
        rank: The number of this process, from 0.
        size: How many there are.
        traffic: The collectives so far and the bytes that this rank sent.

    >>> group = Group.of(None)
    >>> group.rank, group.size, group.sum(torch.ones(2)).tolist(), group.traffic.collectives
    (0, 1, [1.0, 1.0], 0)
    """

    def __init__(self, processes: ProcessGroup | None = None, *, limit: float = LIMIT) -> None:
        self.limit = _checks.finite_float("Group", "limit", limit, 0.0)
        self.traffic = Traffic()
        self.rank, self.size = 0, 1
        self._processes = processes
        self._over: failure.RankError | None = None  # why no collective is possible any more
        self._raised = 0  # how often this rank has left `together` by an error
        self._heard: dict[int, int] = {}  # the same of the others, as far as they told
        if processes is not None:
            self.rank, self.size = processes.rank(), processes.size()
        self._mailbox: Mailbox | Unopened = Unopened()
        if self.size > 1:
            self._open()

    @classmethod
    def of(cls, value: GroupLike) -> Group:
        """The group that a caller means.

        None is this process alone; ``"world"`` or True all processes of ``torch.distributed``;
        a ``ProcessGroup`` its own. The same processes are one group, made by all of them at the
        first call.
        """
        if isinstance(value, Group):
            return value
        if value is None or value is False:
            return _ALONE
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            rule = "torch.distributed has not been initialized"
            remedy = "start the processes with torchrun and call init_process_group first"
            raise CurvescopeError("group", rule, remedy=remedy)
        if value is True or value == "world":
            value = distributed.group.WORLD
        if not isinstance(value, distributed.ProcessGroup):
            rule = "`group` must be 'world', a torch.distributed.ProcessGroup or None"
            raise CurvescopeError("group", rule, given=repr(value))
        for processes, made in _MADE:
            if processes is value:
                return made
        group = cls(value)
        _MADE.append((value, group))
        return group

    def _open(self) -> None:
        """Mailboxes: every rank learns where those of the others are."""
        from torch import distributed

        config = distributed.get_backend_config(self._processes)
        self._backends = dict(each.split(":") for each in config.split(","))
        host = socket.gethostname()
        hosts = self._plain_of_all(host)
        mailbox = Mailbox(self.rank, self.size, local=len(set(hosts)) == 1)
        secret = secrets.token_hex(16) if self.rank == 0 else ""
        places = self._plain_of_all([host, mailbox.port, secret])
        mailbox.connect([(host, port) for host, port, _ in places], places[0][2])
        self._mailbox = mailbox
        self.traffic = Traffic()
        _tell_of_crashes(self)

    @property
    def alone(self) -> bool:
        """Whether there is one process only, so that nothing is exchanged."""
        return self.size == 1

    # Collectives --------------------------------------------------------------------------------

    def sum(self, tensor: Tensor) -> Tensor:
        """``Σ_r tensor_r``, the same bits on every rank; sends ``2 (p − 1)/p`` of its bytes."""
        return tensor if self.alone else self.sum_(tensor.clone(memory_format=_CONTIGUOUS))

    def sum_(self, tensor: Tensor) -> Tensor:
        """:meth:`sum` in the memory of ``tensor``, which must be contiguous."""
        if self.alone or not tensor.numel():
            return tensor
        self._check(tensor)
        self.traffic.add(traffic.all_reduce(self.size, tensor.nbytes))
        self._run(
            tensor, lambda dist: dist.all_reduce(tensor, group=self._processes, async_op=True)
        )
        return tensor

    def concatenate(self, tensor: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """The rows of all ranks below each other, in the order of ranks; they may differ in number.

        ``counts`` are the numbers of rows of all ranks where they are known; else they are
        exchanged first. Sends ``p − 1`` times the bytes of the rank with the most rows.
        """
        if self.alone:
            return tensor
        counts = self.counts(len(tensor)) if counts is None else counts
        most = max(counts)
        mine = tensor.new_zeros((most, *tensor.shape[1:]))
        mine[: len(tensor)] = tensor
        if not mine.numel():
            return tensor.new_zeros((sum(counts), *tensor.shape[1:]))
        self._check(mine)
        rows = [torch.empty_like(mine) for _ in counts]
        self.traffic.add(traffic.all_gather(self.size, mine.nbytes))
        self._run(
            mine, lambda dist: dist.all_gather(rows, mine, group=self._processes, async_op=True)
        )
        return torch.cat([each[:count] for each, count in zip(rows, counts, strict=True)])

    def scatter_sum(self, tensor: Tensor, counts: Sequence[int]) -> Tensor:
        """This rank's rows of ``Σ_r tensor_r``: ``counts[r]`` rows for rank ``r``.

        Sends every row but the own ones once. Each rank adds what it is sent in the order of ranks.
        """
        if self.alone:
            return tensor
        own = counts[self.rank]
        tensor = tensor.contiguous()
        self._check(tensor)
        pieces = tensor.new_empty((self.size * own, *tensor.shape[1:]))
        row = tensor.nbytes // max(1, len(tensor))
        self.traffic.add((len(tensor) - own) * row)
        self._run(
            tensor,
            lambda dist: dist.all_to_all_single(
                pieces, tensor, [own] * self.size, list(counts), group=self._processes,
                async_op=True,
            ),
        )  # fmt: skip
        return pieces.view(self.size, own, *tensor.shape[1:]).sum(0)

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """The ``tensor`` of rank ``source``, in new memory on the others.

        On these it says the shape and type that will come.
        """
        if self.alone:
            return tensor
        whole = tensor.contiguous() if self.rank == source else torch.empty_like(
            tensor, memory_format=_CONTIGUOUS
        )  # fmt: skip
        self._check(whole)
        vrank = (self.rank - source) % self.size
        self.traffic.add(traffic.broadcast(self.size, vrank, tensor.nbytes))
        self._run(
            whole,
            lambda dist: dist.broadcast(
                whole, group=self._processes, group_src=source, async_op=True
            ),
        )
        return whole

    # Plain data ---------------------------------------------------------------------------------

    def plain_of_all(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order; numbers, texts, lists, dictionaries (JSON)."""
        return [value] if self.alone else self._plain_of_all(value)

    def _plain_of_all(self, value: Any) -> list[Any]:
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        counts = self.counts(len(text))
        text = self.concatenate(text.to(self.device), counts).cpu()
        return [json.loads(bytes(piece.tolist())) for piece in text.split(list(counts))]

    def plain(self, value: Any, source: int = 0) -> Any:
        """The value of rank ``source``; numbers, texts, lists, dictionaries (JSON)."""
        if self.alone:
            return value
        text = json.dumps(value).encode() if self.rank == source else b""
        count = self.broadcast(torch.tensor([len(text)], device=self.device), source)
        letters = list(text) if self.rank == source else [0] * int(count)
        sent = torch.tensor(letters, dtype=torch.uint8, device=self.device)
        return json.loads(bytes(self.broadcast(sent, source).tolist()))

    def counts(self, count: int) -> list[int]:
        """The numbers of all ranks."""
        if self.alone:
            return [count]
        each = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        each[self.rank] = count
        return [int(n) for n in self.sum_(each).tolist()]

    def agree(self, flag: bool) -> bool:
        """Whether the flag is set on every rank."""
        return all(self.counts(int(flag)))

    def _check(self, tensor: Tensor) -> None:
        if tensor.device.type not in self._backends:
            served = ", ".join(f"{backend} for {device}" for device, backend in self._named())
            rule = f"the process group cannot send what is on {tensor.device.type} ({served})"
            remedy = "initialize it with init_process_group('cpu:gloo,cuda:nccl')"
            raise CurvescopeError("group", rule, remedy=remedy)

    def _named(self) -> list[tuple[str, str]]:
        return sorted(self._backends.items())

    @property
    def device(self) -> torch.device:
        """Where small data travels: NCCL has no other way than through the GPU."""
        return torch.device("cpu" if "cpu" in self._backends else "cuda")

    # Failure ------------------------------------------------------------------------------------

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work between collectives: if it raises here, the other ranks are told why.

        An error that every rank raises at the same place, a wrong argument for instance, leaves the
        group as it was. If only some raise, all others raise :class:`RankError` in the collective
        that they wait in, and the group is over.
        """
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if not self.alone and not isinstance(error, failure.RankError):
                self._tell(error)
            raise

    def _tell(self, error: BaseException) -> None:
        if getattr(error, "_told", None) is self:  # by a context inside this one
            return
        self._raised += 1
        error._told = self  # type: ignore[attr-defined]
        sentence = failure.sentence_of(error)
        self._mailbox.tell({"raised": self._raised, "sentence": sentence})

    def _run(self, tensor: Tensor, start: Callable[[Any], Any]) -> None:
        """A collective from its start to its end, or the error of the rank that prevents it."""
        if self._over is not None:
            raise self._over
        from torch import distributed

        self._meet_again()
        try:
            self._await(start(distributed), self._backends[tensor.device.type])
        except RuntimeError as error:
            self._give_up(self._explained(error))

    def _meet_again(self) -> None:
        """After an error of this rank: go on only if all others had it as well."""
        if not self._raised:
            return
        others = set(range(self.size)) - {self.rank}

        def all_here() -> bool:
            time.sleep(0.01)
            return all(self._heard.get(rank, 0) >= self._raised for rank in others)

        self._until(all_here)

    def _await(self, work: Any, backend: str) -> None:
        wait = self._spin if backend == "nccl" else self._wait
        self._until(lambda: wait(work))

    def _until(self, done: Callable[[], bool]) -> None:
        """Ask for what others must do first, as long as they may still do it."""
        started = looked = time.monotonic()
        while not done():
            self._read()
            now = time.monotonic()
            if now - looked > _LOOK:
                looked = now
                if gone := self._mailbox.gone():
                    self._read()
                    self._give_up(failure.ended(gone, self.size))
            if now - started > self.limit:
                self._give_up(failure.late(self.size, self.limit))

    def _wait(self, work: Any) -> bool:
        """Whether gloo has finished within the time between two looks."""
        try:
            work.wait(timedelta(seconds=_POLL))
        except RuntimeError:
            if not work.is_completed():
                return False
            work.wait()  # finished meanwhile, or failed, which it says again
        return True

    def _spin(self, work: Any) -> bool:
        """The same for NCCL, whose ``wait`` does not wait for other ranks."""
        until = time.monotonic() + _POLL
        while not work.is_completed():
            if time.monotonic() > until:
                return False
            time.sleep(1e-5)
        work.wait()
        return True

    def _read(self) -> None:
        """Give up if a rank has said that it will not come."""
        for message in self._mailbox.messages():
            if "raised" not in message:
                self._give_up(failure.relayed(message))
            sender, often = message["rank"], message["raised"]
            self._heard[sender] = often
            # All ranks may raise the same error; one that raised more often is elsewhere.
            if often > self._raised:
                self._give_up(failure.raised(sender, self.size, message["sentence"]))

    def _explained(self, error: RuntimeError) -> failure.RankError:
        """A connection broke: who is no longer there."""
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            self._read()
            if gone := self._mailbox.gone():
                self._read()  # what it said before it ended
                return failure.ended(gone, self.size)
            time.sleep(0.05)
        return failure.lost(self.size, str(error))

    def _give_up(self, error: failure.RankError) -> None:
        """Raise the error, here and in the other ranks, which may not have noticed yet."""
        self._over = error
        self._mailbox.tell(failure.parts(error))
        raise error

    def gone(self) -> list[int]:
        """The ranks whose processes have ended, as far as can be seen from here."""
        return [] if self.alone else self._mailbox.gone()

    def __repr__(self) -> str:
        return f"Group(rank {self.rank} of {self.size})"


def _tell_of_crashes(group: Group) -> None:
    """An exception that nobody catches is told to the other ranks, before it is printed."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, failure.RankError | SystemExit):
            group._tell(error)
        before(kind, error, trace)

    sys.excepthook = hook


_CONTIGUOUS = torch.contiguous_format
_ALONE = Group()
_MADE: list[tuple[Any, Group]] = []  # a group for each process group
