"""What the tests of saving and loading share: damaged files by hand, equality to the last bit."""

from __future__ import annotations

import io
import json
import struct
import sys
import types
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from tests.serialization.torch_pickles import STORAGES

from treadle.serialization import load, save
from treadle.tensor import Parameter, Tensor


def container(header: object, data: bytes = b"") -> bytes:
    """A safetensors file from any header, valid or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def saved(obj: object) -> bytes:
    stream = io.BytesIO()
    save(obj, stream)
    return stream.getvalue()


def loaded(raw: bytes, **kwargs: Any) -> Any:
    return load(io.BytesIO(raw), **kwargs)


def header_of(raw: bytes) -> dict[str, Any]:
    (length,) = struct.unpack_from("<Q", raw)
    header: dict[str, Any] = json.loads(raw[8 : 8 + length])
    return header


def assert_same(x: Any, y: Any, path: str = "obj") -> None:
    """Equal types, structure and bits; NaN equals NaN, -0.0 does not equal 0.0."""
    assert type(x) is type(y), path
    if isinstance(x, dict):
        assert list(map(repr, x)) == list(map(repr, y)), path
        for (key, one), (_, other) in zip(x.items(), y.items(), strict=True):
            assert_same(one, other, f"{path}[{key!r}]")
    elif isinstance(x, list | tuple):
        assert len(x) == len(y), path
        for i, (one, other) in enumerate(zip(x, y, strict=True)):
            assert_same(one, other, f"{path}[{i}]")
    elif isinstance(x, Tensor):
        assert (str(x.device), x.name, x.format) == (str(y.device), y.name, y.format), path
        assert_same(x.numpy(), y.numpy(), path)
    elif isinstance(x, np.ndarray | np.generic):
        assert (x.dtype, x.shape) == (y.dtype, y.shape), path
        assert x.tobytes() == y.tobytes(), path
    elif isinstance(x, set | frozenset):
        assert sorted(map(repr, x)) == sorted(map(repr, y)), path
    else:
        assert repr(x) == repr(y), path


@pytest.fixture
def state() -> dict[str, Any]:
    """A small object with a node of every kind."""
    weight = Parameter(np.arange(6, dtype=np.float32).reshape(2, 3), name="fc")
    return {
        "model": OrderedDict(weight=weight, tied=weight, mask=np.array([True, False])),
        "optimizer": {
            "lr": 0.1,
            "betas": (0.9, 0.999),
            0: [Tensor(np.array([1, 2], np.int32)), None, True],
        },
        "numbers": [2**70, -1, float("inf"), 1 + 2j, np.float32(0.5), np.dtype("int16")],
        "names": {"a", "b"},
        "seen": frozenset({(1, 2)}),
        "rng": b"\x00\xff",
        "type": np.int64,
    }


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
