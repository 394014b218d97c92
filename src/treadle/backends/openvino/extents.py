"""Extents of models that are open: bounds of inputs, and nodes that compute numbers from extents.

A symbol is read off the shape of an input that has it, of which OpenVINO knows the bounds; one that
no input has is an element of a vector that is given beside the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import openvino as ov
from openvino import opset15 as opset

from treadle.base.extent import Symbol
from treadle.base.symbol import Applied, Atom, Dim, Expr, bounds
from treadle.graph.ir import symbols_in

Output = Any
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floordiv": opset.divide,
    "mod": opset.floor_mod,
    "min": opset.minimum,
    "max": opset.maximum,
}
_MOST = 2**31 - 1
"""The largest bound that it is told."""


def dimensions(shape: Sequence[Dim]) -> Any:
    """A shape as OpenVINO knows it: open extents have bounds."""
    return ov.PartialShape([_dimension(d) for d in shape])


def _dimension(extent: Dim) -> Any:
    low, high = bounds(extent)
    if low == high:
        return ov.Dimension(int(low))
    return ov.Dimension(max(int(low), 0), -1 if high > _MOST else int(high))


class OpenExtents:
    """Numbers of one model.

    Args:
        symbols: of its graph, in the order of the vector.

    Attributes:
        read: the vector, an input of the model, if it is read; else nothing.
    """

    def __init__(self, symbols: Sequence[Symbol]) -> None:
        self.read: list[Any] = []
        self._places = {s: i for i, s in enumerate(symbols)}
        self._inputs: dict[Symbol, tuple[Output, int]] = {}
        self._known: dict[Any, Output] = {}

    def has(self, output: Output, shape: Sequence[Dim]) -> None:
        """Read extents off an input of this shape from now on, as far as they are symbols."""
        for axis, extent in enumerate(shape):
            for symbol in symbols_in(extent):
                if isinstance(extent, Expr) and extent.terms == (((symbol,), 1),):
                    self._inputs.setdefault(symbol, (output, axis))

    def vector(self, values: Sequence[Dim]) -> Output:
        """Numbers, some of which are expressions of extents."""
        return opset.concat([self._number(v) for v in values], 0).output(0)

    def _number(self, x: Dim) -> Output:
        """An extent as a vector of one element."""
        if not isinstance(x, Expr):
            return opset.constant([int(x)], ov.Type.i64).output(0)
        if x not in self._known:
            parts = [self._product(atoms, factor) for atoms, factor in x.terms]
            self._known[x] = _folded(opset.add, parts)
        return self._known[x]

    def _product(self, atoms: Sequence[Atom], factor: int) -> Output:
        parts = [self._atom(a) for a in atoms]
        if factor != 1 or not parts:
            parts.append(self._number(factor))
        return _folded(opset.multiply, parts)

    def _atom(self, atom: Atom) -> Output:
        if atom not in self._known:
            if isinstance(atom, Symbol):
                self._known[atom] = self._symbol(atom)
            else:
                self._known[atom] = self._applied(atom)
        return self._known[atom]

    def _applied(self, atom: Applied) -> Output:
        x, y = self._number(atom.x), self._number(atom.y)
        return _FUNCTIONS[atom.function](x, y).output(0)

    def _symbol(self, symbol: Symbol) -> Output:
        axis = opset.constant(0, ov.Type.i64)
        if symbol in self._inputs:
            output, at = self._inputs[symbol]
            shape = opset.shape_of(output, "i64")
            return opset.gather(shape, opset.constant([at], ov.Type.i64), axis).output(0)
        if not self.read:
            self.read.append(opset.parameter([len(self._places)], ov.Type.i64))
        at = opset.constant([self._places[symbol]], ov.Type.i64)
        return opset.gather(self.read[0], at, axis).output(0)


def _folded(make: Any, parts: Sequence[Output]) -> Output:
    first, *rest = parts
    for part in rest:
        first = make(first, part).output(0)
    return first
