"""Kernels with one mistake each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tests.sim.device import SimDevice
from tests.sim.kernels import array_of, kernel, matrices, moves, numbers, reals, standard
from tests.sim.mutation import kernels

from treadle.backends.api import Kernel, Support, no, yes
from treadle.ops.conv import Conv


def always(op: Any, types: Sequence[Any]) -> Support:
    return yes()


@kernels("honesty/kernel/relu")
def says_yes_to_types_it_cannot_compute() -> list[Kernel]:
    def only_floats(x: Any) -> Any:
        return np.maximum(x.view(np.float32), np.float32(0)).view(x.dtype)

    return [kernel("relu", only_floats, always)]


@kernels("honesty/kernel/matmul")
def says_yes_and_raises() -> list[Kernel]:
    def run(device: Any, outs: Any, ins: Any, attributes: Any, stream: Any, /) -> None:
        if ins[0].type.ndim != 2:
            raise ValueError("only matrices")
        (good,) = [k for k in standard() if k.op == "matmul"]
        good.run(device, outs, ins, attributes, stream)

    return [Kernel("matmul", run, reals)]


@kernels("honesty/kernel/exp")
def says_no_without_a_code() -> list[Kernel]:
    return [kernel("exp", np.exp, lambda op, types: Support(False) if types[0].ndim else yes())]


@kernels("honesty/kernel/exp")
def says_no_with_a_code_of_its_own() -> list[Kernel]:
    def answer(op: Any, types: Any) -> Support:
        return reals(op, types) and Support(types[0].ndim > 0, "scalar", "no scalars")  # type: ignore[arg-type]

    return [kernel("exp", np.exp, answer)]


@kernels("honesty/kernel/exp")
def answers_with_a_bool() -> list[Kernel]:
    return [kernel("exp", np.exp, lambda op, types: types[0].dtype.name == "float32")]


@kernels("honesty/kernel/add")
def cannot_be_asked_about_scalars() -> list[Kernel]:
    def answer(op: Any, types: Any) -> Support:
        return numbers(op, types) if types[0].shape[-1] else no("shape", "no empty operands")

    return [kernel("add", np.add, answer)]


@kernels("honesty/kernel/add")
def changes_its_mind() -> list[Kernel]:
    turns = [0]

    def answer(op: Any, types: Any) -> Support:
        turns[0] += 1
        return numbers(op, types) if turns[0] % 2 else no("policy", "not now")

    return [kernel("add", np.add, answer)]


def _raw(write: Callable[[SimDevice, Any, Any, Mapping[str, Any]], None], op: str) -> Kernel:
    """A kernel from a function that gets the operands' memory itself."""

    def run(device: Any, outs: Any, ins: Any, attributes: Any, stream: Any, /) -> None:
        device.submit(stream, lambda: write(device, outs, ins, attributes))

    return Kernel(op, run, reals)


