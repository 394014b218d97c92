"""Files made to break a reader: containers that lie, JSON with traps, other kinds."""

from __future__ import annotations

import gzip
import io
import os
import struct
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serialization.conftest import container, loaded

from treadle.base.errors import CheckpointError
from treadle.serialization import load


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


DATA = bytes(8)
MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "short": (b"\x10\0\0", "truncated in the header"),
    "length 2^63": (struct.pack("<Q", 2**63) + b"{}", "header is too large"),
    "length 200 MB": (struct.pack("<Q", 200_000_000) + b"{}", "header is too large"),
    "length past end": (struct.pack("<Q", 1000) + b"{}", "truncated in the header"),
    "length 0": (struct.pack("<Q", 0), "not a JSON object"),
    "array": (container([]), "not a JSON object"),
    "leading space": (container(b" {}"), "not a JSON object"),
    "trailing newline": (container(b"{}\n"), "not a JSON object"),
    "unclosed": (container(b'{"a":}'), "header is damaged"),
    "two objects": (container(b"{}{}"), "header is damaged"),
    "not UTF-8": (container(b'{"\xff":1}'), "not UTF-8"),
    "duplicate keys": (
        container(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}'),
        "duplicate key 'a'",
    ),
    "duplicate inner keys": (container(b'{"a":{"dtype":"U8","dtype":"U8"}}'), "duplicate key"),
    "NaN": (container(b'{"a":NaN}'), "NaN is not a JSON number"),
    "1e400": (container(b'{"a":1e400}'), "out of range"),
    "long integer": (container(b'{"a":' + b"9" * 5000 + b"}"), "5000 digits"),
    "deep arrays": (container(b'{"a":' + b"[" * 100_000 + b"}"), "nested deeper"),
    "deep objects": (container(b'{"a":' * 100_000 + b"}"), "nested deeper"),
    "deep after escapes": (container(b'{"\\"\\\\":' + b"[" * 100 + b"}"), "nested deeper"),
    "metadata not strings": (container({"__metadata__": {"a": 1}}), "map of strings"),
    "metadata a list": (container({"__metadata__": []}), "map of strings"),
    "entry a number": (container({"a": 1}), "does not have the fields"),
    "entry incomplete": (
        container({"a": {"dtype": "F32", "shape": []}}),
        "does not have the fields",
    ),
    "entry with more": (container({"a": entry() | {"x": 1}}, DATA), "does not have the fields"),
    "dtype unknown": (container({"a": entry("F4")}, DATA), "dtype that cannot be read"),
    "dtype a list": (container({"a": entry([])}, DATA), "dtype that cannot be read"),
    "shape a number": (container({"a": entry(shape=2)}, DATA), "impossible shape"),
    "shape negative": (container({"a": entry(shape=[-2, -1])}, DATA), "impossible shape"),
    "shape of floats": (container({"a": entry(shape=[2.0])}, DATA), "impossible shape"),
    "shape of booleans": (container({"a": entry("F64", [True])}, DATA), "impossible shape"),
    "shape of rank 65": (container({"a": entry("F64", [1] * 65)}, DATA), "impossible shape"),
    "shape 2^63": (container({"a": entry(shape=[2**63])}, DATA), "impossible shape"),
    "product overflows": (container({"a": entry(shape=[2**32, 2**32])}, DATA), "beyond 2^63"),
    "zero hides overflow": (
        container({"a": entry(shape=[0, 2**62, 2**62], offsets=[0, 0])}),
        "beyond 2^63",
    ),
    "shape too large": (container({"a": entry(shape=[3])}, DATA), "does not fit its shape"),
    "shape too small": (container({"a": entry(shape=[1])}, DATA), "does not fit its shape"),
    "offsets reversed": (container({"a": entry(offsets=[8, 0])}, DATA), "impossible data_offsets"),
    "offsets negative": (container({"a": entry(offsets=[-8, 0])}, DATA), "impossible data_offsets"),
    "offsets of three": (
        container({"a": entry(offsets=[0, 8, 8])}, DATA),
        "impossible data_offsets",
    ),
    "past the end": (container({"a": entry(offsets=[8, 16])}, DATA), "leaves a gap"),
    "gap": (
        container({"a": entry(), "b": entry(offsets=[9, 17])}, bytes(17)),
        "'b' leaves a gap",
    ),
    "overlap": (
        container({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
        "'b' overlaps",
    ),
    "same place": (container({"a": entry(), "b": entry()}, DATA), "'b' overlaps"),
    "terabytes": (
        container({"a": entry("U8", [2**40], [0, 2**40])}, DATA),
        "truncated",
    ),
    "truncated": (container({"a": entry()}, DATA[:7]), "truncated"),
    "trailing": (container({"a": entry()}, DATA + b"x"), "after the last tensor"),
    "boolean 2": (container({"a": entry("BOOL", [2], [0, 2])}, b"\1\2"), "other than 0 and 1"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_containers(name: str) -> None:
    raw, message = MALFORMED[name]
    with pytest.raises(CheckpointError) as caught:
        loaded(raw)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["deep objects", "terabytes", "long integer", "length 200 MB"])
def test_memory_stays_small(name: str) -> None:
    raw, _ = MALFORMED[name]
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError):
            loaded(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(raw) + 1_000_000


def test_depth_is_checked_before_recursion() -> None:
    """A program may have raised Python's limit; the parser must not use the C stack up."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        with pytest.raises(CheckpointError, match="nested deeper"):
            loaded(container(b'{"a":' * 10**6 + b"}"))
    finally:
        sys.setrecursionlimit(limit)


def test_brackets_in_strings_do_not_count() -> None:
    name = '[{"\\' * 50
    assert loaded(container({name: entry()}, DATA)).keys() == {name}


def archive(name: str, data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as f:
        f.writestr(name, data)
    return stream.getvalue()


def numpy_file() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (numpy_file(), "a NumPy .npy file"),
        (archive("../../escape", b"x"), "a zip archive"),
        (gzip.compress(b"x" * 100), "a gzip file"),
        (b"GGUF" + bytes(60), "a GGUF file"),
        (b"\x89HDF\r\n\x1a\n" + bytes(60), "an HDF5 file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_other_kinds_are_named(raw: bytes, kind: str) -> None:
    with pytest.raises(CheckpointError, match=f"this is {kind}"):
        loaded(raw)


@pytest.mark.parametrize("raw", [b"x", b"hello, world", bytes(8), bytes(1000), b"\xff" * 1000])
def test_noise_is_refused(raw: bytes) -> None:
    with pytest.raises(CheckpointError):
        loaded(raw)


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing")
    with pytest.raises(CheckpointError, match="the directory holds no weights"):
        load(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(CheckpointError, match="not a regular file"):
        load(pipe)
    with pytest.raises(CheckpointError, match="not a regular file"):
        load("/dev/zero")
