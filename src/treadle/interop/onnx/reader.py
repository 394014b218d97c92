"""Reading ONNX files: nothing in a file is trusted, and no file outside its folder is opened."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from treadle.base.errors import LoadError, TreadleError
from treadle.interop.onnx.model import OnnxModel

OLDEST, NEWEST = 1, onnx.defs.onnx_opset_version()
"""Versions of ONNX's own operators that are read."""
MOST_NODES = 1_000_000
MOST_BYTES = 1 << 36
"""Of one tensor: more than a machine has, and what a damaged file asks for."""
_DAMAGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError)
"""What ONNX's own functions raise for values that its format does not allow."""


def load(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> OnnxModel:
    """Read an ONNX model.

    Args:
        source: a path, the bytes of a file, or a model that is read already. Data beside the file
            is read from its folder only.

    Returns:
        A module; see `OnnxModel`.

    Raises:
        LoadError: the file is damaged, of a version that is not known, or reaches outside its
            folder.
        FileNotFoundError: there is no such file.
    """
    model, name = read(source)
    try:
        return OnnxModel(model)
    except (TreadleError, OSError):
        raise
    except _DAMAGE as error:
        raise _partly(name, error) from error


def read(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
) -> tuple[onnx.ModelProto, str]:
    """A model as its file has it, checked, with data from beside the file; and what to call it.

    Raises:
        LoadError, FileNotFoundError: as `load`.
    """
    if isinstance(source, onnx.ModelProto):
        model, folder, name = source, None, "the model"
    elif isinstance(source, bytes):
        model, folder, name = _parsed(source, "the model"), None, "the model"
    else:
        path = Path(source)
        model, folder, name = _parsed(path.read_bytes(), str(path)), path.parent, str(path)
    _check(model, name)
    try:
        for tensor in _tensors(model):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                _fetch(tensor, folder, name)
            _check_tensor(tensor, name)
    except (TreadleError, OSError):
        raise
    except _DAMAGE as error:
        raise _partly(name, error) from error
    return model, name


def _partly(name: str, error: Exception) -> LoadError:
    problem = f"a part of it cannot be read: {type(error).__name__}: {error}"
    return LoadError(name, problem, hint="check the file")


def _parsed(data: bytes, name: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise LoadError(name, f"it is no ONNX model: {error}", hint="check the file") from error
    return model


def _check(model: onnx.ModelProto, name: str) -> None:
    if not model.HasField("graph") or not model.opset_import:
        raise LoadError(name, "it has no graph, or names no version of its operators")
    count = len(model.graph.node)
    if count > MOST_NODES:
        raise LoadError(name, f"it has {count} nodes, more than {MOST_NODES}")
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and not OLDEST <= entry.version <= NEWEST:
            raise LoadError(
                name,
                f"it needs opset {entry.version}; {OLDEST} to {NEWEST} are read",
                hint="convert it with onnx.version_converter, or install a newer onnx",
            )
    try:
        onnx.checker.check_model(_without_data(model))
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        text = str(error).strip().partition("\n")[0]
        raise LoadError(name, f"it is malformed: {text}", hint="check the file") from error


def _without_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """What the checker looks at: it would open files by itself."""
    if not any(t.data_location == onnx.TensorProto.EXTERNAL for t in _tensors(model)):
        return model
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for tensor in _tensors(bare):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.ClearField("dims")
            tensor.dims.append(0)
    return bare


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor, those in nodes and in graphs inside of nodes included."""
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield sparse.values
            yield sparse.indices
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                if attribute.HasField("g"):
                    graphs.append(attribute.g)
                graphs += attribute.graphs


# -- data beside the file ----------------------------------------------------------------------


def _check_tensor(tensor: onnx.TensorProto, name: str) -> None:
    if any(d < 0 for d in tensor.dims) or math.prod(tensor.dims) > MOST_BYTES:
        raise LoadError(name, f"tensor {tensor.name!r} has extents {list(tensor.dims)}")
    if tensor.HasField("raw_data"):
        try:
            numpy_helper.to_array(tensor)
        except _DAMAGE as error:
            raise LoadError(name, f"tensor {tensor.name!r} is damaged: {error}") from error


def _fetch(tensor: onnx.TensorProto, folder: Path | None, name: str) -> None:
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
        raise fail("lies in another file, and the model in none")
    path = _inside(folder, where)
    if path is None:
        raise fail("is not in the model's folder")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", -1))
    except ValueError:
        raise fail("has an offset or length that is no number") from None
    size = path.stat().st_size
    length = size - offset if length < 0 else length
    if not 0 <= offset <= offset + length <= size:
        raise fail(f"is not all there: {length} bytes at {offset} of {size}")
    with path.open("rb") as file:
        file.seek(offset)
        tensor.raw_data = file.read(length)
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def _inside(folder: Path, where: str) -> Path | None:
    """The file, if it is a plain one in the folder that no other name leads to."""
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
    return path if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 else None
