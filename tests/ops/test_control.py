"""Control flow over regions made of Python functions."""

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.errors import NoGradient, ShapeError
from treadle.base.types import TensorType
from treadle.ops.abstract import ArrayOperand
from treadle.ops.control import Cond, FunctionRegion, Scan, While
from treadle.ops.op import Pullback

NUMBER = TensorType(dt.float32, ())
VECTOR = TensorType(dt.float32, (3,))


def halve(x):  # type: ignore[no-untyped-def]
    return x * 0.5


def number(value: float) -> np.ndarray:
    return np.asarray(value, np.float32)


def test_a_region_tells_its_types_and_compares_by_content() -> None:
    region = FunctionRegion("halve", (VECTOR,), halve)
    assert region.output_types == (VECTOR,) and str(region) == "region halve"
    assert region == FunctionRegion("halve", (VECTOR,), halve)
    assert hash(region) == hash(FunctionRegion("halve", (VECTOR,), halve))
    assert region != FunctionRegion("halve", (NUMBER,), halve)


def test_cond_runs_one_branch_only() -> None:
    ran = []

    def branch(label, factor):  # type: ignore[no-untyped-def]
        def function(x):  # type: ignore[no-untyped-def]
            if isinstance(x, ArrayOperand):
                ran.append(label)
            return x * factor

        return FunctionRegion(label, (NUMBER,), function)

    op = Cond(branch("then", 2.0), branch("otherwise", 3.0))
    assert op.n_outputs == 1
    assert op.reference(np.asarray(True), number(1))[0] == 2 and ran == ["then"]
    assert op.reference(np.asarray(False), number(1))[0] == 3 and ran == ["then", "otherwise"]


def test_branches_with_different_results_are_refused() -> None:
    one = FunctionRegion("one", (NUMBER,), lambda x: x)
    two = FunctionRegion("two", (NUMBER,), lambda x: (x, x))
    with pytest.raises(ShapeError, match="the branches' results: expected 1 values, got 2"):
        Cond(one, two).infer(TensorType(dt.bool_, ()), NUMBER)


def test_while_may_take_no_turn_at_all() -> None:
    op = While(
        FunctionRegion("small", (NUMBER, NUMBER), lambda x, n: x < 100.0),
        FunctionRegion("double", (NUMBER, NUMBER), lambda x, n: (x * 2.0, n + 1.0)),
    )
    assert op.n_outputs == 2
    assert [float(v) for v in op.reference(number(1), number(0))] == [128, 7]
    assert [float(v) for v in op.reference(number(200), number(0))] == [200, 0]


def test_scan_is_the_loop_it_stands_for() -> None:
    body = FunctionRegion("sum", (VECTOR, VECTOR), lambda s, x: (s + x, (s + x) * 2.0))
    xs = np.arange(12, dtype=np.float32).reshape(4, 3)
    last, stacked = Scan(body, 1, 4).reference(np.zeros(3, np.float32), xs)
    np.testing.assert_array_equal(last, xs.sum(0))
    np.testing.assert_array_equal(stacked, 2 * np.cumsum(xs, 0))


def test_control_flow_says_where_its_gradient_is() -> None:
    op = Cond(FunctionRegion("a", (NUMBER,), halve), FunctionRegion("b", (NUMBER,), halve))
    xs = ArrayOperand(np.asarray(True)), ArrayOperand(number(1))
    outputs = op.outputs(*xs)
    with pytest.raises(NoGradient, match=r"treadle\.graph\.gradient"):
        op.vjp(Pullback(outputs, xs, outputs, (False, True)))
