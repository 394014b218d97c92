"""Segments of programs: one node each, arrays handed over as they are, and what happens when the
engine fails, or a blob does not fit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tests.engine.random_graphs import close
from tests.engine.segment_engine import Executable, FakeSegments
from tests.engine.workloads import arrays, f32

from treadle.backends import registry
from treadle.backends.api import Support, no
from treadle.backends.segments import judged, seal, unseal
from treadle.base import dtype as dt
from treadle.base.errors import CompileError, LoadError
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.engine.devices.placement import engines_of
from treadle.engine.execute.segments import SegmentLaunch, blob_key, body_of, shelve
from treadle.engine.extents.plans import Plans
from treadle.engine.options import Options, engines
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.engine.report import Partition, describe_partitions
from treadle.graph.builder import trace_body
from treadle.graph.evaluate import specialize
from treadle.graph.ir import Graph, symbols_of
from treadle.graph.parser import parse
from treadle.graph.printer import to_text
from treadle.inspect import Inspected
from treadle.ops.fused import Fused
from treadle.ops.matmul import Matmul
from treadle.ops.softmax import Softmax
from treadle.ops.unary import Exp, Relu, Tanh


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSegments:
    """An engine beside those of the host, which has no tanh."""
    made, known = FakeSegments(never=("tanh",)), registry.engines("cpu")
    monkeypatch.setattr(registry, "engines", lambda kind: (*known, made) if kind == "cpu" else ())
    return made


def wanted(**others: Any) -> Options:
    """Options that name the engine of the fixture, which has to be there."""
    return Options(engines=("fake", "cpu"), **others)


@pytest.fixture
def warnings_seen() -> Iterator[list[str]]:
    """Messages of warnings that the framework logs."""
    seen: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                seen.append(record.getMessage())

    handler = Handler()
    logging.getLogger("treadle").addHandler(handler)
    yield seen
    logging.getLogger("treadle").removeHandler(handler)


def sandwich() -> Graph:
    """Products around an op that the engine has not."""

    def body(x: Any, w: Any, b: Any) -> Any:
        y = Tanh()(Matmul()(x, w * 2.0) + b)
        return Relu()(Matmul()(y, w)), Exp()(y)

    return trace_body(body, [f32(8, 8), f32(8, 8), f32(8)], "g")


def test_partitions_are_counted_with_nodes_and_bytes(fake: FakeSegments) -> None:
    program, _ = compiled()
    explained = program.explain()
    parts = explained.partitions
    assert [p.engine for p in parts] == ["fake", "cpu", "fake"]
    # x, w and b of 8 x 8, 8 x 8 and 8 float32 go in, tanh gets and gives 8 x 8, two results leave.
    first, middle, last = parts
    assert (first.writes, middle.reads, middle.writes, last.writes) == (256, 256, 256, 512)
    assert first.reads >= 256 + 256 + 32 and last.reads >= 2 * 256
    assert middle.nodes == 1 and sum(p.nodes for p in parts) >= 6
    text = program.explained(full=True)
    assert (
        describe_partitions(parts)
        == f"3: fake {first.nodes} nodes, cpu 1 node, fake {last.nodes} nodes"
    )
    assert f"  {describe_partitions(parts)}\n" in text and "partitions, as they run" in text
    assert [p["engine"] for p in explained.data()["partitions"]] == ["fake", "cpu", "fake"]
    many = describe_partitions([Partition("a", 2, 0, 0), Partition("b", 1, 0, 0)] * 3)
    assert many == "6: 3 of a with 6 nodes, 3 of b with 3 nodes"


FROZEN = Interface((False, True, True))


def compiled(
    options: Options | None = None, interface: Interface | None = None
) -> tuple[Inspected, list[SegmentLaunch]]:
    program = Inspected(Stages(sandwich(), interface or Interface(), options or wanted()))
    runner: Any = program.compile()
    launches = [x for x in runner._host_tasks._launches.values() if isinstance(x, SegmentLaunch)]
    return program, launches


def run(program: Inspected, given: Any = None) -> list[np.ndarray]:
    return program.compile().run(given or arrays(sandwich()))


def is_right(found: list[np.ndarray], given: Any = None) -> bool:
    wanted = sandwich().evaluate(given or arrays(sandwich()))
    return all(close(x, y) for x, y in zip(found, wanted, strict=True))


# -- in the program ----------------------------------------------------------------------------


def test_a_segment_is_one_node_that_prints_and_parses(fake: FakeSegments) -> None:
    program, _ = compiled()
    graph = program.lower()
    kinds = [n.op.kind if isinstance(n.op, Fused) else n.op.name for n in graph.nodes]
    assert kinds == ["segment.fake", "tanh", "segment.fake"]
    assert parse(to_text(graph)) == graph
    inside = [n.op.name for n in body_of(graph.nodes[0].op).nodes]  # type: ignore[arg-type]
    assert inside == ["constant", "mul", "matmul", "add"]  # What others fuse stays as it is.
    assert is_right(run(program))


def test_explanations_show_segments(fake: FakeSegments, tmp_path: Any) -> None:
    program, _ = compiled()
    explained = program.explain()
    assert [g.kind for g in explained.groups].count("segment.fake") == 2
    assert "compiled" in str(program.report)
    program.diagram(tmp_path / "g.svg")
    assert "segment on fake, 4 ops" in (tmp_path / "g.svg").read_text()


def test_who_is_not_asked_for_takes_no_part(fake: FakeSegments) -> None:
    fake.on_request = True
    program = Inspected(Stages(sandwich(), options=Options()))
    assert not any(isinstance(n.op, Fused) and n.op.is_segment for n in program.lower().nodes)
    with engines("fake", "cpu"):
        options = Options()
    assert options.engines == ("fake", "cpu")
    assert Options().engines == ()
    assert compiled(options)[1]


def test_the_environment_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_ENGINES", "openvino, cpu")
    assert Options().engines == ("openvino", "cpu")


def test_forced_ops_stay_out(fake: FakeSegments) -> None:
    program, launches = compiled(wanted(force_fallback=("exp",)))
    assert is_right(run(program))
    inside = [n.op.name for x in launches for n in x.body.nodes]
    assert "exp" not in inside and "matmul" in inside


def test_composites_stay_whole_for_who_wants_them(fake: FakeSegments) -> None:
    def body(x: Any) -> Any:
        return Softmax(1)(Tanh()(Softmax(1)(Matmul()(Matmul()(x, x), x))))

    graph = trace_body(body, [f32(64, 64)], "g")
    for never in ((), ("softmax",)):
        fake.whole, fake.never = ("softmax",), ("tanh", *never)
        program = Inspected(Stages(graph, options=wanted(force_fallback=())))
        ops = [n.op for n in program.lower().nodes]
        inside = [n.op.name for op in ops if isinstance(op, Fused) for n in body_of(op).nodes]
        assert ("softmax" in inside) is (not never)
        assert not any(op.name == "softmax" for op in ops)  # What is left is taken apart.
        (found,) = program.compile().run(arrays(graph))
        assert close(found, graph.evaluate(arrays(graph))[0])


# -- handing over ------------------------------------------------------------------------------


def test_arrays_are_shared_and_results_copied_once(fake: FakeSegments) -> None:
    program, launches = compiled()
    given = arrays(sandwich())
    found = run(program, given)
    first, second = fake.made[:2]
    # Whole arguments, as the caller has them.
    assert {id(x) for x in first.calls[0]} == {id(x) for x in given}
    assert any(x is given[1] for x in second.calls[0])
    assert [(x.notes.handed, x.notes.copied) for x in launches] == [(4, 1), (4, 2)]
    assert is_right(found)


def test_an_engine_that_writes_results_needs_no_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writing, known = FakeSegments(never=("tanh",), writes=True), registry.engines("cpu")
    monkeypatch.setattr(registry, "engines", lambda kind: (*known, writing))
    program, launches = compiled()
    given = arrays(sandwich())
    found = run(program, given)
    assert is_right(found)
    assert [x.notes.copied for x in launches] == [0, 0]
    *_, relu, exp = writing.made[1].calls[0]
    assert relu is found[0] and exp is found[1]
    frame: Any = program.compile()
    arena = frame._frames[0].arena.buffer.bytes
    assert np.shares_memory(writing.made[0].calls[0][-1], arena)


def test_frozen_inputs_are_constants_until_they_are_replaced(fake: FakeSegments) -> None:
    program, launches = compiled(interface=FROZEN)
    assert not fake.made  # Their values are not known yet.
    given = arrays(sandwich())
    for _ in range(3):
        assert is_right(run(program, given), given)
    assert len(fake.made) == 2
    assert len(fake.made[0].calls[0]) == 1  # Only the argument is handed over.
    other = [given[0], given[1] + 1, given[2]]
    assert is_right(run(program, other), other)
    assert len(fake.made) == 4
    for step in range(6):  # Weights that always change are inputs like any other.
        other = [given[0], given[1] + step, given[2]]
        assert is_right(run(program, other), other)
    count = len(fake.made)
    other = [given[0], given[1] - 1, given[2]]
    assert is_right(run(program, other), other)
    assert len(fake.made) == count
    assert {x.notes.outcome for x in launches} == {"compiled"}


# -- failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["compile", "run"])
@pytest.mark.parametrize("interface", [Interface(), FROZEN], ids=["plain", "frozen"])
def test_a_segment_that_fails_is_run_by_the_others(
    fake: FakeSegments, warnings_seen: list[str], what: str, interface: Interface
) -> None:
    fake.fail = what
    program, launches = compiled(interface=interface)
    for _ in range(2):
        assert is_right(run(program))
    assert {x.notes.outcome for x in launches} == {"demoted"}
    assert len(warnings_seen) == len(launches) == 2  # Each once.
    message = {"compile": "no room on the chip", "run": "the accelerator is on fire"}[what]
    assert all(message in text and "g.fake" in text for text in warnings_seen)
    told = [d for d in program.report.decisions if d.outcome.startswith("demoted")]
    assert len(told) == 2 and message in told[0].reason


def test_a_failure_in_the_middle_leaves_the_state_as_it_is(fake: FakeSegments) -> None:
    program, _ = compiled()
    given = arrays(sandwich())
    before = [x.copy() for x in given]
    assert is_right(run(program, given))
    fake.fail = "run"
    assert is_right(run(program, given))
    assert all((x == y).all() for x, y in zip(given, before, strict=True))


def test_results_of_wrong_types_are_a_failure(
    fake: FakeSegments, monkeypatch: pytest.MonkeyPatch, warnings_seen: list[str]
) -> None:
    program, launches = compiled()
    assert is_right(run(program))
    monkeypatch.setattr(
        Executable, "run", lambda self, xs: [x[:1] for x in self.graph.evaluate(xs)]
    )
    assert is_right(run(program))
    assert {x.notes.outcome for x in launches} == {"demoted"}
    assert "it gave float32[1, 8] where float32[8,8] belongs" in warnings_seen[0]


def test_segments_can_be_profiled(fake: FakeSegments) -> None:
    program, _ = compiled()
    program.profile(arrays(sandwich()), repeats=2)
    groups = [g for g in program.explain().groups if g.kind == "segment.fake"]
    assert len(groups) == 2 and all(g.measured > 0 for g in groups)


@pytest.mark.parametrize("what", ["compile", "run"])
def test_strict_segments_raise_one_clear_error(fake: FakeSegments, what: str) -> None:
    fake.fail = what
    with pytest.raises(CompileError, match=f"fake failed to {what} it: RuntimeError") as error:
        run(compiled(wanted(strict_segments=True))[0])
    assert str(error.value).startswith("segment g.fake")
    assert "matmul" in str(error.value)


def test_a_defect_in_questions_costs_the_engine_its_part(fake: FakeSegments) -> None:
    fake.fail = "supports"
    program, launches = compiled()
    assert not launches
    assert is_right(run(program))
    assert any("supports() failed: RuntimeError" in d.reason for d in program.report.decisions)


# -- blobs -------------------------------------------------------------------------------------


class Shelf:
    """A store in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def save(self, key: str, data: bytes, /) -> None:
        self.kept[key] = data

    def saved(self, key: str, /) -> bytes | None:
        return self.kept.get(key)


