"""Python objects as a flat table of nodes plus arrays: the writing half of the object tree.

A *value* is `null`, a boolean, an integer of 64 bits, a finite float, a string, or `[i]`, a
reference to node `i`. A *node* is a list: its kind, then what that kind needs. A node refers only
to earlier ones, so reading is one loop without recursion, and two references to one node are the
same object after loading.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from treadle.base import dtype as dtypes
from treadle.base.array import Array
from treadle.base.files.container import METADATA
from treadle.base.quantized import quantized_type_of
from treadle.base.saved_objects import is_allowed, is_function, name_of, state_of
from treadle.serialization.forms import form_of
from treadle.serialization.quantized import description
from treadle.tensor import Parameter, Tensor

Json: TypeAlias = Any
Path: TypeAlias = "tuple[object, ...]"

TAGS = ("name", "format")
MAX_DEPTH = 100
_MAX_NAME = 200
_DTYPES = {dtype.numpy for dtype in dtypes.ALL}
_HINT = (
    "save its state_dict(), if it has one, or let files hold objects of its class with "
    "serialization.allow"
)


def is_inline(value: object) -> bool:
    """Return whether a value is written as itself instead of as a node."""
    kind = type(value)
    if kind is int:
        return -(2**63) <= value < 2**64  # type: ignore[operator]
    if kind is float:
        return math.isfinite(value)  # type: ignore[arg-type]
    return value is None or kind is bool or kind is str


def is_key(value: object) -> bool:
    """Return whether a value may be a dict key or set element: hashing it must be cheap
    and safe.
    """
    if type(value) is tuple:
        return all(_is_plain(item) for item in value)
    return _is_plain(value)


def _is_plain(value: object) -> bool:
    return is_inline(value) or type(value) in (float, complex)


def saves_dtype(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is kept exactly: known, and without metadata such as a quantized
    scale.
    """
    return dtype in _DTYPES and not dtype.metadata


def _pickles_as_plain(x: Array) -> bool:
    """Return whether an array of a class derived from NumPy's comes back as one of NumPy's."""
    return type(x).__reduce__ is not np.ndarray.__reduce__ and x.__reduce__()[1][0] is np.ndarray


