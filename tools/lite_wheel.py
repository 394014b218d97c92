"""Builds the wheel of `treadle-lite`: the modules that running model files needs, and no others.

    python -m tools.lite_wheel --backends cpu,opencl --out dist

Which modules those are is read off the sources: whatever `treadle.lite` and the backends import, as
they are loaded or later (inside of functions, or by name), package by package down to `base`. Two
things are decided here: the packages that a later import may lead to, and the doors to compilers,
which stay shut. Imports at the head of a module have to stay within them.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from treadle.backends.registry import BUILT_IN, NATIVE

ROOT = Path(__file__).resolve().parent.parent
NAME = "treadle-lite"
ALWAYS = "reference"
"""The backend without which nothing runs: NumPy."""
SWITCHED = tuple(sorted(set(BUILT_IN) - {ALWAYS}))
RUNTIME = ("base", "runtime", "ops", "graph", "backends", "engine", "inspect", "lite")
"""Packages whose modules may be put in; what leads to others is left out."""
SHUT = (
    "treadle.backends.cpu.eager",  # compiles single ops
    "treadle.backends.cpu.policy",  # which ones
    "treadle.backends.cpu.building",  # LLVM
    "treadle.backends.cpu.llvm_compile",
)
_EXTRAS = {"opencl": ("opencl",), "cuda": ("cuda", "cublas", "cudnn"), "openvino": ("openvino",)}
_MARK = "LITE: tuple[str, ...] | None = None\n"


class NotApartError(Exception):
    """A module that runs models imports one that makes them."""


@dataclass(frozen=True, slots=True)
class Imports:
    """What a module imports: when it is loaded, and when it is called."""

    at_once: frozenset[str]
    later: frozenset[str]


class Sources:
    """The modules of a source tree.

    Args:
        folder: that has the package `treadle`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: dict[str, Path] = {}
        for path in sorted((folder / "treadle").rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            self.paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path

    def within(self, package: str) -> list[str]:
        """A package and all that is in it."""
        return [n for n in self.paths if n == package or n.startswith(f"{package}.")]

    def imports(self, name: str) -> Imports:
        """What a module imports of Treadle."""
        found = _imports(self.paths[name])
        return Imports(found.at_once & self.paths.keys(), found.later & self.paths.keys())

    def needed(self, backends: Sequence[str]) -> list[str]:
        """The modules that running models takes, sorted.

        Raises:
            NotApartError: one imports a module that is to be left out.
        """
        roots = ["treadle", "treadle.lite", *self.within(f"treadle.backends.{ALWAYS}")]
        for backend in backends:
            native = NATIVE.get(backend)
            roots += [native] if native else self.within(f"treadle.backends.{backend}")
        found: set[str] = set()
        waiting = [(name, "the roots") for name in roots]
        while waiting:
            name, because = waiting.pop()
            if name in found:
                continue
            if not _may_be_in(name, backends):
                raise NotApartError(f"{because} imports {name}, which is no part of {NAME}")
            found.add(name)
            package = name.rpartition(".")[0]
            imports = self.imports(name)
            later = [n for n in imports.later if _may_be_in(n, backends)]
            waiting += [(n, name) for n in (package, *imports.at_once, *later) if n]
        return sorted(found)


@cache
def _imports(path: Path) -> Imports:
    """All that a file imports, and all that it might: `from x import y` may name a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = _constants(tree)
    at_once: set[str] = set()
    later: set[str] = set()
    for node, is_late in _executed(tree):
        found = later if is_late else at_once
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = str(node.module)
            found.update([home, *(f"{home}.{alias.name}" for alias in node.names)])
        elif isinstance(node, ast.Call):
            later.update(_named_later(node, constants))
    return Imports(frozenset(at_once), frozenset(later))


def _constants(tree: ast.Module) -> dict[str, str]:
    """Strings that names at the head of a module stand for."""
    return {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def _executed(node: ast.AST, is_late: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All in a tree but for what only type checkers read, and whether it waits for a call."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child, is_late
        yield from _executed(child, is_late or isinstance(child, ast.FunctionDef | ast.Lambda))


def _named_later(call: ast.Call, constants: dict[str, str]) -> list[str]:
    """The module that a call of `import_module` names, if this is one."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if function != "import_module" or not call.args:
        return []
    named = call.args[0]
    if isinstance(named, ast.Name):
        return [constants[named.id]] if named.id in constants else []
    return [named.value] if isinstance(named, ast.Constant) and isinstance(named.value, str) else []


def _may_be_in(name: str, backends: Sequence[str]) -> bool:
    parts = name.split(".")
    if name in SHUT or (len(parts) > 1 and parts[1] not in RUNTIME):
        return False
    return (
        parts[1:2] != ["backends"]
        or parts[2:3] == []
        or (parts[2] not in SWITCHED or parts[2] in backends)
    )


# -- the wheel -----------------------------------------------------------------------------------


def build(backends: Sequence[str], out: Path) -> Path:
    """Write the wheel into a folder; its path.

    Raises:
        NotApartError: a module that runs models imports one that makes them.
    """
    sources = Sources(ROOT / "src")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    modules = sources.needed(backends)
    files = {
        p.relative_to(sources.folder).as_posix(): p.read_bytes() for p in _files(sources, modules)
    }
    marker = "treadle/base/version.py"
    version = files[marker].decode()
    if _MARK not in version:
        raise NotApartError(f"{marker} has no line {_MARK!r}")
    named = f"{_MARK.partition(' =')[0]} = {tuple(backends)!r}\n"
    files[marker] = version.replace(_MARK, named).encode()
    [number] = re.findall(r'^VERSION = "(.+)"$', version, re.MULTILINE)
    about = f"{NAME.replace('-', '_')}-{number}.dist-info"
    files |= {
        f"{about}/METADATA": _metadata(project, number, backends).encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tools.lite_wheel\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{NAME.replace('-', '_')}-{number}-py3-none-any.whl"
    rows = [f"{name},{_digest(data)},{len(data)}" for name, data in files.items()]
    record = f"{about}/RECORD"
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return path


def _files(sources: Sources, modules: Sequence[str]) -> list[Path]:
    """Sources of modules, and the data that stand beside or below those of packages."""
    files = [sources.paths[name] for name in modules]
    folders = {path.parent for path in files if path.name == "__init__.py"}
    for path in sorted((sources.folder / "treadle").rglob("*")):
        if path.is_file() and path.suffix not in (".py", ".pyc"):
            package = next(f for f in path.parents if (f / "__init__.py").exists())
            if package in folders:
                files.append(path)
    return files


def _metadata(project: Mapping[str, Any], number: str, backends: Sequence[str]) -> str:
    """Core metadata: NumPy is needed, and what backends need are extras, as Treadle has them."""
    needed = {_name_of(text): text for text in project["dependencies"]}
    extras = {"bfloat16": [needed["ml_dtypes"]]}
    for extra in ("sign", *(e for backend in backends for e in _EXTRAS.get(backend, ()))):
        extras[extra] = project["optional-dependencies"][extra]
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {NAME}",
        f"Version: {number}",
        f"Summary: Runs model files of Treadle; with the backends {', '.join(backends) or ALWAYS}",
        f"License-Expression: {project['license']}",
        "License-File: LICENSE",
        f"Requires-Python: {project['requires-python']}",
        f"Requires-Dist: {needed['numpy']}",
    ]
    for extra, texts in extras.items():
        lines.append(f"Provides-Extra: {extra}")
        own = [text.replace("treadle[", f"{NAME}[") for text in texts]
        lines += [f"Requires-Dist: {text}; extra == '{extra}'" for text in own]
    told = (
        "Treadle's Lite API (`treadle.lite`), which needs NumPy alone. It owns the package "
        "`treadle`, as the distribution `treadle` does: install one of them."
    )
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", told, ""])


def _name_of(requirement: str) -> str:
    return re.split(r"[^\w-]", requirement, maxsplit=1)[0]


def _digest(data: bytes) -> str:
    found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
    return f"sha256={found.rstrip('=')}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the wheel that the command line asks for; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.lite_wheel", description=__doc__)
    parser.add_argument("--backends", default="cpu", help=f"some of {', '.join(SWITCHED)}")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder to write to")
    given = parser.parse_args(arguments)
    backends = [name for name in SWITCHED if name in given.backends.split(",")]
    unknown = sorted({*given.backends.split(",")} - {*SWITCHED, ALWAYS, ""})
    if unknown:
        parser.error(f"there is no backend {unknown[0]!r}; choose from {', '.join(SWITCHED)}")
    path = build(backends, given.out)
    named = ", ".join([ALWAYS, *backends])
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, with the backends {named}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
