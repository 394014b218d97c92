"""What the documentation tests read: pages, their code blocks, tables, links and anchors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CHINESE = DOCS / "zh"
TABLES = ("ops.md",)
"""Generated pages without prose or code."""

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: the language, the words after it, the code, and the code's first line."""

    language: str
    words: tuple[str, ...]
    code: str
    line: int

    @property
    def is_session(self) -> bool:
        """Whether the block is an interactive session with expected output."""
        return self.code.lstrip().startswith(">>>")


def pages() -> list[Path]:
    """Every page with prose or code, the README first; `translated` has those in Chinese."""
    found = [p for p in sorted(DOCS.rglob("*.md")) if p.name not in TABLES]
    own = [p for p in found if not p.is_relative_to(CHINESE)]
    return [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *own]


def translated() -> dict[Path, Path]:
    """Pages in Chinese, and those in English that they translate."""
    found = {p: DOCS / p.relative_to(CHINESE) for p in sorted(CHINESE.rglob("*.md"))}
    return {ROOT / "README.zh-CN.md": ROOT / "README.md", **found}


def name_of(page: Path) -> str:
    """A page's path from the repository's root, or its bare name outside of it."""
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def blocks(page: Path, language: str | None = "python") -> list[Block]:
    """A page's blocks in one language, or in all, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        first, *words = match["info"].split() or [""]
        if language in (None, first):
            line = text.count("\n", 0, match.start("code")) + 1
            found.append(Block(first, tuple(words), match["code"], line))
    return found


def prose(page: Path) -> str:
    """A page's text without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, by GitHub's rule."""
    titles = _HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", t.lower()).strip().replace(" ", "-") for t in titles}


def links(page: Path) -> list[str]:
    """Targets of a page's links."""
    return _LINK.findall(prose(page))


def section(page: Path, title: str) -> str:
    """The text below the heading `title`, up to the next heading of any level."""
    text = page.read_text(encoding="utf-8")
    match = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    if match is None:
        raise LookupError(f"{name_of(page)} has no section {title!r}")
    return match[1]


def table(text: str) -> list[list[str]]:
    """The cells of all table rows in a text, headers and rulers left out."""
    lines = [line.strip() for line in text.splitlines()]
    rows = []
    for i, line in enumerate(lines):
        is_header = i + 1 < len(lines) and re.fullmatch(r"\|[-:| ]+\|", lines[i + 1])
        if line.startswith("|") and not is_header and not re.fullmatch(r"\|[-:| ]+\|", line):
            cells = re.split(r"(?<!\\)\|", line[1:-1])
            rows.append([cell.strip().replace(r"\|", "|") for cell in cells])
    return rows


def code(cell: str) -> str:
    """What stands between the backticks of a table cell; `""` where there are none."""
    match = re.fullmatch(r"`(.+)`", cell)
    return match[1] if match else ""
