"""Downloads from a server of the tests' own: mirrors, checksums, and what is left behind."""

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from curvescope.data import dataset, download, fetch
from curvescope.data.sources import SOURCES
from curvescope.errors import CurvescopeError
from tests.data.builders import everything, packed, packed_tar, write

pytest.importorskip("pooch")


@dataclass
class Server:
    """Files by their path, and the paths that were asked for."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(variable, "127.0.0.1")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            raw = state.files.get(self.path)
            self.send_response(404 if raw is None else 200)
            self.send_header("Content-Length", str(len(raw or b"")))
            self.end_headers()
            self.wfile.write(raw or b"")

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as service:
        state = Server(f"http://127.0.0.1:{service.server_port}")
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        yield state
        service.shutdown()
        thread.join()


def mirrored(monkeypatch, name: str, server: Server, *folders: str) -> None:
    mirrors = tuple(f"{server.address}/{folder}/" for folder in folders)
    monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], mirrors=mirrors))


def test_files_arrive_and_load(tmp_path, monkeypatch, mnist, server: Server) -> None:
    mirrored(monkeypatch, "mnist", server, "a")
    server.files = {f"/a/{name}.gz": packed(raw) for name, raw in mnist[0].items()}
    folder = fetch("mnist-R", tmp_path / "new" / "root", progress=False)
    assert folder == tmp_path / "new" / "root" / "mnist"
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{n}.gz" for n in mnist[0])
    data = dataset("mnist", root=tmp_path / "new" / "root")
    assert data.y.tolist() == mnist[1]["train"][1].tolist()
    asked = len(server.asked)
    assert fetch("mnist", tmp_path / "new" / "root", progress=False) == folder
    assert len(server.asked) == asked  # what is there is not fetched again


def test_an_archive_arrives_and_loads(tmp_path, monkeypatch, cifar, server: Server) -> None:
    mirrored(monkeypatch, "cifar-10", server, "a")
    members = {f"cifar-10-batches-py/{name}": raw for name, raw in cifar[0].items()}
    server.files = {"/a/cifar-10-python.tar.gz": packed_tar(members)}
    folder = fetch("cifar-10", tmp_path, progress=False)
    assert [path.name for path in folder.iterdir()] == ["cifar-10-python.tar.gz"]
    assert len(dataset("cifar-10", root=tmp_path)) == 60
    assert fetch("CIFAR10", tmp_path, progress=False) == folder
    assert len(server.asked) == 1


def test_the_next_mirror_helps_out(tmp_path, monkeypatch, mnist, server: Server) -> None:
    mirrored(monkeypatch, "mnist", server, "gone", "wrong", "right")
    for name, raw in mnist[0].items():
        server.files[f"/wrong/{name}.gz"] = packed(raw[::-1])
        server.files[f"/right/{name}.gz"] = packed(raw)
    folder = fetch("mnist", tmp_path, progress=False)
    assert len(list(folder.iterdir())) == 4
    assert [path.split("/")[1] for path in server.asked[:3]] == ["gone", "wrong", "right"]
    assert len(dataset("mnist", root=tmp_path)) == 60


def test_only_what_is_wrong_is_fetched_again(tmp_path, monkeypatch, mnist, server) -> None:
    mirrored(monkeypatch, "mnist", server, "a")
    server.files = {f"/a/{name}.gz": packed(raw) for name, raw in mnist[0].items()}
    write(tmp_path / "mnist", mnist[0], zipped=True)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    fetch("mnist", tmp_path, progress=False)
    assert server.asked == ["/a/t10k-labels-idx1-ubyte.gz"]
    assert len(dataset("mnist", root=tmp_path, split="test")) == 30


def test_without_a_right_file_nothing_is_left(tmp_path, monkeypatch, mnist, server) -> None:
    mirrored(monkeypatch, "mnist", server, "gone", "wrong")
    server.files = {f"/wrong/{name}.gz": packed(raw[:-1]) for name, raw in mnist[0].items()}
    said = (
        r"^fetch\('mnist'\): no mirror gave train-images-idx3-ubyte.gz \(.*404.*; "
        rf".*another checksum\); .* into {tmp_path}/new/mnist by hand$"
    )
    with pytest.raises(CurvescopeError, match=said) as caught:
        fetch("mnist", tmp_path / "new", progress=False)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_it_says_what_to_put_where(tmp_path, monkeypatch, mnist, server) -> None:
    mirrors = ("http://127.0.0.1:9/",)  # the port of no service
    monkeypatch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], mirrors=mirrors))
    with pytest.raises(CurvescopeError, match=r"\(http://127.0.0.1:9/: ConnectionError\); where"):
        fetch("mnist", tmp_path, progress=False)
    assert everything(tmp_path) == {}


def test_an_interrupted_download_leaves_nothing(tmp_path, monkeypatch, mnist) -> None:
    def interrupted(url: str, path: str, pooch: None) -> None:
        Path(path).write_bytes(b"the first half")
        raise KeyboardInterrupt("by the user")

    monkeypatch.setattr(download, "_downloader", lambda *arguments: interrupted)
    with pytest.raises(KeyboardInterrupt, match="by the user"):
        fetch("mnist", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_not_a_matter_of_mirrors(tmp_path, monkeypatch, mnist) -> None:
    def full(url: str, path: str, pooch: None) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_downloader", lambda *arguments: full)
    with pytest.raises(CurvescopeError, match="No space left on device"):
        fetch("mnist", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path, mnist) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CurvescopeError, match=r"cannot write to .*file/mnist \(Not a directory\)"):
        fetch("mnist", tmp_path / "file", progress=False)


@pytest.mark.parametrize("root", [None, "variable"])
def test_downloads_go_where_they_are_looked_for(
    tmp_path, monkeypatch, mnist, server, cache: Path, root
) -> None:
    if root is not None:
        monkeypatch.setenv("CURVESCOPE_DATA", str(tmp_path / root))
    mirrored(monkeypatch, "mnist", server, "a")
    server.files = {f"/a/{name}.gz": packed(raw) for name, raw in mnist[0].items()}
    expected = cache / "data" if root is None else tmp_path / root
    assert fetch("mnist", progress=False) == expected / "mnist"
    assert len(dataset("mnist")) == 60


def test_a_progress_bar_is_shown(tmp_path, monkeypatch, mnist, server, capsys) -> None:
    pytest.importorskip("tqdm")
    mirrored(monkeypatch, "mnist", server, "a")
    server.files = {f"/a/{name}.gz": packed(raw) for name, raw in mnist[0].items()}
    fetch("mnist", tmp_path)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "100%" in captured.err


def test_pooch_is_asked_for_by_name(tmp_path, monkeypatch, mnist) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(CurvescopeError, match=r"needs pooch \(pip install 'curvescope\[data\]'\)"):
        fetch("mnist", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digits", "digits needs no files, there is nothing to fetch"),
        ("gaussian-mixture-C2-D3-t1", "needs no files, there is nothing to fetch"),
        ("cifar-100-subset", r"is on no mirror; put cifar-100-subset.npz into .*, or cut the same"),
        ("nothing", "a data set must be one of"),
    ],
)
def test_what_cannot_be_fetched(tmp_path, name: str, message: str) -> None:
    with pytest.raises(CurvescopeError, match=message):
        fetch(name, tmp_path)
    assert list(tmp_path.iterdir()) == []
