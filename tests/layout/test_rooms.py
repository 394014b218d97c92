"""MegEngine's rooms: each has a page on what it is for, and is imported by whom the page says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "treadle"
ROOMS = ("utils", "tools", "lite", "traced_module", "interop/megengine")
TEXTS = {p.relative_to(SOURCE).as_posix(): p.read_text("utf-8") for p in SOURCE.rglob("*.py")}


def importers(room: str) -> Iterator[str]:
    """Rooms and layers with a module that imports the room; `treadle` is the package itself."""
    name = f"treadle.{room.replace('/', '.')}"
    for path, text in TEXTS.items():
        if name in text and any(f"{found}.".startswith(f"{name}.") for found in imported(text)):
            inside = (r for r in ROOMS if path.startswith(f"{r}/"))
            yield next(inside, path.partition("/")[0] if "/" in path else "treadle")


def imported(text: str) -> Iterator[str]:
    """What a module imports, by statement or by name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value if " " not in node.value else ""


@pytest.mark.parametrize("room", ROOMS)
def test_the_page_says_who_imports_the_room(room: str) -> None:
    page = (SOURCE / room / "README.md").read_text(encoding="utf-8")
    for question in ("**What for.**", "**Whom it serves.**", "**What goes in.**"):
        assert question in page
    said = re.search(r"^Imported by: (.*)$", page, re.MULTILINE)
    assert said is not None and len(page) < 2500
    assert {*importers(room)} - {room} == set(re.findall(r"`([\w/]+)`", said[1]))


@pytest.mark.parametrize("room", ROOMS)
def test_files_that_the_page_names_exist(room: str) -> None:
    folder = SOURCE / room
    for name in re.findall(r"`([\w/*]+\.py|[\w/]+/)`", (folder / "README.md").read_text("utf-8")):
        near = any(folder.glob(name.rstrip("/"))) or (folder.parent / name).exists()
        assert near or (SOURCE / name).exists() or (SOURCE.parents[1] / name).exists(), name
