"""Dumped models: weights by name, operators, and the graph as a module that runs.

Files of the first version begin with a magic number and hold values before the graph; those of the
second are one FlatBuffer. Field numbers are those of MegEngine's public schemas.
"""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from treadle.base.errors import CheckpointError
from treadle.interop.megengine.dumped.flatbuffer import Damaged, FlatTable, follow, read
from treadle.interop.megengine.dumped.operators import (
    CONSTANTS,
    INPUT,
    WEIGHTS,
    Operator,
    dtype_of,
    kind_of,
)
from treadle.interop.megengine.dumped.shapes import Extents
from treadle.module.module import Module
from treadle.tensor import Parameter, Tensor

_OLD, _NEW = b"MGBS", b"MGBC"
_SECOND = b"mgv2"
_TEST = b"mgbtest0"


class DumpedModel(Module):
    """A model that MegEngine's runtime dumped.

    Called with its inputs, in order or by name, it returns the list of its outputs. The graph runs
    op by op; `jit.compile` and `jit.trace` take it as any module.

    Attributes:
        inputs: names of the inputs, with their shapes when the model was dumped.
        types: their element types, by name.
        outputs: names of the outputs; "output0" and so on where the file has none.
        weights: parameters by name; those without a name are called `weight0` and so on.
        operators: the operators in the order they run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inputs: dict[str, tuple[int, ...]] = {}
        self.outputs: list[str] = []
        self.weights: dict[str, Parameter] = {}
        self.operators: list[Operator] = []
        self._known: dict[int, Any] = {}  # arrays: in programs they are constants
        self._named: dict[int, str] = {}
        self._given: dict[int, str] = {}
        self.types: dict[str, Any] = {}
        self._wanted: list[int] = []

    def forward(self, *inputs: Any, **named: Any) -> list[Any]:
        """The outputs.

        Raises:
            TypeError: an input is missing, or there is one too many.
            UnsupportedOp: an operator has no counterpart.
        """
        given = dict(zip(self.inputs, inputs, strict=False)) | named
        if len(inputs) > len(self.inputs) or given.keys() != self.inputs.keys():
            raise TypeError(f"DumpedModel takes {', '.join(self.inputs) or 'no inputs'}")
        values: dict[int, Any] = dict(self._known)
        values.update({i: self.weights[name] for i, name in self._named.items()})
        values.update({i: self._fitting(name, given[name]) for i, name in self._given.items()})
        for op in self.operators:
            if op.outputs and op.outputs[0] in values:
                continue
            found = op.apply([_value(values, i) for i in op.inputs])
            op.assign(found, values)
        return [_as_tensor(_value(values, i)) for i in self._wanted]

    def _fitting(self, name: str, given: Any) -> Any:
        """An input in its element type; whole numbers are those that a quantized type stores."""
        tensor, wanted = given if isinstance(given, Tensor) else Tensor(given), self.types[name]
        if not isinstance(wanted, np.dtype) or tensor._kind.quantized is not None:
            return tensor
        if tensor.dtype.kind == "f":
            return tensor.astype(wanted)
        return Tensor(tensor.numpy().view(wanted))


def _as_tensor(found: Any) -> Tensor:
    if isinstance(found, Extents):
        return found.tensor()
    return found if isinstance(found, Tensor) else Tensor(found)


def _value(values: dict[int, Any], number: int) -> Any:
    """A value by number; operators may have said that they make more than they do."""
    if number not in values:
        raise CheckpointError("DumpedModel", f"value {number} is read, and no operator made it")
    return values[number]


def read_model(path: str | os.PathLike[str]) -> DumpedModel:
    """Read a model that `trace.dump` or `dump_graph` of MegEngine wrote.

    Args:
        path: the file. Test cases before the model (`mgbtest0`) are passed over.

    Raises:
        CheckpointError: it is no such file, it is damaged, or a weight has an element type that
            there is none of here.
    """
    return model_in(Path(path).read_bytes(), os.fspath(path))


def model_in(data: bytes, where: str) -> DumpedModel:
    """The model in the bytes of a file; `where` names it in errors.

    Raises:
        CheckpointError: as `read_model`.
    """
    try:
        return _Reader(memoryview(data)).model()
    except (Damaged, struct.error, IndexError, KeyError, ValueError) as error:
        raise CheckpointError(
            "read_model",
            f"{where} is not a model that MegEngine dumped, or damaged: {error}",
            hint="checkpoints and files of Treadle are read by treadle.load",
        ) from None


class _Reader:
    """Reads one file."""

    def __init__(self, data: memoryview) -> None:
        if bytes(data[:8]) == _TEST:
            data = data[12:]
        self._data = data
        self._place = 0  # of the next value, in files of the first version
        self._made = DumpedModel()
        self._count = 0
        self._called: dict[int, str] = {}

    def model(self) -> DumpedModel:
        """The model in the file."""
        magic = bytes(self._data[:4])
        if magic in (_OLD, _NEW):
            self._place = 16 if magic == _OLD else 24
            graph = self._place + int(read(self._data, "Q", self._place - 8))
            root = self._root(graph, b"mgb1")
            operators = root.tables(3)
            wanted = [int(number) for number, _ in root.vector(4, "II")]
            for each in operators:
                self._first(each)
        else:
            root = self._root(0, _SECOND)
            operators, wanted = root.tables(2), [t.whole(0) for t in root.tables(4)]
            names = [t.text(0) for t in root.tables(3)] if _has_names(root) else []
            for each in operators:
                self._second(each, names)
        self._made._wanted = wanted
        self._check()
        taken: dict[str, None] = {}
        for place, number in enumerate(wanted):
            name = _single(self._called.get(number) or f"output{place}", taken)
            taken[name] = None
        self._made.outputs = list(taken)
        return self._made

    def _check(self) -> None:
        """Check that every operator has results, and reads what stands before it."""
        made = self._made
        known = {*made._known, *made._named, *made._given}
        for op in made.operators:
            if not op.outputs:
                raise Damaged(f"operator {op.name or op.kind} has no results")
            if op.outputs[0] in known:
                continue
            if not known.issuperset(op.inputs):
                raise Damaged(f"operator {op.name or op.kind} reads what no operator made before")
            known.update(op.outputs)
        if not known.issuperset(made._wanted):
            raise Damaged("an output is the result of no operator")

    def _root(self, place: int, identifier: bytes) -> FlatTable:
        """The outermost table of a FlatBuffer whose size stands before it."""
        size = int(read(self._data, "I", place))
        body = self._data[place + 4 : place + 4 + size]
        if len(body) < size or bytes(body[4:8]) != identifier:
            raise Damaged(f"there is no {identifier.decode()}")
        return FlatTable(body, follow(body, 0))

    def _first(self, op: FlatTable) -> None:
        names = op.texts(5)
        values = [self._value_outside(t) for t in op.tables(7)]
        made = Operator(
            kind_of("", op.whole(0, "Q")),
            op.text(12),
            tuple(op.numbers(3)),
            (),
            op.table(2) if op.whole(1, "B") else None,
            op.table(6),
        )
        count = len(names) or len(values) or made.results()
        made = replace(made, outputs=tuple(range(self._count, self._count + count)))
        self._count += count
        self._add(made, values, names)

    def _second(self, op: FlatTable, names: list[str]) -> None:
        outputs = tuple(op.numbers(8))
        values = [(t, t.raw(6)) for t in op.tables(11)]
        made = Operator(
            kind_of(op.text(0), op.whole(1, "Q")),
            op.text(2),
            tuple(op.numbers(7)),
            outputs,
            op.table(4) if op.whole(3, "B") else None,
            op.table(10),
        )
        self._add(made, values, [names[i] for i in outputs] if names else [])

    def _value_outside(self, tensor: FlatTable) -> tuple[FlatTable, memoryview]:
        start = self._place + tensor.whole(5)
        self._place = start + tensor.whole(4)
        if self._place > len(self._data):
            raise Damaged("a value reaches beyond the end")
        return tensor, self._data[start : self._place]

    def _add(
        self, op: Operator, values: list[tuple[FlatTable, memoryview]], names: list[str]
    ) -> None:
        made = self._made
        made.operators.append(op)
        self._called.update(zip(op.outputs, names, strict=False))
        if op.kind == INPUT:
            tensor, _ = values[0]
            name = tensor.text(0) or op.name or f"input{len(made.inputs)}"
            made.inputs[name] = tuple(tensor.numbers(1))
            made.types[name] = dtype_of(tensor.table(3)) or "float32"
            made._given[op.outputs[0]] = name
        elif op.kind in CONSTANTS:
            made._known[op.outputs[0]] = _array(*values[0])
        elif op.kind in WEIGHTS:
            for i, (number, value) in enumerate(zip(op.outputs, values, strict=True)):
                name = value[0].text(0) or (names[i] if names else "") or op.name
                name = _single(name or f"weight{len(made.weights)}", made.weights)
                made.weights[name] = Parameter(_array(*value), name=name)
                made._named[number] = name


def _has_names(root: FlatTable) -> bool:
    """Return whether names of values were kept: else there are holes in place of them."""
    try:
        return bool(root.tables(3))
    except Damaged:
        return False


def _single(name: str, taken: dict[str, Any]) -> str:
    found, count = name, 1
    while found in taken:
        found, count = f"{name}_{count}", count + 1
    return found


def _array(tensor: FlatTable, raw: memoryview) -> Any:
    """The array of a tensor."""
    wanted = dtype_of(tensor.table(3)) or "float32"
    dtype = wanted if isinstance(wanted, np.dtype) else Tensor(np.zeros(0), dtype=wanted).dtype
    return np.frombuffer(raw, np.dtype(dtype)).reshape(tensor.numbers(1)).copy()
