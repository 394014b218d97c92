"""Kernels made of functions of a native library, one line per op, by families of ops.

A function takes pointers to dense row-major elements, operands first and the result behind them,
then extents as `int64_t`. It returns 0, or a number that the user is told. What it computes with
is said once, in `Library`; which shapes it takes, here.

| family | C function, for float32 |
|---|---|
| elementwise | `int f(const float *x, ..., float *y, int64_t n)` |
| reduction | `int f(const float *x, float *y, int64_t outer, int64_t n, int64_t inner)` |
| matmul | `int f(const float *x, const float *y, float *z, const matmul_extents *e)` |
| convolution | `int f(const float *x, const float *w, float *y, const conv_extents *e)` |
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.backends.api import Buffer, Kernel, Operand, Stream, Support, no, yes
from treadle.base.errors import LoadError
from treadle.base.types import TensorType
from treadle.ops.op import REGISTRY, Op

Arguments = Callable[[list[TensorType], TensorType, Any], tuple[Any, ...]]
"""Arguments behind the pointers: of operand types, the result's type and the op's attributes."""
Answer = Callable[[Op, Sequence[TensorType]], Support]


class MatmulExtents(ctypes.Structure):
    """`batch` products of m x k with k x n; an operand is stored transposed where its flag is 1."""

    _fields_ = tuple(
        (name, ctypes.c_int64) for name in ("batch", "m", "n", "k", "transpose_x", "transpose_y")
    )


class ConvExtents(ctypes.Structure):
    """x [n, c, h, w], weight [o, c / groups, kernel_h, kernel_w], y [n, o, out_h, out_w]."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("n", "c", "h", "w", "o", "kernel_h", "kernel_w", "out_h", "out_w"),
            *("stride_h", "stride_w", "top", "bottom", "left", "right"),
            *("dilation_h", "dilation_w", "groups"),
        )
    )


