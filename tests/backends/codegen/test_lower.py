"""The entry of code generation: views, empty operands, what is refused, what is shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.codegen import irregular

from treadle.backends.api import Support
from treadle.backends.codegen.kernel.llvm import module_text
from treadle.backends.codegen.kernel.text import kernel_text
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.lowering import LOWERINGS
from treadle.backends.codegen.target import AVX2, AVX512, GENERIC, NEON
from treadle.backends.program import Lowered
from treadle.base import dtype as dt
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.ops.elementwise import Add
from treadle.ops.fused import Fused
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Reshape
from treadle.ops.norm import LayerNorm
from treadle.ops.op import Op
from treadle.ops.reduce import Mean, Sum
from treadle.ops.slicing import Pad, Slice
from treadle.ops.softmax import Softmax
from treadle.ops.transfer import Identity

F32 = dt.float32


def types(*shapes: tuple[Any, ...], dtype: dt.DType = F32) -> list[TensorType]:
    return [TensorType(dtype, s) for s in shapes]


def lowered(op: Op, *shapes: tuple[int, ...], target: Any = AVX2) -> Lowered:
    found = lower(op, types(*shapes), (), target)
    assert isinstance(found, Lowered), found
    return found


@pytest.mark.parametrize("op", [Reshape((3, 2)), Identity()], ids=str)
@pytest.mark.parametrize("dtype", [F32, dt.complex64], ids=str)
def test_what_moves_nothing_is_a_view(op: Op, dtype: dt.DType) -> None:
    assert lower(op, types((2, 3), dtype=dtype), (), AVX2) == Lowered(views=((0, 0, 0),))


@pytest.mark.parametrize("op", [Softmax(1), LayerNorm(), Add()], ids=str)
def test_results_without_elements_take_no_launch(op: Op) -> None:
    operands = types((0, 3), (0, 3)) if op is Add() else types((0, 3))
    assert lower(op, operands, (), AVX2) == Lowered()


@pytest.mark.parametrize("op", [Sum((0,)), Mean((0,)), Pad(((1, 2), (0, 1)), value=3.0)], ids=str)
def test_empty_operands_of_results_with_elements(op: Op) -> None:
    irregular.inside_memory(op, (np.zeros((0, 4), np.float32),), exact=False)


def test_equal_questions_have_one_answer() -> None:
    x = TensorType(dt.float32, (37, 41))
    first = lower(Sum((1,)), (x,), (), AVX2)
    assert isinstance(first, Lowered)
    placed = TensorType(dt.float32, (37, 41), "cpu0")
    assert lower(Sum((1,)), (placed,), (False,), AVX2) is first
    assert lower(Sum((0,)), (x,), (), AVX2) is not first
    assert lower(Sum((1,)), (x,), (), AVX512) is not first


def test_refusals_say_why() -> None:
    n = symbol("n")
    assert "symbolic" in _refused(Add(), types((n,), (n,)))
    assert "complex" in _refused(Add(), types((2,), (2,), dtype=dt.complex64))
    body = trace_body(lambda x: Softmax(1)(Matmul()(x, x)), types((3, 3)))
    assert "matmul" in _refused(Fused("loop", body), types((3, 3)))
    two = trace_body(lambda x: Softmax(1)(x) + Softmax(0)(x), types((3, 4)))
    assert _refused(Fused("loop", two), types((3, 4)))


def test_groups_that_would_gather_are_refused() -> None:
    def straight(x: Any) -> Any:
        return Softmax(1)(x.transpose((1, 0)))

    square = types((512, 512))
    together = trace_body(lambda x, y: Softmax(1)(x.transpose((1, 0)) * y), [*square, *square])
    assert "transposed" in _refused(Fused("loop", together), [*square, *square])
    alone = Fused("loop", trace_body(straight, square))
    assert isinstance(lower(alone, square, (), AVX2), Lowered)


def _refused(op: Op, operands: list[TensorType]) -> str:
    found = lower(op, operands, (), AVX2)
    assert isinstance(found, Support) and not found.ok
    return found.message


@pytest.mark.parametrize(
    ("op", "first", "second"),
    [
        (Add(), [(1000,), (1000,)], [(70, 33), (70, 33)]),
        (Add(), [(40, 100), (100,)], [(90, 333), (333,)]),
        (Softmax(1), [(40, 100)], [(90, 333)]),
        (LayerNorm(), [(64, 768), (768,), (768,)], [(32, 512), (512,), (512,)]),
        (Sum((0,)), [(100, 300)], [(90, 310)]),
        (Sum((0,)), [(9_000, 1000)], [(7_000, 1100)]),
    ],
    ids=str,
)
def test_shapes_share_kernels(op: Op, first: Any, second: Any) -> None:
    one, other = lowered(op, *first), lowered(op, *second)
    assert [kernel_text(a.kernel) for a in one.launches] == [
        kernel_text(b.kernel) for b in other.launches
    ]


@pytest.mark.parametrize("target", [GENERIC, AVX2, AVX512, NEON], ids=lambda t: t.name)
def test_every_target_is_printed(target: Any) -> None:
    for op, shapes in ((Softmax(1), [(9, 100)]), (Add(), [(5,), (5,)])):
        kernels = [a.kernel for a in lowered(op, *shapes, target=target).launches]
        assert "define" in module_text(kernels, target)


def test_work_is_divided_by_its_size() -> None:
    small, large = lowered(Add(), (64,), (64,)), lowered(Add(), (4096, 1024), (4096, 1024))
    assert small.launches[0].serial
    assert not large.launches[0].serial and large.launches[0].items > 100
    assert small.in_place == ((0, 0), (1, 0))


def test_what_is_not_read_is_no_traffic() -> None:
    """A step of a recurrence reads a row; counted as all rows it ran at 446 % of the roofline."""
    rows, row = types((400, 1000), (1, 1000))

    def step(x: Any, y: Any) -> Any:
        return Slice((7, 0), (8, 1000), (1, 1))(x) + y

    found = lower(Fused("loop", trace_body(step, [rows, row])), [rows, row], (), AVX2)
    assert isinstance(found, Lowered)
    assert [launch.nbytes for launch in found.launches] == [3 * 4 * 1000]
    (whole,) = lowered(Add(), (400, 1000), (400, 1000)).launches
    assert whole.nbytes == 3 * 4 * 400_000


def test_tables_that_do_not_fit_are_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution with a padding of 2**31 asked for 16 GiB, and NumPy's error came out."""

    def full(*given: Any) -> Any:
        raise MemoryError

    monkeypatch.setitem(LOWERINGS, "matmul", full)
    found = lower(Matmul(), types((3, 7), (7, 5)), (), AVX2)
    assert isinstance(found, Support) and found.reason == "size-limit"
