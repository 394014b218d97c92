"""Loops, ranges and suppression whose ends the model computes, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
runtime = pytest.importorskip("onnxruntime", reason="needs ONNX Runtime to compare with")

from onnx import parser  # noqa: E402

import treadle as mge  # noqa: E402
from treadle.base.errors import UnsupportedOp  # noqa: E402
from treadle.engine.extents import plans  # noqa: E402
from treadle.interop.onnx import load  # noqa: E402

X = np.array([1.0, -2.0, 3.0], "float32")


def given(n: int, limit: float = 1e9, sign: int = 1, go: bool = True) -> dict[str, Any]:
    """Inputs of the models below."""
    return {
        "x": X * np.float32(sign),
        "n": np.array(n, np.int64),
        "limit": np.array(limit, np.float32),
        "go": np.array(go),
    }


def parsed(inputs: str, text: str) -> Any:
    made = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => {text}')
    onnx.checker.check_model(made)
    return made


def model(text: str) -> Any:
    return parsed("float[3] x, int64 n, float limit, bool go", text)


def agree(made: Any, feeds: list[dict[str, Any]], dynamic: Any = None) -> mge.jit.Compiled:
    session = runtime.InferenceSession(made.SerializeToString())
    network = load(made)
    compiled = mge.jit.compile(network, dynamic=dynamic)
    for feed in feeds:
        want = session.run(None, feed)
        tensors = [mge.tensor(a, dtype=a.dtype) for a in feed.values()]
        for run in (network, compiled):
            results = run(*tensors)
            results = results if isinstance(results, tuple) else (results,)
            for got, expected in zip(results, want, strict=True):
                assert got.shape == expected.shape and got.numpy().dtype == expected.dtype
                np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-6)
    return compiled


STEP = """half = Constant<value = float {0.5}>() u = Mul(s, half) t = Add(u, x)"""
GROW = """b = Constant<value = float {1.5}>() t = Mul(s, b) a = Abs(t)
          m = ReduceMax<keepdims=0>(a) d = Less(m, limit)"""


def test_a_number_of_turns() -> None:
    text = f"""(float[3] y, float[k,3] rows, int64[k] turns) {{
        y, rows, turns = Loop(n, go, x) <body = b (int64 i, bool c, float[3] s)
            => (bool d, float[3] t, float[3] r, int64 j)
            {{ d = Identity(c) {STEP} r = Sub(t, s) j = Identity(i) }}> }}"""
    feeds = [given(3), given(0), given(1), given(7), given(4, go=False), given(-2)]
    agree(model(text), feeds)


def test_a_condition() -> None:
    text = f"""(float[3] y, float[3] z, float[k,3] rows) {{
        yes = Constant<value = bool {{1}}>()
        y = Loop(, yes, x) <body = b (int64 i, bool c, float[3] s)
            => (bool d, float[3] t) {{ {GROW} }}>
        z, rows = Loop(n, yes, x) <body = b (int64 i, bool c, float[3] s)
            => (bool d, float[3] t, float[3] r) {{ {GROW} r = Add(t, s) }}> }}"""
    agree(model(text), [given(3, 1e3), given(0, 5), given(50, 100), given(50, 0), given(1, 1e3)])


def test_a_loop_in_a_branch_and_masks_in_a_loop() -> None:
    text = """(float[3] y, float[k] sums) {
        zero = Constant<value = float {0.0}>()
        yes = Constant<value = bool {1}>()
        sum = ReduceSum<keepdims=0>(x)
        p = Greater(sum, zero)
        y = If (p) <
            then_branch = t () => (float[3] a) { a = Loop(n, yes, x) <body = b
                (int64 i, bool c, float[3] s) => (bool d, float[3] t)
                { d = Identity(c) t = Add(s, x) }> },
            else_branch = e () => (float[3] a) { r, rows = Loop(n, yes, x) <body = b
                (int64 i, bool c, float[3] s) => (bool d, float[3] t, float[3] u)
                { d = Identity(c) t = Sub(s, x) u = Identity(t) }>
                axis = Constant<value = int64[1] {0}>()
                q = ReduceSum<keepdims=0>(rows, axis) a = Add(q, r) }>
        z, sums = Loop(n, yes, x) <body = b (int64 i, bool c, float[3] s)
            => (bool d, float[3] t, float q)
            { d = Identity(c) f = Cast<to=1>(i) t = Sub(s, f) m = Greater(t, zero)
              w = Compress(t, m) q = ReduceSum<keepdims=0>(w) }>
    }"""
    agree(model(text), [given(n, sign=sign) for n, sign in ((0, 1), (3, 1), (3, -1), (1, -1))])


def test_ranges() -> None:
    text = """(int64[k] whole, int64[m] down, float[l] parts) {
        two = Constant<value = int64 {2}>()
        minus = Constant<value = int64 {-1}>()
        step = Constant<value = float {0.75}>()
        start = Constant<value = float {0.5}>()
        whole = Range(minus, n, two)
        down = Range(n, minus, minus)
        end = Cast<to=1>(n)
        exact = Range(start, end, step)
        more = Cast<to=1>(whole)
        parts = Add(exact, step)
    }"""
    agree(model(text), [given(n) for n in (0, 1, 4, -3, 8)])


GROWING = """b = Constant<value = float {1.5}>() m = Mul(s, b) t = Concat<axis = 0>(m, x)
             a = Abs(t) h = ReduceMax<keepdims = 0>(a) d = Less(h, limit)"""


def test_a_state_that_grows() -> None:
    """In a loop, in one within a branch, and where shapes and sizes of it are asked for."""
    text = f"""(float[k] y, float[l] z, int64[1] size, float p) {{
        y = Loop(n, go, x) <body = b (int64 i, bool c, float[j] s)
            => (bool d, float[l] t) {{ {GROWING} }}>
        size = Shape(y)
        z = If (go) <
            then_branch = u () => (float[e] f) {{ f = Loop(n, go, y) <body = b
                (int64 i, bool c, float[j] s)
                => (bool d, float[l] t) {{ d = Identity(c) t = Concat<axis = 0>(s, x) }}> }},
            else_branch = v () => (float[e] g) {{ g = Neg(x) }}>
        p = ReduceSum<keepdims = 0>(z)
    }}"""
    agree(
        model(text),
        [given(n, 20, s, g) for n in (0, 1, 6, 30) for s, g in ((1, True), (-1, False))],
    )


def test_what_turns_give_beside_a_state_that_grows() -> None:
    """One loop finds how many turns there are, and collects."""
    text = f"""(float[k] y, float[r,3] rows, float[r,3] more) {{
        y, rows = Loop(n, go, x) <body = b (int64 i, bool c, float[j] s)
            => (bool d, float[l] t, float[3] u) {{ {GROWING} v = ReduceSum<keepdims = 0>(s)
            u = Mul(x, v) }}>
        more = Add(rows, x)
    }}"""
    feeds = [given(n, limit, s, g) for n, limit, s, g in CASES]
    agree(model(text), feeds)


CASES = ((0, 9, 1, True), (1, 1e9, -1, True), (6, 20, 1, True), (5, 1e9, 1, True), (3, 9, 1, False))


def test_a_state_of_other_ranks_is_refused() -> None:
    text = """(float[k] y) {
        y = Loop(n, go, x) <body = b (int64 i, bool c, float[j] s) => (bool d, float[l] t)
            { d = Identity(c) a = Constant<value = int64[1] {0}>() t = Unsqueeze(s, a) }> }"""
    network = load(model(text))
    tensors = [mge.tensor(a, dtype=a.dtype) for a in given(2).values()]
    assert network(*tensors).shape == (1, 1, 3)
    with pytest.raises(
        UnsupportedOp, match=r"known only at run time, and: value 2 has 1 axes before"
    ):
        mge.jit.compile(network)(*tensors)


def test_suppression_with_computed_limits() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,40,4] boxes, float[1,2,40] scores, int64[1] most, float[1] least)
        => (int64[k,3] kept, int64[l,3] all) {
        iou = Constant<value = float[1] {0.4}>()
        many = Constant<value = int64[1] {100}>()
        kept = NonMaxSuppression<center_point_box=1>(boxes, scores, most, iou, least)
        all = NonMaxSuppression<center_point_box=1>(boxes, scores, many, iou, least)
    }"""
    rng = np.random.default_rng(0)
    corners = np.concatenate([rng.random((1, 40, 2)) * 20, rng.random((1, 40, 2)) * 9 + 1], 2)
    feeds = [
        {
            "boxes": corners.astype("float32"),
            "scores": rng.random((1, 2, 40)).astype("float32"),
            "most": np.array([most], np.int64),
            "least": np.array([least], np.float32),
        }
        for most, least in ((3, 0.2), (0, 0.0), (100, 0.9), (1, 2.0))
    ]
    agree(parser.parse_model(text), feeds)


