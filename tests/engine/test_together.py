"""Launches together: who may join whom, what memory it costs, and that results stay the same.

The Python compiler runs the members of a merged launch from the last to the first, so that one
which needed another would show.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.python_compiler import PythonCompiler
from tests.engine.random_graphs import programs, small_arrays
from tests.engine.workloads import arrays, gpt_step, mlp_step

from treadle.backends.cpu import pool
from treadle.backends.program import Address, Host, Jump, Run, Together, runs_of
from treadle.base import dtype as dt
from treadle.base.errors import CompileError
from treadle.base.types import TensorType
from treadle.engine.compile import assemble, compile_graph
from treadle.engine.compile.memory import Buffer
from treadle.engine.compile.schedule import Schedule, crowding
from treadle.engine.compile.streams import assign_streams
from treadle.engine.compile.streams_check import check_streams
from treadle.engine.compile.together import (
    MOST,
    REACH,
    LaunchUnit,
    Place,
    _awaited,
    check_together,
    joined,
    slots_of,
    units_of,
)
from treadle.engine.cost import RATES
from treadle.engine.execute import Executor
from treadle.engine.load import load
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Facts, Interface, Plan, Span, Streams
from treadle.engine.plan.text import plan_text
from treadle.engine.report import CompileReport
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.ir import Graph
from treadle.inspect import Inspected
from treadle.ops.control import While
from treadle.ops.movement import Concat, Reshape
from treadle.ops.slicing import along
from treadle.ops.unary import Abs, Exp, Relu, Tanh

X = TensorType(dt.float32, (4, 8))
OFF = ("together",)


def planned(
    graph: Graph,
    *,
    disabled: tuple[str, ...] = (),
    updates: tuple[tuple[int, int], ...] = (),
    refused: Sequence[str] = (),
    level: int = 2,
    streams: int = 1,
    reuse: bool = True,
) -> Plan:
    """A plan of oracles as kernels, checked."""
    options = Options(level, disabled=disabled, streams=streams, reuse_memory=reuse, check=True)
    interface = Interface(updates=updates)
    return compile_graph(graph, PythonCompiler(refused), interface, options, CompileReport())


def results(graph: Graph, plan: Plan, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the plan makes of inputs, which it may update."""
    updated = {j for j, _ in plan.updates}
    types = [t for j, t in enumerate(graph.output_types) if j not in updated]
    return Executor(load(plan, PythonCompiler()), types).run(inputs)


def members(plan: Plan) -> list[str]:
    """The labels of every step's runs."""
    return [" ".join(sorted(r.label for r in runs_of((s,)))) for s in plan.steps]


# -- plans -------------------------------------------------------------------------------------


def test_the_plan_of_a_small_step() -> None:
    graph = mlp_step(4, (6, 5, 3))
    assert members(planned(graph)) == GOLDEN
    assert sum(name.count("sgd_update") for name in GOLDEN) == 4


GOLDEN = [
    "iota matmul",
    "add equal",
    "cast relu",
    "greater matmul",
    "add",
    "softmax softmax_cross_entropy",
    "mean sub",
    "mul",
    "matmul matmul sum",
    "where",
    "matmul sum",
    "sgd_update sgd_update sgd_update sgd_update",
]
"""Forward, loss, backward and update, unfused: what each launch runs."""


def test_updates_of_a_step_are_one_launch() -> None:
    graph = mlp_step(4, (6, 5, 5, 3))
    plan = planned(graph)
    rows = [r for r in members(plan) if "sgd_update" in r]
    assert len(rows) == 1
    assert rows[0].count("sgd_update") == 6
    assert len(plan.steps) < len(planned(graph, disabled=OFF).steps)


def chains(count: int, length: int) -> Graph:
    builder = GraphBuilder("chains")
    ends = []
    for _ in range(count):
        y = builder.input(X)
        for _ in range(length):
            y = Tanh()(y)
        ends.append(y)
    builder.output(*ends)
    return builder.build()


def test_chains_run_side_by_side() -> None:
    plan = planned(chains(3, 5))
    assert members(plan) == ["tanh tanh tanh"] * 5


def test_a_chain_stays_a_chain() -> None:
    assert members(planned(chains(1, 4))) == ["tanh"] * 4


