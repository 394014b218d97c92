"""The interpreter: its rules by hand-made figures, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.spelled import Builder, kernel

from treadle.backends.codegen.kernel.c import c_source
from treadle.backends.codegen.kernel.interpret import run
from treadle.backends.codegen.kernel.interpret_values import fma
from treadle.backends.codegen.kernel.ir import (
    Instruction,
    KernelError,
    KernelModule,
    Type,
    Value,
    pointer,
)
from treadle.backends.codegen.kernel.llvm import module_text
from treadle.backends.codegen.kernel.text import kernel_text
from treadle.backends.codegen.target import AVX2
from treadle.base import dtype as dt

X = pointer(dt.float32, "x")


def one(write: Callable[[Builder, Value], Any]) -> KernelModule:
    """A kernel over one array, that writes from item `lo`."""
    return kernel("bad", (X,), lambda b, lo, hi: write(b, lo))


def test_float32_fma_rounds_once() -> None:
    # The product is a tie of float32, which the addend, below float64's last place, decides.
    x, y = np.array([1 + 2**-23], np.float32), np.array([1.5], np.float32)
    z = np.array([-(2.0**-60)], np.float32)
    assert np.float32(float(x[0]) * float(y[0]) + float(z[0])) == np.float32(1.5 + 2**-22)
    assert fma(dt.float32, x, y, z)[0] == np.float32(1.5 + 2**-23)


def test_casts_of_literals_go_through_their_type() -> None:
    b = Builder()
    assert b.cast(b.constant(0.1, dt.float32), dt.float64).literal == float(np.float32(0.1))
    assert b.cast(b.constant(300, dt.uint8), dt.int32).literal == 44
    assert b.cast(b.constant(200, dt.int8), dt.float32).literal == -56.0
    assert b.cast(b.constant(1e9, dt.float16), dt.float32).literal == np.inf
    assert b.cast(b.constant(float("inf"), dt.float32), dt.int32).literal is None


def test_float64_fma_is_exact() -> None:
    x = np.array([1 + 2**-30, 1e308, -0.0, np.inf])
    z = np.array([-(1 + 2**-29), 1e308, -0.0, -np.inf])
    y = np.array([1 + 2**-30, 1e10, 5.0, 1.0])
    found = fma(dt.float64, x, y, z)
    assert found[0] == 2**-60
    assert found[1] == np.inf
    assert found[2] == 0 and np.signbit(found[2])
    assert np.isnan(found[3])


def test_masked_lanes_are_not_touched() -> None:
    x = np.ones(5, np.float32)
    tail = one(
        lambda b, lo: b.store(
            X, 3, b.add(b.load(X, 3, 4, b.first_lanes(2, 4)), 1.0), b.first_lanes(2, 4)
        )
    )
    run(tail, [x])
    assert x.tolist() == [1, 1, 1, 2, 2]


def _unaligned(b: Builder, lo: Value) -> None:
    b.store(b.stack(dt.float32, 16), 1, b.constant(0.0, dt.float32, 8), aligned=True)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda b, lo: b.load(X, 4), r"float32\[4:5\] is outside"),
        (lambda b, lo: b.load(X, -1), r"float32\[-1:0\] is outside"),
        (lambda b, lo: b.load(X, 1, 4), r"float32\[1:5\] is outside"),
        (lambda b, lo: b.store(b.stack(dt.int8, 3), 3, b.constant(0, dt.int8)), "outside"),
        (lambda b, lo: b.gather(X, b.add(b.iota(dt.int32, 4), 1)), r"float32\[4:5\] is outside"),
        (lambda b, lo: b.zero(X, 5), "outside"),
        (lambda b, lo: b.copy(X, b.offset(X, 1), 2), "overlap"),
        (lambda b, lo: b.div(b.add(lo, 1), b.sub(lo, lo)), "division by 0"),
        (lambda b, lo: b.bitwise("shl", b.add(lo, 1), 64), "shift"),
        (lambda b, lo: b.loop(0, b.add(lo, 3), b.sub(lo, 1), lambda i: None), "step -1"),
        (_unaligned, "not aligned to 32 bytes"),
    ],
)
def test_misuse_is_caught(write: Callable[[Builder, Value], Any], message: str) -> None:
    with pytest.raises(KernelError, match=f"bad: .*{message}"):
        run(one(write), [np.zeros(4, np.float32)])


def test_a_copy_of_a_place_to_itself_changes_nothing() -> None:
    """Lines are copied before they are updated, also where the update is in place."""
    x = np.arange(4, dtype=np.float32)
    run(one(lambda b, lo: b.copy(X, X, 4)), [x])
    assert x.tolist() == [0, 1, 2, 3]


def test_arguments_are_checked() -> None:
    nothing = one(lambda b, lo: None)
    with pytest.raises(KernelError, match="takes 1 arguments"):
        run(nothing, [])
    with pytest.raises(KernelError, match="contiguous"):
        run(nothing, [np.zeros((4, 4), np.float32)[:, 1]])


def test_memory_that_is_only_to_be_read() -> None:
    x = np.zeros(4, np.float32)
    x.flags.writeable = False
    with pytest.raises(KernelError, match="only to be read"):
        run(one(lambda b, lo: b.store(X, 0, b.constant(1.0, dt.float32))), [x])


# -- kernels that are not of the language, for every reader ------------------------------------


def _from_a_loop(b: Builder, lo: Value) -> None:
    seen: list[Value] = []
    b.loop(0, b.add(lo, 4), 1, lambda i: seen.append(b.load(X, i)))
    b.store(X, 0, seen[0])


def _twice(b: Builder, lo: Value) -> None:
    b.load(X, 0)
    b.block.statements.append(b.block.statements[-1])


WAYS: dict[str, Callable[[KernelModule], object]] = {
    "text": kernel_text,
    "llvm": lambda k: module_text([k], AVX2),
    "c": lambda k: c_source([k], AVX2),
    "run": lambda k: run(k, [np.zeros(4, np.float32)]),
}


@pytest.mark.parametrize("printer", WAYS)
def test_a_value_stays_in_its_block(printer: str) -> None:
    with pytest.raises(KernelError, match="used where it is not defined"):
        WAYS[printer](one(_from_a_loop))


@pytest.mark.parametrize("printer", ["text", "llvm"])
def test_a_value_is_defined_once(printer: str) -> None:
    with pytest.raises(KernelError, match="defined twice"):
        WAYS[printer](one(_twice))


@pytest.mark.parametrize("way", ["llvm", "c", "run"])
@pytest.mark.parametrize(
    "write",
    [
        lambda b, lo: b.unary("floor", lo),
        lambda b, lo: b.add(b.compare("lt", lo, 1), True),
        lambda b, lo: b.fma(lo, lo, lo),
        lambda b, lo: b.copysign(b.cast(lo, dt.int32), 1),
        lambda b, lo: b.shuffle(b.splat(lo, 4), b.splat(lo, 4), (8,)),
        lambda b, lo: b.extract(b.splat(lo, 4), 4),
        lambda b, lo: b.reduce("add", b.splat(lo, 3)),
        lambda b, lo: b.dot(b.splat(lo, 4), b.splat(lo, 4), b.splat(lo, 4)),
        lambda b, lo: b.emit("frobnicate", (lo,), Type(dt.int64)),
    ],
)
def test_what_the_language_lacks(way: str, write: Callable[[Builder, Value], Any]) -> None:
    with pytest.raises(KernelError, match="bad"):
        WAYS[way](one(write))


def test_what_is_looked_up_lies_in_the_table() -> None:
    p = [pointer(dt.uint8) for _ in range(2)]

    def write(b: Builder, lo: Value, hi: Value) -> None:
        b.store(p[1], 0, b.lookup(b.load(p[0], 0, 4), range(100, 116)))

    found = np.zeros(4, np.uint8)
    run(kernel("looks", p, write), (np.array([0, 15, 3, 7], np.uint8), found), 0, 1)
    assert found.tolist() == [100, 115, 103, 107]
    with pytest.raises(KernelError, match="outside of the table"):
        run(kernel("looks", p, write), (np.full(4, 16, np.uint8), found), 0, 1)
    with pytest.raises(KernelError, match="lookup"):
        one(lambda b, lo: b.lookup(lo, range(16)))


def test_claims_about_products_are_checked() -> None:
    p = [pointer(d) for d in (dt.uint8, dt.int8, dt.int32)]

    def write(b: Builder, lo: Value, hi: Value) -> None:
        x, y = (b.load(v, 0, 16) for v in p[:2])
        b.store(p[2], 0, b.dot(b.constant(0, dt.int32, 4), x, y, narrow=True))

    claims = kernel("claims", p, write)
    total = np.zeros(4, np.int32)
    run(claims, (np.full(16, 255, np.uint8), np.full(16, 64, np.int8), total), 0, 1)
    assert (total == 4 * 255 * 64).all()
    with pytest.raises(KernelError, match="do not fit in 16 bits"):
        run(claims, (np.full(16, 255, np.uint8), np.full(16, 65, np.int8), total), 0, 1)


def test_instructions_without_a_result_are_no_expressions() -> None:
    def write(b: Builder, lo: Value) -> None:
        b.block.statements.append(Instruction("splat", (lo,), None))

    for printer in ("llvm", "c"):
        with pytest.raises(KernelError, match="needs a result"):
            WAYS[printer](one(write))
