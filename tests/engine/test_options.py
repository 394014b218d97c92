"""Options refuse what is no value of theirs, and say what is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import treadle
from treadle.base.errors import GraphError
from treadle.engine.options import PASSES, Options


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"fusion": "no"}, "fusion='no' is not of type bool.*use True or False"),
        ({"streams": 1.5}, "streams=1.5 is not of type int"),
        ({"streams": 0}, "0 streams"),
        ({"memory_budget": "2GB"}, "memory_budget='2GB' is not of type int"),
        ({"level": True}, "level=True is not of type int"),
        ({"level": 4}, "no optimization level 4.*use 0, 1, 2 or 3"),
        ({"disabled": "fold"}, r"takes a tuple.*disabled=\(\"fold\",\)"),
        ({"disabled": ("precomput",)}, "no pass 'precomput'.*precompute.*did you mean"),
        ({"disabled": ("check_ranges",)}, "no pass 'check_ranges'"),
        ({"disabled": ("zzz",)}, "no pass 'zzz'.*canonicalize.*name one of these"),
        ({"engines": ["cpu"]}, "takes a tuple"),
        ({"engines": ("cpu", "refrence")}, "no engine is called 'refrence'.*mean 'reference'"),
        ({"engines": ("nope",)}, "no engine is called 'nope'.*engines: cpu, reference"),
    ],
)
def test_wrong_values_are_refused_at_once(given: dict[str, Any], told: str) -> None:
    with pytest.raises(GraphError, match=re.compile(told, re.DOTALL)):
        Options(**given)


def test_the_table_of_passes_is_that_of_the_stages() -> None:
    """What stages ask for by name, and passes that are registered, can be left out."""
    asked = set[str]()
    for path in (Path(treadle.__file__).parent / "engine").rglob("*.py"):
        asked.update(re.findall(r'options\.allows\(\s*"(\w+)"', path.read_text()))
    assert asked <= set(PASSES) and "precompute" in asked
    for name in PASSES:
        assert Options(disabled=(name,)).disabled == (name,)


def test_engines_of_the_environment_are_refused_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_ENGINES", "cup")
    with pytest.raises(GraphError, match="no engine is called 'cup'"):
        Options()
