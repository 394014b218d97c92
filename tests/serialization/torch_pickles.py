"""Files as `torch.save` writes them, made without PyTorch."""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from collections import OrderedDict
from typing import Any

import ml_dtypes
import numpy as np

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
