"""Content of an ONNX model: its tensors, the memory they may take, and data beside the file."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from treadle.base.errors import LoadError

FREE, FACTOR = 256 << 20, 16
"""Bytes that tensors may take by default: so many, and so many times what the files have."""
DAMAGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError)
"""Errors of ONNX's own functions for values that its format does not allow."""


class MemoryBudget:
    """The memory that is left for what a model holds and makes of its constants.

    Args:
        name: of the model, for messages.
        limit: bytes; None: `FREE`, and `FACTOR` for each byte of the model's files.
    """

    def __init__(self, name: str, limit: int | None = None) -> None:
        self._name = name
        self._given = limit
        self._limit = FREE if limit is None else limit
        self._taken = 0

    def read(self, count: int) -> None:
        """Raise the limit for a model that has `count` bytes in files, unless a limit is given."""
        if self._given is None:
            self._limit += FACTOR * count

    def take(self, count: int, what: str) -> None:
        """Count bytes before they are made.

        Raises:
            LoadError: there is no room for them.
        """
        self.ask(count, what)
        self._taken += count

    def ask(self, count: int, what: str) -> None:
        """Raise unless there is room for so many bytes.

        Raises:
            LoadError: there is none.
        """
        if self._taken + count > self._limit:
            raise LoadError(
                self._name,
                f"{what} takes {count} bytes, and the model then more than the limit of "
                f"{self._limit}",
                hint="if you trust the file, pass a larger limit: load(path, limit=1 << 34)",
            )


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every dense tensor, those in nodes, functions and graphs inside of nodes included."""
    yield from (t for t in _stored(model) if isinstance(t, onnx.TensorProto))


def _stored(model: onnx.ModelProto) -> Iterator[onnx.TensorProto | onnx.SparseTensorProto]:
    """Every tensor; a sparse one before its two parts."""
    bodies: list[Any] = [model.graph, *model.functions]
    while bodies:
        body = bodies.pop()
        sparse: list[onnx.SparseTensorProto] = []
        if isinstance(body, onnx.GraphProto):
            yield from body.initializer
            sparse += body.sparse_initializer
        for attribute in (a for node in body.node for a in node.attribute):
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                sparse.append(attribute.sparse_tensor)
            sparse += attribute.sparse_tensors
            if attribute.HasField("g"):
                bodies.append(attribute.g)
            bodies += attribute.graphs
        for one in sparse:
            yield one
            yield one.values
            yield one.indices


def take_all(model: onnx.ModelProto, folder: Path | None, name: str, room: MemoryBudget) -> None:
    """Count every tensor, and fetch the data that lies in other files.

    Raises:
        LoadError: a tensor is damaged, there is no room for it, or its data is not in the folder.
    """
    seen: set[Path] = set()
    for tensor in _stored(model):
        own = tensor if isinstance(tensor, onnx.TensorProto) else tensor.values
        room.take(_bytes(tensor.dims, own.data_type, own.name, name), f"tensor {own.name!r}")
        if not isinstance(tensor, onnx.TensorProto):
            continue
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _fetch(tensor, folder, name, room, seen)
        if tensor.HasField("raw_data"):
            try:
                numpy_helper.to_array(tensor)
            except DAMAGE as error:
                raise LoadError(name, f"tensor {tensor.name!r} is damaged: {error}") from error


def _bytes(dims: Any, code: int, tensor: str, name: str) -> int:
    if any(d < 0 for d in dims):
        raise LoadError(name, f"tensor {tensor!r} has extents {list(dims)}")
    try:
        size: int = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code)).itemsize
    except (KeyError, TypeError):
        raise LoadError(name, f"tensor {tensor!r} has no element type that exists") from None
    return int(math.prod(dims)) * size


def dense(sparse: onnx.SparseTensorProto, name: str) -> Any:
    """A sparse tensor as an array.

    Raises:
        LoadError: its places do not fit it.
    """
    values, places = (numpy_helper.to_array(t) for t in (sparse.values, sparse.indices))
    extents = tuple(sparse.dims)
    array = np.zeros(extents, values.dtype)
    bounds = np.array([array.size] if places.ndim == 1 else extents)
    wide = places.reshape(-1, 1) if places.ndim == 1 else places
    fits = wide.ndim == 2 and wide.shape == (values.size, bounds.size)
    if not fits or (wide < 0).any() or (wide >= bounds).any():
        problem = f"the places of sparse tensor {sparse.values.name!r} do not fit it"
        raise LoadError(name, problem, saw=f"indices {places.shape}, dims {list(extents)}")
    if places.ndim == 1:
        array.reshape(-1)[places] = values.reshape(-1)
    else:
        array[tuple(places.T)] = values.reshape(-1)
    return array


# -- data beside the file ----------------------------------------------------------------------


def plain_file(path: Path) -> int:
    """A descriptor to read a file with; devices, pipes and folders are refused and not waited for.

    Raises:
        OSError: there is no such file, or it is of another kind.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a plain file")
    return descriptor


def _fetch(
    tensor: onnx.TensorProto, folder: Path | None, name: str, room: MemoryBudget, seen: set[Path]
) -> None:
    """Put the data of a tensor into it.

    Raises:
        LoadError: the data is not a plain file of the model's folder, or not all there.
    """
    entries = {e.key: e.value for e in tensor.external_data}
    where = entries.get("location", "")

    def fail(problem: str) -> LoadError:
        text = f"the data of tensor {tensor.name!r} {problem}"
        return LoadError(name, text, saw=f"location {where!r}", hint="keep it beside the model")

    if folder is None:
        raise fail("lies in another file, and the model was not read from one")
    path = _inside(folder, where)
    if path is None:
        raise fail("is not in the model's folder")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", -1))
    except ValueError:
        raise fail("has an offset or length that is not a number") from None
    try:
        descriptor = plain_file(path)
    except OSError as error:
        raise fail(f"cannot be read: {error}") from error
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_nlink != 1:
            raise fail("is not in the model's folder alone")
        length = found.st_size - offset if length < 0 else length
        if not 0 <= offset <= offset + length <= found.st_size:
            raise fail(f"is not all there: {length} bytes at {offset} of {found.st_size}")
        if path not in seen:
            seen.add(path)
            room.read(found.st_size)
        room.take(length, f"the data of tensor {tensor.name!r}")
        file.seek(offset)
        tensor.raw_data = file.read(length)
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def _inside(folder: Path, where: str) -> Path | None:
    """The file, if it is in the folder and no link leads to it."""
    relative = Path(where)
    if not where or relative.is_absolute() or ".." in relative.parts or "\0" in where:
        return None
    path = folder / relative
    try:
        if path.resolve().parent != (folder.resolve() / relative.parent) or path.is_symlink():
            return None
        found = path.lstat()
    except OSError:
        return None
    return path if stat.S_ISREG(found.st_mode) else None
