"""The owner of tables that something makes stale."""

import subprocess
import sys

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.backends import registry
from treadle.base.process import RUNTIME, Runtime
from treadle.engine.eager import choice, dispatch


def test_tables_are_emptied_by_their_cause_and_those_it_follows() -> None:
    owner = Runtime()
    first, second = owner.table("engines", "backends"), owner.table("launches", "launches")
    told = owner.table("warnings", "messages")
    for table in (first, second, told):
        table["x"] = 1
    owner.invalidate("launches")
    assert (first, second, told) == ({"x": 1}, {}, {"x": 1})
    second["x"] = 1
    owner.invalidate("backends")
    assert (first, second, told) == ({}, {}, {"x": 1})
    owner.invalidate()
    assert not told
    assert owner.tables == {"engines": {}, "launches": {}, "warnings": {}}


def test_two_tables_have_two_names() -> None:
    owner = Runtime()
    owner.table("engines", "backends")
    with pytest.raises(ValueError, match="two tables are called 'engines'"):
        owner.table("engines", "launches")


def test_results_are_kept_until_the_cause_changes() -> None:
    owner = Runtime()
    calls: list[int] = []

    @owner.cached("environment", most=2)
    def square(x: int) -> int:
        """Docs."""
        calls.append(x)
        return x * x

    assert [square(2), square(2), square(3)] == [4, 4, 9] and calls == [2, 3]
    owner.invalidate("backends")
    assert square(2) == 4 and calls == [2, 3]
    owner.invalidate("environment")
    assert square(2) == 4 and calls == [2, 3, 2]
    assert square.__doc__ == "Docs."


def test_each_is_told_once_and_in_order() -> None:
    owner = Runtime()
    told: list[str] = []
    owner.after("launches", lambda: told.append("launches"))
    owner.after("backends", lambda: told.append("backends"))
    owner.after("backends", lambda: told.append("more"))
    owner.invalidate()
    assert told == ["backends", "more", "launches"]
    owner.invalidate("devices")
    assert told[3:] == ["launches"]


def test_a_block_runs_as_in_a_new_process() -> None:
    x = mge.tensor(np.arange(4, dtype=np.float32))
    before = (x + 1).sum()
    known = registry.entries()["reference"]
    with RUNTIME.anew():
        assert not dispatch._ENTRIES and not choice._MADE
        assert registry.entries()["reference"] is not known
        np.testing.assert_array_equal((x + 1).sum().numpy(), before.numpy())
        F.sin(x)
        assert dispatch._ENTRIES
    assert not dispatch._ENTRIES
    np.testing.assert_array_equal((x + 1).sum().numpy(), before.numpy())


def test_a_warning_is_given_once_a_process(capsys: pytest.CaptureFixture[str]) -> None:
    from treadle.base.log import tell_once

    with RUNTIME.anew():
        for _ in range(2):
            tell_once("a warning of test_process")
    tell_once("a warning of test_process")
    assert capsys.readouterr().err.count("a warning of test_process") == 2


def test_every_table_of_a_process_is_listed() -> None:
    """What somebody sees who asks the owner after one call."""
    script = (
        "import treadle as mge; from treadle.base.process import RUNTIME\n"
        "mge.tensor([1.0]) + 1\n"
        "print(*sorted(name for name, table in RUNTIME.tables.items() if table), sep='\\n')\n"
        "RUNTIME.invalidate()\n"
        "print(sum(map(len, RUNTIME.tables.values())))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    *names, left = run.stdout.splitlines()
    assert "launches of ops" in names and "decisions" in names and left == "0"
