"""Python objects from a table of nodes: the reading half of the object tree (see `encode.py`).

Nothing in a file names code: kinds come from the closed table below. Memory and time are bounded
by the size of the file, because a node refers only to earlier ones, every tensor is used once, and
nothing is hashed that could hide an exponential walk.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from treadle.base import dtype as dtypes
from treadle.base.array import Array
from treadle.base.errors import CheckpointError
from treadle.base.files.source import SizedStream
from treadle.base.files.strict_json import shorten
from treadle.base.qparams import QParams
from treadle.base.saved_objects import made, named
from treadle.serialization.encode import TAGS, is_inline, is_key
from treadle.serialization.forms import restored
from treadle.serialization.quantized import described, stands_for
from treadle.tensor import Parameter, Tensor

Json: TypeAlias = Any

_DTYPES = {dtype.name: dtype.numpy for dtype in dtypes.ALL}
_MALFORMED = (TypeError, ValueError, KeyError, IndexError, OverflowError)
_CLASSES: dict[str, type[Tensor]] = {"Tensor": Tensor, "Parameter": Parameter}


class Decoder:
    """Rebuilds one object.

    Args:
        source: the file, for error messages.
        array: gives the checked data of a named tensor.
        locate: maps the device name in the file to the one to load on.
    """

    def __init__(
        self, source: SizedStream, array: Callable[[str], Array], locate: Callable[[str], str]
    ) -> None:
        self._source = source
        self._array = array
        self._locate = locate
        self._objects: list[object] = []
        self._methods: dict[str, Callable[..., object]] = {
            "int": lambda text: int(text, 16),
            "float": float.fromhex,
            "complex": lambda re, im: complex(float.fromhex(re), float.fromhex(im)),
            "dict": self._dict,
            "ordered_dict": lambda pairs: OrderedDict(self._dict(pairs)),
            "list": self._list,
            "tuple": lambda items: tuple(self._list(items)),
            "set": self._set,
            "frozenset": lambda items: frozenset(self._set(items)),
            "bytes": lambda name: array(name).tobytes(),
            "array": array,
            "quantized_array": lambda name, data: stands_for(array(name), data),
            "quantized_dtype": lambda data: described(data).numpy,
            "scalar": _scalar,
            "dtype": lambda name: _DTYPES[name],
            "scalar_type": lambda name: _DTYPES[name].type,
            "form": lambda kind, value: restored(kind, self._value(value)),
            "object": self._object,
            "function": self._named,
            "with_qparams": self._with_qparams,
        }

    def decode(self, nodes: Json, root: Json) -> object:
        """The object whose table of nodes is `nodes` and whose value is `root`.

        Raises:
            CheckpointError: the table breaks the rules stated in `encode.py`.
        """
        if not isinstance(nodes, list):
            raise self._source.error("the object tree has no table of nodes")
        for index, node in enumerate(nodes):
            self._objects.append(self._node(f"node {index} of the object tree", node))
        try:
            return self._value(root)
        except _MALFORMED as error:
            raise self._source.error(f"the object tree has no root: {error}") from None

    def _node(self, label: str, node: Json) -> object:
        if not (isinstance(node, list) and node and isinstance(node[0], str)):
            raise self._source.error(f"{label} is malformed", saw=shorten(node))
        kind, *operands = node
        if kind == "tensor":
            # Not in the table: what a device or `map_location` raises must reach the caller.
            return self._tensor(label, operands)
        if kind == "quantized_tensor":
            return self._tensor(label, operands[:-1], operands[-1:])
        method = self._methods.get(kind)
        if method is None:
            raise self._source.error(f"{label} is of unknown kind {shorten(kind)}")
        try:
            return method(*operands)
        except CheckpointError:
            raise
        except _MALFORMED as error:
            raise self._source.error(f"{label} ({kind}) is malformed: {error}") from None

    def _value(self, value: Json) -> object:
        if isinstance(value, list):
            (index,) = value
            if type(index) is not int or not 0 <= index < len(self._objects):
                raise ValueError(f"{shorten(value)} does not refer to an earlier node")
            return self._objects[index]
        if not is_inline(value):
            raise ValueError(f"{shorten(value)} is not a value")
        return value

    def _object(self, name: Json, state: Json) -> object:
        cls = self._named(name)
        if not isinstance(cls, type):
            raise ValueError(f"{shorten(name)} is not a class")
        return made(cls, self._value(state))

    def _named(self, name: Json) -> Any:
        try:
            return named(name)
        except KeyError:
            raise self._source.error(
                f"the file names {shorten(name)}, which this program lacks or does not allow",
                hint="import it before loading, and if it is not a module: serialization.allow(it)",
            ) from None

    def _with_qparams(self, tensor: Json, qparams: Json) -> Tensor:
        found, given = self._value(tensor), self._value(qparams)
        if not isinstance(found, Tensor) or not isinstance(given, QParams):
            raise TypeError("parameters of a quantization belong to a tensor")
        found.qparams.update(given)
        return found

    def _list(self, items: Json) -> list[object]:
        return [self._value(item) for item in items]

    def _dict(self, pairs: Json) -> dict[Any, object]:
        found = {self._key(key): self._value(value) for key, value in pairs}
        if len(found) != len(pairs):
            raise ValueError("a key is repeated")
        return found

    def _set(self, items: Json) -> set[Any]:
        found = {self._key(item) for item in items}
        if len(found) != len(items):
            raise ValueError("an element is repeated")
        return found

    def _key(self, value: Json) -> Any:
        key = self._value(value)
        if not is_key(key):
            raise ValueError(f"a {type(key).__name__} cannot be a key or element")
        return key

    def _tensor(self, label: str, operands: list[Json], quantized: Json = ()) -> Tensor:
        match operands:
            case [str(name), str(kind), str(device), dict(tags)] if _are_tags(tags):
                pass
            case _:
                raise self._source.error(f"{label} (tensor) is malformed", saw=shorten(operands))
        if kind not in _CLASSES:
            raise self._source.error(f"{label} is a tensor of unknown class {shorten(kind)}")
        array = self._array(name)
        if quantized:
            try:
                array = stands_for(array, quantized[0])
            except _MALFORMED as error:
                raise self._source.error(f"{label} (tensor) is malformed: {error}") from None
        return _CLASSES[kind](
            array,
            dtype=array.dtype,
            device=self._locate(device),
            name=tags.get("name"),
            format=tags.get("format", "default"),
        )


def _are_tags(tags: dict[str, Json]) -> bool:
    return all(tag in TAGS and isinstance(value, str) for tag, value in tags.items())


def _scalar(name: str, text: str) -> object:
    dtype, raw = _DTYPES[name], bytes.fromhex(text)
    if len(raw) != dtype.itemsize or (dtype == np.bool_ and raw[0] > 1):
        raise ValueError(f"{shorten(text)} is not a {name}")
    return np.frombuffer(raw, dtype)[0]
