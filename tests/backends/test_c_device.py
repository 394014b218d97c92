"""Devices written in C: the interface, queues, failures, and libraries that do not fit."""

from __future__ import annotations

import ctypes
import gc
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.c_devices import built, module, needs_compiler
from tests.backends.plugins import Plugins, logged

import treadle as mge
import treadle.functional as F
from treadle.backends import registry
from treadle.backends.c_device import header, kernel, open_library
from treadle.base.errors import DeviceError, DeviceLost, LoadError, OutOfMemory
from treadle.engine.devices.names import resolve
from treadle.utils.custom_op_tools import include_dir

pytestmark = needs_compiler
HEADER = Path(include_dir(), "treadle_device.h")
FAULTS = (
    *("SOUND", "OTHER_VERSION", "REFUSED", "TOO_SMALL", "NAMELESS", "NO_COPIES", "HALF_STREAMS"),
    *("SMALL_KERNELS", "EMPTY_KERNEL", "LOST_KERNELS", "STRANGE_NAME", "UNKNOWN_OP", "UNCOUNTED"),
    *("NONE_THERE", "OLDER", "NEWER"),
)
STRUCTURES = {
    "td_tensor": header.Tensor,
    "td_attribute": header.Attribute,
    "td_call": header.TdCall,
    "td_kernel": header.CKernel,
    "td_properties": header.Properties,
    "td_library": header.TdLibrary,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built(Path(__file__).with_name("faulty_device.c"), tmp_path_factory.mktemp("library"))


class Library:
    """The library, installed, with its switches."""

    def __init__(self, path: str, plugins: Plugins) -> None:
        self._opened = ctypes.CDLL(path)
        self._path, self._plugins = path, plugins

    def __getitem__(self, name: str) -> int:
        return ctypes.c_int32.in_dll(self._opened, name).value

    def __setitem__(self, name: str, value: int) -> None:
        ctypes.c_int32.in_dll(self._opened, name).value = value

    @property
    def seen(self) -> str:
        return (ctypes.c_char * 1024).in_dll(self._opened, "seen").value.decode()

    def install(self, fault: str = "SOUND") -> None:
        self["fault"] = FAULTS.index(fault)
        self._plugins.write("ctoy", module(self._path))


@pytest.fixture
def library(path: str, plugins: Plugins) -> Iterator[Library]:
    made = Library(path, plugins)
    yield made
    for name in ("fault", "runs_fail", "copies_fail", "opens_fail"):
        made[name] = 0


@pytest.fixture
def device(library: Library) -> Library:
    library.install()
    return library


def tensor(*shape: int, dtype: str = "float32") -> Any:
    return mge.tensor(np.arange(np.prod(shape)).reshape(shape).astype(dtype), device="ctoy0")


# -- the header --------------------------------------------------------------------------------


def test_the_header_and_its_structures_in_python_agree(tmp_path: Path) -> None:
    lines = ['#include "treadle_device.h"', "int main(void) {"]
    for name, structure in STRUCTURES.items():
        lines += [f'printf("{name} %zu\\n", sizeof({name}));']
        for field, *_ in structure._fields_:
            lines += [f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));']
    source, program = tmp_path / "sizes.c", tmp_path / "sizes"
    source.write_text("\n".join([*lines, "return 0; }"]))
    flags = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{include_dir()}"]
    subprocess.run(["cc", *flags, str(source), "-o", str(program)], check=True)
    told = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    expected = []
    for name, structure in STRUCTURES.items():
        expected += [f"{name} {ctypes.sizeof(structure)}"]
        for field, *_ in structure._fields_:
            expected += [f"{name}.{field} {getattr(structure, field).offset}"]
    assert told.split("\n")[:-1] == expected


def test_the_header_and_its_numbers_in_python_agree() -> None:
    text = HEADER.read_text()
    assert len(text.splitlines()) <= 300
    assert f"#define TD_VERSION {header.VERSION}\n" in text
    numbers = {n.lower(): int(v) for n, v in re.findall(r"\bTD_(\w+) = (\d+)", text)}
    assert [numbers[name] for name in header.DTYPES] == list(range(len(header.DTYPES)))
    assert [numbers[n] for n in ("ok", "failed", "no_memory", "lost")] == [
        header.OK,
        header.FAILED,
        header.NO_MEMORY,
        header.LOST,
    ]
    assert [numbers[n] for n in ("absent", "ints", "floats", "text")] == [
        header.ABSENT,
        header.INTS,
        header.FLOATS,
        header.TEXT,
    ]
    answers = [n for n in numbers if n.startswith("no_") and n != "no_memory"]
    assert [numbers[n] for n in answers] == list(range(1, len(kernel._ANSWERS)))
    for name, reason in zip(answers, kernel._ANSWERS[1:], strict=True):
        assert name.removeprefix("no_") in reason


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_the_header_is_one_of_cpp_too(tmp_path: Path) -> None:
    source = tmp_path / "device.cc"
    source.write_text('#include "treadle_device.h"\n')
    flags = ["-std=c++11", "-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{include_dir()}"]
    subprocess.run(["c++", *flags, "-fsyntax-only", str(source)], check=True)


