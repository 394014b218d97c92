"""Profiles: steps measured on the native engine, their table, and the trace other tools read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.python_compiler import PythonCompiler

import treadle as mge
import treadle.functional as F
from treadle.backends.program import Limits
from treadle.base import dtype as dt
from treadle.base.errors import EngineError
from treadle.base.table import count, duration, lines, size
from treadle.base.types import TensorType
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.engine.targets import compiled
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.ir import Graph
from treadle.inspect import Inspected
from treadle.inspect.profile import KernelTime, Profile, limits_text
from treadle.ops.control import While
from treadle.ops.matmul import Matmul
from treadle.ops.unary import Exp, Tanh

F32 = dt.float32


def check_trace(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Hold a trace against the Trace Event Format; returns its complete events."""
    assert set(trace) <= {"traceEvents", "displayTimeUnit", "otherData", "metadata"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    json.dumps(trace, allow_nan=False)
    found = []
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str) and event["name"]
        assert type(event["pid"]) is int and type(event["tid"]) is int
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            wanted = {
                "process_name": "name",
                "thread_name": "name",
                "thread_sort_index": "sort_index",
            }[event["name"]]
            assert set(event["args"]) == {wanted}
            continue
        assert event["ph"] == "X"
        assert isinstance(event["cat"], str)
        assert event["ts"] >= 0 and event["dur"] >= 0
        found.append(event)
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in found} <= named
    return found


def affine() -> Graph:
    """y = tanh(w @ x), and the next w, which is w + 1."""
    builder = GraphBuilder("affine")
    w, x = (builder.input(TensorType(F32, (8, 8)), name) for name in "wx")
    builder.output(Tanh()(Matmul()(w, x)), w + 1)
    return builder.build()


INPUTS = [np.ones((8, 8), "float32"), np.full((8, 8), 0.01, "float32")]


def test_a_program_on_the_native_engine(tmp_path: Path) -> None:
    program = Inspected(Stages(affine(), Interface((), ((1, 0),))))
    profile = program.profile(INPUTS, repeats=5)
    np.testing.assert_array_equal(INPUTS[0], 1)  # Updated inputs stay as they are.
    assert profile.repeats == 5
    assert profile.busy > 0
    assert all(
        a.start + a.duration <= b.start + 1e-9
        for a, b in zip(profile.steps, profile.steps[1:], strict=False)
    )
    product = next(k for k in profile.kernels if k.flops >= 2 * 8**3)
    assert product.gflops == pytest.approx(product.flops / product.seconds / 1e9)
    assert product.calls == 1 and product.predicted > 0
    assert sum(k.seconds for k in profile.kernels) == pytest.approx(sum(profile.by_node().values()))
    text = str(profile)
    for word in ("GFLOP/s", "GB/s", "predicted", "share", product.kernel[:20], "median of 5"):
        assert word in text
    profile.save(tmp_path / "trace.json")
    events = check_trace(json.loads((tmp_path / "trace.json").read_text()))
    kernels = [e for e in events if e["cat"] == "kernel"]
    assert [e["args"]["step"] for e in kernels] == [s.number for s in profile.steps]
    assert [e["name"] for e in events if e["cat"] == "compile"] == list(profile.stages)


def test_the_profile_of_a_function_changes_no_state() -> None:
    w = mge.Parameter(np.ones((4, 4), "float32"))

    @mge.jit.compile
    def step(x: mge.Tensor) -> mge.Tensor:
        w._reset(w - 0.1 * F.matmul(x, w))
        return w.sum()

    x = mge.tensor(np.eye(4, dtype="float32"))
    profile = step.profile(x, repeats=3)
    np.testing.assert_array_equal(w.numpy(), 1)
    assert profile.steps
    assert step(x).item() == pytest.approx(16 * 0.9)
    assert "measured" in step.explain()
    groups = step.explain(form="json")["groups"]
    measured = sum(g["measured"] for g in groups)
    assert measured == pytest.approx(profile.busy)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> PythonCompiler:
    found = PythonCompiler(("tanh",))
    monkeypatch.setattr(compiled, "find_compiler", lambda options, kind: found)
    return found


def profiled(graph: Graph, inputs: list[np.ndarray]) -> Profile:
    return Inspected(Stages(graph, options=Options(level=0))).profile(inputs, repeats=2)


def test_host_tasks_are_measured_like_kernels(compiler: PythonCompiler) -> None:
    builder = GraphBuilder("mixed")
    x = builder.input(TensorType(F32, (300, 300)), "x")
    builder.output(Exp()(Tanh()(Exp()(x))))
    profile = profiled(builder.build(), [np.zeros((300, 300), "float32")])
    assert [(s.label, s.kernel) for s in profile.steps] == [
        ("exp", "exp"),
        ("tanh", "host"),
        ("exp", "exp"),
    ]
    assert all(s.seconds > 0 for s in profile.steps)
    by_name = {e["name"]: e for e in check_trace(profile.trace())}
    assert by_name["tanh"]["cat"] == "host"
    slowest = profile.kernels[0]
    assert (slowest.kernel, slowest.calls) == ("host", 1)