def launch(fake: FakeSegments, store: Shelf) -> SegmentLaunch:
    graph = trace_body(lambda x: Exp()(x) + 1.0, [f32(3)], "part")
    made = SegmentLaunch(fake, graph, store=store)
    made.prepare()
    return made


X = np.arange(3, dtype=np.float32)


def test_compiled_segments_are_kept(fake: FakeSegments) -> None:
    store = Shelf()
    assert launch(fake, store).notes.outcome == "compiled"
    again = launch(fake, store)
    assert (again.notes.outcome, fake.loaded) == ("restored", 1)
    assert close(again(X), np.exp(X) + 1)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda b: b[:-7], "is cut off ({0} bytes where {1} were written)"),
        (lambda b: b[:30], "cannot be read"),
        (lambda b: b[:-1] + b"?", "its checksum differs"),
        (lambda b: b"something else", "this is not a compiled segment"),
    ],
    ids=["truncated", "head", "changed", "foreign"],
)
def test_a_damaged_blob_is_replaced(fake: FakeSegments, damage: Any, said: str) -> None:
    store = Shelf()
    launch(fake, store)
    ((key, whole),) = store.kept.items()
    store.kept[key] = damage(whole)
    again = launch(fake, store)
    assert again.notes.outcome == "compiled"
    size = len(unseal(whole).data)
    assert said.format(size - 7, size) in again.notes.remarks[0]
    assert store.kept[key] == whole


