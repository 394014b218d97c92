"""The CPU's compiler: lowering, building, looking inside."""

import gc
import weakref
from typing import Any

import numpy as np

from treadle.backends.api import Support
from treadle.backends.cpu import backend
from treadle.backends.cpu.allocator import HOST
from treadle.backends.cpu.native import toolchain
from treadle.backends.program import Address, Launch, Lowered, Program, Ref, Run, runs_of
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.ops.activation import LeakyRelu
from treadle.ops.unary import Exp

X = TensorType(dt.float32, (12, 34))


def launch() -> Launch:
    lowered = backend.compiler().lower(Exp(), (X,))
    assert isinstance(lowered, Lowered)
    return lowered.launches[0]


def test_kernels_are_shown_at_three_levels() -> None:
    compiler = backend.compiler()
    assert "float32" in compiler.inspect(launch(), "kernel")
    assert "define void @" in compiler.inspect(launch(), "llvm")
    assert "ret" in compiler.inspect(launch(), "assembly")


def test_the_target_names_what_decides_the_code() -> None:
    assert backend.compiler().target.startswith(toolchain().fingerprint)
    assert "llvmlite-" in backend.compiler().target


def test_refusals_say_why() -> None:
    compiler = backend.compiler()
    found = compiler.lower(Exp(), (TensorType(dt.complex64, (3,)),))
    assert isinstance(found, Support)
    assert found.reason == "dtype"


def test_composites_with_kernels_are_kept() -> None:
    assert backend.compiler().keeps("attention")
    assert not backend.compiler().keeps("add")


def test_dropping_a_program_unloads_its_code() -> None:
    op = LeakyRelu(0.0123)  # which nobody else keeps loaded
    lowered = backend.compiler().lower(op, (X,))
    assert isinstance(lowered, Lowered)
    x, y = -np.ones((2, 12, 34), np.float32)
    steps = tuple(
        Run(one.kernel, tuple(map(_place, one.arguments)), one.items, one.serial)
        for one in lowered.launches
    )
    made = backend.compiler().build(Program(steps, 2))
    made.run(np.array([x.ctypes.data, y.ctypes.data], np.int64))
    np.testing.assert_allclose(y, op.reference(x), rtol=1e-6)
    (library,) = made._keep  # type: ignore[attr-defined]
    gone = weakref.ref(library)
    del library, made
    gc.collect()
    assert gone() is None


def a_program(op: LeakyRelu, beside: tuple[Any, ...] = ()) -> Program:
    lowered = backend.compiler().lower(op, (X,))
    assert isinstance(lowered, Lowered)
    runs = (Run(x.kernel, tuple(map(_place, x.arguments)), x.items) for x in lowered.launches)
    return Program(tuple(runs), 2, beside)


def test_a_program_takes_the_place_of_what_eager_calls_left() -> None:
    left = HOST.empty((1 << 20,), np.dtype("float32"))
    del left
    assert HOST.statistics().cached >= 1 << 22
    backend.compiler().executable(a_program(LeakyRelu(0.0124)))  # type: ignore[attr-defined]
    assert HOST.statistics().cached >= 1 << 22
    backend.compiler().build(a_program(LeakyRelu(0.0124)))
    assert HOST.statistics().cached == 0


def test_programs_that_are_built_together_share_a_library() -> None:
    ops = LeakyRelu(0.0125), LeakyRelu(0.0126)
    kernels = [tuple(r.kernel for r in runs_of(a_program(op).steps)) for op in ops]
    first = backend.compiler().build(a_program(ops[0], kernels[1]))
    built = toolchain().built
    second = backend.compiler().build(a_program(ops[1], kernels[0]))
    assert toolchain().built == built
    assert first._keep == second._keep  # type: ignore[attr-defined]
    again = backend.compiler().restore(second.stored())
    assert again is not None and toolchain().built == built
    x, y = -np.ones((2, 12, 34), np.float32)
    again.run(np.array([x.ctypes.data, y.ctypes.data], np.int64))
    np.testing.assert_allclose(y, ops[1].reference(x), rtol=1e-6)


def _place(argument: Ref | int) -> Address | int:
    if isinstance(argument, int):
        return argument
    return Address(int(argument.kind == "output"), argument.offset)
