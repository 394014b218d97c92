"""Loops that carry sequences, compiled, beside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
pytest.importorskip("onnxruntime", reason="needs ONNX Runtime to compare with")

from tests.interop.onnx.test_computed_loops import agree  # noqa: E402
from tests.interop.onnx.test_computed_loops import parsed as model  # noqa: E402

import treadle as mge  # noqa: E402
from treadle.base.errors import UnsupportedOp  # noqa: E402
from treadle.interop.onnx import load  # noqa: E402

X = np.arange(6, dtype="float32").reshape(2, 3) - 2.5


APPEND = """none = SequenceEmpty<dtype = 1>() yes = Constant<value = bool {1}>()
    all, last = Loop(n, yes, none, x) <body = b
        (int64 i, bool c, seq(float[2,3]) s, float[2,3] v)
        => (bool d, seq(float[2,3]) t, float[2,3] w)
        { d = Identity(c) half = Constant<value = float {0.5}>() w = Mul(v, half)
          t = SequenceInsert(s, w) }>"""


def test_a_list_that_turns_append_to() -> None:
    text = f"""(float[k,2,3] y, float[m,3] z, float[2,p] u, int64 count) {{ {APPEND}
        y = ConcatFromSequence<axis = 0, new_axis = 1>(all)
        z = ConcatFromSequence<axis = 0>(all)
        u = ConcatFromSequence<axis = -1>(all)
        count = SequenceLength(all) }}"""
    feeds = [{"x": X, "n": np.array(n, np.int64)} for n in (3, 1, 7, 2)]
    agree(model("float[2,3] x, int64 n", text), feeds)


def test_new_axes_elsewhere() -> None:
    text = f"""(float[2,k,3] y, float[2,3,k] z) {{ {APPEND}
        y = ConcatFromSequence<axis = 1, new_axis = 1>(all)
        z = ConcatFromSequence<axis = -1, new_axis = 1>(all) }}"""
    feeds = [{"x": X, "n": np.array(n, np.int64)} for n in (3, 5)]
    agree(model("float[2,3] x, int64 n", text), feeds)


def test_values_of_a_list_are_read_by_computed_places() -> None:
    """Each turn reads what an earlier one has appended, and the last is taken behind the loop."""
    text = """(float[2,3] y, float[2,3] z) {
        first = SequenceConstruct(x) yes = Constant<value = bool {1}>()
        end = Constant<value = int64 {-1}>()
        all = Loop(n, yes, first) <body = b (int64 i, bool c, seq(float[2,3]) s)
            => (bool d, seq(float[2,3]) t)
            { d = Identity(c) two = Constant<value = int64 {2}>() j = Div(i, two)
              a = SequenceAt(s, j) k = SequenceLength(s) f = Cast<to = 1>(k)
              w = Add(a, f) t = SequenceInsert(s, w) }>
        y = SequenceAt(all, end)
        z = SequenceAt(all, n) }"""
    feeds = [{"x": X, "n": np.array(n, np.int64)} for n in (3, 0, 7, 2)]
    agree(model("float[2,3] x, int64 n", text), feeds)


def test_a_condition_ends_it_and_values_go_to_the_front() -> None:
    text = """(float[k] y, float[r] rows) {
        none = SequenceEmpty<dtype = 1>() yes = Constant<value = bool {1}>()
        all, rows = Loop(, yes, none) <body = b (int64 i, bool c, seq(float[1]) s)
            => (bool d, seq(float[1]) t, float u)
            { f = Cast<to = 1>(i) u = Mul(f, limit) m = Constant<value = float {20}>()
              d = Less(u, m) one = Constant<value = int64[1] {1}>() w = Reshape(u, one)
              at = Constant<value = int64 {0}>() t = SequenceInsert(s, w, at) }>
        y = ConcatFromSequence<axis = 0>(all) }"""
    feeds = [{"limit": np.array(x, np.float32)} for x in (7, 30, 2.5)]
    agree(model("float limit", text), feeds)


@pytest.mark.parametrize("again", ["Identity(c)", "Identity(yes)", "Constant<value = bool {1}>()"])
def test_a_turn_for_each_row_is_one_program(again: str) -> None:
    """PyTorch's loops give the constant outside of them as their condition."""
    text = """(float[k,3] y) {
        none = SequenceEmpty<dtype = 1>() yes = Constant<value = bool {1}>()
        shape = Shape<end = 1>(x) scalar = Constant<value = int64[0] {}>()
        n = Reshape(shape, scalar)
        all = Loop(n, yes, none) <body = b (int64 i, bool c, seq(float[3]) s)
            => (bool d, seq(float[3]) t)
            { d = AGAIN row = Gather(x, i) w = Neg(row) t = SequenceInsert(s, w) }>
        y = ConcatFromSequence<axis = 0, new_axis = 1>(all) }""".replace("AGAIN", again)
    feeds = [{"x": np.random.default_rng(n).random((n, 3), "float32")} for n in (4, 6, 5, 9)]
    compiled = agree(model("float[m,3] x", text), feeds, {0: {0: "m"}})
    phases = {id(v.runner.phases) for v in compiled.variants if v.runner is not None}
    assert len(phases) == 1


