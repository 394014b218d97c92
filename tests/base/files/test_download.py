"""Downloads from a server on this machine: whole, checked, or not there at all."""

import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from treadle.base.files.download import Digest, DownloadError, fetch

CONTENT = bytes(range(256)) * 9000
SHA = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers by path."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        if self.path == "/file":
            self.answer(200, CONTENT)
        elif self.path == "/short":
            self.answer(200, CONTENT[:1000], announced=len(CONTENT))
        elif self.path == "/moved":
            self.answer(302, b"", Location="/file")
        elif self.path == "/elsewhere":
            self.answer(302, b"", Location="file:///etc/passwd")
        elif self.path == "/circle":
            self.answer(302, b"", Location="/circle")
        else:
            self.answer(404, b"not here")

    def answer(self, code: int, body: bytes, announced: int | None = None, **headers: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) if announced is None else announced))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    # A proxy for the world outside does not know this machine.
    monkeypatch.setenv("no_proxy", "*")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def address(server: ThreadingHTTPServer, path: str) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}{path}"


@pytest.mark.parametrize("path", ["/file", "/moved"])
def test_a_file_comes_once(path: str, server: ThreadingHTTPServer, tmp_path: Path) -> None:
    target = tmp_path / "new" / "file.bin"
    for _ in range(2):
        assert fetch(address(server, path), target, Digest("sha256", SHA[:8])) == target
        assert target.read_bytes() == CONTENT
    assert server.asked.count("/file") == 1  # type: ignore[attr-defined]
    assert os.listdir(target.parent) == ["file.bin"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/gone", "404"),
        ("/short", "IncompleteRead|ended early"),
        ("/elsewhere", "not allowed"),
        ("/circle", "infinite loop"),
    ],
)
def test_what_goes_wrong(path: str, text: str, server: ThreadingHTTPServer, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=rf"(?s)({text}).*store it as") as caught:
        fetch(address(server, path), tmp_path / "file", timeout=5)
    assert str(tmp_path / "file") in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_another_file_than_expected(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=rf"sha256 {SHA}, expected 00"):
        fetch(address(server, "/file"), tmp_path / "file", Digest("sha256", "00"))
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(DownloadError, match="delete the file"):
        fetch(address(server, "/file"), tmp_path / "file", Digest("sha256", SHA))
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="download failed"):
        fetch("http://127.0.0.1:9/x", tmp_path / "file", timeout=5)
    for url in ("ftp://example.org/x", "example.org/x", "data:,x"):
        with pytest.raises(DownloadError, match="https, http or file"):
            fetch(url, tmp_path / "file")


def test_digests_in_names() -> None:
    assert Digest.in_name("resnet18-f37072fd.pth") == Digest("sha256", "f37072fd")
    assert Digest.in_name("a-0123456789abcdef.safetensors") is not None
    for name in ("resnet-18.pth", "resnet18.pth", "x-abcdefg1.bin", "1234abcd.bin"):
        assert Digest.in_name(name) is None
