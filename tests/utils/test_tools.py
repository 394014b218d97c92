"""The small tools that MegEngine keeps in `utils`."""

from __future__ import annotations

import hashlib
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.module as M
from treadle import jit
from treadle.utils import deprecation, dlpack, http_download, persistent_cache
from treadle.utils.future import Future
from treadle.utils.hook import HookHandler
from treadle.utils.max_recursion_limit import max_recursion_limit
from treadle.utils.naming import AutoNaming
from treadle.utils.network import Network
from treadle.utils.tensor_sanity_check import TensorSanityCheck
from treadle.utils.tensorboard import SummaryWriterExtend
from treadle.utils.tuple_function import get_ndtuple


def test_dlpack_copies_both_ways() -> None:
    t = mge.tensor([[1.0, 2.0]])
    array = np.from_dlpack(dlpack._Holder(dlpack.to_dlpack(t)))
    np.testing.assert_array_equal(array, t.numpy())
    source = np.arange(3, dtype=np.int16)
    back = dlpack.from_dlpack(source)
    assert back.dtype == np.int16
    source[0] = 9
    assert back.tolist() == [0, 1, 2]
    assert dlpack.from_dlpack(dlpack.to_dlpack(t)).tolist() == t.tolist()
    with pytest.raises(TypeError):
        dlpack.to_dlpack([1.0])


def test_futures() -> None:
    future: Future[int] = Future(ack=False)
    future.set(3)
    assert future.get() == 3
    with pytest.raises(RuntimeError, match="set before"):
        future.set(4)
    other: Future[str] = Future()
    thread = threading.Thread(target=other.set, args=("late",))
    thread.start()
    assert other.get() == "late"
    thread.join(5)
    assert not thread.is_alive()


def test_hooks_of_modules_are_the_same_class() -> None:
    module = M.Identity()
    handle = module.register_forward_hook(lambda m, i, o: None)
    assert isinstance(handle, HookHandler)
    handle.remove()


def test_names_in_scopes() -> None:
    AutoNaming.clear()
    AutoNaming.push_scope("a")
    AutoNaming.push_scope("b")
    assert AutoNaming.gen_name("x") == "a.b.x"
    assert AutoNaming.gen_name("x") == "a.b.x_1"
    AutoNaming.pop_scope()
    assert AutoNaming.get_scope() == "a"
    AutoNaming.record_var_name(3, "three")
    assert AutoNaming.get_var_name(3) == "three"
    assert AutoNaming.get_var_name(4) is None
    things = [mge.tensor([1.0], name="w"), mge.tensor([1.0], name="w")]
    AutoNaming.remove_duplicate_names(things)
    assert [t.name for t in things] == ["w", "w_1"]
    AutoNaming.clear()
    assert AutoNaming.gen_name("x") == "x"


def test_deprecation_warns() -> None:
    @deprecation.deprecated(version="1.2", reason="use new()")
    def old(x: int) -> int:
        return x + 1

    with pytest.warns(DeprecationWarning, match=r"since 1\.2\. use new"):
        assert old(1) == 2
    moved = deprecation.deprecated_func("1.0", "treadle.functional", "exp", True)
    with pytest.warns(DeprecationWarning, match=r"treadle\.functional\.exp"):
        assert moved(mge.tensor(0.0)).item() == 1.0

    @deprecation.deprecated_kwargs_default("2.0", "flag", 2)
    def changes(x: int, flag: bool = False) -> bool:
        return flag

    with pytest.warns(PendingDeprecationWarning, match="'flag'"):
        changes(1)
    assert changes(1, True)
    assert changes(1, flag=True)


def test_recursion_is_deep_inside_only() -> None:
    before = sys.getrecursionlimit()
    with max_recursion_limit(), max_recursion_limit():
        assert sys.getrecursionlimit() > before
    assert sys.getrecursionlimit() == before


def test_tuples_of_numbers() -> None:
    assert get_ndtuple(3, n=2) == (3, 3)
    assert get_ndtuple([1, 2, 3], n=3) == (1, 2, 3)
    with pytest.raises(AssertionError):
        get_ndtuple((1, 2), n=3)
    with pytest.raises(AssertionError):
        get_ndtuple(0, n=1, allow_zero=False)


