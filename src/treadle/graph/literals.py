"""Types, extents and attribute values in the text form of graphs."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from treadle.base.dtype import ALL, DType, as_dtype
from treadle.base.shape import Shape
from treadle.base.symbol import Dim, Expr, maximum, minimum
from treadle.base.types import TensorType
from treadle.graph.lexer import Cursor, Token, error
from treadle.ops import REGISTRY
from treadle.ops.constant import ArrayData

DTYPES = {d.name for d in ALL}
WORDS: dict[str, object] = {
    "True": True,
    "False": False,
    "None": None,
    "nan": float("nan"),
    "inf": float("inf"),
}
RESERVED = {*DTYPES, *WORDS, "min", "max", "graph", "complex"}
"""Words that cannot name an extent."""


class ValueParser:
    """Reads values at a cursor.

    Args:
        cursor: where to read.
        constants: data of the constants that the text names by digest.
        graph: reads a graph, for attributes that are regions.
        op: reads an op with its attributes, for attributes that are ops.
    """

    def __init__(
        self,
        cursor: Cursor,
        constants: Mapping[str, ArrayData],
        graph: Callable[[], Any],
        op: Callable[[], Any],
    ) -> None:
        self._cursor = cursor
        self._constants = constants
        self._graph = graph
        self._op = op
        self.symbols: Mapping[str, Expr] = {}

    # -- types and extents -----------------------------------------------------------------

    def type(self) -> TensorType:
        """A type such as `float32[2,n]@xpux:0`."""
        token = self._cursor.expect("word", what="a type such as float32[2,3]")
        if token.text not in DTYPES:
            raise error(token, f"expected an element type, found {token}")
        shape = self._shape()
        device = self._cursor.advance().text[1:] if self._cursor.next.kind == "device" else ""
        return TensorType(as_dtype(token.text), shape, device)

    def _shape(self) -> Shape:
        self._cursor.sign("[")
        start = self._cursor.next
        shape = tuple(self._cursor.listed("]", self.extent))
        if any(isinstance(d, int) and d < 0 for d in shape):
            raise error(start, "an extent is negative")
        return shape

    def extent(self) -> Dim:
        """An int or an expression over symbols."""
        token = self._cursor.next
        value = self.value()
        if isinstance(value, bool) or not isinstance(value, (int, Expr)):
            raise error(token, "expected an extent")
        return value

    # -- attribute values ------------------------------------------------------------------

    def value(self) -> Any:
        """A value: sums of products of atoms, which for anything but extents is one atom."""
        value = self._product()
        while self._cursor.next.kind == "sign" and self._cursor.next.text in ("+", "-"):
            sign = self._cursor.advance()
            value = self._arithmetic(sign, value, self._product())
        return value

    def _product(self) -> Any:
        value = self._unary()
        while self._cursor.next.kind == "sign" and self._cursor.next.text in ("*", "//", "%"):
            sign = self._cursor.advance()
            value = self._arithmetic(sign, value, self._unary())
        return value

    def _unary(self) -> Any:
        token = self._cursor.next
        if not self._cursor.take("-"):
            return self._atom()
        value = self._unary()
        if isinstance(value, bool) or not isinstance(value, (int, float, Expr)):
            raise error(token, "'-' stands before something that is not a number")
        return -value

    def _arithmetic(self, sign: Token, x: Any, y: Any) -> Any:
        for value in (x, y):
            if isinstance(value, bool) or not isinstance(value, (int, Expr)):
                raise error(sign, f"{sign} stands between values that are not extents")
        if sign.text in ("//", "%") and y == 0:
            raise error(sign, "division by zero")
        return _ARITHMETIC[sign.text](x, y)

    def _atom(self) -> Any:
        token = self._cursor.next
        if token.kind == "word":
            return self._word(token)
        if token.kind not in ("int", "float", "string") and token.text != "(":
            raise error(token, f"expected a value, found {token}")
        self._cursor.advance()
        return self._parenthesis() if token.text == "(" else literal(token)

    def _parenthesis(self) -> Any:
        if self._cursor.take(")"):
            return ()
        first = self.value()
        if self._cursor.take(")"):
            return first
        self._cursor.expect("sign", ",", "',' or ')'")
        return (first, *self._cursor.listed(")", self.value))

    def _word(self, token: Token) -> Any:
        name = token.text
        following = self._cursor.second
        if name == "graph":
            return self._graph()
        if following.kind == "sign" and following.text == "{" and name in REGISTRY:
            return self._op()
        if name in DTYPES and following.text == "[":
            return self._typed()
        self._cursor.advance()
        if name in DTYPES:
            return as_dtype(name)
        if name in WORDS:
            return WORDS[name]
        if name in _CALLS:
            self._cursor.sign("(")
            return self._call(token, name, self._cursor.listed(")", self.value))
        if name not in self.symbols:
            raise error(
                token, f"expected a value, found {token}", "declare extents: graph g[n: 1..]"
            )
        return self.symbols[name]

    def _call(self, token: Token, name: str, arguments: list[Any]) -> Any:
        kinds = (int, float) if name == "complex" else (int, Expr)
        if len(arguments) != 2 or not all(isinstance(a, kinds) for a in arguments):
            raise error(token, f"{name} takes two numbers")
        return _CALLS[name](*arguments)

    # -- types and array data as attributes ------------------------------------------------

    def _typed(self) -> TensorType | ArrayData:
        token = self._cursor.next
        type_ = self.type()
        if not self._cursor.take("("):
            return type_
        if not type_.is_static:
            raise error(token, "array data has no symbolic extents")
        shape = tuple(int(d) for d in type_.shape)
        if self._cursor.take("digest"):
            digest = str(literal(self._cursor.expect("string")))
            self._cursor.sign(")")
            return self._by_digest(token, type_.dtype, shape, digest)
        fill = self._cursor.take("all")
        return self._dense(token, type_.dtype, shape, self._cursor.listed(")", self.value), fill)

    def _by_digest(
        self, token: Token, dtype: DType, shape: tuple[int, ...], digest: str
    ) -> ArrayData:
        absent = ArrayData.absent(dtype, shape, digest)
        data = self._constants.get(digest, absent)
        if data != absent:
            raise error(token, f"the table holds other data ({data!r}) under this digest")
        return data

    def _dense(
        self, token: Token, dtype: DType, shape: tuple[int, ...], values: list[Any], fill: bool
    ) -> ArrayData:
        size = math.prod(shape)
        if len(values) != (1 if fill else size):
            raise error(token, f"expected {1 if fill else size} elements, found {len(values)}")
        try:
            flat = np.array(values, dtype=dtype.numpy)
            full: Any = np.full(shape, flat[0], dtype.numpy) if fill else flat.reshape(shape)
        except (TypeError, ValueError, OverflowError, MemoryError) as problem:
            raise error(token, f"the elements make no {dtype.name}: {problem}") from problem
        return ArrayData(full)


def literal(token: Token) -> Any:
    """The number or string a token holds."""
    try:
        if token.kind in ("int", "float"):
            return int(token.text) if token.kind == "int" else float(token.text)
        return ast.literal_eval(token.text)
    except (SyntaxError, ValueError) as problem:
        raise error(token, f"{token} is not a literal") from problem


_CALLS: dict[str, Callable[..., Any]] = {"min": minimum, "max": maximum, "complex": complex}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
}
