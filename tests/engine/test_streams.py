"""Streams and events: dependencies, covers, what the checker proves, and a replay in threads."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import random
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.python_compiler import PythonCompiler
from tests.engine.random_graphs import programs, small_arrays
from tests.engine.workloads import arrays, mlp_step

from treadle.backends.program import Host, Jump, Run
from treadle.base import dtype as dt
from treadle.base.errors import CompileError, GraphError
from treadle.base.types import TensorType
from treadle.engine.compile import compile_graph
from treadle.engine.compile.streams import assign_streams, makespan, place_events, simulate
from treadle.engine.compile.streams_check import check_streams
from treadle.engine.compile.streams_cover import path_cover
from treadle.engine.compile.streams_order import StreamBlock, blocks_of, dependencies, ranges
from treadle.engine.cost import RATES
from treadle.engine.options import Options
from treadle.engine.plan import (
    ConstantPool,
    Facts,
    Interface,
    MemoryPlan,
    Plan,
    Span,
    StreamEvent,
    Streams,
)
from treadle.engine.report import CompileReport
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.ir import Graph
from treadle.ops.control import While
from treadle.ops.unary import Exp, Tanh

CPU = RATES["cpu"]
X = TensorType(dt.float32, (4,))


def planned(graph: Graph, streams: int = 3, *, reuse: bool = False, refused: str = "") -> Plan:
    options = Options(level=0, streams=streams, reuse_memory=reuse, check=True)
    compiler = PythonCompiler(refused.split())
    return compile_graph(graph, compiler, Interface(), options, CompileReport())


def branches(count: int = 3, length: int = 4) -> Graph:
    """Chains that have nothing to do with one another until they are added up."""
    builder = GraphBuilder("branches")
    x = builder.input(X, "x")
    ends = []
    for i in range(count):
        y = x * (i + 1.0)
        for _ in range(length):
            y = Tanh()(y)
        ends.append(y)
    total = ends[0]
    for y in ends[1:]:
        total = total + y
    builder.output(total)
    return builder.build()


def looped() -> Graph:
    """A loop beside a chain."""
    builder = GraphBuilder("looped")
    x = builder.input(X, "x")
    n = builder.input(TensorType(dt.float32, ()), "n")
    types = [TensorType(dt.float32, ()), X]
    op = While(
        trace_body(lambda i, y: i < 3.0, types, "condition"),
        trace_body(lambda i, y: (i + 1.0, y * 2.0), types, "body"),
    )
    _, y = op.outputs(n, x)
    z = x
    for _ in range(9):
        z = Exp()(Tanh()(z))
    builder.output(y + z)
    return builder.build()


# -- dependencies ------------------------------------------------------------------------------

SPANS = st.lists(
    st.builds(Span, st.integers(0, 1), st.integers(0, 30), st.integers(1, 12)), max_size=3
).map(tuple)
BLOCKS = st.lists(st.tuples(SPANS, SPANS, st.floats(0.1, 3.0)), min_size=1, max_size=14).map(
    lambda rows: tuple(StreamBlock(i, i, r, w, s) for i, (r, w, s) in enumerate(rows))
)


def meets(one: StreamBlock, other: StreamBlock) -> bool:
    pairs = itertools.chain(
        itertools.product(one.writes, other.writes + other.reads),
        itertools.product(one.reads, other.writes),
    )
    return any(a.meets(b) for a, b in pairs)


def closure(before: list[list[int]]) -> list[set[int]]:
    above: list[set[int]] = []
    for found in before:
        above.append({*found, *itertools.chain.from_iterable(above[p] for p in found)})
    return above


@settings(max_examples=200, deadline=None)
@given(BLOCKS)
def test_dependencies_are_the_reduction_of_all_conflicts(blocks: tuple[StreamBlock, ...]) -> None:
    every = [[p for p in range(i) if meets(blocks[p], b)] for i, b in enumerate(blocks)]
    found = dependencies(blocks)
    above = closure(found)
    assert above == closure(every)
    for direct in found:
        assert not any(p in above[q] for p, q in itertools.permutations(direct, 2))


def test_jumps_make_blocks() -> None:
    run = Run(None, ())
    steps = [run, Jump(4), run, Jump(5), run, run, run, Jump(6), run, Host(0)]
    assert ranges(steps) == [(0, 0), (1, 4), (5, 5), (6, 7), (8, 8), (9, 9)]


# -- covers ------------------------------------------------------------------------------------

DAGS = st.integers(1, 9).flatmap(
    lambda n: st.tuples(*(st.sets(st.integers(0, max(i - 1, 0))) for i in range(n))).map(
        lambda rows: [sorted(p for p in row if p < i) for i, row in enumerate(rows)]
    )
)


def largest_matching(before: list[list[int]], taken: frozenset[int] = frozenset()) -> int:
    """By trying everything: each node takes a free predecessor, or none."""
    if not before:
        return 0
    *rest, mine = before
    tries = [1 + largest_matching(rest, taken | {p}) for p in mine if p not in taken]
    return max([largest_matching(rest, taken), *tries])


@settings(max_examples=150, deadline=None)
@given(DAGS)
def test_covers_have_as_few_paths_as_there_can_be(before: list[list[int]]) -> None:
    paths = path_cover(before)
    assert sorted(itertools.chain.from_iterable(paths)) == list(range(len(before)))
    assert all(a in before[b] for path in paths for a, b in itertools.pairwise(path))
    assert len(paths) == len(before) - largest_matching(before)


def test_long_programs_are_covered_without_recursion() -> None:
    chain = [[i - 1] if i else [] for i in range(5000)]
    assert path_cover(chain) == [list(range(5000))]


# -- assignment --------------------------------------------------------------------------------


def test_one_stream_is_the_rule() -> None:
    plan = planned(branches(), 1)
    assert set(plan.streams.of) == {0} and plan.streams.count == 1
    assert plan.streams.makespan == plan.streams.single > 0


def test_independent_branches_overlap() -> None:
    plan = planned(branches(), 3)
    found = plan.streams
    assert found.count == 3
    assert len(found.of) == len(plan.steps)
    assert found.makespan < 0.95 * found.single
    assert 0 < len(found.events) <= found.crossing
    blocks = blocks_of(plan, CPU)
    of = [found.of[b.first] for b in blocks]
    times = simulate(blocks, dependencies(blocks), of)
    for stream in range(3):
        mine = [t for t, s in zip(times, of, strict=True) if s == stream]
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(mine))
    assert any(
        a[0] < b[1] and b[0] < a[1]
        for (a, s), (b, t) in itertools.combinations(zip(times, of, strict=True), 2)
        if s != t
    )


def test_a_chain_stays_on_one_stream() -> None:
    found = planned(branches(1, 6), 4).streams
    assert found.count == 1
    assert "not worth it" in found.reason


def test_paths_are_merged_down_to_what_is_allowed() -> None:
    assert planned(branches(6), 2).streams.count == 2


def test_the_option_is_checked() -> None:
    with pytest.raises(GraphError, match="at least one"):
        Options(streams=0)


@settings(max_examples=100, deadline=None)
@given(BLOCKS, st.integers(2, 4), st.randoms(use_true_random=False))
def test_events_suffice_for_any_assignment(
    blocks: tuple[StreamBlock, ...], count: int, rng: random.Random
) -> None:
    of = [rng.randrange(count) for _ in blocks]
    before = dependencies(blocks)
    events = place_events(blocks, before, of)
    plan = bare(blocks)
    check_streams(plan, Streams(tuple(of), events))
    assert makespan(blocks, before, of) <= sum(b.seconds for b in blocks) + 1e-9
    for event in events:  # Each of them is needed.
        fewer = tuple(e for e in events if e is not event)
        with pytest.raises(CompileError, match="nothing makes step"):
            check_streams(plan, Streams(tuple(of), fewer))


def bare(blocks: tuple[StreamBlock, ...]) -> Plan:
    """A plan that touches memory like these blocks."""
    steps = tuple(Run(None, ()) for _ in blocks)
    facts = tuple(Facts(b.reads, b.writes) for b in blocks)
    return Plan(steps, (), 1, 1, ConstantPool(), 0, (), MemoryPlan((), 0, 0, 0), (), facts)


# -- the checker -------------------------------------------------------------------------------

A, B = Span(0, 0, 8), Span(0, 100, 8)
CHAIN = (
    StreamBlock(0, 0, (), (A,), 1.0),
    StreamBlock(1, 1, (A,), (B,), 1.0),
    StreamBlock(2, 2, (B,), (), 1.0),
)


@pytest.mark.parametrize(
    ("of", "events", "message"),
    [
        ((0, 0), (), "3 steps have 2 streams"),
        ((0, 1, 1), (), "nothing makes step 1 of stream 1 wait for step 0 of stream 0"),
        ((0, 1, 1), (StreamEvent(1, 0, 0),), "waited for before it is recorded"),
        ((0, 0, 0), (StreamEvent(0, 1, 0),), "waits for itself"),
        (
            (0, 1, 2),
            (StreamEvent(0, 1, 0), StreamEvent(0, 2, 0), StreamEvent(1, 2, 1)),
            "recorded again",
        ),
        ((0, 1, 0), (StreamEvent(0, 1, 0), StreamEvent(1, 2, 0)), "stands for another"),
    ],
)
def test_mistakes_are_found(
    of: tuple[int, ...], events: tuple[StreamEvent, ...], message: str
) -> None:
    with pytest.raises(CompileError, match=message):
        check_streams(bare(CHAIN), Streams(of, events))


def test_loops_stay_together_and_returns_have_everything_in_order() -> None:
    plan = planned(looped())
    jumps = [i for i, s in enumerate(plan.steps) if isinstance(s, Jump)]
    of = list(plan.streams.of)
    assert plan.streams.count > 1
    of[jumps[0]] = 1 - of[jumps[0]]
    with pytest.raises(CompileError, match="leads over steps of several streams"):
        check_streams(plan, dataclasses.replace(plan.streams, of=tuple(of)))
    inside = StreamEvent(jumps[0], len(of) - 1, 9)
    with pytest.raises(CompileError, match="lies within the jump"):
        extra = (*plan.streams.events, inside)
        check_streams(plan, dataclasses.replace(plan.streams, events=extra))

    hosted = planned(branches(), refused="tanh")
    check_streams(hosted, hosted.streams)
    spread = Streams(tuple(i % 2 for i in range(len(hosted.steps))))
    independent = dataclasses.replace(hosted, facts=(Facts(),) * len(hosted.steps))
    with pytest.raises(CompileError, match="returns to the caller beside"):
        check_streams(independent, spread)


# -- replay ------------------------------------------------------------------------------------


def memory(plan: Plan, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> tuple[list, list]:
    """Base addresses, and what keeps them alive."""
    constants = np.zeros(max(plan.constants.nbytes, 1), np.uint8)
    for offset, array in plan.constants.entries:
        constants[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
    arena = np.zeros(max(plan.memory.peak, 1), np.uint8)
    kept = [*(x.copy() for x in inputs), *outputs, constants, np.zeros(1, np.uint8), arena]
    return [x.__array_interface__["data"][0] for x in kept], kept


class Replay:
    """Runs a plan with a thread per stream, which dawdles before every block."""

    def __init__(self, plan: Plan, bases: list[int], seed: int) -> None:
        self.plan, self.bases = plan, bases
        self.events = [threading.Event() for _ in range(plan.streams.numbers)]
        self.random = random.Random(seed)
        self.spans: dict[int, tuple[float, float]] = {}
        self.failures: list[BaseException] = []

    def run(self) -> None:
        streams = range(self.plan.streams.count)
        threads = [threading.Thread(target=self.stream, args=(s,)) for s in streams]
        for t in threads:
            t.start()
        for t in threads:
            t.join(300)
        assert not self.failures and not any(t.is_alive() for t in threads)

    def stream(self, stream: int) -> None:
        try:
            for first, last in ranges(self.plan.steps):
                if self.plan.streams.of[first] == stream:
                    self.block(first, last)
        except BaseException as error:
            self.failures.append(error)

    def block(self, first: int, last: int) -> None:
        for event in self.plan.streams.events:
            if event.target == first:
                assert self.events[event.number].wait(300)
                self.events[event.number].clear()
        time.sleep(self.random.choice((0, 0, 1e-4, 1e-3)))
        start = time.perf_counter()
        self.steps(first, last)
        self.spans[first] = start, time.perf_counter()
        for event in self.plan.streams.events:
            if event.source == last:
                self.events[event.number].set()

    def steps(self, first: int, last: int) -> None:
        at = first
        while at <= last:
            step = self.plan.steps[at]
            at += 1
            if isinstance(step, Run):
                step.kernel([self.value(a) for a in step.arguments])
            elif isinstance(step, Jump):
                flag = None if step.unless is None else self.value(step.unless)
                if flag is None or not ctypes.c_uint8.from_address(flag).value:
                    at = step.target

    def value(self, argument) -> int:
        if isinstance(argument, int):
            return argument
        return self.bases[argument.base] + argument.offset


def replayed(graph: Graph, plan: Plan, inputs: list[np.ndarray], seed: int) -> Replay:
    """Run it and compare with the graph's oracle."""
    outputs = [np.zeros(t.shape, t.dtype.numpy) for t in graph.output_types]
    bases, kept = memory(plan, inputs, outputs)
    made = Replay(plan, bases, seed)
    made.run()
    for got, want in zip(outputs, graph.evaluate(inputs), strict=True):
        np.testing.assert_array_equal(got, want)
    del kept
    return made


