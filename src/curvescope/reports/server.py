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
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from curvescope._checks import CurvescopeError
from curvescope.experiments.store import RunDirectory
from curvescope.reports.compare import compare
from curvescope.reports.page import fill, render
from curvescope.reports.runs import Found, find_runs

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
        self.hosts = {*_LOOPBACK, _own_address(host)}
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            msg = f"view: cannot listen on {host}:{port} ({reason}); choose another --port"
            raise CurvescopeError(msg) from None

    @property
    def address(self) -> str:
        """The address with the token."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no news."""


def _own_address(host: str) -> str:
    """The host as an address; a wildcard is refused, since its Host headers cannot be checked."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        msg = f"view: --host must be an address such as 127.0.0.1, got {host!r}"
        raise CurvescopeError(msg) from None
    if address.is_unspecified or address.version != 4:
        msg = f"view: --host must be one IPv4 address of this machine, got {host!r}"
        raise CurvescopeError(msg)
    return host


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server: Viewer
    timeout = 30
    server_version = "curvescope"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer, or refuse with a status and no word about the reason."""
        try:
            body, kind = self._answer()
            status = HTTPStatus.OK
        except Refused as refusal:
            status = refusal.status
            body, kind = f"{status.value} {status.phrase}\n".encode(), "text/plain; charset=utf-8"
        except CurvescopeError as error:  # a run that was damaged or removed meanwhile
            status = HTTPStatus.CONFLICT
            body, kind = f"{error}\n".encode(), "text/plain; charset=utf-8"
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: Any) -> None:
        """No log: it would hold the token."""

    def _answer(self) -> tuple[bytes, str]:
        self._check_host()
        target = urlsplit(self.path)
        if target.scheme or target.netloc or not target.path.startswith("/"):
            raise Refused(HTTPStatus.BAD_REQUEST)
        token, slash, rest = target.path[1:].partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()) or not slash:
            raise Refused(HTTPStatus.FORBIDDEN)
        route, _, name = rest.partition("/")
        name = _plain(unquote(name))
        if rest == "":
            return self._index()
        if route == "report" and name:
            return _page(render(RunDirectory(self._analysis(name).path)))
        if rest == "compare":
            return self._compare(parse_qs(target.query).get("run", []))
        raise Refused(HTTPStatus.NOT_FOUND)

    def _check_host(self) -> None:
        """Only this machine's own names: another site's name may be made to lead here."""
        given = self.headers.get_all("Host") or []
        if len(given) != 1:
            raise Refused(HTTPStatus.BAD_REQUEST)
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:\[\]]+))(?::\d{1,5})?", given[0].strip())
        if match is None or (match[1] or match[2]).lower() not in self.server.hosts:
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST)

    def _runs(self) -> dict[str, Found]:
        return {run.id: run for run in find_runs(self.server.root)}

    def _analysis(self, name: str) -> Found:
        run = self._runs().get(name)
        if run is None or run.kind != "analysis":
            raise Refused(HTTPStatus.NOT_FOUND)
        return run

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
            )
        )

    def _compare(self, names: list[str]) -> tuple[bytes, str]:
        known = self._runs()
        chosen = list(dict.fromkeys(_plain(name) for name in names))
        if len(chosen) < 2 or len(chosen) > 12 or not all(name in known for name in chosen):
            raise Refused(HTTPStatus.NOT_FOUND)
        page = fill(
            "compare.html.j2",
            title="Comparison",
            sections=compare([known[name] for name in chosen]),
            heading=f"Comparison of {len(chosen)} runs",
            under=", ".join(chosen),
            home="./",
        )
        return _page(page)


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
