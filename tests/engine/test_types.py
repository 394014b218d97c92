"""Options, and the report that people read."""

from typing import Any

import pytest

from treadle.base.errors import GraphError
from treadle.engine.options import Options
from treadle.engine.report import CompileReport, ReportTable
from treadle.graph.passes import PassReport


def test_options_compare_by_value() -> None:
    assert Options(level=3, disabled=("fold",)) == Options(level=3, disabled=("fold",))
    assert hash(Options()) == hash(Options(level=2))


@pytest.mark.parametrize(
    ("given", "message"),
    [({"level": 4}, "no optimization level 4")],
)
def test_wrong_options(given: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Options(**given)


def test_switches() -> None:
    options = Options(level=1, disabled=("fold",))
    assert options.allows("cse", 1)
    assert not options.allows("cse", 2)
    assert not options.allows("fold", 1)


def test_report(golden: Any) -> None:
    report = CompileReport("net")
    report.seconds["prepare"] = 0.0123
    report.seconds["optimize"] = 1.5
    report.passes.append(("prepare", PassReport("cse", 0.002, 10, 8)))
    report.passes.append(("prepare", PassReport("simplify", 0.02, 8, 7, (("x * 1 => x", 1),))))
    report.decide("partition", "sort x2", "reference", "cpu op: sort is not generated")
    report.decide("optimize", "matmul add", "fused: contraction")
    report.table("memory", ("what", "bytes"), [("arena", 4096), ("constants", 64)])
    golden(str(report))


def test_an_empty_report() -> None:
    assert str(CompileReport()) == "program"
    assert str(ReportTable("t", ("a", "b"), ())) == "t\n  a  b"


def test_stages_are_timed() -> None:
    report = CompileReport()
    for _ in range(2):
        with report.stage("load"):
            pass
    assert list(report.seconds) == ["load"]
    assert report.seconds["load"] >= 0