def test_a_turn_for_each_row_is_a_loop_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """As scripts are exported: `for i in range(x.shape[0])`. Each length was a program."""
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)
    text = """(float[4] y, float[r,4] rows) {
        shape = Shape<end = 1>(x)
        axis = Constant<value = int64[1] {0}>()
        count = Squeeze(shape, axis)
        yes = Constant<value = bool {1}>()
        start = ReduceMean<axes = [0], keepdims = 0>(x)
        y, rows = Loop(count, yes, start) <body = b (int64 i, bool c, float[4] s)
            => (bool d, float[4] t, float[4] u)
            { d = Identity(c) e = Gather<axis = 0>(x, i) f = Add(s, e) t = Tanh(f) u = Mul(t, e) }>
    }"""
    made = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[r,4] x) => {text}'
    )
    onnx.checker.check_model(made)
    session, network = runtime.InferenceSession(made.SerializeToString()), load(made)
    compiled = mge.jit.compile(dynamic={0: {0: "r"}})(network)
    for rows in (5, 9, 2, 15, 1, 40):
        x = np.random.default_rng(rows).standard_normal((rows, 4), "float32")
        found = compiled(mge.tensor(x))
        for got, want in zip(found, session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)
    families = [f for found in compiled._captures.families.values() for f in found]
    shared, one = families
    assert not shared.alone and not shared.captured.pins and len(shared.regimes) == 2
    assert one.alone == "no extent is open"


