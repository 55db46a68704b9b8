"""What the collectives of a group send, by the algorithms that gloo and NCCL use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Traffic:
    """Collectives that a rank took part in, and the bytes that it sent.

    The bytes are those of the payload: what gloo and the network put around it is left out.
    """

    collectives: int = 0
    sent: int = 0

    def add(self, sent: int) -> None:
        """One more collective."""
        self.collectives += 1
        self.sent += sent

    def since(self, earlier: Traffic) -> Traffic:
        """The difference to a copy that was taken before."""
        return Traffic(self.collectives - earlier.collectives, self.sent - earlier.sent)


def all_reduce(size: int, count: int) -> int:
    """A sum of ``count`` bytes in a ring: each rank sends ``2 (p − 1)/p · count``.

    >>> all_reduce(4, 800)
    1200
    """
    return round(2 * (size - 1) * count / size)


def all_gather(size: int, count: int) -> int:
    """``count`` bytes of every rank to every other one, in a ring: ``(p − 1) · count``.

    >>> all_gather(4, 800)
    2400
    """
    return (size - 1) * count


def broadcast(size: int, vrank: int, count: int) -> int:
    """Along a binomial tree in which the source has number 0: ``count`` for each child.

    >>> [broadcast(4, rank, 800) for rank in range(4)]
    [1600, 800, 0, 0]
    """
    children = [1 << bit for bit in range(size.bit_length()) if 1 << bit > vrank]
    return count * sum(vrank + step < size for step in children)
