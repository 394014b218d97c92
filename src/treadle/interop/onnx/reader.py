"""Reading ONNX files: nothing in a file is trusted, and no file outside its folder is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from treadle.base.errors import LoadError, OutOfMemory, TreadleError
from treadle.interop.onnx.model import OnnxModel
from treadle.interop.onnx.stored import DAMAGE, MemoryBudget, plain_file, take_all, tensors

OLDEST, NEWEST = 1, onnx.defs.onnx_opset_version()
"""Versions of ONNX's own operators that are read."""
MOST_NODES = 1_000_000


def load(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto, *, limit: int | None = None
) -> OnnxModel:
    """Read an ONNX model.

    Args:
        source: a path, the bytes of a file, or a model that is read already. Data beside the file
            is read from its folder only.
        limit: bytes that all its tensors and what nodes make of constants may take. By default
            256 MiB, and 16 for each byte of the file and of those that its data lies in.

    Returns:
        A module; see `OnnxModel`.

    Raises:
        LoadError: the file is damaged, of a version that is not known, asks for more memory than
            the limit, or reaches outside its folder.
        OutOfMemory: the machine has not the memory that it asks for.
        FileNotFoundError: there is no such file.
    """
    model, name, room = _read(source, limit)
    with _errors_of(name):
        return OnnxModel(model, room)


def read(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """A model as its file has it, checked, with data from beside the file; and what to call it.

    Raises:
        LoadError, OutOfMemory, FileNotFoundError: as `load`.
    """
    return _read(source, None)[:2]


def _read(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto, limit: int | None
) -> tuple[onnx.ModelProto, str, MemoryBudget]:
    name, folder = "the model", None
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        name, folder = str(path), path.parent
        source = _contents(path)
    room = MemoryBudget(name, limit)
    with _errors_of(name):
        model = _parsed(source, name) if isinstance(source, bytes) else source
        room.read(len(source) if isinstance(source, bytes) else source.ByteSize())
        _check(model, name)
        take_all(model, folder, name, room)
    return model, name, room


def _contents(path: Path) -> bytes:
    try:
        descriptor = plain_file(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LoadError(str(path), f"it cannot be read: {error}") from error
    with open(descriptor, "rb") as file:
        return file.read()


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Turn what ONNX's own functions raise for a damaged file into an error of ours."""
    try:
        yield
    except (TreadleError, OSError):
        raise
    except MemoryError as error:
        raise OutOfMemory(name, f"it needs more memory than is available: {error}") from error
    except DAMAGE as error:
        raise _partly(name, error) from error


def _partly(name: str, error: Exception) -> LoadError:
    problem = f"a part of it cannot be read: {type(error).__name__}: {error}"
    return LoadError(name, problem, hint="check the file")


def _parsed(data: bytes, name: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise LoadError(name, f"it is not an ONNX model: {error}", hint="check the file") from error
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
    """Return the model for the checker, which would open files by itself."""
    if not any(t.data_location == onnx.TensorProto.EXTERNAL for t in tensors(model)):
        return model
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for tensor in tensors(bare):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.ClearField("dims")
            tensor.dims.append(0)
    return bare