def test_a_blob_of_another_version_is_replaced_and_both_are_named(fake: FakeSegments) -> None:
    store, fake.version = Shelf(), "1"
    launch(fake, store)
    fake.version = "2"
    again = launch(fake, store)
    assert again.notes.outcome == "compiled"
    assert "made for version '1', here it is '2'" in again.notes.remarks[0]
    assert launch(fake, store).notes.outcome == "restored"


def test_a_blob_that_may_be_slower_is_used_and_said_to_be(fake: FakeSegments) -> None:
    store = Shelf()
    launch(fake, store)
    fake.processor = "two"
    again = launch(fake, store)
    assert again.notes.outcome == "restored"
    assert "made for processor 'one', here it is 'two'" in again.notes.remarks[0]


def test_a_blob_that_the_engine_refuses_is_replaced(fake: FakeSegments) -> None:
    store = Shelf()
    launch(fake, store)
    fake.fail = "load"
    again = launch(fake, store)
    assert again.notes.outcome == "compiled"
    assert "the blob says nothing to me" in again.notes.remarks[0]


def test_a_blob_that_came_with_the_program_goes_first(fake: FakeSegments) -> None:
    graph = trace_body(lambda x: Exp()(x) * 3.0, [f32(3)], "part")
    shelve(blob_key("fake", graph), seal("fake", fake.compile_segment(graph)))
    made = SegmentLaunch(fake, graph)
    made.prepare()
    assert made.notes.outcome == "restored"
    assert close(made(X), np.exp(X) * 3)