def test_a_scan_over_an_open_axis_is_a_loop_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)
    text = """(float[3] y, float[3,r] rows, float[r,3] back) {
        start = ReduceMean<axes = [1], keepdims = 0>(x)
        y, rows, back = Scan<num_scan_inputs = 2, scan_input_axes = [1, -1],
            scan_input_directions = [0, 1], scan_output_axes = [-1, 0],
            scan_output_directions = [0, 1], body = b (float[3] s, float[3] e, float[3] f)
            => (float[3] t, float[3] u, float[3] v)
            { g = Add(s, e) t = Tanh(g) u = Mul(t, f) v = Sub(s, f) }>(start, x, x)
    }"""
    made = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[3,r] x) => {text}'
    )
    onnx.checker.check_model(made)
    session, network = runtime.InferenceSession(made.SerializeToString()), load(made)
    compiled = mge.jit.compile(dynamic={0: {1: "r"}})(network)
    for rows in (5, 9, 2, 15):
        x = np.random.default_rng(rows).standard_normal((3, rows), "float32")
        found = compiled(mge.tensor(x))
        for got, want in zip(found, session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)
    ((family,),) = compiled._captures.families.values()
    assert not family.alone and not family.captured.pins and len(family.regimes) == 1


def test_a_scan_collects_extents_of_its_entries() -> None:
    text = """(float[m] y, int64[r,1] sizes) {
        start = ReduceMean<axes = [0], keepdims = 0>(x)
        y, sizes = Scan<num_scan_inputs = 1, body = b (float[m] s, float[m] e)
            => (float[m] t, int64[1] n) { t = Add(s, e) n = Shape(e) }>(start, x)
    }"""
    made = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[r,m] x) => {text}'
    )
    session, network = runtime.InferenceSession(made.SerializeToString()), load(made)
    compiled = mge.jit.compile(dynamic={0: {0: "r", 1: "m"}})(network)
    for rows in (2, 3):
        x = np.random.default_rng(rows).standard_normal((rows, rows + 4), "float32")
        found = compiled(mge.tensor(x))
        for got, want in zip(found, session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)
    ((family,),) = compiled._captures.families.values()
    assert not family.alone and not family.captured.pins


def test_a_state_that_grows_with_each_row_is_a_loop_of_one_program() -> None:
    text = """(float[k,4] y) {
        shape = Shape<end = 1>(x)
        axis = Constant<value = int64[1] {0}>()
        count = Squeeze(shape, axis)
        yes = Constant<value = bool {1}>()
        y = Loop(count, yes, x) <body = b (int64 i, bool c, float[m,4] s)
            => (bool d, float[p,4] t) { d = Identity(c) t = Concat<axis = 0>(s, x) }>
    }"""
    made = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[r,4] x) => {text}'
    )
    session, network = runtime.InferenceSession(made.SerializeToString()), load(made)
    compiled = mge.jit.compile(dynamic={0: {0: "r"}})(network)
    for rows in (2, 3, 7, 17):
        x = np.random.default_rng(rows).standard_normal((rows, 4), "float32")
        (want,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(compiled(mge.tensor(x)).numpy(), want)
    ((family,),) = compiled._captures.families.values()
    assert not family.alone and not family.captured.pins


def test_branches_and_loops_share_programs_over_open_extents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One program holds an `If` and two `Loop`s over rows of any number."""
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)
    text = """(float[r,4] y, float[r,4] z, float[k,r,4] rows) {
        zero = Constant<value = float {0.0}>()
        yes = Constant<value = bool {1}>()
        sum = ReduceSum<keepdims=0>(x)
        p = Greater(sum, zero)
        y = If (p) <
            then_branch = t () => (float[r,4] a) { b = Softmax<axis=0>(x) a = Add(b, x) },
            else_branch = e () => (float[r,4] c) { c = Softmax<axis=1>(x) }>
        z, rows = Loop(n, yes, x) <body = b (int64 i, bool c, float[r,4] s)
            => (bool d, float[r,4] t, float[r,4] u)
            { d = Identity(c) u = Softmax<axis=0>(s) t = Add(u, s) }>
    }"""
    made = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[r,4] x, int64 n) => {text}'
    )
    onnx.checker.check_model(made)
    session, network = runtime.InferenceSession(made.SerializeToString()), load(made)
    compiled = mge.jit.compile(dynamic={0: {0: "r"}})(network)
    for rows in (5, 9, 2, 15, 1, 40):
        for n, sign in ((3, 1), (1, -1), (7, -1)):
            x = np.random.default_rng(rows).random((rows, 4), "float32") * np.float32(sign)
            feed = {"x": x, "n": np.array(n, np.int64)}
            found = compiled(*[mge.tensor(a, dtype=a.dtype) for a in feed.values()])
            for got, want in zip(found, session.run(None, feed), strict=True):
                np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)
    families = [f for found in compiled._captures.families.values() for f in found]
    assert len(families) == 2 and not any(f.alone for f in families), "1 has a capture of its own"
