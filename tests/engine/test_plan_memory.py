"""What the dump of a plan and explanations say of memory, held against types and addresses."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from hypothesis import given, settings
from tests.engine.random_graphs import programs

import treadle as mge
from treadle.backends.program import Address, Lowered, Run
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.engine.devices.placement import find_compiler
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Plan
from treadle.engine.plan.memory import StepMemory, memory_table, steps_memory, totals
from treadle.engine.plan.text import plan_text
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph
from treadle.inspect import Inspected
from treadle.ops.conv import Conv
from treadle.ops.unary import Exp, Tanh

X = TensorType(dt.float32, (4, 6))
ALONE = Options(level=0)
"""Every op is a step of its own, so that a row of the table is a node of the graph."""


def planned(graph: Graph, options: Options = ALONE) -> tuple[Plan, tuple[StepMemory, ...]]:
    plan = Stages(graph, options=options).planned.plan
    return plan, steps_memory(plan)


def chain() -> Graph:
    builder = GraphBuilder("chain")
    x = builder.input(X, "x")
    y = Tanh()(Exp()(x))
    builder.output(y + x)
    return builder.build()


def test_a_chain_is_told_byte_by_byte() -> None:
    _, rows = planned(chain())
    first, second, third = rows
    # 4 x 6 float32 are 96 bytes, which take two lines of 64.
    assert (first.reads, first.writes, first.scratch, first.takes) == (96, 96, 0, 256)
    assert (first.over, first.could, first.alignment) == ((), ("in0",), 64)
    # Nobody reads the exponentials again: their place holds the result, and is counted once.
    assert (second.reads, second.writes, second.takes) == (96, 96, 128)
    assert (second.over, second.could) == (("arena",), ())
    assert (third.reads, third.writes, third.takes) == (192, 96, 384)
    assert (third.over, set(third.could)) == ((), {"arena", "in0"})
    assert totals(rows) == {"read": 384, "written": 288, "scratch": 0, "in_place": 1}


@settings(max_examples=30, deadline=None)
@given(graph=programs(8))
def test_bytes_are_those_of_the_types_and_places_those_of_the_steps(graph: Graph) -> None:
    program = Inspected(
        Stages(graph, options=Options(level=0, disabled=("together", "precompute")))
    )
    plan = program.planned()
    nodes = program.lower().nodes
    rows = [r for r in steps_memory(plan) if plan.facts[r.step].node >= 0]
    alone = {r.step: r for r in rows if r.run < 0}
    launches: dict[int, list[int]] = {}
    for step in alone:
        launches.setdefault(plan.facts[step].node, []).append(step)
    for number, steps in launches.items():
        row, step = alone[steps[0]], plan.steps[steps[0]]
        if len(steps) > 1 or not isinstance(step, Run):
            continue
        node = nodes[number]
        assert row.writes == sum(v.type.nbytes for v in node.outputs)
        # Reshapes of a value lie where it does, and are one operand with it.
        assert row.reads <= sum(v.type.nbytes for v in node.inputs)
        assert row.reads >= max((v.type.nbytes for v in node.inputs), default=0)
        places = [a for a in step.arguments if isinstance(a, Address)]
        assert bool(row.over) == any(
            places.count(a) > 1 and a == _written(plan, row.step) for a in places
        )
        lines = {(s.base, s.offset, s.nbytes) for s in _touched(plan, row.step)}
        assert row.takes == sum(-(-n // 64) * 64 for _, _, n in lines)
        assert row.alignment == 64


def _touched(plan: Plan, step: int) -> tuple[Any, ...]:
    return (*plan.facts[step].reads, *plan.facts[step].writes)


def _written(plan: Plan, step: int) -> Address | None:
    """Where the one result of a step goes."""
    facts = plan.facts[step]
    results = [s for s in facts.writes if s not in facts.scratch]
    return Address(results[0].base, results[0].offset) if len(results) == 1 else None


def test_scratch_is_what_the_kernels_ask_for() -> None:
    builder = GraphBuilder("conv")
    data, weight = TensorType(dt.float32, (1, 8, 20, 20)), TensorType(dt.float32, (16, 8, 3, 3))
    x, w = builder.input(data, "x"), builder.input(weight, "w")
    builder.output(Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1)(x, w))
    program = Inspected(Stages(builder.build(), options=ALONE))
    lowered = find_compiler(ALONE).lower(program.lower().nodes[0].op, (data, weight))
    assert isinstance(lowered, Lowered) and lowered.workspaces
    plan, rows = program.planned(), steps_memory(program.planned())
    places = {(s.base, s.offset): s.nbytes for f in plan.facts for s in f.scratch}
    assert sorted(places.values()) == sorted(lowered.workspaces)
    assert max(r.scratch for r in rows) == totals(rows)["scratch"] <= sum(lowered.workspaces)
    assert {r.writes for r in rows} == {0, 16 * 20 * 20 * 4}
    assert plan.memory.peak >= totals(rows)["scratch"] > 0


def test_parts_of_values_are_aligned_as_they_lie() -> None:
    def sums(rows: mge.Tensor) -> mge.Tensor:
        start = mge.tensor(np.zeros(6, "float32"))
        return mge.jit.scan(lambda s, x: (s + x, s * x), (start,), (rows,))[1][0]

    rows = mge.tensor(np.ones((3, 6), "float32"))
    found = mge.jit.compile(sums).explain(rows, form="json")
    # Rows of 24 bytes one behind the other.
    assert 8 in {step["alignment"] for step in found["steps"]}
    assert all(step["alignment"] in (8, 16, 64) for step in found["steps"])


def test_text_and_data_tell_the_same_and_fit_the_page() -> None:
    program = Inspected(Stages(chain(), options=ALONE))
    data = json.loads(json.dumps(program.explain().data()))
    rows = steps_memory(program.planned())
    assert [StepMemory(**_tupled(step)) for step in data["steps"]] == list(rows)
    assert {k: data["memory"][k] for k in totals(rows)} == totals(rows)
    table = memory_table(rows)
    assert plan_text(program.planned(), "chain").endswith(f"\n\n{table}\n")
    assert table in program.explained(full=True)
    assert max(map(len, plan_text(program.planned(), "chain").splitlines())) <= 100
    cells = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()[2:-1]]
    assert [c[:7] for c in cells] == [
        ["0", "exp", "96", "96", "-", "256", "64"],
        ["1", "tanh", "96", "96", "-", "128", "64"],
        ["2", "add", "192", "96", "-", "384", "64"],
    ]
    assert [c[7] for c in cells[:2]] == ["could be over in0", "over arena"]
    assert "384 read, 288 written; scratch at most 0; 1 written over operands" in table


def _tupled(step: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in step.items()}
