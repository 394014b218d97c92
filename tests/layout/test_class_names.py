"""A class name stands for one thing, so that a reader who meets it knows what it is."""

import ast
from collections import defaultdict
from pathlib import Path

SRC = Path(__file__).parents[2] / "src/treadle"
USERS_WORDS = {
    "array_api",
    "data",
    "interop",
    "module",
    "ops",
    "quantization",
    "traced_module",
    "utils",
}
"""Rooms whose names are given from outside: those of MegEngine, of PyTorch, and of ops."""


def names(root: Path) -> dict[str, list[str]]:
    """Modules by the classes that they define, but for those of users' words."""
    found = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if place.parts[0] not in USERS_WORDS:
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(str(place))
    return found


def test_no_class_name_stands_for_three_things() -> None:
    """Private classes are read in their module only, so that one more does no harm."""
    found = names(SRC).items()
    often = {name: at for name, at in found if len(at) > (3 if name.startswith("_") else 2)}
    assert not often, "qualify these names by what they are of"


def test_what_is_counted(tmp_path: Path) -> None:
    for room in ("engine", "serve", "module"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "a.py").write_text("class Entry: ...\nclass _Own: ...\n")
    both = ["engine/a.py", "serve/a.py"]
    assert names(tmp_path) == {"Entry": both, "_Own": both}
