"""PyTorch's checkpoints: zip archives of a pickle and of the storages that its tensors lie in.

The pickle names storages by persistent ids (`"storage"`, class, key, location, length), which are
members `data/<key>` of the archive, stored without compression.
Format: https://github.com/pytorch/pytorch/blob/main/torch/serialization.py
"""

from __future__ import annotations

import io
import math
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.base import dtype as dtypes
from treadle.base.array import Array
from treadle.base.files.container import MAX_NDIM
from treadle.base.files.source import SizedStream
from treadle.base.files.strict_json import shorten
from treadle.serialization.pickle_machine import (
    AllowedGlobals,
    Callee,
    Interrupted,
    Malformed,
    Meter,
    kind,
    run,
)
from treadle.serialization.pickled_tensors import finder
from treadle.serialization.pickled_values import Values, check_booleans, check_tree
from treadle.tensor import Parameter, Tensor

_STORAGES = {
    "FloatStorage": dtypes.float32,
    "DoubleStorage": dtypes.float64,
    "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16,
    "LongStorage": dtypes.int64,
    "IntStorage": dtypes.int32,
    "ShortStorage": dtypes.int16,
    "CharStorage": dtypes.int8,
    "ByteStorage": dtypes.uint8,
    "BoolStorage": dtypes.bool_,
    "ComplexFloatStorage": dtypes.complex64,
}
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)
_PICKLE = "/data.pkl"


def load_torch(source: SizedStream, locate: Callable[[str], str]) -> object:
    """Read what `torch.save` wrote of tensors, plain values and containers.

    Tensors go to the default device, whatever PyTorch's names were, unless `locate("")` names one.

    Raises:
        CheckpointError: the file is damaged, another zip archive, or names anything else.
    """
    try:
        archive = Archive(source, Meter(source.size))
        content = archive.read(_PICKLE)
        order = archive.read("/byteorder") if archive.has("/byteorder") else b"little"
        if order.decode("ascii", "replace") != sys.byteorder:
            raise Malformed(f"byte order {shorten(order)} is not that of this machine")
    except Malformed as error:
        raise source.error(str(error)) from None
    tensors = TorchTensors(archive, locate)
    inner = SizedStream(io.BytesIO(content), len(content), source.where)
    table = AllowedGlobals(finder(source, tensors.table()), tensors.build, tensors.stored)
    try:
        found = run(inner, table, archive.meter)
    except Interrupted as stop:
        raise stop.args[0] from None
    try:
        tensors.check(found)
    except Malformed as error:
        raise source.error(f"the pickle is malformed: {error}") from None
    return found


def is_torch(source: SizedStream) -> bool:
    """Return whether a zip archive has PyTorch's pickle, in one folder as all its members."""
    try:
        return Archive(source, Meter(source.size)).has(_PICKLE)
    except Malformed:
        return False


class Archive:
    """The members of a zip archive below its one folder; nothing is ever written to disk.

    Args:
        source: the file.
        meter: of the file.
    """

    def __init__(self, source: SizedStream, meter: Meter) -> None:
        self.meter = meter
        try:
            self._zip = zipfile.ZipFile(source.stream)
            infos = self._zip.infolist()
        except _ZIP_ERRORS as error:
            raise Malformed(f"the zip archive is damaged: {error}") from None
        self._folder = infos[0].filename.partition("/")[0] if infos else ""
        self._infos = {info.filename: info for info in infos}
        if len(self._infos) != len(infos):
            raise Malformed("the zip archive has two members of one name")

    def has(self, name: str) -> bool:
        """Return whether there is a member."""
        return self._folder + name in self._infos

    def read(self, name: str) -> bytes:
        """The bytes of a member, compared with its checksum."""
        info = self._infos.get(self._folder + name)
        if info is None:
            raise Malformed(f"the zip archive has no member {shorten(self._folder + name)}")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise Malformed(f"member {shorten(info.filename)} of the zip archive is compressed")
        self.meter.copy(info.file_size)
        try:
            data = self._zip.read(info)
        except _ZIP_ERRORS as error:
            raise Malformed(f"the zip archive is damaged: {error}") from None
        if len(data) != info.file_size:
            raise Malformed("the zip archive is truncated")
        return data