@pytest.mark.parametrize(
    "options", [{"disabled": OFF}, {"level": 1}, {"level": 0}, {"streams": 2}], ids=str
)
def test_options_leave_it_out(options: dict[str, Any]) -> None:
    plan = planned(chains(3, 5), **options)
    assert not any(isinstance(s, Together) for s in plan.steps)
    assert len(plan.steps) == 15


# -- hazards -----------------------------------------------------------------------------------


def test_what_reads_old_contents_comes_before_the_update() -> None:
    builder = GraphBuilder("update")
    w, x = builder.input(X, "w"), builder.input(X, "x")
    new = w + x
    builder.output(Exp()(w), new, Tanh()(w), Abs()(x))
    graph = builder.build()
    plan = planned(graph, updates=((1, 0),))
    first, second = (set(row.split()) for row in members(plan))
    assert first >= {"exp", "tanh"} and second >= {"add"}
    inputs = [np.full((4, 8), v, np.float32) for v in (1, 2)]
    exp, tanh, _ = results(graph, plan, inputs)
    np.testing.assert_array_equal(exp, np.exp(np.float32(1)) * np.ones((4, 8), np.float32))
    np.testing.assert_allclose(tanh, np.tanh(1), rtol=1e-6)
    np.testing.assert_array_equal(inputs[0], 3)


