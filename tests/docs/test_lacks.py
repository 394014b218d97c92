"""The page of what is missing stays honest: what it says is missing is, and its advice runs."""

from __future__ import annotations

import math
import re

import numpy as np
from tests.docs.pages import DOCS

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.optimizer as O
from treadle.autodiff import GradManager

_ROW = re.compile(r"^\| `(?P<lacks>[^|]+?)` \| (?P<advice>.+) \|$")


def _rows() -> list[tuple[str, str]]:
    text = (DOCS / "lacks.md").read_text(encoding="utf-8")
    return [(m["lacks"], m["advice"]) for m in map(_ROW.match, text.splitlines()) if m]


def _known() -> dict[str, object]:
    rng = np.random.default_rng(0)
    net = M.Linear(4, 2)
    shapes = {"x": (3, 4), "y": (3, 4), "img": (2, 3, 6, 6), "sig": (2, 3, 8)}
    shapes["vol"] = (1, 2, 4, 4, 4)
    return {
        **{name: mge.tensor(rng.random(shape, "float32") + 0.1) for name, shape in shapes.items()},
        "label": mge.tensor(np.array([1, 0, 3], "int32")),
        "net": net,
        "opt": O.SGD(net.parameters(), lr=0.1),
        **{"mge": mge, "F": F, "M": M, "O": O, "GradManager": GradManager, "np": np, "math": math},
    }


def test_what_is_said_to_be_missing_is_missing() -> None:
    there = []
    for lacks, _ in _rows():
        try:
            eval(lacks, _known())
            there.append(lacks)
        except (AttributeError, TypeError):
            pass
    assert not there, f"these exist now: take their rows from docs/lacks.md: {there}"
    assert len(_rows()) > 50


def test_what_is_to_be_written_instead_runs() -> None:
    for lacks, advice in _rows():
        code = re.match(r"`([^`]+)`", advice)
        if code is not None:
            try:
                eval(code[1], _known())
            except Exception as error:
                raise AssertionError(f"in place of {lacks}: {code[1]}") from error
