"""The page that reads digits, used in a browser without a window.

Needs Chromium and a C compiler for WebAssembly (`make setup-cross`); run by `make test-cross`.
"""

from __future__ import annotations

import functools
import html
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [
    pytest.mark.cross,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; see make setup-cross"),
    pytest.mark.skipif(
        importlib.util.find_spec("ziglang") is None, reason="there is no ziglang: treadle[aot]"
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, as the example writes it."""
    out = tmp_path_factory.mktemp("web")
    command = [sys.executable, str(EXAMPLES / "digits_web.py"), "--out", str(out), "--port", "0"]
    subprocess.run(command, check=True)
    shutil.copy(Path(__file__).with_name("browser.html"), out / "check.html")
    return out


@pytest.fixture
def address(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of the page, as the example starts it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    pages = importlib.import_module("digits_web").Pages
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(pages, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_scans_and_drawings_are_read(address: str, tmp_path: Path) -> None:
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=60000",
        "--dump-dom",
        f"{address}/check.html",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    told = re.search('<pre id="found">(.+?)</pre>', done.stdout, re.DOTALL)
    assert told, done.stderr
    found = json.loads(html.unescape(told.group(1)))
    assert len(found["scans"]) == 24
    for scan in found["scans"]:
        np.testing.assert_allclose(scan["found"], scan["scores"], rtol=1e-4, atol=1e-4)
        assert scan["said"] == int(np.argmax(scan["scores"]))
    assert sum(s["said"] == s["label"] for s in found["scans"]) >= 23
    right = [int(digit) == read for digit, read in found["drawn"].items()]
    assert sum(right) >= 3, found["drawn"]
