"""Fallback: policies, warnings, and what the report counts."""

import re
import threading
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins, logged
from tests.backends.test_tier0 import on_device_only
from tests.backends.toy_backend import kernel

import treadle as mge
import treadle.functional as F
from treadle.base.errors import DeviceError, UnsupportedOp
from treadle.engine.eager import fallback


def test_warns_once_for_each_op(plugins: Plugins) -> None:
    plugins.toy()
    x = mge.tensor([1.0, 2.0], device="toy0")
    with logged() as lines:
        for _ in range(3):
            F.exp(x)
            F.exp(x + x)
    exp, add = lines
    assert exp.startswith("exp runs on the host instead of toy0:0 (op: toy has no kernel for exp)")
    assert add.startswith("add runs on the host") and "fallback_report()" in add
    with logged() as lines:
        mge.fallback_report(clear=True)
        F.exp(x)
    assert lines == [], "counting anew is no reason to warn anew"


def test_silent_says_nothing_and_counts(plugins: Plugins) -> None:
    plugins.toy()
    with logged() as lines, mge.fallback("silent"):
        F.exp(mge.tensor([1.0], device="toy0"))
    assert lines == [] and [row.calls for row in mge.fallback_report()] == [1]


def test_the_innermost_block_decides_and_errors_leave_it(plugins: Plugins) -> None:
    plugins.toy()
    x = mge.tensor([1.0], device="toy0")
    with mge.fallback("silent"):
        refused = pytest.raises(UnsupportedOp, match="falling back is an error here")
        with refused, mge.fallback("error"):
            with mge.fallback("silent"):
                F.exp(x)
            F.exp(x)
        F.exp(x)
    assert fallback.policy() == "warn"


