"""Checkpoints that PyTorch wrote."""

from __future__ import annotations

import io
import pickle
import random
import re
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.serialization.conftest import loaded

from treadle.base.errors import CheckpointError
from treadle.serialization import load
from treadle.tensor import Parameter, Tensor

STORAGES = {
    "FloatStorage": np.float32,
    "DoubleStorage": np.float64,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
    "ComplexFloatStorage": np.complex64,
}


class Storage:
    """What the pickler gives a persistent id."""

    def __init__(self, data: np.ndarray[Any, Any], **instead: Any) -> None:
        kind = next(name for name, dtype in STORAGES.items() if data.dtype == dtype)
        self.data = data
        self.fields = {"kind": kind, "key": None, "count": data.size} | instead


class Strided:
    """A tensor: a storage, where it begins, its shape and its strides in elements."""

    def __init__(self, storage: Any, offset: Any, shape: Any, strides: Any) -> None:
        self.arguments = storage, offset, shape, strides

    def __reduce__(self) -> Any:
        rebuild = sys.modules["torch._utils"]._rebuild_tensor_v2  # type: ignore[attr-defined]
        return rebuild, (*self.arguments, False, OrderedDict())


class Trained:
    """A parameter."""

    def __init__(self, tensor: Strided) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        rebuild = sys.modules["torch._utils"]._rebuild_parameter  # type: ignore[attr-defined]
        return rebuild, (self.tensor, True, OrderedDict())


def whole(array: np.ndarray[Any, Any]) -> Strided:
    strides = tuple(s // array.itemsize for s in array.strides)
    return Strided(Storage(array.reshape(-1)), 0, array.shape, strides)


class Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 2)
        self.storages: list[Storage] = []

    def persistent_id(self, x: Any) -> Any:
        if not isinstance(x, Storage):
            return None
        if x not in self.storages:
            self.storages.append(x)
        cls = getattr(sys.modules["torch"], x.fields["kind"])
        key = x.fields["key"] or str(self.storages.index(x))
        return "storage", cls, key, "cuda:0", x.fields["count"]


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stand-ins for the names in PyTorch's pickles, while something is written."""
    package, inner = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in STORAGES:
        setattr(package, name, type(name, (), {"__module__": "torch"}))
    for name in ("_rebuild_tensor_v2", "_rebuild_parameter"):
        function = types.FunctionType((lambda: None).__code__, {}, name)
        function.__module__, function.__qualname__ = "torch._utils", name
        setattr(inner, name, function)
    monkeypatch.setitem(sys.modules, "torch", package)
    monkeypatch.setitem(sys.modules, "torch._utils", inner)
    return package


def written(obj: Any, compression: int = zipfile.ZIP_STORED, order: bytes = b"little") -> bytes:
    stream, inner = io.BytesIO(), io.BytesIO()
    writer = Writer(inner)
    writer.dump(obj)
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr("net/data.pkl", inner.getvalue())
        archive.writestr("net/byteorder", order)
        for i, storage in enumerate(writer.storages):
            archive.writestr(f"net/data/{i}", storage.data.tobytes())
        archive.writestr("net/version", b"3\n")
    return stream.getvalue()


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
