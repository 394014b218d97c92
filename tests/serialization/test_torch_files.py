"""Checkpoints that PyTorch wrote."""

from __future__ import annotations

import pickle
import random
import re
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serialization.conftest import loaded
from tests.serialization.torch_pickles import (
    STORAGES,
    Storage,
    Strided,
    Trained,
    whole,
    written,
)

from treadle.base.errors import CheckpointError
from treadle.serialization import load
from treadle.tensor import Parameter, Tensor


def test_state_dict(torch: Any, tmp_path: Path) -> None:
    weight = whole(np.arange(6, dtype=np.float32).reshape(2, 3))
    state = OrderedDict(weight=weight, tied=weight, bias=Trained(whole(np.ones(2, np.float32))))
    vars(state)["_metadata"] = OrderedDict({"": {"version": 1}})
    path = tmp_path / "net.pt"
    path.write_bytes(written({"net": state, "epoch": 3, "lr": 0.1}))
    found = load(path)
    assert type(found["net"]) is OrderedDict and found["epoch"] == 3 and found["lr"] == 0.1
    assert type(found["net"]["weight"]) is Tensor and type(found["net"]["bias"]) is Parameter
    assert found["net"]["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["net"]["tied"] is found["net"]["weight"]


@pytest.mark.parametrize("dtype", STORAGES.values())
def test_dtypes(torch: Any, dtype: Any) -> None:
    array = np.array([[0, 1], [1, 0]], dtype)
    found = loaded(written(whole(array)))
    assert found.dtype == dtype and (found.numpy() == array).all()


def test_views(torch: Any) -> None:
    storage = Storage(np.arange(24, dtype=np.float32))
    a = storage.data.reshape(2, 3, 4)
    cases = [
        (Strided(storage, 4, (2, 2, 4), (12, 4, 1)), a[:, 1:]),
        (Strided(storage, 0, (4, 2, 3), (1, 12, 4)), a.transpose(2, 0, 1)),
        (Strided(storage, 23, (), ()), a[1, 2, 3]),
        (Strided(storage, 5, (3,), (0,)), np.full(3, 5)),
        (Strided(storage, 24, (0, 3), (3, 1)), np.zeros((0, 3))),
        (Strided(storage, 1, (1, 2), (2**61, 1)), [[1, 2]]),
    ]
    found = loaded(written([tensor for tensor, _ in cases]))
    for tensor, (_, wanted) in zip(found, cases, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), wanted)


def test_devices(torch: Any) -> None:
    """PyTorch's names are not ours: tensors go to the default device, or where one is told."""
    raw = written(whole(np.ones(2, np.float32)))
    assert str(loaded(raw).device) == "xpux:0"
    assert str(loaded(raw, map_location="cpu1").device) == "cpu1:0"
    assert (
        str(loaded(raw, map_location=lambda name: "cpu2" if name == "" else "").device) == "cpu2:0"
    )


FLOATS = np.arange(4, dtype=np.float32)
MALFORMED: dict[str, tuple[Any, str]] = {
    "beyond": (Strided(Storage(FLOATS), 0, (5,), (1,)), "beyond its storage"),
    "beyond by the offset": (Strided(Storage(FLOATS), 4, (1,), (1,)), "beyond its storage"),
    "beyond by the stride": (Strided(Storage(FLOATS), 0, (2,), (4,)), "beyond its storage"),
    "negative offset": (Strided(Storage(FLOATS), -1, (1,), (1,)), "impossible shape"),
    "negative stride": (Strided(Storage(FLOATS), 3, (2,), (-1,)), "impossible shape"),
    "negative shape": (Strided(Storage(FLOATS), 0, (-1, -1), (1, 1)), "impossible shape"),
    "stride of 2^70": (Strided(Storage(FLOATS), 0, (2,), (2**70,)), "impossible shape"),
    "missing stride": (Strided(Storage(FLOATS), 0, (2, 2), (1,)), "2 axes and 1 strides"),
    "terabytes": (Strided(Storage(FLOATS), 0, (2**40,), (0,)), "used again and again"),
    "2^120": (Strided(Storage(FLOATS), 0, (2**60, 2**60), (0, 0)), "used again and again"),
    "overflow behind a zero": (
        Strided(Storage(FLOATS), 0, (0, 2**61, 2**61), (0, 0, 0)),
        "beyond 2^63 bytes",
    ),
    "no storage": (Strided(FLOATS, 0, (1,), (1,)), "no storage"),
    "shape a list": (Strided(Storage(FLOATS), 0, [1], (1,)), "a tensor is malformed"),
    "longer than its member": (Storage(FLOATS, count=5), "16 bytes, too few for 5"),
    "negative length": (Storage(FLOATS, count=-1), "too few for -1"),
    "another member": (Storage(FLOATS, key="../../etc/passwd"), "has no member"),
    "booleans of 2": (
        Strided(Storage(np.array([0, 2], np.uint8), kind="BoolStorage"), 0, (2,), (1,)),
        "booleans other than",
    ),
    "unknown names": ({"weight": print}, "the pickle names '__builtin__.print'"),
    "a name behind a known one": ([np.ones(2).__class__, sys.exit], "the pickle names"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_tensors_that_are_refused(case: str, torch: Any) -> None:
    obj, problem = MALFORMED[case]
    with pytest.raises(CheckpointError, match=re.escape(problem)):
        loaded(written(obj))


def test_archives_that_are_refused(torch: Any) -> None:
    tensor = whole(np.zeros(1000, np.float32))
    for raw, problem in (
        (written(tensor, zipfile.ZIP_DEFLATED), "is compressed"),
        (written(tensor, order=b"big"), "byte order"),
        (written(tensor)[:-30], "a zip archive, but no .pt"),
    ):
        with pytest.raises(CheckpointError, match=problem):
            loaded(raw)


def test_files_of_old_versions_are_named() -> None:
    raw = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2)
    with pytest.raises(CheckpointError, match=r"PyTorch file of before version 1\.6"):
        loaded(raw)


def test_random_damage(torch: Any) -> None:
    raw = written({"a": whole(FLOATS), "b": [whole(np.ones((2, 2), np.int64)), "text"]})
    chance = random.Random(0)
    refusals = 0
    for _ in range(1000):
        damaged = bytearray(raw)
        for _ in range(chance.choice([1, 1, 4])):
            damaged[chance.randrange(4, len(raw))] = chance.randrange(256)
        try:
            loaded(bytes(damaged))
        except CheckpointError:
            refusals += 1
    assert refusals > 300
