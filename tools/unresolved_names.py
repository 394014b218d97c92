"""Names that tests, examples and benchmarks take from modules: each must be there.

Type checkers read `src` and `tools`; this reads the rest after a rename, without running it. Run as
`python -m tools.unresolved_names`; exits with status 1 and a list of places when a name is missing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

_READERS = ("tests", "examples", "benchmarks")
_STATEMENTS = ("body", "orelse", "handlers", "finalbody", "cases")


@dataclass
class Tree:
    """The modules of the repository at `root`, read when they are asked for."""

    root: Path
    _known: dict[str, frozenset[str] | None] = field(default_factory=dict)

    @cached_property
    def roots(self) -> Mapping[str, Path]:
        """Where top packages lie."""
        return {"treadle": self.root / "src", **dict.fromkeys((*_READERS, "tools"), self.root)}

    def names(self, module: str) -> frozenset[str] | None:
        """Return what a module defines; None where it is not ours or makes its names as it runs."""
        if module not in self._known:
            self._known[module] = self._read(module)
        return self._known[module]

    def holds(self, module: str, name: str) -> bool:
        """Return whether a name can be taken from a module."""
        names = self.names(module)
        return names is None or name in names or self.is_module(f"{module}.{name}")

    def is_module(self, module: str) -> bool:
        """Return whether there is a module or package of this name."""
        path = self._path(module)
        return path is not None and (path.with_suffix(".py").is_file() or path.is_dir())

    def _path(self, module: str) -> Path | None:
        top, *parts = module.split(".")
        return self.roots[top].joinpath(top, *parts) if top in self.roots else None

    def _read(self, module: str) -> frozenset[str] | None:
        path = self._path(module)
        if path is None:
            return None
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if not file.is_file():
            return frozenset()
        found: set[str] = set()
        for statement in _statements(ast.parse(file.read_text(encoding="utf-8"))):
            found.update(_bound(statement))
        return None if found & {"__getattr__", _ANY} else frozenset(found | _OF_ALL)


_ANY = "*"
_OF_ALL = frozenset({"__doc__", "__file__", "__name__", "__path__", "__dict__", "__spec__"})


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those below conditions included."""
    for block in _STATEMENTS:
        for statement in getattr(scope, block, ()):
            if isinstance(statement, ast.stmt):
                yield statement
            if not isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _statements(statement)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from ((a.asname or a.name).partition(".")[0] for a in statement.names)
    else:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Name) and node.id == "globals":
                yield _ANY


def missing(tree: Tree, text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and full name of what a file takes from modules that do not have it."""
    nodes = list(ast.walk(ast.parse(text)))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if alias.name != "*" and not tree.holds(node.module, alias.name):
                    yield node.lineno, f"{node.module}.{alias.name}"
    modules: dict[str, set[str]] = {}
    for node in nodes:
        for name, module in _meanings(tree, node):
            modules.setdefault(name, set()).add(module)
    for name, attribute, line in filter(None, map(_used, nodes)):
        # A name that also means something else somewhere in the file is not followed.
        meant = modules.get(name, set())
        for module in meant if len(meant) == 1 else ():
            if tree.is_module(module) and not tree.holds(module, attribute):
                yield line, f"{module}.{attribute}"


def _meanings(tree: Tree, node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield names that a node gives a meaning to, with the module that they mean, or ""."""
    match node:
        case ast.ImportFrom(module=str(module), names=names):
            # A function may have the name of its module; then the name is the function's.
            own = tree.names(module) or ()
            for name in names:
                yield name.asname or name.name, "" if name.name in own else f"{module}.{name.name}"
        case ast.Import(names=names):
            yield from ((name.asname, name.name) for name in names if name.asname)
        case ast.Name(id=str(name), ctx=ast.Store()) | ast.arg(arg=str(name)):
            yield name, ""


def _used(node: ast.AST) -> tuple[str, str, int] | None:
    """Return name, attribute and line of `name.attribute` and of `setattr(name, "attribute")`."""
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr=attribute, ctx=ast.Load()):
            return name, attribute, node.lineno
        case ast.Call(
            func=ast.Attribute(attr="setattr" | "delattr"),
            args=[ast.Name(id=name), ast.Constant(value=str(attribute)), *_],
        ):
            return name, attribute, node.lineno
    return None


def main(root: Path) -> int:
    """Print what is missing; return the exit status."""
    tree, found = Tree(root), 0
    for folder in _READERS:
        for path in sorted((root / folder).rglob("*.py")):
            for line, name in missing(tree, path.read_text(encoding="utf-8")):
                print(f"{path.relative_to(root).as_posix()}:{line}: there is no {name}")
                found += 1
    print(f"names of tests: {found} missing" if found else "names of tests: all there")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1]))