@pytest.mark.parametrize("reuse", [False, True])
def test_a_training_step_on_three_streams(reuse: bool) -> None:
    graph = mlp_step(4, (6, 5, 5, 3))
    plan = planned(graph, 3, reuse=reuse)
    assert reuse or plan.streams.count > 1
    for seed in range(3):
        replayed(graph, plan, arrays(graph), seed)


def test_loops_beside_other_work() -> None:
    graph = looped()
    plan = planned(graph)
    inputs = [np.linspace(0, 1, 4, dtype=np.float32), np.float32(0)[...]]
    for seed in range(3):
        replayed(graph, plan, [np.asarray(x) for x in inputs], seed)


@settings(max_examples=25, deadline=None)
@given(programs())
def test_random_programs_on_two_streams(graph: Graph) -> None:
    plan = planned(graph, 2)
    check_streams(plan, plan.streams)
    replayed(graph, plan, small_arrays(graph), 1)


def test_streams_really_overlap() -> None:
    """Steps of a stream follow one another; those of different streams run at the same time."""
    plan = planned(branches(2, 3), 2)
    slow = [
        dataclasses.replace(s, kernel=lambda addresses: time.sleep(3e-3), arguments=())
        for s in plan.steps
        if isinstance(s, Run)
    ]
    made = Replay(dataclasses.replace(plan, steps=tuple(slow)), [], 0)
    made.run()
    pairs = itertools.combinations(made.spans, 2)
    together = [
        (i, j)
        for i, j in pairs
        if made.spans[i][0] < made.spans[j][1] and made.spans[j][0] < made.spans[i][1]
    ]
    assert together
    assert all(plan.streams.of[i] != plan.streams.of[j] for i, j in together)


def test_assignment_is_the_same_at_every_call() -> None:
    plan = planned(mlp_step(4, (6, 5, 5, 3)))
    assert assign_streams(plan, CPU, 3) == plan.streams
