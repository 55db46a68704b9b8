"""The viewer: what it shows, and everything that it refuses."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from curvescope._checks import CurvescopeError
from curvescope.reports.runs import find_runs
from curvescope.reports.server import Viewer


@pytest.fixture(scope="module")
def viewer(runs: Path) -> Iterator[Viewer]:
    with Viewer(runs) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    viewer: Viewer, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, str, http.client.HTTPMessage]:
    """Send a request line as it is, without a client's corrections."""
    port = viewer.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    if host != "":
        connection.putheader("Host", host or f"127.0.0.1:{port}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode("utf-8", errors="replace")
    connection.close()
    return answer.status, body, answer.headers


def inside(viewer: Viewer, rest: str, **options: str) -> tuple[int, str, http.client.HTTPMessage]:
    return ask(viewer, f"/{viewer.token}/{rest}", **options)


# What it shows --------------------------------------------------------------------------


def test_runs_are_found_and_described(runs: Path) -> None:
    found = {run.id: run for run in find_runs(runs)}
    assert list(found) == ["first", "group/second", "trained"]
    assert found["first"].kind == "analysis"
    assert found["first"].state == "finished"
    assert found["trained"].kind == "training"
    assert {"train loss", "test error"} <= set(found["trained"].numbers)
    assert "seed 1" in found["group/second"].words


def test_the_list_names_every_run(viewer: Viewer) -> None:
    status, body, headers = inside(viewer, "")
    assert status == 200
    for name in ("first", "group/second", "trained"):
        assert f'value="{name}"' in body
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"


def test_reports_and_comparisons(viewer: Viewer) -> None:
    status, body, _ = inside(viewer, "report/group/second")
    assert (status, "Spectra" in body) == (200, True)
    status, body, _ = inside(viewer, "compare?run=first&run=group/second&run=trained")
    assert status == 200
    for word in ("Spectral density of H", "Numbers side by side", "mean training loss"):
        assert word.lower() in body.lower()


def test_head_has_no_body(viewer: Viewer) -> None:
    status, body, headers = inside(viewer, "", method="HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) > 1000


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    with Viewer(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        status, body, _ = inside(server, "")
        server.shutdown()
        thread.join()
    assert (status, "no run in this folder yet" in body) == (200, True)


# What it refuses ------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/wrong/", "/wrong/report/first", "", "/report/first"])
def test_without_the_token_nothing_is_shown(viewer: Viewer, path: str) -> None:
    status, body, _ = ask(viewer, path or "*")
    assert status in (400, 403)
    assert "first" not in body


def test_a_token_that_is_almost_right(viewer: Viewer) -> None:
    for token in (viewer.token[:-1], viewer.token + "x", viewer.token.swapcase(), "%00"):
        assert ask(viewer, f"/{token}/")[0] == 403
    assert ask(viewer, f"/{viewer.token}")[0] == 403  # the slash is part of the address


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "evil.example:127.0.0.1",
        "[::2]",
        "user@127.0.0.1",
        "",
    ],
)
def test_other_hosts_are_refused(viewer: Viewer, host: str) -> None:
    status, body, _ = inside(viewer, "", host=host)
    assert status in (400, 421)
    assert "first" not in body


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]:9999", "LOCALHOST:8888"])
def test_this_machine_has_several_names(viewer: Viewer, host: str) -> None:
    assert inside(viewer, "", host=host)[0] == 200


@pytest.mark.parametrize(
    "rest",
    [
        "report/../first",
        "report/%2e%2e/first",
        "report/first/..",
        "report//etc/passwd",
        "report/%2Fetc%2Fpasswd",
        "report/..%5Cfirst",
        "report/first%00",
        "report/first/..%2Fconfig.json",
        "compare?run=first&run=../first",
        "compare?run=first&run=/etc",
    ],
)
def test_paths_that_lead_elsewhere_are_refused(viewer: Viewer, rest: str) -> None:
    status, body, _ = inside(viewer, rest)
    assert status == 400
    assert "root:" not in body


@pytest.mark.parametrize(
    "rest",
    [
        "config.json",
        "first/config.json",
        "report/first/config.json",
        "report/trained",
        "report/nothing",
        "report/",
        "report/first/report.html",
        "figures/spectra.svg",
        "compare",
        "compare?run=first",
        "compare?run=first&run=nothing",
        "static/chart.js",
        "..",
    ],
)
def test_nothing_else_is_served(viewer: Viewer, rest: str) -> None:
    assert inside(viewer, rest)[0] in (400, 404)


def test_a_request_for_another_site_is_refused(viewer: Viewer) -> None:
    assert ask(viewer, f"http://evil.example/{viewer.token}/")[0] == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_reading(viewer: Viewer, method: str) -> None:
    assert inside(viewer, "", method=method)[0] == 501


def test_links_that_lead_out_are_not_followed(runs: Path, tmp_path: Path) -> None:
    """A run behind a link, and a run with a file behind a link."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    shutil.copytree(runs / "first", outside)
    root.mkdir()
    (root / "linked").symlink_to(outside, target_is_directory=True)
    shutil.copytree(runs / "first", root / "mixed")
    result = root / "mixed" / "stages" / "overview" / "result.json"
    result.unlink()
    result.symlink_to(outside / "stages" / "overview" / "result.json")
    shutil.copytree(runs / "first", root / "plain")
    (root / "again").symlink_to(root / "plain", target_is_directory=True)
    assert [run.id for run in find_runs(root)] == ["plain"]
    with Viewer(root) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        answers = [inside(server, rest)[0] for rest in ("report/linked", "report/mixed")]
        server.shutdown()
        thread.join()
    assert answers == [404, 404]


def test_a_damaged_run_is_left_out_of_the_list(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "first", tmp_path / "a")
    (tmp_path / "a" / "stages" / "overview" / "result.json").write_text("{")
    for name, text in (("b", "[]"), ("c", '{"recipe": 3}'), ("d", '{"kind": "analysis"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    assert find_runs(tmp_path) == []


# Starting ------------------------------------------------------------------------------------


def test_it_listens_on_loopback_with_a_new_token_each_time(tmp_path: Path) -> None:
    with Viewer(tmp_path) as a, Viewer(tmp_path) as b:
        assert a.server_address[0] == "127.0.0.1"
        assert a.token != b.token
        assert len(a.token) >= 32
        assert a.token in a.address


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CurvescopeError, match=f"cannot listen on 127.0.0.1:{port}"):
            Viewer(tmp_path, port=port)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", "no address"])
def test_addresses_that_cannot_be_checked(tmp_path: Path, host: str) -> None:
    with pytest.raises(CurvescopeError, match="--host must be"):
        Viewer(tmp_path, host=host)


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CurvescopeError, match="is not a folder that can be read"):
        Viewer(tmp_path / "none")

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", denied)
    with pytest.raises(CurvescopeError, match="is not a folder that can be read"):
        Viewer(tmp_path)