def test_any_difference_counts_where_the_engine_does_not_judge(fake: FakeSegments) -> None:
    class Plain:
        compat = staticmethod(lambda: {"version": "1"})

    assert judged(Plain(), {"version": "1"}).fit == "compatible"  # type: ignore[arg-type]
    found = judged(Plain(), {"version": "0"})  # type: ignore[arg-type]
    assert (found.fit, found.reason) == ("incompatible", "made for version '0', here it is '1'")


def test_what_is_no_blob_is_refused() -> None:
    with pytest.raises(LoadError, match="not a compiled segment"):
        unseal(b"")


def test_engines_of_the_host_mean_nothing_to_programs_of_devices(fake: FakeSegments) -> None:
    assert engines_of(wanted(), "nowhere") == engines_of(Options(engines=()), "nowhere")
    with pytest.raises(CompileError, match="no engine of nowhere is called 'cuda'"):
        engines_of(Options(engines=("fake", "cuda")), "nowhere")


# -- open extents ------------------------------------------------------------------------------


class OpenExecutable(Executable):
    """A graph with symbols, whose numbers are the last operand."""

    def run(self, payloads: Sequence[Any], /) -> Sequence[Any]:
        *arrays, numbers = payloads
        names = [s.name for s in symbols_of(self.graph)]
        assert numbers.dtype == np.int64
        made = specialize(self.graph, dict(zip(names, numbers.tolist(), strict=True)))
        found = made.evaluate(arrays)
        return found if self.owner.fail != "shape" else [a[1:] for a in found]


