"""Size budget: lines per layer, file, function and class, names and markers (see budget.toml).

Run as `python -m tools.budget`; exits with status 1 and a table of findings when one is exceeded.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Scope = ast.Module | ast.ClassDef | _Function


@dataclass(frozen=True, order=True)
class Finding:
    """One exceeded limit: where it is, what it is, how much there is, how much may be."""

    place: str
    what: str
    found: str = ""
    allowed: str = ""


@dataclass(frozen=True)
class Budget:
    """The numbers and names of budget.toml."""

    file: int
    function: int
    class_body: int
    banned: frozenset[str]
    named_anyway: tuple[str, ...]
    words: tuple[str, ...]
    roots: tuple[str, ...]
    nesting: dict[str, int]
    layers: dict[tuple[str, ...], int]

    @staticmethod
    def read(path: Path) -> "Budget":
        """Read the budget file at `path`; a missing key is a KeyError that names it."""
        raw: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return Budget(
            file=raw["limits"]["file"],
            function=raw["limits"]["function"],
            class_body=raw["limits"]["class"],
            banned=frozenset(raw["names"]["banned"]),
            named_anyway=tuple(raw["names"]["allowed"]),
            words=tuple(raw["markers"]["words"]),
            roots=tuple(raw["markers"]["roots"]),
            nesting=raw["nesting"],
            layers={
                tuple(part.strip() for part in key.split("+")): lines
                for key, lines in raw["layers"].items()
            },
        )


@dataclass(frozen=True)
class Source:
    """A Python file: its path from the repository root, its text, its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """Number of lines in the file."""
        return len(self.text.splitlines())

    @staticmethod
    def read(path: Path, root: Path) -> "Source":
        """Read and parse the file; a syntax error is raised with its name."""
        text = path.read_text(encoding="utf-8")
        return Source(path.relative_to(root).as_posix(), text, ast.parse(text, str(path)))


def check(root: Path) -> list[Finding]:
    """All findings in the repository at `root`, sorted by place."""
    budget = Budget.read(root / "budget.toml")
    package = root / "src" / "treadle"
    findings: list[Finding] = []
    sizes: dict[str, int] = {}
    # One tree at a time: all of them together keep the garbage collector busy for seconds.
    for path in sorted(package.rglob("*.py")):
        source = Source.read(path, root)
        name = source.path.split("/")[2].removesuffix(".py")
        sizes[name] = sizes.get(name, 0) + source.lines
        findings += _check_file(source, budget)
    findings += _check_layers(sizes, budget)
    findings += _check_markers(root, budget)
    return sorted(findings)


def _check_layers(sizes: dict[str, int], budget: Budget) -> Iterator[Finding]:
    """Findings of layers, given the lines per name directly under src/treadle."""
    for members, allowed in budget.layers.items():
        found = sum(sizes.pop(member, 0) for member in members)
        if found > allowed:
            yield Finding(" + ".join(members), "layer is too large", str(found), str(allowed))
    for name, found in sizes.items():
        yield Finding(name, "layer has no line in budget.toml", str(found))


def _check_file(source: Source, budget: Budget) -> Iterator[Finding]:
    is_table = source.path.endswith("_table.py")
    if not is_table and source.lines > budget.file:
        yield Finding(source.path, "file is too long", str(source.lines), str(budget.file))
    if not ast.get_docstring(source.tree):
        yield Finding(source.path, "module has no docstring")
    yield from _check_names(source.path, budget)
    for folder, allowed in budget.nesting.items():
        if source.path.startswith(folder + "/"):
            yield from _check_nesting(source.path, source.tree, allowed)
    for node in _statements(source.tree):
        if isinstance(node, _Function):
            kind, limit = "function", budget.function
        elif isinstance(node, ast.ClassDef):
            kind, limit = "class", budget.class_body
        else:
            continue
        found = _length(node)
        if found > limit:
            place = f"{source.path}:{node.lineno} {node.name}"
            yield Finding(place, f"{kind} is too long", str(found), str(limit))


def _check_nesting(path: str, scope: ast.AST, allowed: int) -> Iterator[Finding]:
    """Findings of functions that stand inside more than `allowed - 1` others."""
    for node in ast.iter_child_nodes(scope):
        is_function = isinstance(node, _Function)
        if isinstance(node, _Function) and not allowed:
            place = f"{path}:{node.lineno} {node.name}"
            yield Finding(place, "function is nested too deep; give the outer one a class")
        else:
            yield from _check_nesting(path, node, allowed - is_function)


def _check_names(path: str, budget: Budget) -> Iterator[Finding]:
    if any(path == name or path.startswith(name + "/") for name in budget.named_anyway):
        return
    banned = [part for part in path.removesuffix(".py").split("/") if part in budget.banned]
    if banned:
        yield Finding(path, f"name '{banned[0]}' says nothing about the content")


def _check_markers(root: Path, budget: Budget) -> Iterator[Finding]:
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, budget.words))})\b")
    for folder in budget.roots:
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if not pattern.search(text):
                continue
            for number, line in enumerate(text.splitlines(), start=1):
                if match := pattern.search(line):
                    place = f"{path.relative_to(root).as_posix()}:{number}"
                    yield Finding(place, f"{match[1]} in the source; open an issue instead")


def _length(node: ast.ClassDef | _Function) -> int:
    """Lines of the definition without docstrings, so that documentation never costs budget."""
    total = _span(node)
    for scope in _statements(node):
        if isinstance(scope, _Scope) and (docstring := _docstring(scope)):
            total -= _span(docstring)
    return total


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all statements below it; expressions, most of a tree, hold no definitions."""
    yield node
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            yield from _statements(child)


def _docstring(scope: _Scope) -> ast.stmt | None:
    first = scope.body[0] if scope.body else None
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return first if is_text and ast.get_docstring(scope) else None


def _span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def render(findings: list[Finding]) -> str:
    """Findings as a table with a heading and aligned columns."""
    head = ("place", "what", "found", "allowed")
    rows = [head, *((f.place, f.what, f.found, f.allowed) for f in findings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def main(root: Path) -> int:
    """Print the findings in `root`, or one line when there are none; return the exit status."""
    findings = check(root)
    if findings:
        print(render(findings))
        print(f"\nbudget: {len(findings)} finding(s); the limits are in budget.toml")
        return 1
    print("budget: within limits")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
