"""GGUF files that Treadle writes are read as they were; those that lie are refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from treadle.base.blocks import FORMATS, BlockTensor
from treadle.base.errors import CheckpointError, DTypeError
from treadle.llm.files.gguf import is_gguf, read_gguf
from treadle.llm.files.gguf_writer import PlannedTensor, planned, write_gguf

METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.eps": 1e-5,
    "llama.flag": True,
    "llama.large": 1 << 40,
    "llama.negative": -3,
    "llama.counts": np.array([1, 2, 3], np.int32),
    "llama.parts": np.array([0.5, 0.25], np.float32),
    "tokens": ["a", "", "ü", "🙂"],
}


def _tensors() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 64)).astype(np.float32)
    q = FORMATS["Q4_0"]
    return {
        "a.weight": x,
        "half": x[0].astype(np.float16),
        "brain": x[1, :, :3].astype(ml_dtypes.bfloat16),
        "ids": np.arange(5, dtype=np.int32),
        "blocks": BlockTensor(q, x.shape, q.quantize(x)),
    }


def _write(path: Path, **changes: Any) -> Path:
    tensors = [planned(name, tensor) for name, tensor in _tensors().items()]
    write_gguf(path, METADATA, tensors, **changes)
    return path


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_what_is_written_is_read(tmp_path: Path, alignment: int) -> None:
    path = _write(tmp_path / "a.gguf", alignment=alignment)
    assert is_gguf(path)
    found = read_gguf(path)
    assert found.alignment == alignment
    for key, value in METADATA.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found.metadata[key], value)
            assert found.metadata[key].dtype == value.dtype
        elif isinstance(value, float):
            assert found.metadata[key] == np.float32(value)
        else:
            assert found.metadata[key] == value and type(found.metadata[key]) is type(value)
    assert list(found.entries) == list(_tensors())
    for name, wanted in _tensors().items():
        tensor = found.tensor(name)
        assert found.entries[name].begin % alignment == 0
        assert tensor.shape == wanted.shape
        if isinstance(wanted, BlockTensor):
            assert isinstance(tensor, BlockTensor) and tensor.format == wanted.format
            tensor, wanted = tensor.data, wanted.data
        assert isinstance(tensor, np.ndarray) and tensor.dtype == wanted.dtype
        np.testing.assert_array_equal(tensor, wanted)
        assert not tensor.flags.writeable
        found.release(name)
        found.release(name, slice(0, 1))
        np.testing.assert_array_equal(tensor, wanted)


def test_tensors_are_made_in_turn(tmp_path: Path) -> None:
    made: list[str] = []

    def make(name: str) -> Callable[[], np.ndarray]:
        return lambda: (made.append(name), np.full((2, 2), len(made), np.float32))[1]

    form = np.dtype(np.float32)
    plans = [PlannedTensor(name, (2, 2), form, make(name)) for name in "xy"]
    write_gguf(tmp_path / "a.gguf", {}, plans)
    assert made == ["x", "y"]
    np.testing.assert_array_equal(read_gguf(tmp_path / "a.gguf").tensor("y"), np.full((2, 2), 2))


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    ones = np.ones(3, np.float32)
    with pytest.raises(DTypeError, match="complex64"):
        write_gguf(path, {}, [planned("a", ones.astype(np.complex64))])
    with pytest.raises(CheckpointError, match="too long"):
        write_gguf(path, {}, [planned("a" * 64, ones)])
    with pytest.raises(CheckpointError, match="occurs twice"):
        write_gguf(path, {}, [planned("a", ones), planned("a", ones)])
    with pytest.raises(CheckpointError, match="not what the table says"):
        write_gguf(path, {}, [PlannedTensor("a", (2,), ones.dtype, lambda: ones)])
    assert not path.exists()


# -- by hand, and lying -----------------------------------------------------------------------


def _text(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _row(name: str, extents: tuple[int, ...], kind: int, offset: int) -> bytes:
    rank = len(extents)
    return _text(name) + struct.pack(f"<I{rank}QIQ", rank, *extents, kind, offset)


def _file(
    pairs: tuple[bytes, ...] = (),
    rows: tuple[bytes, ...] = (),
    data: bytes = b"",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(rows), len(pairs))))
    head += b"".join((*pairs, *rows))
    return head + bytes(-len(head) % 32) + data


_HUGE = (1 << 64) - 1
_DATA = bytes(256)
LIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not a GGUF file"),
    "magic": (b"GGML" + _file()[4:], "not a GGUF file"),
    "short": (_file()[:20], "truncated"),
    "version": (_file(version=1), "version of GGUF"),
    "big-endian": (_file(version=3 << 24), "big-endian"),
    "pairs": (_file(counts=(0, _HUGE)), "too many pairs"),
    "tensors": (_file(counts=(_HUGE, 0)), "too many tensors"),
    "more pairs than bytes": (_file(counts=(0, 60_000)), "do not fit"),
    "key": (_file((struct.pack("<QI", _HUGE, 4) + bytes(9),)), "too long"),
    "key twice": (_file((_pair("a", 0, b"\1"), _pair("a", 0, b"\2"))), "occurs twice"),
    "key no text": (_file((_text(b"\xff") + struct.pack("<IB", 0, 1),)), "not UTF-8"),
    "kind": (_file((_pair("a", 13, bytes(8)),)), "unknown type"),
    "string": (_file((_pair("a", 8, struct.pack("<Q", _HUGE)),)), "truncated"),
    "no text": (_file((_pair("a", 8, _text(b"ab\xc3")),)), "not UTF-8"),
    "bool": (_file((_pair("a", 7, b"\2"),)), "neither true nor false"),
    "nested": (_file((_pair("a", 9, struct.pack("<IQ", 9, 1)),)), "array of arrays"),
    "items": (_file((_pair("a", 9, struct.pack("<IQ", 6, _HUGE)),)), "too many items"),
    "items missing": (_file((_pair("a", 9, struct.pack("<IQ", 6, 1 << 20)),)), "do not fit"),
    "strings": (_file((_pair("a", 9, struct.pack("<IQ", 8, 1 << 20)),)), "do not fit"),
    "strings end": (
        _file((_pair("a", 9, struct.pack("<IQ", 8, 2) + _text("a") + struct.pack("<Q", 99)),)),
        "1 of 2 strings",
    ),
    "string no text": (
        _file((_pair("a", 9, struct.pack("<IQ", 8, 2) + _text("a") + _text(b"\xff")),)),
        "string 1 in",
    ),
    "alignment 0": (_file((_pair("general.alignment", 4, bytes(4)),)), "impossible"),
    "alignment 48": (_file((_pair("general.alignment", 4, b"\x30\0\0\0"),)), "impossible"),
    "alignment huge": (_file((_pair("general.alignment", 4, b"\0\0\0\x80"),)), "impossible"),
    "alignment text": (_file((_pair("general.alignment", 8, _text("32")),)), "impossible"),
    "name": (_file(rows=(_row("a" * 64, (2,), 0, 0),), data=_DATA), "too long"),
    "name twice": (
        _file(rows=(_row("a", (2,), 0, 0), _row("a", (2,), 0, 32)), data=_DATA),
        "occurs twice",
    ),
    "rank": (_file(rows=(_row("a", (1, 1, 1, 1, 1), 0, 0),), data=_DATA), "number of axes"),
    "no rank": (_file(rows=(_row("a", (), 0, 0) + bytes(8),), data=_DATA), "number of axes"),
    "extent": (_file(rows=(_row("a", (2, 0), 0, 0),), data=_DATA), "extent 0"),
    "product": (_file(rows=(_row("a", (1 << 32, 1 << 32), 0, 0),), data=_DATA), "outside"),
    "type": (_file(rows=(_row("a", (2,), 99, 0),), data=_DATA), "type 99"),
    "known type": (_file(rows=(_row("a", (256,), 16, 0),), data=_DATA), "IQ2_XXS"),
    "part of a block": (_file(rows=(_row("a", (33,), 2, 0),), data=_DATA), "not whole blocks"),
    "offset": (_file(rows=(_row("a", (2,), 0, _HUGE - 31),), data=_DATA), "outside"),
    "unaligned": (_file(rows=(_row("a", (2,), 0, 4),), data=_DATA), "not aligned"),
    "beyond": (_file(rows=(_row("a", (2,), 0, 256),), data=_DATA), "outside"),
    "overlap": (
        _file(rows=(_row("a", (9,), 0, 0), _row("b", (2,), 0, 32)), data=_DATA),
        "'a' and 'b'",
    ),
    "data cut": (_file(rows=(_row("a", (64,), 0, 0),), data=_DATA)[:-1], "outside"),
}


@pytest.mark.parametrize("lie", LIES)
def test_files_that_lie_are_refused(tmp_path: Path, lie: str) -> None:
    raw, says = LIES[lie]
    path = tmp_path / "a.gguf"
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=says):
        read_gguf(path)


def test_a_file_written_by_hand(tmp_path: Path) -> None:
    """The order of fields and axes is the format's, not only what our writer does."""
    pairs = (
        _pair("k", 10, struct.pack("<Q", _HUGE)),
        _pair("l", 9, struct.pack("<IQ", 1, 3) + struct.pack("3b", -1, 2, -3)),
        _pair("d", 12, struct.pack("<d", 0.1)),
    )
    rows = (_row("b", (2,), 0, 32), _row("a", (3, 2), 1, 0))
    data = np.arange(6, dtype=np.float16).tobytes().ljust(32, b"\0")
    data += np.array([7, 8], np.float32).tobytes()
    path = tmp_path / "a.gguf"
    path.write_bytes(_file(pairs, rows, data, version=2))
    found = read_gguf(path)
    assert (found.metadata["k"], found.metadata["d"]) == (_HUGE, 0.1)
    np.testing.assert_array_equal(found.metadata["l"], [-1, 2, -3])
    np.testing.assert_array_equal(found.tensor("a"), np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(found.tensor("b"), [7, 8])


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    raw = _write(tmp_path / "a.gguf").read_bytes()
    end = read_gguf(tmp_path / "a.gguf").entries["blocks"]
    path = tmp_path / "b.gguf"
    for cut in range(0, end.begin + end.nbytes, 7):
        path.write_bytes(raw[:cut])
        with pytest.raises(CheckpointError):
            read_gguf(path)