# -- calls -------------------------------------------------------------------------------------


def test_kernels_are_told_types_and_attributes(device: Library) -> None:
    with mge.fallback("error"):
        F.sum(tensor(2, 3, 4), axis=1, keepdims=True)
        assert device.seen == "sum 11:2,3,4, 11:2,1,4, axes=1, keepdims=1,"
        F.leaky_relu(tensor(5), 0.25)
        assert device.seen == "leaky_relu 11:5, 11:5, alpha=0.25,"
        tensor(3).astype("int32")
        assert device.seen == "cast 11:3, 8:3, dtype=8," or "7:3" in device.seen
        assert device.seen.endswith(f"dtype={header.DTYPES.index('int32')},")
        F.conv2d(tensor(1, 2, 5, 5), tensor(3, 2, 3, 3), padding=(1, 2), stride=2)
        assert "padding=1,1,2,2," in device.seen and "strides=2,2," in device.seen


def test_what_c_cannot_be_told_runs_on_the_host(device: Library) -> None:
    with mge.fallback("silent"):
        x = mge.tensor([1.0], device="ctoy0", dtype="float64")
        _ = x + x, F.sum(x)
        F.special.erf(tensor(3)) if hasattr(F, "special") else F.erf(tensor(3))
    reasons = {row.op: row.reason for row in mge.fallback_report()}
    assert reasons["add"] == "dtype: float32, not float64"
    assert reasons["sum"] == "dtype: int32 or float32, not float64"
    assert reasons["erf"] == "policy: its supports returned 99, which is not a td_answer"


def test_parts_of_memory_are_copied(device: Library) -> None:
    raw = registry.load("ctoy").open(1)
    stream, whole = raw.stream(), raw.alloc(256)
    raw.copy_in(whole, memoryview(bytes(range(256))), stream)
    raw.fill(raw.part(whole, 64, 8), 7, 8, stream)
    other = registry.load("ctoy").open(0)
    there = other.alloc(64)
    other.copy_peer(there, raw, raw.part(whole, 60, 16), 16, other.stream())
    got = bytearray(16)
    other.copy_out(memoryview(got), there, other.stream())
    assert got == bytes([60, 61, 62, 63, *[7] * 8, 72, 73, 74, 75])
    raw.close()
    other.close()
    raw.free(whole)  # which is the device's no more


def test_queues_and_events_are_the_librarys(device: Library) -> None:
    raw = registry.load("ctoy").open(1)
    before = device["live_streams"]
    first, second = raw.stream(), raw.new_stream()
    start = first.record()
    second.wait(start)
    end = second.record()
    second.synchronize()
    assert device["waits"] and start.done() and end.since(start) >= 0
    assert device["live_streams"] == before + 2 and device["live_events"] == 2
    other = registry.load("ctoy").open(0)
    with pytest.raises(TypeError, match="event of another device"):
        end.since(other.stream().record())
    waits = device["waits"]
    other.new_stream().wait(end)  # The host waits: the library need not know events of others.
    assert device["waits"] == waits
    del start, end, first, second
    gc.collect()
    assert device["live_events"] == 0 and device["live_streams"] == before


def test_memory_does_not_grow(device: Library) -> None:
    x = tensor(1000)
    with mge.fallback("silent"):
        for _ in range(3):
            _ = x + x, F.sum(x), F.sqrt(x)
        left = resolve("ctoy0").open().memory()[1]
        for _ in range(50):
            _ = x + x, F.sum(x), F.sqrt(x)
        gc.collect()
        assert resolve("ctoy0").open().memory()[1] >= left


# -- failures ----------------------------------------------------------------------------------


