"""Kernels of the simulated device: some ops, some types, some ranks, each with its reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tests.sim.device import SimDevice

from treadle.backends.api import Kernel, Operand, Stream, Support, no, yes
from treadle.base.types import TensorType
from treadle.ops.op import Op

Compute = Callable[..., Any]
TYPES = ("float32", "int32")
LARGEST = 1 << 20


def run_with(compute: Compute) -> Callable[..., None]:
    """A kernel function that has a stream compute its one result with NumPy."""

    def run(
        device: Any,
        outs: Sequence[Operand],
        ins: Sequence[Operand],
        attributes: Mapping[str, Any],
        stream: Stream,
        /,
    ) -> None:
        assert isinstance(device, SimDevice)
        device.launches += 1
        for operand in (*ins, *outs):
            device.alive(operand.buffer)
        (out,) = outs

        def work() -> None:
            arrays = [array_of(device, operand) for operand in ins]
            with np.errstate(all="ignore"):
                array_of(device, out)[...] = compute(*arrays, **attributes)

        device.submit(stream, work)

    return run


def array_of(device: SimDevice, operand: Operand) -> np.ndarray[Any, Any]:
    """An operand's memory as an array; for threads of streams."""
    return device.view(operand.buffer, operand.type.dtype.numpy, operand.type.shape)


def kernel(op: str, compute: Compute, supports: Any, **options: Any) -> Kernel:
    """A kernel from a NumPy function."""
    return Kernel(op, run_with(compute), supports, **options)


# -- what it takes -----------------------------------------------------------------------------


def numbers(op: Op, types: Sequence[TensorType]) -> Support:
    """float32 and int32, up to five axes, up to a size."""
    for type_ in types:
        if type_.dtype.name not in TYPES:
            return no("dtype", f"only {' and '.join(TYPES)}, not {type_.dtype.name}")
        if type_.ndim > 5:
            return no("rank", f"at most 5 axes, not {type_.ndim}")
        if type_.nbytes > LARGEST:
            return no("size-limit", f"at most {LARGEST} bytes")
    return yes()


def reals(op: Op, types: Sequence[TensorType]) -> Support:
    """float32 only."""
    wrong = [t.dtype.name for t in types if t.dtype.name != "float32"]
    return no("dtype", f"only float32, not {wrong[0]}") if wrong else numbers(op, types)


def matrices(op: Op, types: Sequence[TensorType]) -> Support:
    """Two matrices, not transposed, not empty."""
    if any(t.ndim != 2 for t in types):
        return no("rank", "only matrices")
    if any(op.attributes.values()):
        return no("attribute", "no transposed operands")
    if any(not t.nbytes for t in types):
        return no("shape", "no empty operands")
    return reals(op, types)


def reductions(op: Op, types: Sequence[TensorType]) -> Support:
    """Reductions of something."""
    return numbers(op, types) if types[0].nbytes else no("shape", "no empty operands")


def moves(op: Op, types: Sequence[TensorType]) -> Support:
    """Elements of any type up to a size."""
    return yes() if types[0].nbytes <= LARGEST else no("size-limit", f"at most {LARGEST} bytes")


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def transposed(x: Any, permutation: Any) -> Any:
    return np.transpose(x, permutation)


def standard() -> list[Kernel]:
    """The kernels of the unbroken device."""
    return [
        kernel("add", np.add, numbers),
        kernel("sub", np.subtract, numbers),
        kernel("mul", np.multiply, numbers),
        kernel("maximum", np.maximum, numbers),
        kernel("neg", np.negative, numbers),
        kernel("relu", lambda x: np.maximum(x, x.dtype.type(0)), numbers),
        kernel("exp", np.exp, reals),
        kernel("sigmoid", sigmoid, reals),
        kernel("clip", lambda x, low, high: np.clip(x, low, high), reals),
        kernel(
            "sum", lambda x, axes, keepdims: x.sum(axes, x.dtype, keepdims=keepdims), reductions
        ),
        kernel("max", lambda x, axes, keepdims: x.max(axes, keepdims=keepdims), reductions),
        kernel("matmul", lambda x, y, **_: x @ y, matrices),
        kernel("broadcast", lambda x, shape: np.broadcast_to(x, shape), moves),
        kernel("reshape", lambda x, shape: x.reshape(shape), moves),
        kernel("transpose", transposed, moves),
    ]
