"""Fallback: policies, warnings, and what the report counts."""

import threading
from typing import Any

import pytest
from tests.backends.plugins import Plugins, logged
from tests.backends.test_tier0 import on_device_only

import treadle as mge
import treadle.functional as F
from treadle.base.errors import DeviceError, UnsupportedOp
from treadle.engine import fallback


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
    with pytest.raises(DeviceError, match="TREADLE_FALLBACK: 'maybe' is no fallback policy"):
        F.exp(x)


def test_an_unknown_policy_is_refused_at_once() -> None:
    refused = pytest.raises(DeviceError, match="fallback: 'loud' is no fallback policy")
    with refused as caught, mge.fallback("loud"):  # type: ignore[arg-type]
        pytest.fail("the block was entered")
    assert "'warn', 'silent', 'error'" in str(caught.value)


def test_policies_belong_to_a_thread(plugins: Plugins) -> None:
    plugins.toy()
    x = mge.tensor([1.0], device="toy0")
    inside, done = threading.Barrier(2, timeout=10), threading.Barrier(2, timeout=10)
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