def test_the_environment_gives_the_default(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.toy()
    monkeypatch.setenv("TREADLE_FALLBACK", "error")
    x = mge.tensor([1.0], device="toy0")
    with pytest.raises(UnsupportedOp):
        F.exp(x)
    with mge.fallback("silent"):
        F.exp(x)
    monkeypatch.setenv("TREADLE_FALLBACK", "maybe")
    with pytest.raises(DeviceError, match="TREADLE_FALLBACK: 'maybe' is not a fallback policy"):
        F.exp(x)


def test_an_unknown_policy_is_refused_at_once() -> None:
    refused = pytest.raises(DeviceError, match="fallback: 'loud' is not a fallback policy")
    with refused as caught, mge.fallback("loud"):  # type: ignore[arg-type]
        pytest.fail("the block was entered")
    assert "'warn', 'silent', 'error'" in str(caught.value)


def test_policies_belong_to_a_thread(plugins: Plugins) -> None:
    plugins.toy()
    x = mge.tensor([1.0], device="toy0")
    inside, done = threading.Barrier(2, timeout=300), threading.Barrier(2, timeout=300)
    outcomes: dict[str, Any] = {}

    def other() -> None:
        inside.wait()
        outcomes["policy"] = fallback.policy()
        with mge.fallback("silent"):
            outcomes["value"] = F.exp(x - x).item()
            done.wait()

    thread = threading.Thread(target=other)
    thread.start()
    with mge.fallback("error"):
        inside.wait()
        done.wait()
        with pytest.raises(UnsupportedOp):
            F.exp(x)
    thread.join()
    assert outcomes == {"policy": "warn", "value": 1.0}


def test_threads_count_together(plugins: Plugins) -> None:
    plugins.toy()
    x = mge.tensor([1.0], device="toy0")

    def work() -> None:
        with mge.fallback("silent"):
            for _ in range(200):
                F.exp(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (row,) = mge.fallback_report()
    assert (row.op, row.calls) == ("exp", 800)


def test_the_report(plugins: Plugins) -> None:
    plugins.toy()
    x = on_device_only(mge.tensor([1.0, 2.0], device="toy0"))
    with mge.fallback("silent"):
        F.exp(x)
        F.exp(x)
        x * x
    rows = {row.op: row for row in mge.fallback_report()}
    assert set(rows) == {"exp", "mul"}
    exp, mul = rows["exp"], rows["mul"]
    assert exp.device == "toy0:0" and exp.reason == "op: toy has no kernel for exp"
    assert (exp.calls, exp.nbytes) == (2, 8), "the second call finds the host copy"
    assert (mul.calls, mul.nbytes) == (1, 0)
    assert exp.seconds > 0
    exp.calls = 99
    assert {row.calls for row in mge.fallback_report(clear=True)} == {1, 2}, "rows are copies"
    assert mge.fallback_report() == []
    with mge.fallback("silent"):
        F.exp(x)
    assert [row.calls for row in mge.fallback_report()] == [1]
    seconds = [row.seconds for row in mge.fallback_report()]
    assert seconds == sorted(seconds, reverse=True)


def test_one_operand_used_twice_is_moved_once(plugins: Plugins) -> None:
    plugins.toy()
    x = on_device_only(mge.tensor([1.0, 2.0], device="toy0"))
    with mge.fallback("silent"):
        x * x
    assert [row.nbytes for row in mge.fallback_report()] == [8]


def test_a_failing_op_reports_its_error_not_the_fallback(plugins: Plugins) -> None:
    plugins.toy()
    x = mge.tensor([1.0, 2.0], device="toy0")
    with mge.fallback("silent"), pytest.raises(ValueError, match=r"add: .*axis -1: 2 against 3"):
        x + mge.tensor([1.0, 2.0, 3.0], device="toy0")


# -- single ops, shares, the table -----------------------------------------------------------------


def test_single_ops_have_policies_of_their_own(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.toy()
    x = mge.tensor([1.0, 2.0], device="toy0")
    with mge.fallback("silent", ops={"exp": "error", "log": "warn"}):
        F.sin(x)
        with pytest.raises(UnsupportedOp, match="exp: toy0:0 cannot run it"):
            F.exp(x)
        with logged() as lines:
            F.log(x)
        assert len(lines) == 1 and lines[0].startswith("log runs on the host")
        with mge.fallback("warn", ops={"log": "silent"}), pytest.raises(UnsupportedOp):
            assert fallback.policy("log") == "silent"
            F.exp(x)  # named by the block outside
    monkeypatch.setenv("TREADLE_FALLBACK", "error, sin=silent,cos=silent")
    F.sin(x)
    with pytest.raises(UnsupportedOp):
        F.exp(x)
    with mge.fallback("error", ops={"cos": "error"}):
        F.sin(x)
        with pytest.raises(UnsupportedOp):
            F.cos(x)
    refused = pytest.raises(DeviceError, match="fallback: there is no op 'exps'")
    with refused, mge.fallback("warn", ops={"exps": "silent"}):
        pytest.fail("the block was entered")
    monkeypatch.setenv("TREADLE_FALLBACK", "warn,sin=never")
    with pytest.raises(DeviceError, match="TREADLE_FALLBACK: 'never' is not a fallback policy"):
        F.sin(x)


def test_a_block_may_limit_the_share_of_time_on_the_host(plugins: Plugins) -> None:
    plugins.toy(kernels=[kernel("add", np.add)])
    x = mge.tensor([1.0, 2.0], device="toy0")
    with mge.fallback("silent", max_share=0.0):
        x + x
    with mge.fallback("silent", max_share=1.0):
        F.exp(x)
    refused = pytest.raises(DeviceError, match=r"% of the time went to ops that fell back")
    with refused as caught, mge.fallback("silent", max_share=0.01):
        for _ in range(3):
            F.exp(x)
    assert "at most 1 % may" in str(caught.value)
    assert "exp " in str(caught.value) and "toy has no kernel for exp" in str(caught.value)
    with pytest.raises(KeyError, match="mine"), mge.fallback("silent", max_share=0.0):
        F.exp(x)
        raise KeyError("mine")


def test_the_report_prints_a_table_that_sums_up_first(plugins: Plugins) -> None:
    plugins.toy(kernels=[kernel("add", np.add)])
    assert mge.fallback_report().summary == "no op has run on a device"
    x = on_device_only(mge.tensor([1.0, 2.0], device="toy0"))
    mge.fallback_report(clear=True)
    with mge.fallback("silent"):
        F.exp(x + x)
        F.exp(x)
    report = mge.fallback_report()
    first, header, row = str(report).splitlines()
    assert re.fullmatch(
        r"1 of 2 kinds of ops and [\d.]+ % of .* on devices; 1 fell back to the host", first
    )
    assert header.split() == ["op", "device", "calls", "copied", "time", "reason"]
    assert row.split()[:5] == ["exp", "toy0:0", "2", "16", "B"] and "no kernel for exp" in row
    assert [(r.op, r.calls) for r in report.ran] == [("add", 1)]
    assert 0 < report.spent.share < 1 and repr(report).startswith("[Fallen(op='exp'")
    mge.fallback_report(clear=True)
    x + x
    assert [(r.op, r.calls) for r in mge.fallback_report().ran] == [("add", 1)]
