"""A local viewer: a page that lists runs, shows their reports and compares them.

It listens on the loopback interface alone, answers only requests that carry a random token in their
address and name this machine in their ``Host`` header (so that no other web page can ask through
the user's browser), and serves nothing but pages that it makes itself: no file is ever handed out,
and no part of a request is used as a path, since runs are looked up among those found below the
folder.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from curvescope.errors import CurvescopeError
from curvescope.experiments.store import RunDirectory
from curvescope.reports.compare import compare
from curvescope.reports.monitoring import growing, render_monitor
from curvescope.reports.page import fill, render
from curvescope.reports.runs import ListedRun, find_runs
from curvescope.reports.training import render_training

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


_LIVE = 5
"""Seconds after which the list is loaded again while runs are worked on."""
_PLAIN = "text/plain; charset=utf-8"
_BODY = 1 << 16
"""Bytes of a refused request's body that are read, so that its sender sees the answer."""
_DIGITS = 18
"""Most digits of a body's length: Python refuses thousands, and no body is that long."""


_PAUSE = 0.1
"""Seconds to wait when no descriptor is left for the next connection."""


class Refused(Exception):
    """A request that is not answered, with its status."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class Viewer(ThreadingHTTPServer):
    """The server; :attr:`address` is what to open in a browser.

    Args:
        root: The folder whose runs are shown.
        port: 0 takes a free one.
        host: An address of this machine; loopback unless the user says otherwise.

    Raises:
        CurvescopeError: If the folder cannot be read, or the address or port cannot be used.
    """

    daemon_threads = True

    def __init__(self, root: Path, *, port: int = 0, host: str = "127.0.0.1") -> None:
        find_runs(root)  # a folder that cannot be read is refused before anything listens
        self.root = root.resolve()
        self.token = secrets.token_urlsafe(24)
        self.hosts = {*_LOOPBACK, _local_address(host)}
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            rule = f"cannot listen on {host}:{port} ({reason})"
            remedy = "choose another `host` or `port`"
            raise CurvescopeError("view", rule, remedy=remedy) from None

    @property
    def address(self) -> str:
        """The address with the token."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/{self.token}/"

    def get_request(self) -> tuple[Any, Any]:
        """The next connection; without a descriptor for it, wait instead of asking at once."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no news."""


