"""Where the ranks tell each other that they cannot go on, beside the collectives.

Every rank listens on a socket. A message to a rank that computes waits in its kernel until it is
read, even when the sender has ended by then; and a process that has ended no longer answers, which
a rank that waits for it learns without any work of the others. Messages are lines of JSON with the
group's secret; anything else is dropped.
"""

from __future__ import annotations

import json
import socket
from typing import Any

_LINE = 1 << 16  # the longest message
_CONNECT = 2.0  # seconds for a connection


class Mailbox:
    """The socket of one rank, and the connections to those of the others.

    Args:
        rank: the own rank.
        local: whether all ranks are on this machine, so that nobody else needs to reach it.
    """

    def __init__(self, rank: int, size: int, *, local: bool) -> None:
        self._rank, self._local = rank, local
        here = "127.0.0.1" if local else ""
        self._listener = socket.create_server((here, 0), backlog=max(128, 2 * size))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._places: list[tuple[str, int]] = []
        self._secret = ""
        self._outgoing: dict[int, socket.socket] = {}
        self._incoming: dict[socket.socket, bytes] = {}

    def connect(self, places: list[tuple[str, int]], secret: str) -> None:
        """Learn the hosts and ports of all ranks, and the secret that messages begin with."""
        self._places, self._secret = places, secret

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message to every other rank that is there."""
        line = json.dumps({"secret": self._secret, "rank": self._rank, **message}) + "\n"
        for rank in range(len(self._places)):
            try:
                if rank != self._rank and (link := self._link(rank)) is not None:
                    link.sendall(line.encode())
            except OSError:
                self._outgoing.pop(rank, None)

    def messages(self) -> list[dict[str, Any]]:
        """What has come since the last time; does not wait."""
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                break
            link.setblocking(False)
            self._incoming[link] = b""
        return [message for link in [*self._incoming] for message in self._read(link)]

    def _read(self, link: socket.socket) -> list[dict[str, Any]]:
        text, open_ = self._incoming[link], True
        while open_ and len(text) <= _LINE:
            try:
                piece = link.recv(_LINE)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            text, open_ = text + piece, bool(piece)
        *lines, rest = text.split(b"\n")
        self._incoming[link] = rest
        if not open_ or len(rest) > _LINE:
            self._incoming.pop(link)
            link.close()
        return [message for line in lines if (message := self._message(line)) is not None]

    def _message(self, line: bytes) -> dict[str, Any] | None:
        try:
            message = json.loads(line)
        except ValueError:
            return None
        known = isinstance(message, dict) and message.get("secret") == self._secret
        return message if known else None

    def gone(self) -> list[int]:
        """The ranks whose process has ended: their sockets are closed."""
        return [
            rank
            for rank in range(len(self._places))
            if rank != self._rank and not self._answers(rank)
        ]

    def _answers(self, rank: int) -> bool:
        try:
            link = self._link(rank)
            if link is None:
                return True  # cannot be reached at all, which says nothing
            link.setblocking(False)
            try:
                return link.recv(1) != b""
            except BlockingIOError:
                return True
            finally:
                link.setblocking(True)
        except ConnectionError:
            return False
        except OSError:
            return True

    def _link(self, rank: int) -> socket.socket | None:
        """The connection to a rank; None where there is no way to it."""
        if rank not in self._outgoing:
            host, port = self._places[rank]
            try:
                link = socket.create_connection(
                    ("127.0.0.1" if self._local else host, port), timeout=_CONNECT
                )
            except ConnectionError:
                raise
            except OSError:
                return None
            self._outgoing[rank] = link
        return self._outgoing[rank]

    def close(self) -> None:
        """Close all sockets: to the others this rank has ended."""
        for link in (self._listener, *self._outgoing.values(), *self._incoming):
            link.close()
        self._outgoing, self._incoming = {}, {}


class Unopened:
    """In place of a mailbox as long as the ranks do not know where those of the others are."""

    def tell(self, message: dict[str, Any]) -> None:
        """Nobody can be told yet."""

    def messages(self) -> list[dict[str, Any]]:
        """Nothing can have come."""
        return []

    def gone(self) -> list[int]:
        """It is not known who has ended."""
        return []
