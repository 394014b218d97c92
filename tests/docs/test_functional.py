"""docs/functional.md: generated from the docstrings, with an example of every function in F."""

from __future__ import annotations

import doctest
import inspect
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.docs.pages import DOCS, anchors, section

import treadle as mge
import treadle.functional as F
from tools import (
    api_page,
    docs,
    megengine_coverage,
    notebooks,
    op_schemas,
    op_table,
    reference_pages,
)

PAGE = DOCS / "functional.md"


def public(module: types.ModuleType) -> dict[str, Any]:
    """Every function that users reach through a module or the modules it lists, by name."""
    found = {}
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            found.update(public(value))
        else:
            found[name] = value
    return found


FUNCTIONS = public(F)


def missing(name: str, function: Any) -> list[str]:
    """What a function's docstring and its entry on the page lack."""
    doc = inspect.getdoc(function) or ""
    family = inspect.getdoc(inspect.getmodule(function)) or ""
    if name not in anchors(PAGE):
        return ["entry"]
    entry = section(PAGE, name)
    parts = {
        "signature": f"```pyi\n{api_page.address(name, function)}(" in entry,
        "example": "\nExample:\n    >>> " in doc and "```python\n>>> " in entry,
        "use in the example": re.search(rf">>> .*F\.(\w+\.)?{name}\(", entry),
        "shapes": re.search(r"shape|extent|axis|axes|\((N|\.\.\.), ", doc + family),
    }
    return [part for part, present in parts.items() if not present]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_is_on_the_page_with_signature_shapes_and_example(name: str) -> None:
    assert missing(name, FUNCTIONS[name]) == []


def test_page_has_nothing_else() -> None:
    listed = {name for _, group in api_page.groups().values() for name in group}
    assert listed == set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_example_stands_alone(name: str) -> None:
    doc = inspect.getdoc(FUNCTIONS[name]) or ""
    names = {"F": F, "mge": mge, "np": np}
    test = doctest.DocTestParser().get_doctest(doc, names, name, None, None)
    assert doctest.DocTestRunner().run(test).failed == 0


def test_a_function_without_an_example_is_noticed() -> None:
    def relu(x: Any) -> Any:
        """max(x, 0) in the shape of x."""

    relu.__module__ = F.relu.__module__
    assert missing("relu", relu) == ["example"]
    assert missing("no_such_function", F.relu) == ["entry"]


@pytest.mark.long
def test_a_stale_page_is_noticed_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for tool in (api_page, megengine_coverage, op_schemas, op_table):
        monkeypatch.setattr(tool, "PAGE", tmp_path / tool.PAGE.name)
    monkeypatch.setattr(reference_pages, "DOCS", tmp_path)
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path / "course")
    assert docs.main([]) == 0 and docs.main(["--check"]) == 0
    api_page.PAGE.write_text("old\n", encoding="utf-8")
    assert docs.main(["--check"]) == 1
    assert "docs/functional.md is stale; run `make docs`" in capsys.readouterr().err