class TorchTensors:
    """Makes the tensors of one archive.

    Args:
        archive: with the storages.
        locate: gives the device for "", or "".
    """

    def __init__(self, archive: Archive, locate: Callable[[str], str]) -> None:
        self._archive = archive
        self._locate = locate
        self._values = Values(archive.meter)
        self._storages: dict[str, Array] = {}
        self._classes = {
            Callee(f"torch.{name}", _only_named): dtype.numpy for name, dtype in _STORAGES.items()
        }

    def table(self) -> dict[tuple[str, str], object]:
        """Return the stand-ins by name."""
        found = self._values.table()
        for cls in self._classes:
            found["torch", cls.name.removeprefix("torch.")] = cls
        for name, make in (
            ("_rebuild_tensor_v2", self._tensor),
            ("_rebuild_parameter", _parameter),
        ):
            found["torch._utils", name] = Callee(f"torch._utils.{name}", make)
        found["torch", "Size"] = Callee("torch.Size", _size)
        return found

    def build(self, target: Any, state: Any) -> None:
        """Give an object its state; that of a state dict is versions of modules, of no use here."""
        if isinstance(target, np.ndarray):
            self._values.fill_array(target, state)
        elif isinstance(target, np.dtype):
            self._values.fill_dtype(target, state)
        elif not (type(target) is OrderedDict and type(state) is dict and set(state) <= _METADATA):
            raise Malformed(f"a {kind(target)} is given a state")

    def check(self, found: object) -> None:
        """Refuse an object of which parts are missing, or that is a trap."""
        if self._values.unfilled:
            raise Malformed("an array or a dtype has no state")
        check_tree(found)

    def stored(self, number: Any) -> Array:
        """The storage of a persistent id, read once."""
        match number:
            case (str(what), Callee() as cls, str(key), str(), int(count)) if what == "storage":
                dtype = self._classes.get(cls)
            case _:
                raise Malformed("a persistent id is not that of a storage")
        if dtype is None:
            raise Malformed(f"a storage is a {kind(cls)}")
        if key not in self._storages:
            array = np.frombuffer(bytearray(self._archive.read(f"/data/{key}")), np.uint8)
            array.flags.writeable = False
            self._storages[key] = array
        raw = self._storages[key]
        if count < 0 or count * dtype.itemsize > len(raw):
            raise Malformed(f"storage {shorten(key)} has {len(raw)} bytes, too few for {count}")
        return np.ndarray((count,), dtype, buffer=raw)

    def _tensor(self, arguments: tuple[Any, ...]) -> Tensor:
        match arguments:
            case (np.ndarray() as storage, int(offset), tuple(shape), tuple(strides), bool(), *_):
                pass
            case _:
                raise Malformed("a tensor is malformed")
        if storage.ndim != 1 or storage.flags.writeable:
            raise Malformed("a tensor lies in no storage")
        if len(shape) != len(strides) or len(shape) > MAX_NDIM:
            raise Malformed(f"a tensor has {len(shape)} axes and {len(strides)} strides")
        if not all(type(n) is int and 0 <= n < 2**62 for n in (offset, *shape, *strides)):
            raise Malformed("a tensor has an impossible shape or impossible strides")
        self._archive.meter.copy(math.prod(shape) * storage.itemsize)
        array = np.array(_view(storage, offset, shape, strides), order="C")
        check_booleans(array)
        return Tensor(array, dtype=array.dtype, device=self._place())

    def _place(self) -> str | None:
        try:
            return self._locate("") or None
        except Exception as error:
            raise Interrupted(error) from None


_METADATA = {"_metadata"}


def _view(storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """The elements of a tensor, after a check that all of them lie in the storage."""
    size = storage.itemsize
    if not math.prod(shape):
        # NumPy bounds the product of the other axes even for empty arrays.
        if math.prod(n for n in shape if n) * size >= 2**63:
            raise Malformed("a tensor has a shape beyond 2^63 bytes")
        return np.empty(shape, storage.dtype)
    # Along an axis of one element PyTorch writes any stride.
    steps = [s if n > 1 else 0 for n, s in zip(shape, strides, strict=True)]
    if offset + sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) >= storage.size:
        raise Malformed("a tensor reaches beyond its storage")
    return np.ndarray(shape, storage.dtype, storage, offset * size, [s * size for s in steps])


def _only_named(_: tuple[Any, ...]) -> object:
    raise Malformed("a storage is made outside of the archive")


def _parameter(arguments: tuple[Any, ...]) -> Parameter:
    match arguments:
        case (Tensor() as tensor, bool(), *_):
            return Parameter(tensor)
    raise Malformed("a parameter is malformed")


def _size(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    match arguments:
        case (tuple(shape),) if all(type(n) is int for n in shape):
            return shape
    raise Malformed("a torch.Size is malformed")
