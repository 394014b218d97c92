"""Options and fixtures for the whole suite: golden texts, Hypothesis profiles."""

import atexit
import difflib
import gc
import importlib.util
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest

_TESTS = Path(__file__).resolve().parent

# Timing differs between machines and says nothing about correctness, hence no deadline.
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
# Every pass and every plan is checked in tests; programs in the field are between stages only.
os.environ.setdefault("TREADLE_CHECK", "1")
# The key that says which machine code is one's own: the user's stays out of it.
if "TREADLE_CONFIG_DIR" not in os.environ:  # Processes that this one starts use the same.
    os.environ["TREADLE_CONFIG_DIR"] = tempfile.mkdtemp(prefix="treadle-tests-")
    atexit.register(shutil.rmtree, os.environ["TREADLE_CONFIG_DIR"], ignore_errors=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start what runs behind them so, and processes that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if importlib.util.find_spec("mpi4py"):
    # Importing MPI would make the process of the tests a rank of a job: its environment says so to
    # all that it starts. Ranks are processes of their own.
    mpi4py = importlib.import_module("mpi4py")
    mpi4py.rc.initialize = mpi4py.rc.finalize = False

if sys.dont_write_bytecode:
    # Some two hundred tests start interpreters, and each would compile the package again. Whoever
    # wants no bytecode beside sources gets it in a folder of its own.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(_TESTS.parent / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


gc.disable()  # Collecting tests makes half a million objects, none of which is garbage.
_THRESHOLDS = 50_000, 10, 100
"""New objects per collection of the young, and so on: with Python's own, a seventh of the time of
tests went into looking at objects in use. `tests/base/test_garbage.py` sets its own.
"""
_MARKS = re.compile(r"^pytestmark = (.*?)^(?=\S)(?!\])", re.M | re.S)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules that a mark leaves out as a whole: importing them takes PyTorch, ONNX and seconds."""
    asked = config.option.markexpr
    if collection_path.suffix != ".py" or " or " in asked:
        return None
    text, parts = collection_path.read_text(encoding="utf-8"), asked.split(" and ")
    if "long" in parts and "pytest.mark.long" not in text:
        return True
    found = _MARKS.search(text)
    marks = re.findall(r"pytest\.mark\.(\w+)", found[1]) if found else []
    return any(f"not {mark}" in parts for mark in marks) or None


def pytest_collection_finish() -> None:
    """Some 600,000 objects are alive by now for good: collections need not visit them again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Generators that nobody seeds begin as in every run of the test: none fails by chance."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    importlib.import_module("treadle.random").seed(seed)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """What a test leaves behind in cycles is gone before the next one counts files or bytes."""
    gc.collect(1)


@pytest.fixture(scope="module", autouse=True)
def _seldom_visited() -> Iterator[None]:
    """What a module leaves in caches, millions of objects in the end, is as good as for good."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _device_as_before() -> Iterator[None]:
    """Commands and tests choose a default device, and others run in the same process."""
    devices = importlib.import_module("treadle.device")
    before = devices.get_default_device()
    yield
    if devices.get_default_device() != before:
        devices.set_default_device(before)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the texts under tests/golden instead of comparing with them",
    )


class Golden:
    """Compares texts with files under tests/golden, or rewrites the files.

    The file is `tests/golden/<path of the test module>/<test name>.txt`; a test with several
    texts tells them apart by `suffix`, which becomes `<test name>.<suffix>.txt`.
    """

    def __init__(self, folder: Path, name: str, update: bool) -> None:
        self._folder = folder
        self._name = name
        self._update = update
        self._used: set[Path] = set()

    def __call__(self, text: str, suffix: str = "") -> None:
        path = self._path(suffix)
        actual = text.rstrip("\n") + "\n"
        if self._update:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(actual, encoding="utf-8")
            return
        shown = path.relative_to(_TESTS.parent)
        if not path.exists():
            message = f"{shown} is missing; write it with `pytest --update-golden`\n\n{actual}"
            pytest.fail(message, pytrace=False)
        expected = path.read_text(encoding="utf-8")
        if actual != expected:
            diff = difflib.unified_diff(
                expected.splitlines(), actual.splitlines(), str(shown), "this run", lineterm=""
            )
            pytest.fail("\n".join(["text differs from its golden file", *diff]), pytrace=False)

    def _path(self, suffix: str) -> Path:
        name = f"{self._name}.{suffix}" if suffix else self._name
        path = self._folder / f"{name}.txt"
        if path in self._used:
            pytest.fail(f"golden text {path.name} is checked twice; give each a suffix")
        self._used.add(path)
        return path


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(text)` compares a text with the file committed for this test."""
    module = request.path.relative_to(_TESTS).with_suffix("")
    # Parametrized names contain brackets and whatever the ids hold: keep what file systems take.
    name = re.sub(r"[^\w.=,+-]+", "_", request.node.name).strip("_")
    return Golden(_TESTS / "golden" / module, name, request.config.getoption("--update-golden"))
