"""docs/megengine-coverage.md: every row of the inventory, judged by what resolves and is tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import megengine_coverage as tool
from tools.evidence import MISSING, gather, resolve


@pytest.mark.long
def test_page_is_up_to_date() -> None:
    assert tool.main(["--check"]) == 0, "run `make docs`"


def test_inventory_has_every_symbol_and_reasons_name_rows() -> None:
    areas, differing, absent, _ = tool.inventory()
    assert sum(len(a.rows) for a in areas) == 818
    rows = [r for a in areas for r in a.rows]
    for pattern in differing | absent:
        assert any(tool._stated(row, {pattern: "x"}) for row in rows), pattern


def test_as_many_rows_work_as_before() -> None:
    floor = tool.inventory()[3]
    assert tool.working() >= floor, "symbols of MegEngine were lost; see docs/megengine-coverage.md"


def test_rows_without_a_test_or_with_other_parameters_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "import treadle.functional as F\nfrom treadle import load\nF.vision.flip(load('x').T)\n"
    )
    evidence = gather(tmp_path, tmp_path)
    for address, known in (("treadle.functional.vision.flip", True), ("treadle.save", False)):
        assert evidence.covers(address, resolve(address), is_member=False) is known
    assert evidence.covers("treadle.Tensor.T", object(), is_member=True)
    assert not evidence.covers("treadle.Tensor.numpy", object(), is_member=True)
    assert resolve("treadle.functional.no_such_function") is MISSING


@pytest.mark.parametrize(
    ("wanted", "problems"),
    [
        ("a, b=1, *, c='x'", []),
        ("a, b=2", ["b defaults to 1"]),
        (
            "b=1, a=0",
            ["b stands elsewhere", "a has no default", "a stands elsewhere"],
        ),
        ("a, d=NAME", ["takes no d"]),
        ("a, *rest", ["takes no *rest"]),
    ],
)
def test_signatures_are_compared(wanted: str, problems: list[str]) -> None:
    def function(a: int, b: int = 1, *, c: str = "x") -> None: ...

    assert tool.signature_problems(wanted, function) == problems