@pytest.mark.parametrize("empty", ["then", "else"])
def test_a_branch_may_give_an_empty_sequence(empty: str) -> None:
    branches = {
        "empty": "() => (seq(float[2,3]) e) { e = SequenceEmpty<dtype = 1>() }",
        "two": "() => (seq(float[2,3]) f) { w = Neg(x) f = SequenceConstruct(x, w) }",
    }
    first, other = ("empty", "two") if empty == "then" else ("two", "empty")
    text = f"""(int64 count) {{
        zero = Constant<value = float {{0}}>() sum = ReduceSum<keepdims = 0>(x)
        more = Greater(sum, zero)
        s = If (more) <then_branch = u {branches[first]}, else_branch = v {branches[other]}>
        count = SequenceLength(s) }}"""
    agree(model("float[2,3] x", text), [{"x": X}, {"x": -X}, {"x": X + 3}, {"x": X - 3}])


def test_a_branch_that_cannot_run_stands_beside_rows_that_data_decide() -> None:
    text = """(float[k] y) {
        zero = Constant<value = float {0}>() sum = ReduceSum<keepdims = 0>(x)
        minus = Constant<value = int64[1] {-1}>() one = Constant<value = int64[1] {1}>()
        most = ReduceMax(x) ints = Cast<to = 7>(most) less = Less(sum, zero)
        times = Reshape(ints, one)
        y = If (less) <
          then_branch = u () => (float[m] t) { flat = Reshape(x, minus) t = Tile(flat, times) },
          else_branch = v () => (float[n] e)
            { bits = Greater(x, zero) flat2 = Reshape(x, minus) flags = Reshape(bits, minus)
              e = Compress<axis = 0>(flat2, flags) }> }"""
    agree(model("float[2,3] x", text), [{"x": X + 1}, {"x": X + 9}])


def test_a_branch_in_a_turn_appends() -> None:
    text = """(float[k,3] y, int64 count) {
        none = SequenceEmpty<dtype = 1>() yes = Constant<value = bool {1}>()
        n = Constant<value = int64 {5}>()
        all = Loop(n, yes, none) <body = b (int64 i, bool c, seq(float[3]) s)
            => (bool d, seq(float[3]) t)
            { d = Identity(yes) row = Gather(x, i) sum = ReduceSum<keepdims = 0>(row)
              zero = Constant<value = float {0}>() more = Greater(sum, zero)
              t = If (more) <
                then_branch = u () => (seq(float[3]) e) { e = SequenceInsert(s, row) },
                else_branch = v () => (seq(float[3]) f) { f = Identity(s) }> }>
        y = ConcatFromSequence<axis = 0, new_axis = 1>(all)
        count = SequenceLength(all) }"""
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((5, 3)).astype("float32")} for _ in range(4)]
    agree(model("float[5,3] x", text), feeds)


def test_values_of_several_shapes_are_refused() -> None:
    text = """(float[k] y) {
        none = SequenceEmpty<dtype = 1>() yes = Constant<value = bool {1}>()
        all, last = Loop(n, yes, none, x) <body = b (int64 i, bool c, seq(float[j]) s, float[j] v)
            => (bool d, seq(float[j]) t, float[l] w)
            { d = Identity(c) w = Concat<axis = 0>(v, v) t = SequenceInsert(s, w) }>
        y = ConcatFromSequence<axis = 0>(all) }"""
    network = load(model("float[3] x, int64 n", text))
    given = mge.tensor(X[0]), mge.tensor(2, dtype="int64")
    assert network(*given).shape == (18,)
    with pytest.raises(UnsupportedOp, match="a sequence of"):
        mge.jit.compile(network)(*given)
