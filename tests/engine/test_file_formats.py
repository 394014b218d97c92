"""The page on file formats names every magic number, version and limit, as the code has them."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import treadle

SOURCES = Path(str(treadle.__file__)).parent
PAGE = SOURCES / "engine" / "package" / "format.md"
ROWS = re.findall(
    r"^\|[^|]*\| `([\w.]+)\.(\w+)` \| `(.*)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)
VERSIONS = {"MAGIC", "_MAGIC", "FORMAT", "_FORMAT", "SCHEMA", "_VERSION"}
OTHERS = {
    ("base.log", "_FORMAT"),  # how lines of logs look
    ("backends.cpu.elf", "MAGIC"),  # that of a format of others
}


def in_code() -> set[tuple[str, str]]:
    """Modules' constants that are magic numbers or versions of files."""
    found = set()
    for path in SOURCES.rglob("*.py"):
        module = ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name, value = node.targets[0].id, node.value
                is_kind = isinstance(value, ast.Call) and ast.unparse(value.func) == "Kind"
                if name in VERSIONS or is_kind:
                    found.add((module, name))
    return found - OTHERS


def test_the_page_names_every_version() -> None:
    known = in_code()
    assert len(known) > 10
    assert not known - {(module, name) for module, name, _ in ROWS}


@pytest.mark.parametrize(("module", "name", "value"), ROWS)
def test_the_page_says_what_the_code_has(module: str, name: str, value: str) -> None:
    if module.startswith("backends.openvino"):
        pytest.importorskip("openvino", reason="its modules import OpenVINO")
    found = repr(getattr(importlib.import_module(f"treadle.{module}"), name))
    assert found == value