@dataclass(frozen=True)
class Library:
    """Makes kernels of a library's functions.

    Attributes:
        address: the address of a buffer, as the library wants to have it.
        dtypes: names of element types that all operands may have; one library object per type
            where functions are for one type each.
        stream: the library's handle of a stream, passed behind everything else as `void *`; None
            for functions that take none.
        priority: of the kernels.
        name: of the kernels.
    """

    address: Callable[[Buffer], int]
    dtypes: tuple[str, ...] = ("float32",)
    stream: Callable[[Stream], int] | None = None
    priority: int = 0
    name: str = ""

    def elementwise(self, op: str, function: Any, attributes: Sequence[str] = ()) -> Kernel:
        """An op on elements in the same place; numbers among its attributes come behind n.

        Args:
            op: its name.
            function: a function of a `ctypes.CDLL`, or an address.
            attributes: which attributes the function takes, as `double`; an op that has others is
                left to somebody else.
        """

        def arguments(ins: list[TensorType], out: TensorType, given: Any) -> tuple[Any, ...]:
            values = (ctypes.c_double(given[name]) for name in attributes)
            return ctypes.c_int64(_size(out.shape)), *values

        def supports(op: Op, types: Sequence[TensorType]) -> Support:
            other = sorted(set(op.attributes) - set(attributes))
            if other:
                return no("attribute", f"the function takes no {', '.join(other)}")
            return yes()

        return self._kernel(op, function, supports, arguments)

    def reduction(self, op: str, function: Any) -> Kernel:
        """An op that joins elements along neighboring axes, such as `sum` or `max`."""

        def supports(op: Op, types: Sequence[TensorType]) -> Support:
            axes = sorted(op.attributes["axes"])
            if axes and axes != list(range(axes[0], axes[-1] + 1)):
                return no("attribute", f"axes {axes} do not lie side by side")
            return yes()

        def arguments(ins: list[TensorType], out: TensorType, given: Any) -> tuple[Any, ...]:
            shape, axes = ins[0].shape, sorted(given["axes"]) or [len(ins[0].shape)]
            first, behind = axes[0], axes[-1] + 1
            parts = shape[:first], shape[first:behind], shape[behind:]
            return tuple(ctypes.c_int64(_size(part)) for part in parts)

        return self._kernel(op, function, supports, arguments)

    def matmul(self, function: Any, op: str = "matmul") -> Kernel:
        """Products of matrices, or of as many matrices on either side."""

        def supports(op: Op, types: Sequence[TensorType]) -> Support:
            x, y = types
            if min(x.ndim, y.ndim) < 2:
                return no("rank", "matrices only")
            if x.shape[:-2] != y.shape[:-2]:
                return no("shape", "as many matrices on either side only")
            return yes()

        def arguments(ins: list[TensorType], out: TensorType, given: Any) -> tuple[Any, ...]:
            transposed = given["transpose_x"], given["transpose_y"]
            batch, (m, n) = _size(out.shape[:-2]), out.shape[-2:]
            k = ins[0].shape[-2 if transposed[0] else -1]
            extents = MatmulExtents(batch, int(m), int(n), int(k), *map(int, transposed))
            return (ctypes.byref(extents),)

        return self._kernel(op, function, supports, arguments)

    def conv(self, function: Any, op: str = "conv") -> Kernel:
        """A convolution of planes, or its gradient "conv_grad_input" or "conv_grad_weight"."""

        def supports(op: Op, types: Sequence[TensorType]) -> Support:
            return yes() if types[0].ndim == 4 else no("rank", "two spatial axes only")

        def arguments(ins: list[TensorType], out: TensorType, given: Any) -> tuple[Any, ...]:
            x, weight, y = REGISTRY[op](**given).roles(ins, out)  # type: ignore[attr-defined]
            (top, bottom), (left, right) = given["padding"]
            numbers = (*x.shape, weight.shape[0], *weight.shape[2:], *y.shape[2:])
            extents = ConvExtents(
                *[int(n) for n in numbers],
                *given["strides"],
                *(top, bottom, left, right),
                *given["dilation"],
                given["groups"],
            )
            return (ctypes.byref(extents),)

        return self._kernel(op, function, supports, arguments)

    def _kernel(self, op: str, function: Any, supports: Answer, arguments: Arguments) -> Kernel:
        """A kernel that passes pointers, and behind them what a family adds."""
        call = _callable(function)
        address, stream_of = self.address, self.stream

        def run(device: Any, outs: Any, ins: Any, attributes: Any, stream: Any, /) -> None:
            out: Operand = outs[0]
            pointers = [ctypes.c_void_p(address(o.buffer)) for o in (*ins, out)]
            extents = arguments([i.type for i in ins], out.type, attributes)
            queue = () if stream_of is None else (ctypes.c_void_p(stream_of(stream)),)
            code = call(*pointers, *extents, *queue)
            if code:
                raise RuntimeError(f"the library's function returned {code}")

        def ask(op: Op, types: Sequence[TensorType], /) -> Support:
            wrong = [t.dtype.name for t in types if t.dtype.name not in self.dtypes]
            if wrong:
                return no("dtype", f"{' or '.join(self.dtypes)}, not {wrong[0]}")
            return supports(op, types)

        return Kernel(op, run, ask, self.priority, self.name)


def _callable(function: Any) -> Callable[..., int]:
    """A function of a library that is called with typed arguments and returns an int."""
    at = function if isinstance(function, int) else ctypes.cast(function, ctypes.c_void_p).value
    if not at:
        raise LoadError("adapters", "there is no function at address 0")
    typed = ctypes.CFUNCTYPE(ctypes.c_int)(at)

    def call(*arguments: Any, owner: Any = function) -> int:  # or the library could be closed
        return int(typed(*arguments))

    return call


def _size(shape: Sequence[Any]) -> int:
    return math.prod(int(d) for d in shape)
