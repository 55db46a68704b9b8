"""The viewer among runs that mean no good, and requests that are none."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from curvescope import io
from curvescope.experiments.configuration import Analysis
from curvescope.reports.runs import find_runs
from curvescope.reports.server import Viewer
from tests.reports.test_server import inside, serving

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes are files on POSIX")


def nested(place: Path) -> None:
    (place / "config.json").write_text('{"a":' * 600 + "1" + "}" * 600)


def deep_brackets(place: Path) -> None:
    (place / "config.json").write_text("[" * 200_000)


def long_stage(place: Path) -> None:
    stored = json.loads((place / "config.json").read_text())
    stored["stages"] = ["x" * 300]
    (place / "config.json").write_text(json.dumps(stored))


def forged_stage(place: Path) -> None:
    """With a right checksum, as someone who knows the format would write it."""
    config = io.load(place / "config.json", Analysis)
    object.__setattr__(config, "stages", ("x" * 300, "../../first"))
    io.save(place / "config.json", config)


def pipe_of_arrays(place: Path) -> None:
    arrays = place / "stages" / "spectrum-H" / "result.safetensors"
    arrays.unlink()
    os.mkfifo(arrays)


def pipe(name: str) -> Callable[[Path], None]:
    def make(place: Path) -> None:
        (place / name).unlink(missing_ok=True)
        os.mkfifo(place / name)

    make.__name__ = f"pipe_{name}"
    return make


def folder_for_result(place: Path) -> None:
    result = place / "stages" / "overview" / "result.json"
    result.unlink()
    result.mkdir()


def device(place: Path) -> None:
    (place / "config.json").unlink()
    (place / "config.json").symlink_to("/dev/zero")


def loop(place: Path) -> None:
    (place / "config.json").unlink()
    (place / "config.json").symlink_to(place / "config.json")


def huge(place: Path) -> None:
    for name in ("config.json", "stages/overview/result.json", "stages/summary/result.json"):
        with (place / name).open("r+b") as file:
            file.truncate(1 << 40)


def digits(place: Path) -> None:
    text = (place / "config.json").read_text()
    (place / "config.json").write_text(text.replace('"seed": 0', '"seed": ' + "9" * 5000))


def other_types(place: Path) -> None:
    for file in place.rglob("result.json"):
        file.write_text('{"type": "Stage", "format": 1, "checksum": 7, "result": []}')


HOSTILE = [
    nested, deep_brackets, long_stage, forged_stage, pipe_of_arrays, pipe("config.json"),
    pipe(".lock"), pipe("certificate.json"), folder_for_result, device, loop, huge, digits,
    other_types,
]  # fmt: skip


@pytest.mark.parametrize("harm", HOSTILE, ids=lambda harm: harm.__name__)
def test_a_bad_run_is_one_bad_row(runs: Path, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    for name in ("bad", "good"):
        shutil.copytree(runs / "first", tmp_path / name)
    shutil.copytree(runs / "trained", tmp_path / "trained")
    harm(tmp_path / "bad")
    before = time.monotonic()
    listed = {run.id: run for run in find_runs(tmp_path)}
    assert listed["good"].whole
    assert listed["trained"].whole
    with serving(tmp_path) as server:
        status, page, _ = inside(server, "")
        assert status == 200
        assert 'href="report/good"' in page
        assert inside(server, "report/good")[0] == 200
        assert inside(server, "report/bad")[0] in (200, 404, 409)
        assert inside(server, "compare?run=bad&run=good")[0] in (200, 404, 409)
        assert inside(server, "")[0] == 200
    assert time.monotonic() - before < 60


def raw(viewer: Viewer, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", viewer.server_address[1]), timeout=20) as wire:
        wire.sendall(request)
        wire.shutdown(socket.SHUT_WR)
        return wire.makefile("rb").read()


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET %s HTTP/9.9.9", b"400"),
        (b"GET %s HTTP/2.0", b"505"),
        (b"GET %s more words HTTP/1.1", b"400"),
        (b"NONSENSE", b"400"),
        (b"POST %s", b"400"),
        (b"BREW %s HTTP/1.1", b"421"),  # no Host header of ours: nothing is said of the method
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1", b"414"),
        (b"GET %s HTTP/1.1\r\n" + b"\r\n".join(b"X-%d: 1" % i for i in range(200)), b"431"),
        (b"GET %s HTTP/1.1\r\nX: " + b"a" * 70_000, b"431"),
        (b"\x16\x03\x01\x02\x00", b"400"),
    ],
)
def test_errors_of_pythons_own_server_carry_the_headers_and_repeat_nothing(
    runs: Path, request_line: bytes, status: bytes
) -> None:
    with serving(runs) as viewer:
        secret = f"/{viewer.token}/secret-path".encode()
        line = request_line.replace(b"%s", secret)
        host = b"\r\nHost: elsewhere.example" if b"BREW" in line else b""
        answer = raw(viewer, line + host + b"\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == status
    assert b"Content-Security-Policy: default-src 'none'" in head
    assert b"X-Content-Type-Options: nosniff" in head
    assert b"text/plain" in head
    assert body.startswith(status)
    for word in (viewer.token.encode(), b"secret", b"MORE", b"more words", b"BREW", b"<"):
        assert word not in answer


def test_without_descriptors_the_server_waits_and_goes_on(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(runs) as viewer:
        calls: list[float] = []

        def exhausted(self: object) -> None:
            calls.append(time.monotonic())
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", exhausted)
            wire = socket.create_connection(("127.0.0.1", viewer.server_address[1]), timeout=20)
            used = time.thread_time()
            time.sleep(1.0)
            assert time.thread_time() - used < 0.5
        wire.close()
        assert 2 <= len(calls) <= 15  # it was asked again, and did not spin
        assert inside(viewer, "")[0] == 200


def test_a_list_without_descriptors_is_no_empty_list(runs: Path, tmp_path: Path) -> None:
    with serving(runs) as viewer:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        opened = [os.open("/dev/null", os.O_RDONLY)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (opened[0] + 40, hard))
            while True:
                try:
                    opened.append(os.open("/dev/null", os.O_RDONLY))
                except OSError:
                    break
            for handle in opened[-2:]:  # the connection's two ends
                os.close(handle)
            status = inside(viewer, "")[0]
        finally:
            for handle in opened[:-2]:
                os.close(handle)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert status in (409, 503)
        assert inside(viewer, "")[0] == 200


def test_two_hundred_runs_of_one_kind_of_harm_do_not_stop_the_start(tmp_path: Path) -> None:
    for i in range(200):
        (tmp_path / str(i)).mkdir()
        nested(tmp_path / str(i))
    threads = threading.active_count()
    Viewer(tmp_path).server_close()
    assert threading.active_count() == threads
