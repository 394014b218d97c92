"""Timelines, tables and pictures of what ran."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins, plugins
from tests.backends.toy_backend import elementwise

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.base.process import RUNTIME
from treadle.tools import profile_analyze
from treadle.utils.profile_analyzer import NonExistNum, ProfileAnalyzer, TimeFuncHelper
from treadle.utils.profiler import (
    Profiler,
    is_profiling,
    merge_trace_events,
    profile,
    scope,
)

__all__ = ["plugins"]


def timeline(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / f"{os.getpid()}.chrome_timeline.json").read_text())
    assert isinstance(found, dict)
    return found


def named(events: list[dict[str, Any]], phase: str) -> list[str]:
    return [e["name"] for e in events if e["ph"] == phase]


def test_ops_scopes_programs_and_memory(tmp_path: Path) -> None:
    program = jit.compile(lambda x: F.exp(x) * 2)
    x = mge.tensor(np.ones((4, 4), np.float32))
    profiler = Profiler(tmp_path, with_scopes=True, with_backtrace=True)
    with profiler:
        assert is_profiling()
        with scope("outer"), scope("inner"):
            y = F.relu(x @ x + 1)
        M.Linear(4, 2)(y)
        program(x)
        profiler.step()
        del y
    assert not is_profiling()
    events = timeline(tmp_path)["traceEvents"]
    ops = named(events, "X")
    assert {"MatrixMul", "ADD", "RELU", "program <lambda>"} <= set(ops)
    assert named(events, "B") == ["outer", "inner", "Linear"]
    assert named(events, "E") == ["inner", "outer", "Linear"]
    assert "step" in named(events, "i")
    assert {"process_name", "thread_name"} == set(named(events, "M"))
    [product, *_] = [e for e in events if e["name"] == "MatrixMul"]
    assert product["dur"] >= 0
    assert product["args"]["inputs"] == [[4, 4], [4, 4]]
    assert any("test_profiler" in line for line in product["args"]["backtrace"])
    held = [e["args"]["bytes"] for e in events if e["ph"] == "C"]
    assert max(held) >= 64
    assert timeline(tmp_path)["metadata"]["peak_bytes"] == max(held)


def test_compilation_allocations_and_peaks_are_events_that_the_analyzer_reads(
    plugins: Plugins, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))  # so that it is compiled
    RUNTIME.invalidate("environment")
    plugins.toy(kernels=elementwise())
    x = mge.tensor(np.ones((64, 64), np.float32))

    def seen(a: mge.Tensor) -> mge.Tensor:
        return F.exp(a @ a) * 2 + F.sin(a)

    with Profiler(tmp_path), mge.fallback("silent"):
        y = jit.compile(seen)(x)
        there = mge.tensor(np.ones(300, np.float32), device="toy0")
        twice = there + there
        del there, twice
    written = timeline(tmp_path)
    events, facts = written["traceEvents"], written["metadata"]
    stages = {e["args"]["stage"] for e in events if e.get("cat") == "compile"}
    assert {"prepare", "partition", "optimize", "compile", "load"} <= stages
    assert all(
        e["args"]["program"] == "seen" and e["dur"] >= 0
        for e in events
        if "cat" in e and e["cat"] == "compile"
    )
    given = [e["args"]["bytes"] for e in events if e["name"] == "allocate on toy0"]
    freed = [e["args"]["bytes"] for e in events if e["name"] == "free on toy0"]
    assert given == [1200, 1200] and sum(freed) == 2400
    held = [e["args"]["bytes"] for e in events if e["name"] == "memory of toy0"]
    assert max(held) == 2400 and held[-1] == 0
    [peak] = [e for e in events if e["name"] == "memory peak"]
    assert peak["args"]["bytes"] == facts["peak_bytes"] >= y.numpy().nbytes
    assert facts["peak_bytes_of_devices"] == {"toy0": 2400}
    file = tmp_path / f"{os.getpid()}.chrome_timeline.json"
    assert profile_analyze.main([str(file), "-t", "0"]) == 0
    printed = capsys.readouterr().out
    for part in ("compile: load", "program seen", "ADD", "memory peak of toy0: 2400 bytes"):
        assert part in printed
    assert f"memory peak of host: {facts['peak_bytes']} bytes" in printed
    assert profile_analyze.main([str(file), "--opr-name", "^program", "--dump-only-opr"]) == 0
    assert capsys.readouterr().out == "program seen\n"


def test_nothing_is_recorded_outside(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path)
    profiler.start()
    F.exp(mge.tensor([1.0]))
    profiler.stop()
    profiler.stop()
    F.sin(mge.tensor([1.0]))
    with scope("nobody"):
        F.cos(mge.tensor([1.0]))
    assert named(timeline(tmp_path)["traceEvents"], "X") == ["EXP"]


def test_gradients_are_recorded_as_ops(tmp_path: Path) -> None:
    x = mge.tensor([2.0])
    gm = mge.autodiff.GradManager().attach(x)
    with Profiler(tmp_path), gm:
        gm.backward(x * x)
    np.testing.assert_array_equal(x.grad.numpy(), [4.0])
    assert named(timeline(tmp_path)["traceEvents"], "X").count("MUL") >= 2


def test_as_a_decorator_and_as_a_table(tmp_path: Path, capsys: Any) -> None:
    profiler = Profiler(tmp_path)

    @profiler
    def work() -> Any:
        return F.exp(mge.tensor([0.0]))

    assert work().item() == 1.0
    profiler.print_table()
    printed = capsys.readouterr().out
    assert "EXP" in printed
    assert "share" in printed

    @profile(tmp_path / "other")
    def more() -> int:
        return 3

    assert more() == 3
    assert (tmp_path / "other").is_dir()


def test_many_small_ops_are_remarked_on_and_few_large_ones_are_not(tmp_path: Path) -> None:
    def remark(*durations: float, op: bool = True) -> str | None:
        profiler = Profiler(tmp_path)
        events = profiler._record.events
        for duration in durations:
            args = {"op": "exp"} if op else {}
            events.append({"name": "EXP", "ph": "X", "dur": duration, "args": args})
        caption = profiler.table().caption
        return None if caption is None else str(caption)

    assert remark(*[10.0] * 9, 30.0) == (
        "75 % of the time is in ops shorter than 20 us: "
        "compile the function, or work on larger batches"
    )
    assert remark(10.0, 500.0) is None
    assert remark() is None
    assert remark(*[10.0] * 9, op=False) is None  # Runs of programs are compiled already.


def test_only_one_profiler_at_a_time(tmp_path: Path) -> None:
    with Profiler(tmp_path), pytest.raises(RuntimeError, match="another profiler"):
        Profiler(tmp_path).start()
    with pytest.raises(AssertionError, match="unknown format"):
        Profiler(tmp_path, format="gif")


def test_memory_as_a_picture(tmp_path: Path) -> None:
    with Profiler(tmp_path, formats=["memory_flow.svg", "chrome_timeline.json"]):
        x = mge.tensor(np.ones((64, 64), np.float32))
        for _ in range(3):
            x = F.exp(-x)
    root = ET.fromstring((tmp_path / f"{os.getpid()}.memory_flow.svg").read_text())
    texts = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("peak" in t for t in texts)
    assert sum("EXP 16 KiB" in t for t in texts) == 3


def test_timelines_of_processes_are_merged(tmp_path: Path) -> None:
    with Profiler(tmp_path):
        F.exp(mge.tensor([1.0]))
    code = (
        "import sys, treadle as mge\n"
        "mge.utils.profiler.Profiler(sys.argv[1]).start()\n"
        "mge.functional.sin(mge.tensor([1.0]))\n"
    )  # Never stopped: the end of the process writes the file.
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True)
    merge_trace_events(tmp_path)
    merged = json.loads((tmp_path / "merge.chrome_timeline.json").read_text())["traceEvents"]
    assert {"EXP", "SIN"} <= set(named(merged, "X"))
    assert len({e["pid"] for e in merged}) == 2
    with pytest.raises(ValueError, match="no timelines"):
        (tmp_path / "empty").mkdir()
        merge_trace_events(tmp_path / "empty")


def test_profiles_of_traces_are_analyzed() -> None:
    traced = jit.trace(lambda x: F.softmax(x @ x, axis=1).sum(), profiling=True)
    traced(mge.tensor(np.ones((64, 64), np.float32)))
    analyzer = ProfileAnalyzer(traced.get_profile())
    time = TimeFuncHelper.eval_time_func("device", "end", sum)
    rows = analyzer.select(time, sort_by="time")
    assert len(rows) >= 2
    assert all(a.time >= b.time for a, b in itertools.pairwise(rows))
    assert rows[0].flops > 0
    assert len(analyzer.select(time, top_k=1)) == 1
    [whole] = analyzer.select(time, aggregate="sum")
    assert whole.time == pytest.approx(sum(r.time for r in rows))
    by_type = analyzer.select(time, aggregate="max", aggregate_by="type", sort_by="+time")
    assert {r.info["type"] for r in by_type} == {r.info["type"] for r in rows}
    starts = TimeFuncHelper.min_start_func("host", "end", sum)
    ends = TimeFuncHelper.max_end_func("host", "end", sum)
    for first, last in zip(analyzer.select(starts), analyzer.select(ends), strict=True):
        assert first.time <= last.time
    some = ProfileAnalyzer(traced.get_profile(), lambda opr, inp, out: "sum" in opr["type"])
    assert len(some.select(time)) < len(rows)
    with pytest.raises(TypeError, match="not a profile"):
        ProfileAnalyzer({})
    with pytest.raises(ValueError, match="unknown column"):
        analyzer.select(time, sort_by="beauty")
    with pytest.raises(ValueError, match="unknown aggregate"):
        analyzer.select(time, aggregate="mode")


def test_numbers_that_are_not_there() -> None:
    nothing = NonExistNum()
    assert nothing > 1e300
    assert not nothing < 1
    assert nothing == NonExistNum()
    assert (nothing + 1) * 2 - 3 == nothing
    assert str(nothing) == "N/A"