def test_turns_of_a_loop_are_added_up() -> None:
    types = [TensorType(F32, ())]
    op = While(
        trace_body(lambda i: i < 3.0, types, "condition"),
        trace_body(lambda i: Exp()(i), types, "body"),
    )
    builder = GraphBuilder("loop")
    builder.output(op(builder.input(types[0], "x")))
    graph = builder.build()
    profile = profiled(graph, [np.zeros((), "float32")])
    turns = {s.label: s.turns for s in profile.steps}
    assert turns["exp"] == 3  # exp(exp(exp(0))) is the first that is not below 3.
    assert turns["less"] == 4
    (node,) = {s.node for s in profile.steps}
    assert graph.nodes[-1].op.name == "while" and node >= 0


def test_there_is_something_to_repeat(compiler: PythonCompiler) -> None:
    with pytest.raises(EngineError, match="0 repeats"):
        Inspected(Stages(affine())).profile(INPUTS, repeats=0)


def test_a_program_without_steps_has_an_empty_profile(compiler: PythonCompiler) -> None:
    empty = Profile("nothing", 3, 0.0, (), (), {})
    assert check_trace(empty.trace()) == []
    assert "0 launches" in str(empty)


# -- tables ------------------------------------------------------------------------------------


def test_quantities_are_readable() -> None:
    assert [size(n) for n in (0, 1023, 1024, 5 << 20, 1536 << 20)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "1.5 GiB",
    ]
    assert [count(n) for n in (0, 999, 1200, 2.5e9)] == ["0", "999", "1.2 K", "2.5 G"]
    assert [duration(s) for s in (0, 4e-8, 1.5e-5, 0.002, 3)] == [
        "0 ns",
        "40 ns",
        "15.0 us",
        "2.00 ms",
        "3.00 s",
    ]


def test_tables_fit_the_page() -> None:
    rows = [("x" * 90, "y" * 60, "1.0 us", "short"), ("x", "y", "20.0 us", "")]
    head, first, second = lines(("op", "kernel", "time", "why"), rows)
    assert max(map(len, (head, first, second))) <= 120
    assert first.count("…") == 2
    assert head.index("time") + 4 == first.index("1.0 us") + 6 == second.index("20.0 us") + 7
    assert first.endswith("short")
    assert lines(("a", "b"), []) == ["  a  b"]


def test_kernels_are_held_against_the_machine() -> None:
    limits = Limits(2e9, 1e9)
    kernel = KernelTime("add", "loops_add", 2, 4e-3, 1e-3, 2_000_000, 3_000_000, 3e-3)
    assert kernel.gflops == pytest.approx(0.5) and kernel.gbytes == pytest.approx(0.75)
    assert kernel.roofline == pytest.approx(0.75)
    text = str(Profile("f", 1, 4e-3, (), (kernel,), {}, limits))
    assert "the machine at best: 2 GFLOP/s (float32), 1.0 GB/s" in text
    units = limits_text(Limits(2e9, 1e9, (("bfloat16", 3e12),)))
    assert units == ("the machine at best: 2 GFLOP/s (float32), 3,000 (bfloat16), 1.0 GB/s",)
    assert text.splitlines()[2].split()[-3:] == ["GFLOP/s", "GB/s", "roofline"]
    assert text.splitlines()[3].split()[-3:] == ["0.5", "0.8", "75%"]


def test_without_limits_there_is_no_share_of_them() -> None:
    kernel = KernelTime("add", "loops_add", 2, 4e-3, 1e-3, 2_000_000, 3_000_000)
    text = str(Profile("f", 1, 4e-3, (), (kernel,), {}))
    assert "machine" not in text
    assert text.splitlines()[-1].split()[-1] == "-"


def test_a_profiled_function_explains_how_near_to_the_machine_it_is() -> None:
    weight = mge.Parameter(np.ones((64, 64), "float32"))

    @mge.jit.compile
    def layer(x: mge.Tensor) -> mge.Tensor:
        return F.relu(F.matmul(x, weight))

    x = mge.tensor(np.ones((64, 64), "float32"))
    assert "roofline" not in layer.explain(x)
    profile = layer.profile(x, repeats=1)
    assert profile.limits is not None and profile.kernels[0].roofline > 0
    assert "roofline" in layer.explain(x)
    groups = layer.explain(x, form="json")["groups"]
    assert all(group["attainable"] > 0 for group in groups if group["flops"])
