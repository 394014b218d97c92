"""What `versions.md` says warns, warns; and nothing else does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.optimizer as O

ROOT = Path(__file__).parents[2]


def _activation() -> None:
    _ = F.elemwise.relu


OLD = {
    "Optimizer.zero_grad": lambda: O.SGD(M.Linear(2, 2).parameters(), lr=0.1).zero_grad(),
    "Module.zero_grad": lambda: M.Linear(2, 2).zero_grad(),
    "F.elemwise.relu": _activation,
    "get_conv_execution_strategy": lambda: F.debug_param.get_conv_execution_strategy(),
    "set_conv_execution_strategy": lambda: F.debug_param.set_conv_execution_strategy("HEURISTIC"),
    "get_device_count_by_fork": lambda: mge.distributed.helper.get_device_count_by_fork("cpu"),
}


@pytest.mark.parametrize("name", OLD)
def test_what_the_page_lists_warns(name: str) -> None:
    page = (ROOT / "docs/versions.md").read_text(encoding="utf-8").partition("## What warns now")[2]
    assert name in page
    with pytest.warns(DeprecationWarning):
        OLD[name]()


def test_nothing_else_warns() -> None:
    """`deprecation.py` has the tools with which programs mark names of their own."""
    places = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "src").rglob("*.py"))
        if re.search(r"\bDeprecationWarning\b", path.read_text(encoding="utf-8"))
    ]
    assert places == [
        f"src/treadle/{name}.py"
        for name in (
            *("distributed/helper", "functional/debug_param", "functional/elemwise"),
            *("module/module", "optimizer/optimizer", "utils/deprecation"),
        )
    ]