@kernels("honesty/kernel/neg")
def writes_behind_its_result() -> list[Kernel]:
    def write(device: SimDevice, outs: Any, ins: Any, _: Any) -> None:
        out = outs[0]
        wide = -(-out.type.nbytes // 32) * 32 // 4  # whole vectors of 8
        x = array_of(device, ins[0]).reshape(-1)
        full = device._memory[out.buffer.offset :][: 4 * wide].view(np.float32)
        full[:] = -np.resize(x, wide)

    return [_raw(write, "neg")]


@kernels("honesty/kernel/neg")
def writes_its_operand() -> list[Kernel]:
    def write(device: SimDevice, outs: Any, ins: Any, _: Any) -> None:
        x = array_of(device, ins[0])
        x *= -1
        array_of(device, outs[0])[...] = x

    return [_raw(write, "neg")]


@kernels("honesty/kernel/neg")
def leaves_the_tail_unwritten() -> list[Kernel]:
    def write(device: SimDevice, outs: Any, ins: Any, _: Any) -> None:
        x, y = (array_of(device, o).reshape(-1) for o in (ins[0], outs[0]))
        n = x.size // 4 * 4
        y[:n] = -x[:n]

    return [_raw(write, "neg")]


@kernels("honesty/kernel/neg")
def swallows_its_exceptions() -> list[Kernel]:
    def write(device: SimDevice, outs: Any, ins: Any, _: Any) -> None:
        try:
            (rows, columns) = ins[0].type.shape
            array_of(device, outs[0]).reshape(rows, columns)[...] = -array_of(device, ins[0])
        except ValueError:
            pass

    return [_raw(write, "neg")]


@kernels("honesty/kernel/broadcast")
def repeats_elements_instead_of_broadcasting() -> list[Kernel]:
    return [kernel("broadcast", lambda x, shape: np.resize(x, shape), moves)]


@kernels("honesty/kernel/sum")
def ignores_axes() -> list[Kernel]:
    def total(x: Any, axes: Any, keepdims: Any) -> Any:
        return x.sum(dtype=x.dtype)

    return [kernel("sum", total, reals)]


@kernels("operators/exp/float32")
def computes_in_half_precision() -> list[Kernel]:
    return [kernel("exp", lambda x: np.exp(x.astype(np.float16)), reals)]


@kernels("operators/relu/float32")
def loses_not_a_number() -> list[Kernel]:
    return [kernel("relu", lambda x: np.where(x > 0, x, np.float32(0)), reals)]


@kernels("operators/maximum/int32")
def compares_integers_as_floats() -> list[Kernel]:
    def greatest(x: Any, y: Any) -> Any:
        return np.maximum(x.astype(np.float32), y.astype(np.float32))

    return [kernel("maximum", greatest, numbers)]


@kernels("operators/large_arrays")
def counts_positions_in_sixteen_bits() -> list[Kernel]:
    def short(x: Any, y: Any) -> Any:
        return np.resize((x.reshape(-1) + y.reshape(-1))[:65536], x.shape)

    return [kernel("add", short, numbers)]


@kernels("operators/determinism")
def sums_in_another_order_each_time() -> list[Kernel]:
    rng = np.random.default_rng()

    def product(x: Any, y: Any, **_: Any) -> Any:
        order = rng.permutation(x.shape[1])
        return sum((np.outer(x[:, i], y[i]) for i in order), np.float32(0))

    return [kernel("matmul", product, matrices)]


@kernels("honesty/kernels_are_for_ops_that_exist")
def has_kernels_for_unknown_ops() -> list[Kernel]:
    # With a dot, as of a package that is not imported: others are refused when a backend loads.
    return [kernel("nobodys.add", np.add, numbers)]


@kernels("honesty/kernel/sqrt")
def says_no_without_a_word() -> list[Kernel]:
    def answer(op: Any, types: Any) -> Support:
        return reals(op, types) if types[0].ndim < 2 else Support(False, "rank")

    return [kernel("sqrt", np.sqrt, answer)]


@kernels("operators/relu/float32")
def keeps_negative_zeros() -> list[Kernel]:
    return [kernel("relu", lambda x: np.where(x < 0, x.dtype.type(0), x), numbers)]


@kernels("operators/add/*int8")
def saturates_small_integers() -> list[Kernel]:
    def total(x: Any, y: Any) -> Any:
        if x.dtype.itemsize > 1:
            return x + y
        limits = np.iinfo(x.dtype)
        return np.clip(x.astype(np.int32) + y, limits.min, limits.max)

    return [kernel("add", total, always)]


@kernels("operators/matmul/float32")
def forgets_to_transpose_squares() -> list[Kernel]:
    def product(x: Any, y: Any, transpose_x: bool, transpose_y: bool) -> Any:
        turn = transpose_x and x.shape[-1] != x.shape[-2]
        return (x.swapaxes(-1, -2) if turn else x) @ (y.swapaxes(-1, -2) if transpose_y else y)

    return [kernel("matmul", product, reals)]


@kernels("operators/conv/float32")
def pads_on_the_wrong_side() -> list[Kernel]:
    def convolve(x: Any, weight: Any, padding: Any, **others: Any) -> Any:
        turned = tuple([(after, before) for before, after in padding])
        return Conv(padding=turned, **others).reference(x, weight)

    return [kernel("conv", convolve, reals)]
