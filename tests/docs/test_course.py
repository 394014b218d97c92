"""The course: notebooks that are their pages, and whose cells run."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import DOCS, anchors

from tools import notebooks

NAMES = notebooks.PAGES


def course(name: str) -> dict[str, Any]:
    found = json.loads((notebooks.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_is_its_page(name: str) -> None:
    made = (notebooks.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert made == notebooks.notebook(DOCS / f"{name}.md"), "run `make docs`"


@pytest.mark.parametrize("name", NAMES)
def test_cells_have_the_form_of_nbformat(name: str) -> None:
    content = course(name)
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in content["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in content["cells"]:
        keys = {"cell_type", "id", "metadata", "source"}
        code = cell["cell_type"] == "code"
        assert set(cell) == (keys | {"execution_count", "outputs"} if code else keys)
        assert not any(line.startswith((">>>", "...")) for line in cell["source"] if code)
    assert any(cell.get("outputs") for cell in content["cells"])


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_the_pages(name: str) -> None:
    for cell in course(name)["cells"]:
        for link in re.findall(r"\]\(([^)\s]+)\)", "".join(cell["source"])):
            if cell["cell_type"] == "markdown" and not re.match(r"[a-z]+:|#", link):
                path, _, anchor = link.partition("#")
                target = (notebooks.FOLDER / path).resolve()
                assert target.exists(), f"{name} links to {link}"
                assert not anchor or target.suffix != ".md" or anchor in anchors(target)


@pytest.mark.parametrize("name", ["concepts", "optimizers"])
def test_cells_run_from_top_to_bottom(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in course(name)["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            shown = "".join("".join(o["text"]) for o in cell["outputs"])
            assert run(source, names, cell) or not shown, source


def run(source: str, names: dict[str, Any], cell: dict[str, Any]) -> bool:
    """Run a cell as notebooks do; whether it printed or left a value."""
    if source.startswith("%%writefile"):
        head, _, text = source.partition("\n")
        Path(head.split()[1]).write_text(text, encoding="utf-8")
        return True
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module(body, []), "cell", "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    except Exception:
        assert "raises-exception" in cell["metadata"].get("tags", ()), source
        return True
    return bool(printed.getvalue()) or value is not None


def test_a_page_with_everything() -> None:
    text = (
        "# T\n\n[a](b.md)\n\n```python\n>>> x = 1\n>>> x\n1\n>>> y\nTraceback (most recent call "
        "last):\n  ...\nNameError: y\n>>> z = 2\n```\n\n```sh\nls\n```\n\n"
        "```python file=m.py\na = 1\n```\n\n```python oracle\nb = 1\n```\n"
    )
    first, shown, failing, rest, shell, written, oracle = notebooks.cells(text)
    assert (first.kind, first.source) == ("markdown", "# T\n\n[a](../b.md)")
    assert (shown.source, shown.output, shown.fails) == ("x = 1\nx", "1", False)
    assert (failing.source, failing.fails) == ("y", True)
    assert (rest.source, rest.output) == ("z = 2", "")
    assert shell.kind == oracle.kind == "markdown" and "ls" in shell.source
    assert written.source == "%%writefile m.py\na = 1"
