"""Calls of cuDNN as values: a symbol names one entirely, and a graph is made from it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal

from treadle.base import dtype as dt
from treadle.base.dtype import DType, as_dtype

KIND = "cudnn"
Side = Literal["forward", "input", "weight"]
"""Result of a convolution: its own, or the gradient in one of its operands."""


@dataclass(frozen=True, slots=True)
class CudnnOperand:
    """An operand or result: extents, and elements from one position to the next on every axis."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def type(self) -> DType:
        """Element type."""
        return as_dtype(self.dtype)


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution seen from one side, over two or three spatial axes.

    Attributes:
        side: which of the three arrays is the result.
        result, first, second: in the order of the op's operands.
        strides, dilation: cells from window to window, and from cell to cell of one.
        before, after: cells of padding on both sides of each axis.
    """

    side: Side
    result: CudnnOperand
    first: CudnnOperand
    second: CudnnOperand
    strides: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of the convolution in reports and profiles."""
        shapes = "*".join("x".join(map(str, a.shape)) for a in (self.first, self.second))
        return f"{KIND} convolution {self.side} {shapes} {self.result.dtype}"

    @property
    def symbol(self) -> str:
        """All of it as text, from which `parsed` makes it again."""
        return _symbol(self)


@dataclass(frozen=True, slots=True)
class Attention:
    """softmax(q k^T scale + mask) v over [batch, heads, rows, columns].

    Attributes:
        stats: the logarithm of the sum of each row's weights, which the gradient asks for.
        mask: what is added to the scores; extents of 1 are repeated.
    """

    result: CudnnOperand
    q: CudnnOperand
    k: CudnnOperand
    v: CudnnOperand
    causal: bool
    scale: float
    stats: CudnnOperand | None = None
    mask: CudnnOperand | None = None

    @property
    def name(self) -> str:
        """Name of the attention in reports and profiles."""
        return _attention_name("attention", self.q, self.k)

    @property
    def symbol(self) -> str:
        """All of it as text, from which `parsed` makes it again."""
        return _symbol(self)


@dataclass(frozen=True, slots=True)
class AttentionGrad:
    """The gradients of attention in q, k and v, from its result, its statistics and dy."""

    dq: CudnnOperand
    dk: CudnnOperand
    dv: CudnnOperand
    q: CudnnOperand
    k: CudnnOperand
    v: CudnnOperand
    y: CudnnOperand
    dy: CudnnOperand
    stats: CudnnOperand
    causal: bool
    scale: float
    mask: CudnnOperand | None = None

    @property
    def name(self) -> str:
        """Name of the attention's gradient in reports and profiles."""
        return _attention_name("attention gradient", self.q, self.k)

    @property
    def symbol(self) -> str:
        """All of it as text, from which `parsed` makes it again."""
        return _symbol(self)


Call = Convolution | Attention | AttentionGrad
_CALLS: dict[str, type[Call]] = {c.__name__: c for c in (Convolution, Attention, AttentionGrad)}


def named(call: Call) -> dict[str, CudnnOperand]:
    """The arrays of a call by the names of its fields, in the order of a launch's arguments."""
    fields = [(f.name, getattr(call, f.name)) for f in dataclasses.fields(call)]
    return {name: value for name, value in fields if isinstance(value, CudnnOperand)}


def dense(shape: tuple[int, ...], dtype: DType) -> CudnnOperand:
    """An array in row-major order."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return CudnnOperand(shape, tuple(strides), dtype.name)


def stats_of(result: CudnnOperand) -> CudnnOperand:
    """Return the statistics that the forward pass writes of its weights, for a result of these
    extents.
    """
    return dense((*result.shape[:-1], 1), dt.float32)


def parsed(symbol: str) -> Call:
    """The call of a symbol."""
    name, fields = json.loads(symbol.removeprefix(f"{KIND} "))
    found = _CALLS[name]
    return found(**{key: _restored(value) for key, value in fields.items()})


def _symbol(call: Call) -> str:
    fields = dataclasses.asdict(call)
    return f"{KIND} {json.dumps([type(call).__name__, fields])}"


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return CudnnOperand(tuple(value["shape"]), tuple(value["strides"]), value["dtype"])
    return tuple(value) if isinstance(value, list) else value


def _attention_name(what: str, q: CudnnOperand, k: CudnnOperand) -> str:
    entries, heads, rows, columns = q.shape
    return f"{KIND} {what} {entries}x{heads}x{rows}x{columns} on {k.shape[2]} {q.dtype}"