class OpenSegments(FakeSegments):
    """An engine that compiles for all extents, but not every op."""

    is_open = True
    refused = ""

    def __init__(self) -> None:
        super().__init__(never=("tanh",))
        self._kind = OpenExecutable

    def supports(self, op: Any, types: Sequence[TensorType], /) -> Support:
        if op.name == self.refused and not all(t.is_static for t in types):
            return no("dynamic-shape", f"{op.name} needs a number")
        return super().supports(op, types)


@pytest.fixture
def for_many(monkeypatch: pytest.MonkeyPatch) -> OpenSegments:
    """The same beside those of the host."""
    made, known = OpenSegments(), registry.engines("cpu")
    monkeypatch.setattr(registry, "engines", lambda kind: (*known, made) if kind == "cpu" else ())
    return made


def open_sandwich() -> tuple[Graph, Plans]:
    """`sandwich` of any number of rows, and its programs."""

    def body(x: Any, w: Any, b: Any) -> Any:
        y = Tanh()(Matmul()(x, w * 2.0) + b)
        return Relu()(Matmul()(y, w)), Exp()(y)

    rows = TensorType(dt.float32, (symbol("n"), 8))
    graph = trace_body(body, [rows, f32(8, 8), f32(8)], "g")
    return graph, Plans(graph, wanted(check=True), Interface())


def run_open(graph: Graph, plans: Plans, n: int) -> None:
    """Hold a run at some rows against the oracle."""
    x, w, b = arrays(specialize(graph, {"n": n}))
    found = plans.at({"n": n})
    assert found is not None, plans.alone
    for made, right in zip(found[1].run([x, w, b]), graph.evaluate([x, w, b]), strict=True):
        np.testing.assert_allclose(made, right, rtol=1e-5, atol=1e-6)


def test_extents_of_a_program_share_segments(for_many: OpenSegments) -> None:
    graph, plans = open_sandwich()
    for n in (20, 33, 20, 127, 16, 99):
        run_open(graph, plans, n)
    assert len(plans.regimes) == 1
    assert len(for_many.made) == 2  # One on either side of tanh.
    run_open(graph, plans, 5)
    assert (len(plans.regimes), len(for_many.made)) == (2, 4)


def test_results_of_other_extents_than_planned_are_refused(
    for_many: OpenSegments, warnings_seen: list[str]
) -> None:
    graph, plans = open_sandwich()
    for_many.fail = "shape"
    for n in (20, 33):
        run_open(graph, plans, n)
    assert len(warnings_seen) == 2
    assert all("it gave float32[19, 8] where float32[20,8] belongs" in w for w in warnings_seen)


def test_an_op_that_needs_numbers_is_named(for_many: OpenSegments) -> None:
    plans = open_sandwich()[1]
    for_many.refused = "matmul"
    assert plans.at({"n": 20}) is None
    assert "fake takes numbers for extents: matmul needs a number" in plans.alone


def test_an_engine_that_takes_numbers_is_named(fake: FakeSegments) -> None:
    plans = open_sandwich()[1]
    assert plans.at({"n": 20}) is None
    assert plans.alone == "fake takes numbers for extents"