def test_a_kernel_that_fails_says_why(device: Library) -> None:
    x = tensor(3)
    device["runs_fail"] = header.FAILED
    with pytest.raises(DeviceError, match=r"tanh: the kernel of ctoy0 failed.* unit 7 is on fire"):
        F.tanh(x)
    device["runs_fail"] = 77
    with pytest.raises(DeviceError, match="returned 77, which is not a td_status"):
        F.tanh(x)
    device["runs_fail"] = header.NO_MEMORY
    with pytest.raises(OutOfMemory, match="unit 7 is on fire"):
        F.tanh(x)
    assert (x + x).tolist() == [0, 2, 4]
    device["runs_fail"] = header.LOST
    with pytest.raises(DeviceLost, match="unit 7 is on fire"):
        F.tanh(x)
    assert mge.tensor([1.0], device="cpux").tolist() == [1]


def test_copies_and_devices_that_fail_say_why(device: Library) -> None:
    x = tensor(3)
    device["copies_fail"] = header.FAILED
    with pytest.raises(DeviceError, match="copy_out: the bus is off"):
        (x + x).numpy()
    device["copies_fail"] = 0
    assert (x + x).tolist() == [0, 2, 4]
    for code, words in ((1, "device 1 is in use"), (2, "reported success, and made nothing")):
        device["opens_fail"] = code
        with pytest.raises(DeviceError, match=words):
            mge.tensor([1.0], device="ctoy1")
    with pytest.raises(OutOfMemory, match="cannot allocate 1073741824 bytes"):
        F.zeros((1 << 28,), device="ctoy0") + tensor(1)


# -- libraries that do not fit -----------------------------------------------------------------

REFUSED = {
    "OTHER_VERSION": "not made for version 1 of treadle_device.h.*its table says version 2",
    "REFUSED": "not made for version 1 of treadle_device.h.*it refuses that version",
    "TOO_SMALL": "its table has no function copy_out",
    "NAMELESS": "its table has no name",
    "NO_COPIES": "its table has no function message, copy_in",
    "HALF_STREAMS": "its table has streams without event_done",
    "SMALL_KERNELS": "its kernels have 8 bytes each, too few",
    "EMPTY_KERNEL": "its kernel number 1 has no op, dtypes, run",
    "LOST_KERNELS": r"its \d+ kernels are at no address",
    "STRANGE_NAME": "'CToy 2' is not lower-case letters and underscores",
    "UNKNOWN_OP": r"addd \(did you mean add\?\)",
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_library_that_does_not_fit_is_refused(
    library: Library, plugins: Plugins, fault: str
) -> None:
    with logged():
        library.install(fault)
        row = plugins.row("ctoy")
    assert row["state"] == "failed"
    assert re.search(REFUSED[fault], row["detail"].replace("\n", " ")), row["detail"]
    with pytest.raises(DeviceError, match="ctoy"):
        mge.tensor([1.0], device="ctoy0")


@pytest.mark.parametrize("fault", ["OLDER", "NEWER"])
def test_a_table_of_another_size_is_taken(library: Library, plugins: Plugins, fault: str) -> None:
    library.install(fault)
    assert plugins.row("ctoy")["state"] == "loaded"
    raw = registry.load("ctoy").open(0)
    assert hasattr(raw, "new_stream") == hasattr(raw, "copy_peer") == (fault == "NEWER")
    x = F.zeros((3,), device="ctoy0") + tensor(3)
    assert x.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("fault", "words"), [("UNCOUNTED", "count: no driver"), ("NONE_THERE", "finds no device")]
)
def test_missing_devices_have_a_reason(
    library: Library, plugins: Plugins, fault: str, words: str
) -> None:
    library.install(fault)
    row = plugins.row("ctoy")
    assert row["state"] == "loaded" and row["devices"] == "0" and words in row["detail"]


def test_files_that_are_no_libraries_are_refused(path: str, tmp_path: Path) -> None:
    text, half = tmp_path / "text.so", tmp_path / "half.so"
    text.write_text("no library")
    whole = Path(path).read_bytes()
    half.write_bytes(whole[: len(whole) // 3])
    with pytest.raises(LoadError, match="the end of the file is missing"):
        open_library(half)
    for file in (text, tmp_path / "missing.so"):
        with pytest.raises(
            LoadError, match="not a library of a device, or one that cannot be opened"
        ):
            open_library(file)
    other = tmp_path / "other.c"
    other.write_text("int nothing(void) { return 0; }\n")
    with pytest.raises(LoadError, match="undefined symbol: treadle_device_library"):
        open_library(built(other, tmp_path))
