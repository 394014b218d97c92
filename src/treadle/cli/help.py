"""`treadle help`: what a code of an error means, or how a command is used."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from treadle.base.chinese import is_chinese
from treadle.cli.status import Misuse

_PAGES = {zh: Path(__file__).with_name(f"errors{'-zh' * zh}.md") for zh in (False, True)}
"""By whether it is in Chinese. In a checkout links to `docs/errors.md` and `docs/zh/errors.md`;
packages have copies."""

Topic = Annotated[
    str,
    typer.Argument(
        metavar="[TOPIC]",
        help="The code or class of an error (T01, ShapeError), or a command.",
        show_default=False,
    ),
]


def command(context: typer.Context, topic: Topic = "") -> None:
    """Explain an error by its code, or show how a command is used."""
    codes = _codes()
    named = {name.lower(): name for name in codes.values()}
    if topic.upper() in codes or topic.lower() in named:
        name = codes.get(topic.upper()) or named[topic.lower()]
        _show(section(name))
        return
    commands = context.parent.command.commands if context.parent else {}  # type: ignore[attr-defined]
    if topic and topic not in commands:
        raise Misuse(
            "help",
            f"there is nothing about {topic!r}",
            saw=f"codes T00 to {max(codes)}; commands {', '.join(sorted(commands))}",
            hint="the last line of an error has its code",
        )
    # Imported late: the group imports this module.
    from treadle.cli import main

    main([topic, "--help"] if topic else ["--help"])


def _codes() -> dict[str, str]:
    """Names of classes of errors by code, as the table of the page has them."""
    return dict(re.findall(r"^\| (T\d\d) \| \[(\w+)\]", _page(), re.MULTILINE))


def _page() -> str:
    return _PAGES[is_chinese()].read_text(encoding="utf-8")


def section(name: str) -> str:
    """Return the section of the page of errors on a class, as Markdown."""
    match = re.search(rf"^## {name}\n.*?(?=^## |\Z)", _page(), re.MULTILINE | re.DOTALL)
    if match is None:
        raise LookupError(f"the page of errors has no section {name}")
    # Links lead from page to page, which nobody follows in a terminal.
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", match[0])


def _show(text: str) -> None:
    width = min(shutil.get_terminal_size().columns, 100)
    Console(width=width).print(Markdown(text, code_theme="ansi_dark"))
