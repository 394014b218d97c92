"""Programs of `torch.export` without their weights: arguments, shapes, results."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec
from torch.utils import _pytree as pytree

from treadle.base.dtype import DType
from treadle.base.errors import DTypeError, LoadError, ShapeError
from treadle.base.symbol import DECISIONS, Dim, evaluate
from treadle.interop.torch.arrays import DTYPES
from treadle.interop.torch.symbols import dim_of, knowing, ranges, solved
from treadle.interop.torch.written import (
    Ends,
    Open,
    Shapes,
    WrittenProgram,
    is_tensor,
    write_program,
)
from treadle.tensor import Tensor

_WIDENED = {"float": "float", "int": "integer", "uint": "integer"}
"""Kinds of element types that are cast to one another."""


MOST_SHAPES = 64
"""Sets of input shapes whose ops a program keeps."""


class TorchProgram:
    """A program, written in ops once for all extents that answer alike.

    Copies of a module share it: it holds no weights, and what it knows does not change.

    Args:
        exported: what `torch.export` made, decomposed.
        held: placeholders of weights.
        constants: arrays and plain values by placeholder.

    Attributes:
        names: of the tensors it takes, in order.
        types: element type and shape of each by name; extents that may vary are "?".

    Raises:
        UnsupportedOp, LoadError: it cannot be written; see `exported.from_exported`.
    """

    def __init__(
        self, exported: ExportedProgram, held: Sequence[str], constants: Mapping[str, Any]
    ) -> None:
        signature = exported.graph_signature
        self._code = exported.graph_module
        self._spec = exported.call_spec
        self._given = [s for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
        _refuse(self._given)
        placeholders = self._code.graph.find_nodes(op="placeholder")
        known: dict[str, Any] = {str(n.target): n.meta.get("val") for n in placeholders}
        self.names = [s.arg.name for s in self._given if is_tensor(s.arg)]
        self._declared = [known[name] for name in self.names]
        self.types = {n: _described(known[n]) for n in self.names}
        self._ranges = ranges(self._code.graph, exported.range_constraints)
        self._ends = Ends(held, self.names, constants, signature.output_specs)
        self._open: list[Open] = []
        self._written: dict[Shapes, WrittenProgram] = {}
        self._lock = threading.Lock()
        self.written_for(tuple(self._example(v) for v in self._declared))

    def __deepcopy__(self, memo: Mapping[int, Any]) -> TorchProgram:
        return self

    def nested(self, results: Sequence[Any]) -> Any:
        """Results as the exported model returns them."""
        return pytree.tree_unflatten(list(results), self._spec.out_spec)

    @property
    def output_names(self) -> list[str]:
        """Keys of the results where they have some, else their numbers."""
        numbered = self.nested(range(self._spec.out_spec.num_leaves))
        paths = [path for path, _ in pytree.tree_flatten_with_path(numbered)[0]]
        return [_join(path) or "output" for path in paths]

    def tensors(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> list[Tensor]:
        """The tensors among the arguments, of the declared element types.

        Raises:
            LoadError, DTypeError: the arguments are not like those it was exported with.
        """
        leaves = self._leaves(inputs, named)
        pairs = zip(leaves, self._declared, self.names, strict=True)
        return [_as_tensor(leaf, value, name) for leaf, value, name in pairs]

    def _leaves(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """The tensors among the arguments; what else there is must be what it was."""
        if not named and len(inputs) == len(self.names):
            alone: list[Any] = pytree.tree_leaves(inputs)
            if len(alone) == len(inputs):
                return alone
        order = self._spec.in_spec.child(1).context
        named = {k: named[k] for k in order if k in named} | dict(named)
        leaves, shape = pytree.tree_flatten((tuple(inputs), named))
        if shape != self._spec.in_spec:
            raise LoadError(
                "torch.export",
                "the arguments are not nested as those the program was exported with",
                saw=f"{len(inputs)} arguments and {list(named)}",
                hint=f"its tensors are {', '.join(self.names)}",
            )
        for leaf, spec in zip(leaves, self._given, strict=True):
            if isinstance(spec.arg, ConstantArgument) and leaf != spec.arg.value:
                problem = f"argument {spec.arg.name} is {spec.arg.value!r} in this program"
                raise LoadError("torch.export", problem, saw=repr(leaf))
        return [x for x, spec in zip(leaves, self._given, strict=True) if is_tensor(spec.arg)]

    def written_for(self, shapes: Shapes) -> WrittenProgram:
        """The program for inputs of these shapes, which may be symbolic.

        Raises:
            ShapeError: it does not declare them.
            UnsupportedOp, LoadError: for these it cannot be written.
        """
        found = self._written.get(shapes) if _are_numbers(shapes) else None
        if found is not None:
            return found
        extents = self._extents(shapes)
        numbers = {n: _now(extent) for n, extent in extents.items()}
        with self._lock:
            known = next((x for x in self._open if x.serves(numbers)), None)
            if known is None:
                dims = {n: r.dim(n, numbers[n]) for n, r in self._ranges.items() if n in numbers}
                known = write_program(self._code, self._ends, dims, numbers)
                self._open.append(known)
            made = known.at(extents)
            if _are_numbers(shapes):
                self._written[shapes] = made
                if len(self._written) > MOST_SHAPES:
                    del self._written[next(iter(self._written))]
        return made

    def _extents(self, shapes: Shapes) -> dict[str, Dim]:
        """Return the values of PyTorch's symbols for these shapes, which the program has to
        declare.
        """
        extents: dict[str, Dim] = {}
        for name, value, shape in zip(self.names, self._declared, shapes, strict=True):
            fits = len(shape) == value.ndim and all(
                self._fits(d, n, extents) for d, n in zip(value.shape, shape, strict=True)
            )
            if not fits:
                raise ShapeError(
                    "torch.export",
                    f"input {name} was exported as {list(value.shape)}",
                    saw=str(list(shape)),
                    hint="export with dynamic_shapes for extents that vary",
                )
        return extents

    def _fits(self, declared: Any, extent: Dim, extents: dict[str, Dim]) -> bool:
        if isinstance(declared, int):
            return bool(declared == extent)
        found = solved(declared, extent, extents)
        if found is not None:
            name, extent = found
            known = self._ranges[name]
            extents[name] = extent
            return bool(known.low <= extent) and bool(known.high is None or extent <= known.high)
        try:
            with knowing(extents):
                return bool(dim_of(declared) == extent)
        except NotImplementedError:  # no whole number is a solution
            return False

    def _example(self, value: Any) -> tuple[int, ...]:
        """The shape that the program was exported with."""
        hints = {name: known.hint for name, known in self._ranges.items()}
        with knowing(hints):
            return tuple(int(dim_of(d)) for d in value.shape)


def _are_numbers(shapes: Shapes) -> bool:
    return all(isinstance(d, int) for shape in shapes for d in shape)


def _now(extent: Dim) -> int:
    """An extent as it is in the call that is captured."""
    if isinstance(extent, int):
        return extent
    decisions = DECISIONS.get()
    if decisions is None:
        raise ShapeError("torch.export", f"nothing says what the extent {extent} is")
    return evaluate(extent, decisions.values)


def _join(path: Sequence[Any]) -> str:
    """A path of keys as one name."""
    parts = (str(getattr(key, "key", getattr(key, "idx", key))) for key in path)
    name = ".".join(parts)
    return f"output_{name}" if name.isdecimal() else name


# -- inputs ------------------------------------------------------------------------------------


def _refuse(given: Sequence[InputSpec]) -> None:
    """Raise for programs that no module can be made of."""
    for spec in given:
        if not (is_tensor(spec.arg) or isinstance(spec.arg, ConstantArgument)):
            raise LoadError(
                "torch.export",
                f"input {spec.arg.name} is neither a tensor nor a plain value",
                saw=type(spec.arg).__name__,
                hint="export it with numbers that are fixed",
            )


def _described(value: Any) -> tuple[np.dtype[Any], tuple[int | str, ...]]:
    shape = tuple(d if isinstance(d, int) else "?" for d in value.shape)
    return _element_type(value).numpy, shape


def _element_type(value: Any) -> DType:
    found = DTYPES.get(value.dtype)
    if found is None:
        raise LoadError("torch.export", f"{value.dtype} is not an element type of ours")
    return found


def _as_tensor(given: Any, value: Any, name: str) -> Tensor:
    """An argument as a tensor of the declared element type."""
    tensor = given if isinstance(given, Tensor) else Tensor(given)
    wanted = _element_type(value)
    if tensor._kind.dtype is wanted:
        return tensor
    if _WIDENED.get(tensor._kind.dtype.kind, "") != _WIDENED.get(wanted.kind):
        raise DTypeError(
            "torch.export", f"input {name} is {wanted} in this program", saw=str(tensor.dtype)
        )
    return tensor.astype(wanted.numpy)
