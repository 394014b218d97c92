"""What tests and executed pages name: evidence that a public symbol is covered.

Test files and the code blocks of pages are parsed, not run. An attribute chain that starts at an
imported Treadle package (`F.vision.nms`, `mge.load`) names what it resolves to, and so does a
string beside `getattr` on such a package. Methods are recognized by their name alone.
"""

from __future__ import annotations

import ast
import importlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("treadle", "megengine")
_FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass
class Evidence:
    """Addresses (`treadle.functional.add`), attribute names and flags (`--iter`) in tests."""

    addresses: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    flags: set[str] = field(default_factory=set)
    objects: set[int] = field(default_factory=set)

    def resolve_all(self) -> None:
        """Look every address up, so that a symbol counts under whichever name a test used."""
        for address in self.addresses:
            found = resolve(address)
            if callable(found):
                self.objects.add(id(found))

    def covers(self, address: str, found: Any, is_member: bool) -> bool:
        """Whether a test names what was found at an address; a member by its last name."""
        if is_member:
            return address.rpartition(".")[2] in self.attributes
        return id(found) in self.objects or address in self.addresses


MISSING = object()


def resolve(address: str) -> Any:
    """What a dotted address names, importing modules on the way, or `MISSING`."""
    first, *rest = address.split(".")
    found: Any = importlib.import_module(first)
    path = first
    for name in rest:
        path = f"{path}.{name}"
        found = _step(found, name, path)
        if found is MISSING:
            return MISSING
    return found


def _step(owner: Any, name: str, path: str) -> Any:
    if not isinstance(owner, (type, ModuleType)):
        return MISSING  # members of values may compute, or refuse
    try:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            return getattr(owner, name)
    except AttributeError:
        pass
    if not isinstance(getattr(owner, "__path__", None), list):
        return MISSING
    try:
        return importlib.import_module(path)
    except ImportError:
        return MISSING


def gather(tests: Path, pages: Path) -> Evidence:
    """Evidence of all test files below a folder and all pages of another."""
    evidence = Evidence()
    for file in sorted(tests.rglob("*.py")):
        _read(ast.parse(file.read_text(encoding="utf-8")), evidence)
    for page in sorted(pages.glob("*.md")):
        _read(ast.parse(_page_code(page.read_text(encoding="utf-8"))), evidence)
    evidence.resolve_all()
    return evidence


def _page_code(text: str) -> str:
    """The code of a page's Python blocks; what does not parse is left out."""
    parts: list[str] = []
    for block in _FENCE.findall(text):
        lines = block.splitlines()
        if any(line.startswith(">>> ") for line in lines):
            lines = [line[4:] for line in lines if line.startswith((">>> ", "... "))]
        code = "\n".join(lines)
        try:
            ast.parse(code)
        except SyntaxError:
            continue
        parts.append(code)
    return "\n".join(parts)


def _nodes(tree: ast.Module) -> list[ast.AST]:
    """What `ast.walk` gives, in its order, but contexts: a third of its time for all tests."""
    found: list[ast.AST] = [tree]
    for node in found:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                found.append(value)
    return found


def _read(tree: ast.Module, evidence: Evidence) -> None:
    nodes = _nodes(tree)
    aliases = dict(_imported(nodes))
    evidence.addresses.update(aliases.values())
    looked_in: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            evidence.attributes.add(node.attr)
            chain = _chain(node, aliases)
            if chain:
                evidence.addresses.add(chain)
        elif isinstance(node, ast.Call):
            looked_in.update(_looked_in(node, aliases))
        elif isinstance(node, ast.Constant) and str(node.value).startswith("--"):
            evidence.flags.add(str(node.value).split("=")[0].replace("_", "-"))
        evidence.attributes.update(_implied(node))
    if looked_in:
        names = {n.value for n in nodes if isinstance(n, ast.Constant)}
        words = {n for n in names if isinstance(n, str) and n.isidentifier()}
        evidence.addresses.update(f"{owner}.{word}" for owner in looked_in for word in words)


def _looked_in(call: ast.Call, aliases: dict[str, str]) -> list[str]:
    """The package that `getattr(package, name)` looks a name up in, if the call is one."""
    is_getattr = isinstance(call.func, ast.Name) and call.func.id == "getattr" and call.args
    owner = _chain(call.args[0], aliases) if is_getattr else ""
    return [owner] if owner else []


def _implied(node: ast.AST) -> list[str]:
    """Names of methods that syntax calls, and of those that classes in tests override."""
    if isinstance(node, ast.With):
        return ["__enter__"]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return ["__or__"]
    if isinstance(node, ast.ClassDef):
        return [f.name for f in node.body if isinstance(f, ast.FunctionDef)]
    return ["__call__"] if isinstance(node, ast.Call) else []


def _imported(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Names that imports bind, with the addresses they stand for."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] in PACKAGES:
                    bound = name.asname or name.name.split(".")[0]
                    yield bound, _ours(name.name if name.asname else bound)
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in PACKAGES:
            for name in node.names:
                yield name.asname or name.name, _ours(f"{node.module}.{name.name}")


def _ours(address: str) -> str:
    """The address under Treadle's own name."""
    return re.sub(r"^megengine\b", "treadle", address)


def _chain(node: ast.AST, aliases: dict[str, str]) -> str:
    """The address of an attribute chain that starts at an imported name, or nothing."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in aliases:
        return ""
    return ".".join([aliases[node.id], *reversed(names)])
