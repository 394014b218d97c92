"""The table of strategies: who computes what, and what those that were asked before say."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen.channels_last import channels_last
from tests.backends.codegen.contractions import lowered

import treadle
import treadle.functional as F
from treadle import jit
from treadle.backends.codegen.contraction.table import CONVOLUTIONS, PRODUCTS
from treadle.backends.codegen.target import AVX2
from treadle.ops.conv import Conv, ConvGradWeight, IntConv
from treadle.ops.matmul import IntMatmul, Matmul
from treadle.ops.op import Op
from treadle.ops.winograd import WinogradConv

EVEN = ((1, 1), ((1, 1), (1, 1)), (1, 1), 1)


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.ones(shape, dtype)


def padded(padding: int, groups: int = 1) -> Conv:
    return Conv((1, 1), ((padding, padding),) * 2, (1, 1), groups)


MAPS = numbers(2, 16, 8, 8)
BYTES = numbers(64, 64, dtype="int8")


CONVOLVED: list[tuple[str, list[str], Any, tuple[Any, ...]]] = [
    ("patches", [], padded(1), (MAPS, numbers(16, 16, 3, 3))),
    ("depthwise", ["patches"], padded(1, 16), (MAPS, numbers(16, 1, 3, 3))),
    ("direct", ["patches", "depthwise"], padded(1), (MAPS, numbers(16, 16, 3, 3))),
    (
        "direct: tiles",
        ["patches", "depthwise", *(s.name for s in PRODUCTS[:-1])],
        padded(0),
        (MAPS, numbers(16, 16, 1, 1)),
    ),
    (
        "weights",
        ["patches", "depthwise"],
        ConvGradWeight((1, 1), ((1, 1), (1, 1)), (1, 1), 1, (3, 3)),
        (MAPS, MAPS),
    ),
    ("winograd", [], WinogradConv(*EVEN, 4, False), (MAPS, numbers(16, 16, 3, 3))),
    (
        "direct",
        ["winograd", "patches", "depthwise"],
        WinogradConv(*EVEN, 4, False),
        (MAPS[:, :4], numbers(16, 4, 3, 3)),
    ),
]


@pytest.mark.parametrize(("strategy", "asked", "op", "operands"), CONVOLVED)
def test_who_computes_a_convolution(
    strategy: str, asked: list[str], op: Any, operands: tuple[Any, ...]
) -> None:
    if strategy == "patches":
        made = lowered(op, operands, target=AVX2)
    else:
        made = lowered(*channels_last(op, *operands), target=AVX2)
    assert made.strategy == strategy
    assert [name for name, _ in made.refused] == asked
    assert all(reason for _, reason in made.refused)


MULTIPLIED: list[tuple[str, Op, Any, Any, Any]] = [
    ("dots", Matmul(False, True), numbers(2, 64), numbers(64, 64), AVX2),
    ("tiles", Matmul(False, True), numbers(64, 64), numbers(64, 64), AVX2),
    ("integers", IntMatmul(False, True), BYTES, BYTES, AVX2),
    ("pairs", IntMatmul(False, True), BYTES, BYTES, replace(AVX2, matrices=True)),
]


@pytest.mark.parametrize(("strategy", "op", "x", "y", "target"), MULTIPLIED)
def test_who_multiplies(strategy: str, op: Op, x: Any, y: Any, target: Any) -> None:
    made = lowered(op, (x, y), (), target)
    assert made.strategy == strategy
    names = [s.name for s in PRODUCTS]
    assert [name for name, _ in made.refused] == names[: names.index(strategy)]


def test_every_strategy_is_tried_above() -> None:
    assert {s.name for s in CONVOLUTIONS} == {name.partition(":")[0] for name, *_ in CONVOLVED}
    assert {s.name for s in PRODUCTS} == {name for name, *_ in MULTIPLIED}


def test_integers_are_words_in_either_order_of_axes() -> None:
    op = IntConv((1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    maps, weight = numbers(1, 8, 4, 4, dtype="int8"), numbers(8, 8, 1, 1, dtype="int8")
    assert lowered(op, (maps, weight), target=AVX2).strategy == "direct: integers"
    assert lowered(*channels_last(op, maps, weight), target=AVX2).strategy == "direct: integers"


def test_reports_say_who_computes_and_who_refused() -> None:
    function = jit.compile(F.conv2d)
    function(treadle.tensor(MAPS), treadle.tensor(numbers(16, 1, 1, 3, 3)), padding=1, groups=16)
    lines = function.explain().splitlines()
    line = next(x for x in lines if x.startswith("  compile") and "contraction" in x)
    assert line.split()[1:4] == ["1", "contraction(conv)", "depthwise"]
    assert "not patches: operands and results" in line
