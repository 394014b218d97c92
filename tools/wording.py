"""Wording of docstrings, help texts and pages: openings and words that `docs/style.md` keeps out.

Run as `python -m tools.wording`; exits with status 1 and a list of places when one is found.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_WORD = re.compile(r"[A-Za-z]+")
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and text of docstrings, those below attributes included."""
    for scope in ast.walk(tree):
        body = getattr(scope, "body", None)
        if not isinstance(body, list):
            continue
        owner = isinstance(scope, ast.Module | ast.ClassDef | ast.FunctionDef)
        for i, statement in enumerate(body):
            above = body[i - 1] if i else None
            documents = (i == 0 and owner) or isinstance(above, ast.Assign | ast.AnnAssign)
            if documents and isinstance(statement, ast.Expr):
                text = statement.value
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield statement.lineno, text.value


def in_code(text: str, openings: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and opening of docstrings that begin with one of these words."""
    for line, docstring in docstrings(ast.parse(text)):
        first = _WORD.match(docstring.lstrip())
        if first is not None and first[0] in openings:
            yield line, f'a docstring begins with "{first[0]}"'


def in_functions(text: str, leaning: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and fault of functions' docstrings that no reader understands alone.

    Args:
        text: of a module.
        leaning: first words that lean on something outside; a single word says too little as well.
    """
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        words = (ast.get_docstring(node) or "").split()
        first = _WORD.match(words[0]) if words else None
        if len(words) == 1:
            yield node.lineno, f'the docstring of {node.name} is one word, "{words[0]}"'
        elif first is not None and first[0] in leaning:
            yield node.lineno, f'the docstring of {node.name} begins with "{first[0]}"'


def in_help(text: str, openings: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and opening of help texts of options that begin with one of these words."""
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.keyword) and node.arg == "help"):
            continue
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first = _WORD.match(node.value.value)
            if first is not None and first[0] in openings:
                yield node.value.lineno, f'a help text begins with "{first[0]}"'


def in_page(text: str, words: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield the line and word of each house word in a page's prose; code is left out."""
    prose = _CODE.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(prose.splitlines(), 1):
        for word in _WORD.findall(line):
            if (better := words.get(word.lower())) is not None:
                yield number, f'"{word}": write "{better}"'


def findings(root: Path) -> list[str]:
    """Return all places below a checkout's root, as `path:line: finding`."""
    raw = tomllib.loads((root / "budget.toml").read_text(encoding="utf-8"))["wording"]
    openings, words = frozenset(raw["openings"]), dict(raw["words"])
    leaning = frozenset(raw["leaning"])
    found = []
    for path in sorted((root / "src" / "treadle").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        code = in_code(text, openings), in_functions(text, leaning), in_help(text, openings)
        places = [place for found_in in code for place in found_in]
        found += [f"{path.relative_to(root)}:{n}: {what}" for n, what in places]
    pages = [*root.glob("*.md"), *(root / "docs").glob("*.md")]
    for path in sorted(p for p in pages if p.name not in ("CHANGELOG.md", "style.md")):
        text = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(root)}:{n}: {what}" for n, what in in_page(text, words)]
    return found


def main() -> int:
    """Print what was found; 1 if there is anything."""
    found = findings(_ROOT)
    for place in found:
        print(place)
    print(f"wording: {len(found)} findings; docs/style.md says what to write")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