class Encoder:
    """Collects the nodes and the named arrays of one object."""

    def __init__(self) -> None:
        self.nodes: list[Json] = []
        self.arrays: dict[str, Array] = {}
        self._index: dict[int, int] = {}
        self._alive: list[object] = []  # what was made on the way, too: no two share a number
        self._open: set[int] = set()
        self._taken: dict[str, int] = {METADATA: 0}
        self._methods: dict[type, Callable[[Any, Path], Json]] = {
            int: lambda x, _: ["int", hex(x)],
            float: lambda x, _: ["float", x.hex()],
            complex: lambda x, _: ["complex", x.real.hex(), x.imag.hex()],
            dict: lambda x, path: ["dict", self._pairs(x, path)],
            OrderedDict: lambda x, path: ["ordered_dict", self._pairs(x, path)],
            list: lambda x, path: ["list", self._items(x, path)],
            tuple: lambda x, path: ["tuple", self._items(x, path)],
            set: lambda x, path: ["set", self._elements(x, path)],
            frozenset: lambda x, path: ["frozenset", self._elements(x, path)],
            bytes: lambda x, path: ["bytes", self._store(np.frombuffer(x, np.uint8), path)],
            np.ndarray: self._array,
            Tensor: self._tensor,
            Parameter: self._tensor,
        }

    def value(self, x: object, path: Path = ()) -> Json:
        """The value that stands for `x`, which sits at `path` in the saved object.

        Raises:
            TypeError: `x`, or something in it, is of a type that is not saved.
            ValueError: `x` contains itself or nests too deeply.
        """
        if is_inline(x):
            return x
        index = self._index.get(id(x))
        if index is None:
            if id(x) in self._open:
                raise ValueError(f"save: {describe(path)} contains itself")
            if len(path) > MAX_DEPTH:
                raise ValueError(f"save: {describe(path)} nests deeper than {MAX_DEPTH} levels")
            self._open.add(id(x))
            node = self._node(x, path)
            self._open.discard(id(x))
            index = self._index[id(x)] = len(self.nodes)
            self._alive.append(x)
            self.nodes.append(node)
        return [index]

    def _node(self, x: object, path: Path) -> Json:
        method = self._methods.get(type(x))
        if method is not None:
            return method(x, path)
        if isinstance(x, np.ndarray) and _pickles_as_plain(x):
            return self._array(x.view(np.ndarray), path)
        if isinstance(x, np.generic) and saves_dtype(x.dtype):
            return ["scalar", x.dtype.name, x.tobytes().hex()]
        if isinstance(x, np.dtype) and saves_dtype(x):
            return ["dtype", x.name]
        if isinstance(x, np.dtype) and (kind := quantized_type_of(x)) is not None:
            return ["quantized_dtype", description(kind)]
        if isinstance(x, type) and issubclass(x, np.generic) and np.dtype(x) in _DTYPES:
            return ["scalar_type", np.dtype(x).name]
        form = form_of(x)
        if form is not None:
            return ["form", form[0], self.value(form[1], path)]
        if is_allowed(type(x)):
            return ["object", name_of(type(x)), self.value(state_of(x), path)]
        if is_function(x):
            return ["function", name_of(x)]
        name = x.__name__ if isinstance(x, type) else type(x).__qualname__
        what = f"the class {name}" if isinstance(x, type) else f"a {name}"
        raise TypeError(f"save: {describe(path)} is {what}, which is not saved\n  hint: {_HINT}")

    def _pairs(self, x: dict[Any, Any], path: Path) -> Json:
        for key in x:
            if not is_key(key):
                raise TypeError(
                    f"save: {describe(path)} has a key of type {type(key).__name__}\n"
                    "  hint: keys are strings, numbers, None, or flat tuples of them"
                )
        return [[self.value(key, path), self.value(item, (*path, key))] for key, item in x.items()]

    def _items(self, x: Iterable[object], path: Path) -> Json:
        return [self.value(item, (*path, i)) for i, item in enumerate(x)]

    def _elements(self, x: Iterable[object], path: Path) -> Json:
        items = list(x)
        for item in items:
            if not is_key(item):
                raise TypeError(
                    f"save: {describe(path)} has an element of type {type(item).__name__}\n"
                    "  hint: elements are strings, numbers, None, or flat tuples of them"
                )
        # Sorted, so that one object gives one file although string hashes differ by process.
        return [self.value(item, path) for item in sorted(items, key=repr)]

    def _array(self, x: Array, path: Path) -> Json:
        kind = quantized_type_of(x.dtype)
        if kind is None:
            return ["array", self._store(x, path)]
        return ["quantized_array", self._store(x.view(kind.stored.numpy), path), description(kind)]

    def _tensor(self, x: Tensor, path: Path) -> Json:
        node = self._plain_tensor(x, path)
        found = x.__dict__.get("_qparams")
        if found is None:
            return node
        self.nodes.append(node)
        return ["with_qparams", [len(self.nodes) - 1], self.value(found, (*path, "qparams"))]

    def _plain_tensor(self, x: Tensor, path: Path) -> Json:
        tags = {tag: getattr(x, tag) for tag in TAGS if getattr(x, tag) != getattr(Tensor, tag)}
        what, array = [type(x).__name__, str(x.device), tags], x.numpy()
        kind = quantized_type_of(array.dtype)
        if kind is None:
            return ["tensor", self._store(array, path), *what]
        stored = self._store(array.view(kind.stored.numpy), path)
        return ["quantized_tensor", stored, *what, description(kind)]

    def _store(self, array: Array, path: Path) -> str:
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if not saves_dtype(array.dtype):
            problem = "has metadata" if array.dtype in _DTYPES else "is not saved"
            raise TypeError(
                f"save: {describe(path)} has dtype {array.dtype}, which {problem}\n"
                "  hint: saved are " + ", ".join(dtype.name for dtype in dtypes.ALL)
            )
        name = self._name(path)
        # Not ascontiguousarray: that turns rank 0 into rank 1.
        self.arrays[name] = np.asarray(array, order="C")
        return name

    def _name(self, path: Path) -> str:
        """A name other readers of the file can use: `model.conv.weight`; unique, printable."""
        text = ".".join(str(part) for part in path) or "value"
        name = "".join(c if c.isprintable() else "_" for c in text[-_MAX_NAME:])
        while name in self._taken:
            self._taken[name] += 1
            name = f"{name}#{self._taken[name]}"
        self._taken[name] = 1
        return name


def describe(path: Path) -> str:
    """A place inside the saved object as Python would write it: `obj['model'][0]`."""
    return "obj" + "".join(f"[{part!r}]" for part in path)