def test_nobody_overwrites_an_operand_that_another_member_reads() -> None:
    """Both read `y`, which dies: neither may take its memory where they run together."""
    builder = GraphBuilder("shared")
    y = Exp()(builder.input(X))
    builder.output(Relu()(Tanh()(y)), Relu()(Abs()(y)))
    graph = builder.build()
    plan = planned(graph)
    assert members(plan) == ["exp", "abs tanh", "relu relu"]
    inputs = small_arrays(graph)
    for got, want in zip(results(graph, plan, inputs), graph.evaluate(inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_views_pass_on_what_they_wait_for() -> None:
    builder = GraphBuilder("views")
    x = builder.input(X)
    y = Reshape((8, 4))(Exp()(x))
    builder.output(Tanh()(y), Reshape((32,))(Abs()(y)), Relu()(x))
    graph = builder.build()
    rows = members(planned(graph))
    assert rows[-1] in ("abs tanh", "abs relu tanh") and rows[0] in ("exp", "exp relu")


def test_returns_to_python_stay_where_they_are() -> None:
    graph = chains(3, 5)
    plan = planned(graph, refused=("tanh",))
    assert all(isinstance(s, Host) for s in plan.steps)
    builder = GraphBuilder("hosted")
    x, y = builder.input(X), builder.input(X)
    builder.output(Abs()(Exp()(x)), Relu()(Tanh()(Exp()(y))))
    graph = builder.build()
    plan = planned(graph, refused=("tanh",))
    inputs = small_arrays(graph)
    assert sum(isinstance(s, Host) for s in plan.steps) == 1
    for got, want in zip(results(graph, plan, inputs), graph.evaluate(inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def looped() -> Graph:
    """A loop whose body has two chains, beside other work."""
    builder = GraphBuilder("looped")
    x, n = builder.input(X, "x"), builder.input(TensorType(dt.float32, ()), "n")
    types = [TensorType(dt.float32, ()), X]
    body = trace_body(lambda i, y: (i + 1.0, Tanh()(y) + Abs()(y)), types, "body")
    op = While(trace_body(lambda i, y: i < 3.0, types, "condition"), body)
    _, y = op.outputs(n, x)
    builder.output(y + Exp()(x), Relu()(x))
    return builder.build()


def test_regions_have_merged_launches_of_their_own() -> None:
    graph = looped()
    plan = planned(graph)
    assert any(isinstance(s, Jump) for s in plan.steps)
    inside = [s for s in plan.steps if isinstance(s, Together)]
    assert inside and all(f.members or not isinstance(s, Together) for s, f in _rows(plan))
    inputs = [small_arrays(graph)[0], np.zeros((), np.float32)]
    for got, want in zip(results(graph, plan, inputs), graph.evaluate(inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def _rows(plan: Plan) -> list[tuple[object, Facts]]:
    return list(zip(plan.steps, plan.facts, strict=True))


@settings(max_examples=60, deadline=None)
@given(programs(24), st.booleans())
def test_random_programs_give_the_same(graph: Graph, reuse: bool) -> None:
    inputs = small_arrays(graph)
    with_, without = planned(graph, reuse=reuse), planned(graph, reuse=reuse, disabled=OFF)
    check_streams(with_, with_.streams)
    assert len(list(runs_of(with_.steps))) == len(list(runs_of(without.steps)))
    wanted = results(graph, without, inputs)
    for got, want in zip(results(graph, with_, inputs), wanted, strict=True):
        assert got.tobytes() == want.tobytes()


# -- memory ------------------------------------------------------------------------------------


def test_memory_hardly_grows() -> None:
    """Each chain needs a large buffer at one point: side by side they would need them all."""
    builder = GraphBuilder("wide")
    ends = []
    for _ in range(6):
        x = builder.input(TensorType(dt.float32, (256, 1)))
        wide = Exp()(x + np.zeros((256, 1024), np.float32))
        ends.append(Tanh()(Abs()(wide).sum((1,))))
    builder.output(*ends)
    graph = builder.build()
    plain, found = planned(graph, disabled=OFF), planned(graph)
    assert found.memory.peak <= plain.memory.peak * 1.02 + (128 << 10)
    assert len(found.steps) < len(plain.steps)  # The ends are small.


def test_crowding_blames_who_brought_the_largest_buffers() -> None:
    """Unit 0 makes buffer 0 for unit 1, and so on; units 0 and 2 were put off to 4 and 5."""
    lives = ((0, 1), (2, 3), (4, 5))
    sizes = (6400, 64, 3200)
    plain = Schedule(
        tuple((u,) for u in range(6)),
        tuple(Buffer(n, *life) for n, life in zip(sizes, lives, strict=True)),
        {},
    )
    users = [{0, 1}, {2, 3}, {4, 5}].__getitem__
    slots = ((0, 2, 4), (1, 3, 5))
    found = Schedule(slots, tuple(Buffer(n, 0, 1) for n in sizes), {})
    assert crowding(plain, found, users, {}) == set()
    assert crowding(plain, found, users, {0: 100}) == {4}
    assert crowding(plain, found, users, {0: 3201}) == {2, 4}
    assert crowding(plain, found, users, {1: 3201}) == {3, 5}
    assert crowding(plain, found, users, {0: 10**6}) == {2, 4}
    assert crowding(plain, found, users, {0: 100}, {4}) == {0, 2}  # Others joined unit 4.
    assert crowding(plain, plain, users, {4: 10}, {4}) == set()


# -- what launches of one piece wait for -------------------------------------------------------

PLACES = st.sets(st.tuples(st.sampled_from(("input", "output", "workspace")), st.integers(0, 2)))


@given(st.lists(st.tuples(PLACES, PLACES), max_size=12))
def test_launches_of_a_piece_wait_for_all_that_touch_what_they_touch(
    uses: list[tuple[set[Place], set[Place]]],
) -> None:
    reached: list[set[int]] = []
    for i, (direct, (reads, writes)) in enumerate(zip(_awaited(uses), uses, strict=True)):
        reached.append({k for d in direct for k in (d, *reached[d])})
        touching = {
            k
            for k, (read, written) in enumerate(uses[:i])
            if written & (reads | writes) or read & writes
        }
        assert touching <= reached[i] and set(direct) <= touching


def test_dependencies_grow_with_the_launches_of_a_piece_not_with_their_square() -> None:
    def dependencies(parts: int) -> int:
        builder = GraphBuilder("parts")
        x = builder.input(TensorType(dt.float32, (parts, 8)), "x")
        rows = [Exp()(along(x, 0, i, i + 1)) for i in range(parts)]
        whole = Concat(0)(*rows)
        builder.output(Tanh()(whole), Abs()(whole), Exp()(whole))
        with mock.patch.object(assemble, "units_of", wraps=units_of) as made:
            Stages(builder.build(), options=Options(level=0)).planned.plan
        return sum(len(u.before) for u in units_of(*made.call_args.args))

    assert dependencies(64) < 2.5 * dependencies(32)


# -- slots -------------------------------------------------------------------------------------


def unit(
    *before: int, name: str = "k", seconds: float = 1e-6, parts: int = 1, single: bool = False
) -> LaunchUnit:
    return LaunchUnit(0, 0, before, ("", name), seconds, parts, single)


def test_large_launches_with_many_items_keep_apart() -> None:
    large = [unit(seconds=1e-3, parts=100) for _ in range(3)]
    assert slots_of(large) == ((0,), (1,), (2,))
    few = [unit(seconds=1e-3, parts=4) for _ in range(3)]
    assert slots_of(few) == ((0, 1, 2),)


def test_a_small_one_joins_a_large_one_before_or_after_it() -> None:
    large, small = unit(seconds=1e-3, parts=100), unit()
    assert slots_of([large, small]) == ((0, 1),)
    assert slots_of([small, large]) == ((0, 1),)


def test_last_ones_join_their_like_far_away() -> None:
    chain = [unit(i - 1, name=f"c{i}", seconds=1e-3, parts=100) for i in range(1, 3 * REACH)]
    last = unit(name="update", single=True)
    units = [unit(seconds=1e-3, parts=100), *chain[:2], last, *chain[2:], last]
    before = {3: (), len(units) - 1: ()}
    units = [
        dataclasses.replace(u, before=before.get(i, tuple(p + (p >= 3) for p in u.before)))
        for i, u in enumerate(units)
    ]
    slots = slots_of(units)
    assert (3, len(units) - 1) in [tuple(u for u in s if units[u].single) for s in slots]


def test_slots_hold_so_many() -> None:
    slots = slots_of([unit() for _ in range(MOST + 1)])
    assert sorted(map(len, slots)) == [1, MOST]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_slots_keep_every_dependency(data: st.DataObject) -> None:
    units = []
    for i in range(data.draw(st.integers(1, 30))):
        before = data.draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        units.append(
            LaunchUnit(
                i,
                data.draw(st.sampled_from((0, 0, 0, -1))),
                tuple(before),
                ("", data.draw(st.sampled_from("abc"))),
                data.draw(st.sampled_from((1e-6, 1e-3))),
                data.draw(st.sampled_from((1, 100))),
                data.draw(st.booleans()),
            )
        )
    reach = st.dictionaries(st.integers(0, len(units)), st.integers(0, REACH))
    slots = slots_of(units, data.draw(reach), early=data.draw(st.booleans()))
    where = {u: n for n, slot in enumerate(slots) for u in slot}
    assert sorted(where) == list(range(len(units)))
    assert all(where[p] < where[i] for i, u in enumerate(units) for p in u.before)
    assert all(len(s) == 1 for s in slots if any(units[u].launch < 0 for u in s))


def test_brief_serial_runs_stay_with_the_caller() -> None:
    def step(nbytes: int, items: int = 1, serial: bool = True) -> bool:
        run = Run(None, (), items, serial)
        made, _ = joined([(run, Facts(nbytes=nbytes)), (run, Facts(nbytes=nbytes))])
        return isinstance(made, Together) and made.serial

    assert step(1000)
    assert not step(10**6)
    assert step(1000, 1, False)
    assert not step(1000, 2, False)


def test_units_take_about_the_same_time() -> None:
    def run(items: int, nbytes: int, serial: bool = False) -> tuple[Run, Facts]:
        return Run(None, (), items, serial), Facts(nbytes=nbytes, node=items)

    made, facts = joined([run(100, 10**5), run(3, 10**3), run(8, 8 * 10**5), run(5, 10**4, True)])
    assert isinstance(made, Together) and not made.serial
    assert [r.items for r in made.runs] == [8, 100, 5, 3]
    assert made.grains == (1, 50, 5, 3)
    assert [f.node for f in facts.members] == [8, 100, 5, 3]
    assert facts.node == -1 and facts.nbytes == 911_000


# -- the checker -------------------------------------------------------------------------------


def test_the_checker_finds_members_that_touch_the_same_bytes() -> None:
    plan = planned(chains(2, 3))
    check_together(plan)
    own, other = plan.facts[0].members
    for clash in (
        dataclasses.replace(other, writes=own.writes),
        dataclasses.replace(other, reads=own.writes),
        dataclasses.replace(other, writes=(Span(own.reads[0].base, own.reads[0].offset + 4, 1),)),
    ):
        facts = dataclasses.replace(plan.facts[0], members=(own, clash))
        broken = dataclasses.replace(plan, facts=(facts, *plan.facts[1:]))
        with pytest.raises(CompileError, match="two launches of step 0 use the same memory"):
            check_together(broken)
    both = dataclasses.replace(other, reads=own.reads)
    facts = dataclasses.replace(plan.facts[0], members=(own, both))
    check_together(dataclasses.replace(plan, facts=(facts, *plan.facts[1:])))


@pytest.mark.parametrize("streams", [2, 3])
def test_streams_take_a_merged_launch_as_one_step(streams: int) -> None:
    """A plan with merged launches, spread over streams afterwards: what members touch counts."""
    plan = planned(mlp_step(4, (6, 5, 5, 3)), reuse=False)
    assert any(isinstance(s, Together) for s in plan.steps)
    spread = assign_streams(plan, RATES["cpu"], streams)
    check_streams(plan, spread)
    merged = next(i for i, s in enumerate(plan.steps) if isinstance(s, Together) and i)
    apart = Streams(tuple(int(i == merged) for i in range(len(plan.steps))))
    with pytest.raises(CompileError, match="which uses the same memory"):
        check_streams(plan, apart)


# -- on the native engine ----------------------------------------------------------------------

STEPS = {"mlp": mlp_step(16, (24, 40, 40, 10)), "gpt": gpt_step(2, 8, 16, 2, 2, 11)}


@pytest.mark.parametrize("name", STEPS)
def test_native_steps_give_the_same_bits(name: str) -> None:
    graph = STEPS[name]
    before = pool.get_threads()
    wanted: list[bytes] = []
    try:
        for disabled, threads in ((OFF, 2), ((), 1), ((), 2), ((), 4)):
            pool.set_threads(threads)
            program = Inspected(Stages(graph, options=Options(disabled=disabled, check=True)))
            made = program.compile().run(arrays(graph))
            wanted = wanted or [x.tobytes() for x in made]
            assert [x.tobytes() for x in made] == wanted
    finally:
        pool.set_threads(before)


def test_a_cached_program_has_merged_launches() -> None:
    graph = chains(2, 7)
    inputs = small_arrays(graph)
    first = Inspected(Stages(graph))
    wanted = first.compile().run(inputs)
    assert any(isinstance(s, Together) for s in first.planned().steps)
    again = Stages(graph).running
    assert not again.loaded.plan.steps  # It came from the cache.
    for got, want in zip(again.run(inputs), wanted, strict=True):
        assert got.tobytes() == want.tobytes()


def test_profiles_name_the_members_and_divide_their_time() -> None:
    graph = STEPS["mlp"]
    program = Inspected(Stages(graph))
    profile = program.profile(arrays(graph), 3)
    merged = [s for s in profile.steps if s.kernel == "together"]
    rows = [s for s in merged if "sgd_update" in s.label]
    assert rows and all(s.label[0].isdigit() for s in merged)
    assert all(sum(share for _, share in s.shares) == pytest.approx(1) for s in profile.steps)
    assert sum(profile.by_node().values()) == pytest.approx(sum(s.seconds for s in profile.steps))
    assert len([k for k in profile.kernels if k.kernel == "together"]) == len(
        {s.label for s in merged}
    )
    found = program.explain()
    launches, runs = found.sizes[2].launches, sum(g.launches for g in found.groups)
    inside = sum(len(s.runs) for s in program.planned().steps if isinstance(s, Together))
    assert runs - launches == inside - len(merged)
    told = next(s.did for s in found.stages if s.name == "compile")
    assert told.startswith(
        f"{launches} launches, {len(merged)} of which are {inside} runs together"
    )


def test_the_text_of_a_plan_has_a_line_per_member() -> None:
    text = plan_text(planned(chains(2, 1)))
    assert (
        "0: s0 together, serial\n    tanh(in0, out0)  items 1  # tanh\n    tanh(in1, out1)" in text
    )


def test_runs_move_with_the_plan_they_are_in() -> None:
    plan = planned(looped())
    spans = {(s.base, s.offset) for f in plan.facts for m in f.members for s in m.writes}
    places = {
        (a.base, a.offset)
        for s in plan.steps
        if isinstance(s, Together)
        for r in s.runs
        for a in r.arguments
        if isinstance(a, Address)
    }
    assert spans <= places
