"""Pages that are written by a program: one command writes a page or says that it is stale."""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path
from typing import Any

import treadle

DOCS = Path(__file__).resolve().parent.parent / "docs"


def write_or_check(page: Path, text: str, tool: str, arguments: list[str] | None) -> int:
    """Write `text` to the page, or with `--check` compare the two; the exit status.

    Args:
        page: the generated file.
        text: what it has to hold.
        tool: the module that was run, for usage and messages.
        arguments: the command line, that of the process for None.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {tool}", description=f"Write {page.name}.")
    parser.add_argument("--check", action="store_true", help="fail where the page is stale")
    if parser.parse_args(arguments).check:
        if page.exists() and page.read_text(encoding="utf-8") == text:
            return 0
        print(f"docs/{page.name} is stale; run `make docs`", file=sys.stderr)
        return 1
    page.parent.mkdir(exist_ok=True)
    page.write_text(text, encoding="utf-8")
    return 0


def source_link(value: Any, root: str) -> str:
    """A link to the file that defines a class or function; "" where there is none.

    Args:
        value: the class or function.
        root: the way from the page to the root of the repository, such as "../".
    """
    home = inspect.getmodule(inspect.unwrap(value))
    if home is None or not home.__file__ or not home.__name__.startswith("treadle"):
        return ""
    file = Path(home.__file__).relative_to(Path(treadle.__file__).parent).as_posix()
    return f"[{file}]({root}src/treadle/{file})"