def _local_address(host: str) -> str:
    """The host as an address; a wildcard is refused, since its Host headers cannot be checked."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        rule = "`host` must be an address such as 127.0.0.1"
        raise CurvescopeError("view", rule, given=repr(host)) from None
    if address.is_unspecified or address.version != 4:
        rule = "`host` must be one IPv4 address of this machine"
        raise CurvescopeError("view", rule, given=repr(host))
    return host


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD; refuses any other method."""

    server: Viewer
    timeout = 30
    server_version = "curvescope"
    sys_version = ""
    default_request_version = "HTTP/1.0"  # the default before that, 0.9, has no headers

    def do_GET(self) -> None:
        """Answer, or refuse with a status and no word about the reason."""
        self._reply(self._answer)

    do_HEAD = do_GET

    def __getattr__(self, name: str) -> Any:
        """Handle ``do_POST`` and so on, which the base class looks up, by a refusal."""
        if name.startswith("do_"):
            return self._not_allowed
        raise AttributeError(name)

    def _not_allowed(self) -> None:
        """Host and token first, so that a stranger learns nothing, then the refusal."""

        def refuse() -> tuple[bytes, str]:
            self._target()
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED)

        size = self.headers.get("Content-Length") or ""
        if size.isascii() and size.isdigit():
            self.rfile.read(min(int(size[:_DIGITS]), _BODY))
        self._reply(refuse)

    def _reply(self, answer: Callable[[], tuple[bytes, str]]) -> None:
        try:
            body, kind = answer()
        except Refused as refusal:
            self._refuse(refusal.status)
        except CurvescopeError as error:  # a run that was damaged or removed meanwhile
            self._send(HTTPStatus.CONFLICT, f"{error}\n".encode(), _PLAIN)
        except OSError:  # no descriptors left, say
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            self._send(HTTPStatus.OK, body, kind)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that Python's server cannot read with the status alone."""
        self.close_connection = True
        self._refuse(HTTPStatus(code))

    def _refuse(self, status: HTTPStatus) -> None:
        self._send(status, f"{status.value} {status.phrase}\n".encode(), _PLAIN)

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """No log: it would hold the token."""

    def _target(self) -> tuple[str, str]:
        """The path after the token, and the query; refused unless host and token are right."""
        self._check_host()
        try:
            target = urlsplit(self.path)
        except ValueError:  # a bracket that is not closed, say
            raise Refused(HTTPStatus.BAD_REQUEST) from None
        if target.scheme or target.netloc or not target.path.startswith("/"):
            raise Refused(HTTPStatus.BAD_REQUEST)
        token, slash, rest = target.path[1:].partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()) or not slash:
            raise Refused(HTTPStatus.FORBIDDEN)
        return rest, target.query

    def _answer(self) -> tuple[bytes, str]:
        rest, query = self._target()
        route, _, name = rest.partition("/")
        name = _plain(unquote(name))
        if rest == "":
            return self._index()
        if route == "report" and name:
            return self._report(name)
        if rest == "compare":
            return self._compare(parse_qs(query).get("run", []))
        raise Refused(HTTPStatus.NOT_FOUND)

    def _check_host(self) -> None:
        """Refuse other hosts than this machine: another site's name may be made to lead here."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1:
            raise Refused(HTTPStatus.BAD_REQUEST)
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:\[\]]+))(?::\d{1,5})?", hosts[0].strip())
        if match is None or (match[1] or match[2]).lower() not in self.server.hosts:
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST)

    def _runs(self) -> dict[str, ListedRun]:
        return {run.id: run for run in find_runs(self.server.root)}

    def _report(self, name: str) -> tuple[bytes, str]:
        """The page of an analysis, of a training, or of a monitor's log."""
        runs = self._runs()
        run = runs.get(name)
        if run is None or not run.page:
            raise Refused(HTTPStatus.NOT_FOUND)
        home = "../" * (name.count("/") + 1)
        if run.kind == "analysis":
            return _page(render(RunDirectory(run.path), home=home))
        if run.kind == "monitor":
            return _page(render_monitor(run.path, home=home))
        inside = runs.get(f"{name}/analysis")
        analysis = f"{quote(name.rpartition('/')[2])}/analysis" if inside and inside.page else ""
        return _page(render_training(run.path, home=home, analysis=analysis))

    def _index(self) -> tuple[bytes, str]:
        runs = list(self._runs().values())
        columns = list(dict.fromkeys(key for run in runs for key in run.numbers))
        return _page(
            fill(
                "runs.html.j2",
                title="Runs",
                sections=[],
                scripts=("runs.js",),
                runs=runs,
                columns=columns,
                folder=self.server.root.name,
                live=_LIVE if any(run.moving for run in runs) else 0,
                counts=_counts(runs),
            )
        )

    def _compare(self, names: list[str]) -> tuple[bytes, str]:
        runs = self._runs()
        chosen = list(dict.fromkeys(_plain(name) for name in names))
        there = all(name in runs and runs[name].page for name in chosen)
        if len(chosen) < 2 or len(chosen) > 12 or not there:
            raise Refused(HTTPStatus.NOT_FOUND)
        picked = [runs[name] for name in chosen]
        page = fill(
            "report.html.j2",
            title="Comparison",
            sections=compare(picked),
            refresh=any(run.state == "running" and growing(run.path) for run in picked),
            heading=f"Comparison of {len(chosen)} runs",
            under=", ".join(chosen),
            home="./",
        )
        return _page(page)


def _counts(runs: Sequence[ListedRun]) -> str:
    """How many runs are finished, running, waiting and so on, where not all are finished."""
    words = [run.state.partition(":")[0].rpartition(", ")[2] for run in runs]
    kinds = {word: words.count(word) for word in dict.fromkeys(sorted(words))}
    return ", ".join(f"{count} {word}" for word, count in kinds.items()) if len(kinds) > 1 else ""


def _plain(name: str) -> str:
    """A name that leads nowhere but below: no ``..``, no absolute path, no backslash, no NUL."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) and name != "":
        raise Refused(HTTPStatus.BAD_REQUEST)
    if "\\" in name or "\0" in name:
        raise Refused(HTTPStatus.BAD_REQUEST)
    return name


def _page(text: str) -> tuple[bytes, str]:
    return text.encode(), "text/html; charset=utf-8"
