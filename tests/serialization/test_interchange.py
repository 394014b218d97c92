"""Our files in the hands of others, and theirs in ours."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from tests.serialization.conftest import assert_same, saved

from treadle.base.errors import CheckpointError
from treadle.serialization import load, save
from treadle.tensor import Tensor

GOLDEN = Path(__file__).parent / "golden"


def test_safetensors_reads_ours(state: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save(state, path)
    theirs = safetensors.numpy.load_file(path)
    np.testing.assert_array_equal(theirs["model.weight"], state["model"]["weight"].numpy())
    np.testing.assert_array_equal(theirs["model.mask"], [True, False])


def test_safetensors_reads_our_bfloat16_and_complex() -> None:
    raw = saved({"b": np.ones(3, ml_dtypes.bfloat16), "c": np.ones(2, np.complex64)})
    theirs = dict(safetensors.deserialize(raw))
    assert (theirs["b"]["dtype"], theirs["c"]["dtype"]) == ("BF16", "C64")
    assert bytes(theirs["b"]["data"]) == np.ones(3, ml_dtypes.bfloat16).tobytes()


def test_ours_reads_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    arrays = {
        "w": np.arange(6, dtype=np.float64).reshape(2, 3),
        "mask": np.array([True, False]),
        "empty": np.zeros((0, 3), np.int64),
        "scalar": np.array(3, np.uint8),
    }
    safetensors.numpy.save_file(arrays, path, metadata={"format": "np"})
    back = load(path)
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert type(back[name]) is Tensor
        assert_same(array, back[name].numpy())
    moved = load(path, map_location="cpu0")
    assert {str(tensor.device) for tensor in moved.values()} == {"cpu0:0"}


def test_a_tool_may_copy_our_file(state: dict[str, Any], tmp_path: Path) -> None:
    """Other tools order tensors and header keys in their own way; the content still verifies."""
    path = tmp_path / "x.safetensors"
    save(state, path)
    with safetensors.safe_open(path, "numpy") as f:
        metadata = f.metadata()
        arrays = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 - no mapping
    safetensors.numpy.save_file(arrays, path, metadata=metadata)
    assert_same(state, load(path))


def test_a_tool_may_not_change_our_file(state: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save(state, path)
    with safetensors.safe_open(path, "numpy") as f:
        metadata = f.metadata()
        arrays = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 - no mapping
    arrays["model.weight"] = arrays["model.weight"] + 1
    safetensors.numpy.save_file(arrays, path, metadata=metadata)
    with pytest.raises(CheckpointError, match=r"checksum of tensor 'model\.weight'"):
        load(path)


def test_files_of_earlier_releases(state: dict[str, Any]) -> None:
    """One file per format version, never rewritten: what users have on disk must stay readable."""
    assert_same(state, load(GOLDEN / "format-1.safetensors", map_location="xpux"))


def _of_many_tensors(count: int) -> bytes:
    """A file of tensors without elements: a long header, and no data."""
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"t{i}": entry for i in range(count)}).encode()
    return struct.pack("<Q", len(header)) + header


def test_a_file_of_many_empty_tensors_takes_time_by_their_number(tmp_path: Path) -> None:
    """100,000 took 11 s: a file of 6 MB that says nothing."""
    seconds = []
    for count in (4_000, 32_000):
        path = tmp_path / f"{count}.safetensors"
        path.write_bytes(_of_many_tensors(count))
        spent = []
        for _ in range(2):
            start = time.process_time()
            assert len(load(path)) == count
            spent.append(time.process_time() - start)
        seconds.append(min(spent))
    assert seconds[1] < 24 * seconds[0], "eight times the tensors"
    assert seconds[1] / 32_000 < 1e-4, "a tensor took 110 us; about 20 are needed"


def test_names_of_tensors_occur_once(tmp_path: Path) -> None:
    data = _of_many_tensors(2).replace(b'"t1"', b'"t0"')
    (tmp_path / "twice.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="t0"):
        load(tmp_path / "twice.safetensors")
