"""Names that a module does not have are found where tests take them."""

from pathlib import Path

import pytest

from tools.unresolved_names import Tree, main, missing

_MODULE = """
import os
try:
    from os import fork as split
except ImportError:
    split = None
LIMIT, most = 1, 2
class Box:
    inner = 3
def made(): ...
"""


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    package = tmp_path / "src" / "treadle" / "ops"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from treadle.ops.boxes import Box\n")
    (package / "boxes.py").write_text(_MODULE)
    (package / "late.py").write_text("def __getattr__(name): ...\n")
    (package / "made.py").write_text("globals().update(A=1)\n")
    return Tree(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "from treadle.ops import Box, boxes\nboxes.made, boxes.split, boxes.LIMIT, boxes.__name__",
        "from treadle.ops.boxes import *",
        "from treadle.ops.late import anything",
        "from treadle.ops.made import A",
        "from numpy import no_such_name",
        "from treadle.ops import boxes\ndef f(boxes): return boxes.no_such_name",
        "import treadle.ops.boxes as b\nmonkeypatch.setattr(b, 'most', 3)",
        "from treadle.ops import boxes\nboxes.added = 1",
    ],
)
def test_what_is_there_passes(tree: Tree, text: str) -> None:
    assert list(missing(tree, text)) == []


@pytest.mark.parametrize(
    ("text", "line", "name"),
    [
        ("\nfrom treadle.ops import Bin", 2, "treadle.ops.Bin"),
        ("def f():\n from treadle.ops.boxes import inner", 2, "treadle.ops.boxes.inner"),
        ("from treadle.ops.bins import Bin", 1, "treadle.ops.bins.Bin"),
        ("from treadle.ops import boxes\nboxes.Bin", 2, "treadle.ops.boxes.Bin"),
        ("import treadle.ops.boxes as b\nb.Bin()", 2, "treadle.ops.boxes.Bin"),
        ("from treadle.ops import boxes\nm.setattr(boxes, 'Bin', 1)", 2, "treadle.ops.boxes.Bin"),
    ],
)
def test_what_is_missing_is_found(tree: Tree, text: str, line: int, name: str) -> None:
    assert list(missing(tree, text)) == [(line, name)]


def test_places_are_printed(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    (tree.root / "tests").mkdir()
    (tree.root / "tests" / "test_a.py").write_text("from treadle.ops import Bin\n")
    assert main(tree.root) == 1
    assert "tests/test_a.py:1: there is no treadle.ops.Bin" in capsys.readouterr().out
