"""The course: guide pages as notebooks, made by `python -m tools.notebooks`; `--check` compares.

Prose becomes Markdown cells, Python blocks become code cells. What a session shows is the cell's
output; since the tests run the pages, the outputs are true. Format: nbformat 4.5, plain JSON.
"""

from __future__ import annotations

import doctest
import hashlib
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.generated import DOCS, write_or_check

FOLDER = DOCS / "course"
PAGES = (
    "getting-started",
    "concepts",
    "tensors",
    "autodiff",
    "modules",
    "data",
    "optimizers",
    "jit",
    "quantization",
    "memory",
    "from-scratch",
)
"""Pages of the course, in their order."""

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?\[[^\]\n]*\])\((?![a-z]+:|#)([^)\s]+)\)")
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


@dataclass(frozen=True)
class Cell:
    """A cell: Markdown, or code with what it prints, and whether it ends in an error."""

    kind: str
    source: str
    output: str = ""
    fails: bool = field(default=False)

    def data(self, name: str) -> dict[str, Any]:
        """The cell as notebooks hold it."""
        cell: dict[str, Any] = {"cell_type": self.kind, "id": name, "metadata": {}}
        cell["source"] = self.source.splitlines(keepends=True)
        if self.kind == "code":
            outputs = [self._printed()] if self.output else []
            cell |= {"execution_count": None, "outputs": outputs}
            if self.fails:
                cell["metadata"] = {"tags": ["raises-exception"]}
        return cell

    def _printed(self) -> dict[str, Any]:
        text = self.output.replace("<BLANKLINE>", "").splitlines(keepends=True)
        return {"output_type": "stream", "name": "stdout", "text": text}


def notebook(page: Path) -> str:
    """A page as the text of a notebook."""
    made = []
    for number, cell in enumerate(cells(page.read_text(encoding="utf-8"))):
        digest = hashlib.sha256(f"{number} {cell.source}".encode()).hexdigest()
        made.append(cell.data(digest[:12]))
    content = {
        "cells": made,
        "metadata": {"kernelspec": _KERNEL, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def cells(text: str) -> list[Cell]:
    """The cells of a page's text."""
    found: list[Cell] = []
    begin = 0
    for fence in _FENCE.finditer(text):
        language, *words = fence["info"].split() or [""]
        if language != "python" or "oracle" in words:
            continue
        found += _markdown(text[begin : fence.start()])
        found += _code(fence["code"], words)
        begin = fence.end()
    return found + _markdown(text[begin:])


def _markdown(text: str) -> list[Cell]:
    """Prose; links lead to the pages, one folder up."""
    text = _LINK.sub(r"\1(../\2)", text.strip())
    return [Cell("markdown", text)] if text else []


def _code(code: str, words: list[str]) -> list[Cell]:
    """One cell; of a session, one per example that prints something."""
    for word in words:
        if word.startswith("file="):
            return [Cell("code", f"%%writefile {word.removeprefix('file=')}\n{code.rstrip()}")]
    if not code.lstrip().startswith(">>>"):
        return [Cell("code", code.rstrip())]
    found, waiting = [], ""
    for example in doctest.DocTestParser().get_examples(code):
        waiting += example.source
        if example.want:
            fails = example.exc_msg is not None
            found.append(Cell("code", waiting.rstrip(), example.want.rstrip(), fails))
            waiting = ""
    return [*found, Cell("code", waiting.rstrip())] if waiting else found


def main(arguments: list[str] | None = None) -> int:
    """Write the notebooks, or compare with them."""
    return max(
        write_or_check(FOLDER / f"{name}.ipynb", notebook(page), "tools.notebooks", arguments)
        for name in PAGES
        if (page := DOCS / f"{name}.md").exists()
    )


if __name__ == "__main__":
    sys.exit(main())