def test_ops_that_change_operands_are_found() -> None:
    with TensorSanityCheck() as check:
        x = mge.tensor([1.0, 2.0])
        assert (x + 1).tolist() == [2.0, 3.0]
        array = np.ones(3)
        with pytest.raises(RuntimeError, match="changed its operand 0"):
            check.launch(_Named("spoil"), lambda a: a.fill(7))(array)


class _Named:
    def __init__(self, name: str) -> None:
        self.name = name


def test_caches_keep_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = persistent_cache.PersistentCacheOnServer
    cache = made()
    assert cache.get("algo", b"k") is None
    cache.put("algo", b"k", b"v")
    assert cache.get("algo", b"k") == b"v"
    assert cache.get("other", b"k") is None
    assert cache.config is not None and cache.config.type == "in-memory"
    monkeypatch.setenv("MGE_FASTRUN_CACHE_TYPE", "FILE")
    with pytest.raises(ValueError, match="MGE_FASTRUN_CACHE_DIR"):
        made().get("algo", b"k")
    monkeypatch.setenv("MGE_FASTRUN_CACHE_DIR", str(tmp_path))
    made().put("algo", b"k", b"\x00\xff")
    again = made()
    assert again.config is None and again.get("algo", b"k") == b"\x00\xff"
    assert again.config == ("in-file", str(tmp_path / "cache.bin"))
    again.put("algo", "text", "värde")
    assert made().get("algo", b"text") == "värde".encode()
    (tmp_path / "cache.bin").write_text("{broken")
    assert made().get("algo", b"k") is None
    monkeypatch.setenv("MGE_FASTRUN_CACHE_TYPE", "redis")
    with pytest.raises(ValueError, match="MGE_FASTRUN_CACHE_URL"):
        made().put("algo", b"k", b"v")
    monkeypatch.setenv("MGE_FASTRUN_CACHE_TYPE", "TAPE")
    with pytest.raises(ValueError, match="not MEMORY"):
        made().get("algo", b"k")


def test_graphs_for_tensorboard(tmp_path: Path) -> None:
    net = M.Linear(3, 2)
    traced = jit.trace(lambda x: net(x), capture_as_const=True)
    traced(mge.tensor(np.ones((1, 3), np.float32)))
    path = tmp_path / "net.mge"
    traced.dump(path, arg_names=["data"])
    with SummaryWriterExtend(str(tmp_path / "log")) as writer:
        writer.add_scalar("loss", 0.5, 1)
        writer.add_network(Network.load(path))
    [events] = (tmp_path / "log").iterdir()
    raw = events.read_bytes()
    assert b"MatrixMul" in raw
    assert b"data_0" in raw
    assert b"loss" in raw


def test_programs_for_tensorboard(tmp_path: Path) -> None:
    @jit.compile(dynamic={0: {0: "rows"}})
    def double(x: mge.Tensor) -> mge.Tensor:
        return x * 2

    with SummaryWriterExtend(str(tmp_path)) as writer:
        for n in (3, 5, 40):
            double(mge.tensor(np.ones((n, 3), np.float32)))
        writer.add_program("double", double, 1)
    raw = next(tmp_path.iterdir()).read_bytes()
    assert b"programs for many extents: rows" in raw and b"2 <= rows <= 15" in raw
    assert b"double/programs" in raw and b"double/signatures" in raw


# -- downloads --------------------------------------------------------------------------------

BODY = bytes(range(256)) * 1000


class _Files(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY[:100] if self.path == "/short" else BODY)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    made = http.server.HTTPServer(("127.0.0.1", 0), _Files)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()
    thread.join()


def test_downloads_are_whole_or_fail(server: str, tmp_path: Path) -> None:
    target = tmp_path / "sub" / "file"
    digest = hashlib.md5(BODY, usedforsecurity=False).hexdigest()
    assert http_download.download_from_url(f"{server}/x", target, md5=digest) == str(target)
    assert target.read_bytes() == BODY
    error = http_download.HTTPDownloadError
    with pytest.raises(error, match="404"):
        http_download.download_from_url(f"{server}/missing", target)
    with pytest.raises(error, match=r"100 of 256000|ended early|IncompleteRead"):
        http_download.download_from_url(f"{server}/short", target)
    with pytest.raises(error, match="md5"):
        http_download.download_from_url(f"{server}/x", target, md5="0" * 32)
    assert target.read_bytes() == BODY
    assert [p.name for p in target.parent.iterdir()] == ["file"]
    with pytest.raises(ValueError, match="not of"):
        http_download.download_from_url("file:///etc/passwd", target)
