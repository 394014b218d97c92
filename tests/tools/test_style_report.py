"""Figures about the code: circles and upward imports are found however they are written."""

from __future__ import annotations

import re
from pathlib import Path

from tools.style_report import circles, edges, files_per_op, modules, op_lists, repeats, upward

ROOT = Path(__file__).parent.parent.parent
FILES = {
    "ops/add.py": """
@op
class Add(Op):
    name = "add"
@op
class Sub(Op):
    name = "sub"
@op
class Neg(Op):
    name = "neg"
""",
    "graph/rules.py": """
from treadle.ops.add import Add
QUIET = frozenset(("add", "sub", "neg"))
OTHER = ("add", "words", "that", "are", "no", "ops")
""",
    "graph/tables.py": """
from treadle.graph import inverse
from treadle.graph.inverse import undo
from treadle.ops import add
def one(): ...
class Walk:
    def two(self): ...
    def ways(self):
        return {add.Add: self.two, add.Sub: one, add.Neg: undo}
@lowers(*(add.Add, add.Sub, add.Neg))
def three(): ...
ROW = Row((add.Add, add.Sub, add.Neg), inverse.undo)
PRICES = {add.Add: 1, add.Sub: 2, add.Neg: 3}
def four(x: add.Add | add.Sub | add.Neg | int): ...
""",
    "graph/inverse.py": "def undo(): ...",
    "base/words.py": 'FUNCTIONS = ("add", "sub", "neg")',
    "engine/one.py": """
import importlib
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from treadle.module.layer import Layer
def late():
    return importlib.import_module("treadle.engine.two")
""",
    "engine/two.py": """
def late():
    from treadle.engine import one
    print("treadle.module.layer")
    return one
""",
    "functional/shape.py": """
def late():
    from treadle.module import layer
    return layer
""",
    "module/layer.py": "import treadle.functional.shape",
}


def test_what_is_found(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / "src" / "treadle" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    known = modules(tmp_path)
    late = edges(known, late=True)
    assert not circles(edges(known, late=False))
    assert sorted(map(sorted, circles(late))) == [
        ["treadle.engine.one", "treadle.engine.two"],
        ["treadle.functional.shape", "treadle.module.layer"],
    ]
    assert upward(late) == [("treadle.functional.shape", "treadle.module.layer")]
    found = op_lists(known)
    assert {x.ops for x in found} == {("add", "sub", "neg")}
    binding = {(x.path, x.line) for x in found if x.binds}
    assert binding == {("graph/tables.py", line) for line in (9, 10, 12)}
    others = {(x.path, x.line) for x in found if not x.binds}
    assert others == {("graph/rules.py", 3), ("graph/tables.py", 13), ("graph/tables.py", 14)}
    assert files_per_op(known) == {"add": 2, "sub": 2, "neg": 2}


def test_repeats_are_counted_once_however_long_they_are(tmp_path: Path) -> None:
    for name, lines in (("one", 20), ("two", 20), ("three", 5)):
        path = tmp_path / "src" / "treadle" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(f"value{i} = {i}" for i in range(lines)))
    assert repeats(modules(tmp_path).values()) == 2


def test_own_modules_are_imported_by_statements_that_the_contracts_see() -> None:
    """The package at the top, which may import all, and lazy names of a package's own modules."""
    source = ROOT / "src" / "treadle"
    by_name = re.compile(r"import_module\(\s*f?[\"\']treadle")
    found = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if by_name.search(path.read_text(encoding="utf-8"))
    ]
    assert sorted(found) == [
        "__init__.py",
        "cli/late.py",
        "graph/__init__.py",
        "module/__init__.py",
    ]
