"""The viewer: what it shows, and everything that it refuses."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import pytest

from curvescope import io
from curvescope.errors import CurvescopeError
from curvescope.experiments.configuration import Analysis
from curvescope.io import locked
from curvescope.reports.compare import labels
from curvescope.reports.runs import ListedRun, find_runs
from curvescope.reports.server import Viewer
from curvescope.reports.training import render_training
from curvescope.training.folder import TrainingFolder, identity_of
from curvescope.training.records import Result


@contextmanager
def serving(root: Path) -> Iterator[Viewer]:
    with Viewer(root) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def viewer(runs: Path) -> Iterator[Viewer]:
    with serving(runs) as server:
        yield server


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
    for word in ("Spectral density of H", "Numbers side by side", "Loss of each epoch"):
        assert word.lower() in body.lower()


@pytest.mark.parametrize("rest", ["", "report/first", "report/trained", "nothing"])
def test_head_is_a_get_without_its_body(viewer: Viewer, rest: str) -> None:
    status, body, headers = inside(viewer, rest, method="HEAD")
    full = inside(viewer, rest)
    assert (status, body) == (full[0], "")
    assert int(headers["Content-Length"]) == len(full[1].encode())
    assert ask(viewer, "/wrong/", method="HEAD")[0] == 403


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        status, body, _ = inside(server, "")
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


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"])
def test_only_reading(viewer: Viewer, method: str) -> None:
    status, body, headers = inside(viewer, "", method=method)
    assert (status, body) == (405, "405 Method Not Allowed\n")
    assert headers["Allow"] == "GET, HEAD"
    assert headers["Content-Type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize("method", ["POST", "PUT", "BREW"])
def test_a_stranger_learns_nothing_from_another_method(viewer: Viewer, method: str) -> None:
    assert ask(viewer, "/wrong/", method=method)[0] == 403
    assert inside(viewer, "", method=method, host="evil.example")[0] == 421


def test_a_body_is_read_and_refused(viewer: Viewer) -> None:
    port = viewer.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", f"/{viewer.token}/", body=b"x" * 5000)
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (405, b"405 Method Not Allowed\n")
    connection.close()


MALFORMED = {
    "no such version": (b"GET {path} HTTP/9.9.9\r\n\r\n", 400),
    "a later version": (b"GET {path} HTTP/2.0\r\n{host}\r\n", 505),
    "no version, no method": (b"{path}\r\n\r\n", 400),
    "too many words": (b"GET {path} a b HTTP/1.1\r\n{host}\r\n", 400),
    "no words": (b"\x00\xff\xfe\r\n\r\n", 400),
    "a long line": (b"GET {path}" + b"a" * 70_000 + b" HTTP/1.1\r\n{host}\r\n", 414),
    "a long header": (b"GET {path} HTTP/1.1\r\n{host}X: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    "many headers": (b"GET {path} HTTP/1.1\r\n{host}" + b"X: a\r\n" * 200 + b"\r\n", 431),
    "an open bracket": (b"GET http://[{path} HTTP/1.1\r\n{host}\r\n", 400),
    "no address in brackets": (b"GET http://[x]{path} HTTP/1.1\r\n{host}\r\n", 400),
    "no host": (b"GET {path} HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET {path} HTTP/1.1\r\n{host}{host}\r\n", 400),
    "no method of Python": (b"__init__ {path} HTTP/1.1\r\n{host}\r\n", 405),
    "an endless length": (
        b"POST {path} HTTP/1.1\r\n{host}Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        405,
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_request_that_is_none_gets_a_short_plain_answer(viewer: Viewer, name: str) -> None:
    """With the headers of every other answer, and without a word of what was sent."""
    request, status = MALFORMED[name]
    port = viewer.server_address[1]
    request = request.replace(b"{path}", f"/{viewer.token}/".encode())
    request = request.replace(b"{host}", f"Host: 127.0.0.1:{port}\r\n".encode())
    with socket.create_connection(("127.0.0.1", port), timeout=20) as wire:
        wire.sendall(request)
        wire.shutdown(socket.SHUT_WR)
        answer = wire.makefile("rb").read().decode()
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith(f"HTTP/1.0 {status} ")
    assert body == f"{status} {HTTPStatus(status).phrase}\n"
    assert viewer.token not in answer
    for header in (
        "Content-Type: text/plain; charset=utf-8",
        "Content-Security-Policy: default-src 'none'",
        "X-Content-Type-Options: nosniff",
        "Referrer-Policy: no-referrer",
        "Cache-Control: no-store",
    ):
        assert f"\r\n{header}" in head


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
    listed = find_runs(root)
    assert [(run.id, run.whole) for run in listed] == [("mixed", False), ("plain", True)]
    assert listed[0].state.startswith("not shown: a link in it leads out")
    assert listed[0].numbers == {}
    with serving(root) as server:
        answers = [inside(server, rest)[0] for rest in ("report/linked", "report/mixed")]
    assert answers == [404, 404]


def test_a_damaged_run_is_listed_as_such_and_has_no_page(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "first", tmp_path / "a")
    (tmp_path / "a" / "stages" / "overview" / "result.json").write_text("{")
    shutil.copytree(runs / "trained", tmp_path / "b")
    (tmp_path / "b" / "result.json").write_text("[]")
    shutil.copytree(runs / "first", tmp_path / "c")
    (tmp_path / "c" / "config.json").write_text("not JSON")
    shutil.copytree(runs / "first", tmp_path / "d")
    found = {run.id: run for run in find_runs(tmp_path)}
    assert list(found) == ["a", "b", "c", "d"]
    assert [run.whole for run in found.values()] == [False, False, False, True]
    assert found["a"].state == "damaged: 'stages/overview/result.json': is not JSON"
    assert found["b"].state == "damaged: 'result.json': holds no Result, but something else"
    assert str(tmp_path) not in "".join(run.state for run in found.values())
    with serving(tmp_path) as server:
        status, body, _ = inside(server, "")
        assert status == 200
        assert 'value="a"' not in body  # it cannot be picked
        assert 'href="report/d"' in body
        assert 'href="report/a"' not in body
        assert [inside(server, f"report/{name}")[0] for name in "abcd"] == [404, 404, 404, 200]
        assert inside(server, "compare?run=a&run=d")[0] == 404


def test_someone_elses_configurations_are_left_out(tmp_path: Path) -> None:
    for name, text in (("a", "[]"), ("b", '{"recipe": 3}'), ("c", '{"kind": "other"}'), ("d", "x")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    assert find_runs(tmp_path) == []


def test_a_run_of_a_later_version_says_so(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "first", tmp_path / "a")
    config = io.read_json(tmp_path / "a" / "config.json")
    io.write_json(tmp_path / "a" / "config.json", {**config, "format": 7})
    (run,) = find_runs(tmp_path)
    formats = f"it has format 7, this version reads {Analysis.FORMAT}"
    assert run.state == f"'config.json': was written by a later version: {formats}"
    assert not run.whole


def test_a_run_in_progress_and_one_that_was_stopped(runs: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(runs / "first", tmp_path / name)
        shutil.rmtree(tmp_path / name / "stages" / "summary")
    shutil.copytree(runs / "trained", tmp_path / "c")
    (tmp_path / "c" / "result.json").unlink()
    with locked(tmp_path / "a"), locked(tmp_path / "c"):
        states = {run.id: run.state for run in find_runs(tmp_path)}
        with serving(tmp_path) as server:
            assert inside(server, "report/a")[0] == 200
            assert "is not finished" in inside(server, "report/c")[1]
    assert states["a"].endswith("stages, running")
    assert states["b"].endswith("stages, stopped")
    assert states["c"] == "running"


# Trainings -------------------------------------------------------------------------------------


def test_a_training_has_a_page(viewer: Viewer, runs: Path) -> None:
    status, body, _ = inside(viewer, "report/trained")
    assert status == 200
    digest = hashlib.sha256((runs / "trained/weights/final.safetensors").read_bytes()).hexdigest()
    assert digest in body
    for words in ("F-4 on digits", "recipe.lr", "Loss of each epoch", "Accuracy of each epoch"):
        assert words in body
    result = TrainingFolder(runs / "trained").result()
    assert result is not None
    assert result.test is not None
    assert f"{100 * (1 - result.test.accuracy):.2f} % of the answers are wrong" in body
    assert 'href="../"' in body  # back to the list
    list_page = inside(viewer, "")[1]
    assert 'href="report/trained"' in list_page


def test_a_page_leads_from_a_training_to_its_analysis(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "trained", tmp_path / "my runs" / "a b")
    shutil.copytree(runs / "first", tmp_path / "my runs" / "a b" / "analysis")
    with serving(tmp_path) as server:
        body = inside(server, "report/my%20runs/a%20b")[1]
        assert 'href="a%20b/analysis"' in body
        assert 'href="../../"' in body
        assert inside(server, "report/my%20runs/a%20b/analysis")[0] == 200


def test_a_training_that_diverged_or_is_damaged(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "trained", tmp_path / "a")
    owner = identity_of(TrainingFolder(tmp_path / "a").config)
    first = TrainingFolder(tmp_path / "a").epochs()[0]
    io.save(tmp_path / "a" / "result.json", Result(None, None, 2), owner=owner)
    (tmp_path / "a" / "weights" / "final.safetensors").unlink()
    log = tmp_path / "a" / "metrics.jsonl"
    with pytest.raises(CurvescopeError, match=r"lacks epochs or has too many"):  # has one too many
        render_training(tmp_path / "a")
    log.write_text(io.line(log, replace(first, test_loss=float("nan")), owner=owner))
    page = render_training(tmp_path / "a")
    assert "diverged in epoch 2; there are no final weights" in page
    assert "not there yet" in page
    assert "NaN" not in page
    (tmp_path / "a" / "metrics.jsonl").write_text("3\n")
    with pytest.raises(CurvescopeError, match="holds no Epoch"):
        render_training(tmp_path / "a")


def test_trainings_are_compared(runs: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(runs / "trained", tmp_path / name)
    run = TrainingFolder(tmp_path / "b")
    config, epochs, result = run.config, run.epochs(), run.result()
    config = replace(config, recipe=replace(config.recipe, lr=0.5))
    owner, log = identity_of(config), tmp_path / "b" / "metrics.jsonl"
    io.save(tmp_path / "b" / "config.json", config)
    io.save(tmp_path / "b" / "result.json", result, owner=owner)
    log.write_text("".join(io.line(log, epoch, owner=owner) for epoch in epochs))
    with serving(tmp_path) as server:
        status, body, _ = inside(server, "compare?run=a&run=b")
    assert status == 200
    for words in ("F-4, lr 0.01", "F-4, lr 0.5", "recipe.lr", "final weights, SHA-256"):
        assert words in body
    digest = hashlib.sha256((tmp_path / "a/weights/final.safetensors").read_bytes()).hexdigest()
    assert body.count(f"{digest[:16]}…") == 2


# Names in a comparison -------------------------------------------------------------------------


def named(id: str, **changes: str) -> ListedRun:
    values = {"kind": "analysis", "name": "LeNet5", "data": "mnist", "seed": "0", **changes}
    return ListedRun(id, Path(id), state="finished", numbers={}, **values)


@pytest.mark.parametrize(
    ("runs", "different", "expected"),
    [
        ([named("a"), named("b", name="VGG11")], {}, ["LeNet5", "VGG11"]),
        (
            [named("a"), named("b", data="cifar-10")],
            {},
            ["LeNet5, mnist", "LeNet5, cifar-10"],
        ),
        ([named("a"), named("b", seed="1")], {}, ["LeNet5, seed 0", "LeNet5, seed 1"]),
        (
            [named("a"), named("b")],
            {"recipe.weight_decay": ["0.0", "0.1"], "model.weights": ["x", "y"]},
            ["LeNet5, weight decay 0.0", "LeNet5, weight decay 0.1"],
        ),
        ([named("a"), named("b")], {"settings.steps": ["1", "2"]}, ["LeNet5, a", "LeNet5, b"]),
        (
            [named("a"), named("a/analysis", kind="training"), named("c", name="F-4")],
            {},
            ["LeNet5, analysis", "LeNet5, training", "F-4"],
        ),
    ],
)
def test_no_two_runs_have_the_same_label(runs, different, expected: list[str]) -> None:
    assert labels(runs, different) == expected
    assert len(set(expected)) == len(runs)


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
    with pytest.raises(CurvescopeError, match="view: host must be"):
        Viewer(tmp_path, host=host)


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CurvescopeError, match="is not a folder that can be read"):
        Viewer(tmp_path / "none")

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", denied)
    with pytest.raises(CurvescopeError, match="is not a folder that can be read"):
        Viewer(tmp_path)
