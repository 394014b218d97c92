"""Values that a higher layer makes: few, declared in one place, and provided."""

import ast
from pathlib import Path

import pytest

import treadle
from treadle.base import late

SOURCE = Path(treadle.__file__).parent
ELSEWHERE = {"lite/tensor.py"}
"""Within a layer: tensors of the host do without those of devices."""


def declared() -> dict[str, set[str]]:
    """Names that stand for a `Late`, by file."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "base.late import" not in text and path.name != "late.py":
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith("Late["):
                place = path.relative_to(SOURCE).as_posix()
                found.setdefault(place, set()).add(ast.unparse(node.target))
    return found


def test_all_are_in_one_table() -> None:
    assert set(declared()) == {"base/late.py"} | ELSEWHERE


def test_all_are_provided() -> None:
    for name in declared()["base/late.py"]:
        assert getattr(late, name)() is not None


def test_nothing_is_made_out_of_nothing() -> None:
    with pytest.raises(LookupError, match="nothing provides a thing"):
        late.Late[int]("a thing")()
