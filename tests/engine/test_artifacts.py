"""What stages hand on: frozen, printable, comparable, and made once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins
from tests.backends.toy_backend import elementwise

import treadle
from treadle.engine.artifacts import Captured, Optimized, Partitioned, Planned, Prepared
from treadle.engine.devices.names import CompNode
from treadle.engine.execute import Stepwise
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages, _start
from treadle.engine.report import CompileReport
from treadle.engine.targets.host import Host
from treadle.graph.parser import parse
from treadle.inspect import Inspected

LINE = """
graph line(%w: float32[], %x: float32[4], %b: float32[]) {
  %p = mul(%w, %x) : float32[4]
  %y = add(%p, %b) : float32[4]
  return %y
}
"""


def passed(options: Options) -> list[Any]:
    """The artifacts of a program, each from the one before it and nothing else."""
    host, report = Host(options, _start), CompileReport()
    made: list[Any] = [Captured(parse(LINE), options=options)]
    for stage in (host.prepare, host.partition, host.optimize, host.plan):
        made.append(stage(made[-1], report))  # type: ignore[operator]
    return made


def test_each_stage_needs_only_what_the_one_before_returned() -> None:
    made = passed(Options())
    kinds = [Captured, Prepared, Partitioned, Optimized, Planned]
    assert [type(a) for a in made] == kinds
    for artifact in made:
        with pytest.raises(dataclasses.FrozenInstanceError):
            artifact.graph = made[0].graph
    stages = Inspected(Stages(parse(LINE)))
    assert stages.lower() == made[3].graph and len(stages.planned().steps) == len(
        made[4].plan.steps
    )


def test_artifacts_print_and_compare() -> None:
    made, again, other = passed(Options()), passed(Options()), passed(Options(level=0))
    assert made[:4] == again[:4] and made[3] != other[3] and made[1] != made[2]
    for artifact in made:
        assert parse(str(artifact)) == artifact.graph


def test_a_stage_is_passed_once_and_when_it_is_asked_for() -> None:
    stages = Inspected(Stages(parse(LINE)))
    assert stages.prepared is stages.optimized is stages.executor is None
    lowered = stages.lower()
    assert stages.prepared is not None and stages.executor is None
    assert stages.lower() is lowered is stages.optimized
    runner = stages.compile()
    assert stages.compile() is runner is stages.executor
    [y] = runner.run([np.array(a, np.float32) for a in (2.0, [1.0] * 4, 1.0)])
    np.testing.assert_array_equal(y, np.full(4, 3, np.float32))


def test_a_device_without_a_compiler_has_no_plan_but_runs(plugins: Plugins) -> None:
    plugins.toy(kernels=elementwise())
    stages = Inspected(Stages(parse(LINE), home=CompNode("toy0")))
    with treadle.fallback("silent"):
        assert isinstance(stages.compile(), Stepwise)


def test_the_page_is_a_page() -> None:
    page = Path(treadle.__file__).parent / "engine" / "pipeline.py"
    assert len(page.read_text().splitlines()) <= 120
