"""Damaged files: each is refused by name, none is half believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serialization.conftest import container, header_of, loaded, saved

from treadle.base.errors import CheckpointError
from treadle.base.files import sealed, strict_json
from treadle.base.files.container import read_header
from treadle.base.files.source import SizedStream
from treadle.serialization import load, save


@pytest.mark.parametrize("sixteenth", range(16))
def test_truncated(sixteenth: int, state: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "cut.treadle"
    raw = saved(state)
    path.write_bytes(raw[: len(raw) * sixteenth // 16])
    with pytest.raises(CheckpointError, match=r"cut\.treadle: (truncated|the file is empty)"):
        load(path)


def test_cut_at_every_byte() -> None:
    raw = saved({"w": np.arange(4, dtype=np.uint8)})
    for size in range(len(raw)):
        with pytest.raises(CheckpointError):
            loaded(raw[:size])


@pytest.mark.parametrize("junk", [b"\0", b"\n", b"x" * 100])
def test_trailing_junk(junk: bytes, state: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="bytes after the last tensor"):
        loaded(saved(state) + junk)


def test_every_flipped_bit_is_found() -> None:
    raw = saved({"w": np.arange(3, dtype=np.float32), "lr": 0.1, "é": [True, None, "text"]})
    for position in range(len(raw)):
        for bit in range(8):
            bad = bytearray(raw)
            bad[position] ^= 1 << bit
            with pytest.raises(CheckpointError):
                loaded(bytes(bad))
                pytest.fail(f"bit {bit} of byte {position} can be flipped unseen")


def test_flipped_data_names_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "flipped"
    save({"a": np.zeros(2), "b": {"c": np.ones(2)}}, path)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert caught.value.where == str(path)
    assert caught.value.problem == "checksum of tensor 'b.c' does not match: its data is damaged"


def rewritten(raw: bytes, change: dict[str, Any], *, sign: bool = True) -> bytes:
    """The file with fields of its manifest replaced, and the digest made to fit."""
    header = header_of(raw)
    (length,) = np.frombuffer(raw[:8], "<u8")
    manifest = json.loads(header["__metadata__"][sealed.MANIFEST]) | change
    text = strict_json.canonical(manifest).decode()
    header["__metadata__"][sealed.MANIFEST] = text
    if sign:
        entries = read_header(checkpoint_source(raw)).entries
        header["__metadata__"][sealed.DIGEST] = sealed._digest(text, entries)
    return container(header, raw[8 + int(length) :])


def checkpoint_source(raw: bytes) -> SizedStream:
    import io

    return SizedStream(io.BytesIO(raw), len(raw), "<test>")


def test_rewritten_manifest_loads_when_nothing_changes(state: dict[str, Any]) -> None:
    assert loaded(rewritten(saved([1, 2]), {})) == [1, 2]


def test_changed_manifest_is_found() -> None:
    with pytest.raises(CheckpointError, match="checksum of the manifest"):
        loaded(rewritten(saved([1, 2]), {"root": 5}, sign=False))


def test_newer_version_names_both() -> None:
    with pytest.raises(CheckpointError) as caught:
        loaded(rewritten(saved([1]), {"version": 2, "producer": "treadle 9.9"}, sign=False))
    text = str(caught.value)
    assert "format version 2 is newer than 1, the newest this Treadle reads" in text
    assert "treadle 9.9" in text
    assert "upgrade Treadle" in text


@pytest.mark.parametrize("version", [0, -1, 1.0, True, "1", None, [1]])
def test_impossible_versions(version: object) -> None:
    with pytest.raises(CheckpointError, match="no format version"):
        loaded(rewritten(saved([1]), {"version": version}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not one of Treadle's"),
        ({"nodes": None}, "no table of nodes"),
        ({"nodes": [3]}, "node 0 of the object tree is malformed"),
        ({"nodes": [[]]}, "node 0 of the object tree is malformed"),
        ({"nodes": [["exec", "import os"]]}, "unknown kind 'exec'"),
        ({"nodes": [["list"]]}, "malformed"),
        ({"nodes": [["list", [1], 2]]}, "malformed"),
        ({"nodes": [["list", 5]]}, "malformed"),
        ({"nodes": [["list", [[0]]]]}, "does not refer to an earlier node"),
        ({"nodes": [["list", [[-1]]]]}, "does not refer to an earlier node"),
        ({"nodes": [["list", [[True]]]]}, "does not refer to an earlier node"),
        ({"nodes": [["list", [[0, 0]]]]}, "malformed"),
        ({"nodes": [["list", [{}]]]}, "is not a value"),
        ({"nodes": [["list", [2**65]]]}, "is not a value"),
        ({"nodes": [["dict", [["a", 1], ["a", 2]]]]}, "a key is repeated"),
        ({"nodes": [["dict", [["a"]]]]}, "malformed"),
        ({"nodes": [["list", []], ["dict", [[[0], 1]]]]}, "cannot be a key"),
        ({"nodes": [["set", [1, 1]]]}, "repeated"),
        ({"nodes": [["tuple", [1]], ["tuple", [[0]]], ["set", [[1]]]]}, "cannot be a key"),
        ({"nodes": [["int", "zz"]]}, "malformed"),
        ({"nodes": [["float", 3]]}, "malformed"),
        ({"nodes": [["float", "0x1p99999"]]}, "malformed"),
        ({"nodes": [["complex", "nan"]]}, "malformed"),
        ({"nodes": [["dtype", "object"]]}, "malformed"),
        ({"nodes": [["scalar", "float32", "00"]]}, "is not a float32"),
        ({"nodes": [["scalar", "bool", "02"]]}, "is not a bool"),
        ({"nodes": [["tensor", "w", "Tensor", "cpux"]]}, "malformed"),
        ({"nodes": [["tensor", "w", "Tensor", 0, {}]]}, "malformed"),
        ({"nodes": [["tensor", "w", "Tensor", "cpux", {"data": "x"}]]}, "malformed"),
        ({"nodes": [["tensor", "w", "Tensor", "cpux", {"name": 1}]]}, "malformed"),
        ({"nodes": [["tensor", "w", "Module", "cpux", {}]]}, "unknown class 'Module'"),
        ({"nodes": [["array", "x"]]}, "missing or used twice"),
        ({"nodes": [["array", "w"], ["array", "w"]]}, "missing or used twice"),
        ({"nodes": [], "root": 1}, "belongs to no object"),
        ({"root": [9]}, "no root"),
        ({"root": {}}, "no root"),
        ({"sha256": {}}, "does not list the tensors"),
        ({"sha256": None}, "does not list the tensors"),
        ({"sha256": {"w": None}}, "checksum of tensor 'w'"),
    ],
    ids=lambda x: json.dumps(x) if isinstance(x, dict) else "",
)
def test_hostile_manifest(change: dict[str, Any], message: str) -> None:
    raw = saved({"w": np.zeros(2)})
    with pytest.raises(CheckpointError, match="<BytesIO>: ") as caught:
        loaded(rewritten(raw, change))
    assert message in str(caught.value)


def test_manifest_or_digest_missing() -> None:
    raw = saved([1])
    for key in (sealed.MANIFEST, sealed.DIGEST):
        header = header_of(raw)
        del header["__metadata__"][key]
        with pytest.raises(CheckpointError, match="manifest"):
            loaded(container(header))


def test_shared_nodes_cannot_explode() -> None:
    """Forty doublings would be a list of 2^40 leaves if references were copied out."""
    nodes = [["list", [1, 1]], *(["list", [[i], [i]]] for i in range(40))]
    back = loaded(rewritten(saved([]), {"nodes": nodes, "root": [40]}))
    assert back[0] is back[1]
