"""Kernels for AVX-512 on processors without it: interpreted at 16 lanes, and no spills in loops.

Nothing here runs AVX-512's instructions, so that the target is tested wherever the tests run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.channels_last import channels_last
from tests.backends.codegen.contractions import check, interpreted, lowered, values
from tests.backends.codegen.execution import assembly
from tests.backends.codegen.test_depthwise import groups_of, operands

from treadle.backends.codegen.attention.lower_attention import lower_attention
from treadle.backends.codegen.target import AVX512
from treadle.backends.program import Support
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.ops.attention import Attention, AttentionGrad
from treadle.ops.conv import Conv, ConvGradWeight
from treadle.ops.matmul import Matmul

Array = np.ndarray[Any, Any]
Case = tuple[Any, tuple[Array, ...], int]
PAIRS = ((1, 1), (1, 1))


def drawn(*shape: int) -> Array:
    return values(np.random.default_rng(len(shape)), shape, dt.float32)


def product(m: int, k: int, n: int) -> Iterator[Case]:
    for op in (Matmul(), Matmul(True, False), Matmul(False, True)):
        x = drawn(*((k, m) if op.transpose_x else (m, k)))
        y = drawn(*((n, k) if op.transpose_y else (k, n)))
        yield op, (x, y), k


def convolution(channels: int, side: int, outputs: int) -> Iterator[Case]:
    x, w = drawn(1, channels, side, side), drawn(outputs, channels, 3, 3)
    forward = Conv((1, 1), PAIRS, (1, 1), 1)
    dy = drawn(1, outputs, side, side)
    back = ConvGradWeight((1, 1), PAIRS, (1, 1), 1, (3, 3))
    for op, first, second, terms in (
        (forward, x, w, channels * 9),
        (back, x, dy, side * side),
    ):
        yield op, (first, second), terms
        group, given = channels_last(op, first, second)
        yield group, tuple(given), terms


def depthwise(channels: int, side: int) -> Iterator[Case]:
    case = (1, channels, (side, side), (3, 3), (1, 1), PAIRS, (1, 1))
    yield from groups_of(case, *operands(case, dt.float32))


SMALL: list[tuple[str, Callable[[], Iterator[Case]]]] = [
    ("product", lambda: product(5, 7, 19)),
    ("convolution", lambda: convolution(3, 6, 18)),
    ("depthwise", lambda: depthwise(19, 6)),
]
LARGE: list[tuple[str, Callable[[], Iterator[Case]]]] = [
    ("product", lambda: product(256, 256, 256)),
    ("convolution", lambda: convolution(64, 28, 64)),
    ("depthwise", lambda: depthwise(64, 28)),
]


@pytest.mark.parametrize(("name", "cases"), SMALL, ids=[name for name, _ in SMALL])
def test_interpreted_at_16_lanes(name: str, cases: Callable[[], Iterator[Case]]) -> None:
    for op, given, terms in cases():
        check(op, given, terms, runner=interpreted, target=AVX512)


def kernels(name: str) -> list[Any]:
    """Kernels of layers of usual sizes."""
    if name != "attention":
        cases = dict(LARGE)[name]()
        return [launch.kernel for op, given, _ in cases for launch in _launches(op, given)]
    q = TensorType(dt.float32, (128, 64))
    found = []
    for op, count in ((Attention(), 3), (AttentionGrad(), 4)):
        how: Any = lower_attention(op, (q,) * count, (False,) * count, AVX512)
        assert not isinstance(how, Support)
        found += [launch.kernel for launch in how.launches]
    return found


def _launches(op: Any, given: tuple[Array, ...]) -> Any:
    return lowered(op, given, target=AVX512).launches


def inner_loops(text: str) -> Iterator[list[str]]:
    """The instructions of loops without another loop in them: from a label to the jump back."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    labels: dict[str, int] = {}
    last = -1
    for i, line in enumerate(lines):
        if line.endswith(":"):
            labels[line[:-1]] = i
        jump = re.match(r"j\w+\s+(\.L\w+)$", line)
        if jump and jump[1] in labels and labels[jump[1]] > last:
            yield lines[labels[jump[1]] + 1 : i]
            last = labels[jump[1]]


SPILL = re.compile(r"%[xyz]mm\d+, -?\d*\(%r[sb]p\)|\(%r[sb]p\), %[xyz]mm\d+")


@pytest.mark.parametrize("name", ["product", "convolution", "depthwise", "attention"])
def test_inner_loops_keep_their_vectors_in_registers(name: str) -> None:
    text = assembly(list(dict.fromkeys(kernels(name))), AVX512)
    # Those that do little else: exponentials hold more constants than there are registers.
    busy = [p for p in inner_loops(text) if 5 * sum("vfmadd" in line for line in p) > 2 * len(p)]
    assert busy and any("%zmm" in line for loop in busy for line in loop)
    spills = [line for loop in busy for line in loop if SPILL.search(line)]
    assert not spills, spills[:5]


def test_spills_are_seen() -> None:
    text = ".LBB0_1:\n vfmadd231ps %zmm1, %zmm2, %zmm3\n vmovups %zmm3, 64(%rsp)\n jne .LBB0_1\n"
    (loop,) = inner_loops(text)
    assert [bool(SPILL.search(line)) for line in loop] == [False, True]
