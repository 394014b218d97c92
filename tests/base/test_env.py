"""Environment variables: precedence, defaults, and one table of all."""

import re
from pathlib import Path

import pytest

from treadle.base import env

SOURCE = Path(env.__file__).parents[1]


def test_the_first_name_that_is_set_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = env.Variable(("TREADLE_A", "TREADLE_B"), "none", "a test")
    for name in variable.names:
        monkeypatch.delenv(name, raising=False)
    assert (variable.get(), variable.source()) == ("none", "")
    monkeypatch.setenv("TREADLE_B", "b")
    assert (variable.get(), variable.source()) == ("b", "TREADLE_B")
    monkeypatch.setenv("TREADLE_A", "a")
    assert (variable.get(), variable.source()) == ("a", "TREADLE_A")
    monkeypatch.setenv("TREADLE_A", "")
    assert (variable.get(), variable.source()) == ("b", "TREADLE_B")


def test_megengines_name_of_the_default_device_goes_first() -> None:
    assert env.DEFAULT_DEVICE.names == ("MGE_DEFAULT_DEVICE", "TREADLE_DEFAULT_DEVICE")
    assert env.DEFAULT_DEVICE.default == "xpux"


def test_the_table_lists_every_variable() -> None:
    declared = [v for v in vars(env).values() if isinstance(v, env.Variable)]
    assert declared == list(env.ALL) and all(v.meaning for v in declared)
    names = [n for v in declared for n in v.names]
    assert len(set(names)) == len(names)
    # As every build tool calls the compilers, a driver's own, which is set for it, and locales.
    systems = {"CC", "CUDACXX", "CXX", "POCL_WORK_GROUP_SPECIALIZATION"}
    systems |= {"LC_ALL", "LC_MESSAGES", "LANG"}
    own = [n for n in names if n not in systems]
    assert all(re.fullmatch(r"(MGE|MEGENGINE|TREADLE)_[A-Z0-9_]+", n) for n in own)


def test_nobody_else_reads_the_environment() -> None:
    readers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"os\.(environ|getenv)", path.read_text(encoding="utf-8"))
    }
    # The kit changes variables to see what a backend makes of them.
    kit = {"conformance/distributed.py", "conformance/visit.py"}
    assert readers - kit == {"base/env.py"}


def test_where_compiled_code_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREADLE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert env.cache_directory() == Path("/somewhere/treadle")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert env.cache_directory() == Path.home() / ".cache" / "treadle"
    monkeypatch.setenv("TREADLE_CACHE_DIR", "/mine")
    assert env.cache_directory() == Path("/mine")
