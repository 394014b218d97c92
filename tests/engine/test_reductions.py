"""Reductions in buckets: how they are cut, where they lie, and when they are waited for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import treadle as mge
from treadle.backends.program import Host
from treadle.base.errors import GraphError
from treadle.engine.cache import settings, shared
from treadle.engine.compile.buckets import overlapped
from treadle.engine.compile.order import Task
from treadle.engine.compile.work import Work
from treadle.engine.execute.reductions import Reductions
from treadle.engine.options import Options
from treadle.engine.plan import FINISH, START, HostTask
from treadle.graph.ir import Graph
from treadle.jit import compile as compiled
from treadle.ops.bucket import AllReduceBucket
from treadle.ops.collective import AllReduce
from treadle.ops.elementwise import Add
from treadle.runtime.comm import groups
from treadle.runtime.comm.api import Agreement, CommunicationError
from treadle.runtime.comm.loopback import DoneHandle, Loopback, Unanimous
from treadle.tensor import Tensor


class Twins(Loopback):
    """Two ranks that have the same data; what happens is noted."""

    size = 2

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def all_reduce(self, x: Any, kind: str, /, by: Any = None) -> Any:
        self.seen.append(f"at once {x.size}")
        return x * 2 if kind == "sum" else x.copy()

    def announce(self, what: str, /) -> Unanimous:
        self.seen.append("announce")
        return Unanimous()

    def start_all_reduce(
        self, x: Any, kind: str, /, announced: Agreement | None = None
    ) -> DoneHandle:
        if announced is not None:
            self.seen.append(f"start {x.size}")
        x *= 2 if kind == "sum" else 1
        twins = self

        class Waiting(DoneHandle):
            def wait(self) -> Any:
                if announced is not None:
                    twins.seen.append(f"wait {x.size}")
                return super().wait()

        return Waiting(x)


@pytest.fixture
def world() -> Iterator[Twins]:
    twins = Twins()
    groups.join(twins)
    yield twins
    groups.leave()


def total(x: Tensor, kind: str = "sum") -> Tensor:
    return AllReduce("world", 2, kind)(x)


def three(x: Tensor) -> tuple[Tensor, ...]:
    """Three reductions of what is made one after the other, and a use of each."""
    a = mge.functional.exp(x)
    b = mge.functional.matmul(a, a)
    c = mge.functional.matmul(b, b)
    return total(a) * 3, total(b, "mean") + 1, total(c.sum(axis=0)) * x


def options(how: Any) -> Options:
    return Options(reductions=how, check=True)


X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)


@pytest.mark.parametrize(
    ("how", "sizes"),
    [
        (1, (64, 64, 16)),
        (520, (128, 16)),
        ((1,), (64, 80)),
        ((0.4, 0.6), (64, 80)),
        ((0.9, 0.1), (128, 16)),
        (1 << 20, (144,)),
        ("auto", None),
    ],
)
def test_buckets_reduce_what_single_ops_do(how: Any, sizes: Any, world: Twins) -> None:
    wanted = [y.numpy() for y in compiled(options=options("off"))(three)(mge.tensor(X))]
    assert world.seen == ["at once 64", "at once 64", "at once 8"]
    world.seen.clear()
    got = compiled(options=options(how))(three)(mge.tensor(X))
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5)
    if sizes is not None:
        starts = [f"start {n}" for n in sizes]
        assert world.seen == ["announce", *starts, *(f"wait {n}" for n in sizes)]


@pytest.mark.parametrize(("how", "rest"), [(1, [64, 64]), (1 << 20, [128])])
def test_reductions_travel_as_they_are_named(how: Any, rest: list[int], world: Twins) -> None:
    """Those of one name in one bucket, whatever lies between; others in none with them."""
    tail, head = AllReduce("world", 2, "sum", "tail"), AllReduce("world", 2, "mean", "head")

    def step(x: Tensor) -> tuple[Tensor, ...]:
        a = mge.functional.exp(x)
        b = mge.functional.matmul(a, a)
        c = mge.functional.matmul(b, b)
        return head(a) + 1, total(a + 2), tail(b), head(b[:1]), total(c), tail(c[0])

    wanted = [y.numpy() for y in compiled(options=options("off"))(step)(mge.tensor(X))]
    world.seen.clear()
    stages = compiled(options=options(how))(step).lower(mge.tensor(X))
    got = compiled(options=options(how))(step)(mge.tensor(X))
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5)
    starts = [s for s in world.seen if s.startswith("start")]
    assert world.seen[0] == "announce"
    assert sorted(starts) == sorted(f"start {n}" for n in (80, 80, *rest))
    assert any("by name: head, tail" in d.reason for d in stages.report.decisions)


def test_operands_are_made_in_their_bucket(world: Twins) -> None:
    def step(x: Tensor) -> Tensor:
        a, b = mge.functional.exp(x), mge.functional.sin(x)
        return total(a) * total(b)

    plan = compiled(options=options(1 << 20))(step).compile(mge.tensor(X)).planned()
    (first, last) = (t for t in plan.host if t.phase)
    assert (first.phase, last.phase) == (START, FINISH) and first.inputs == last.inputs
    assert first.name == "start all_reduce_bucket"
    steps = list(plan.steps)
    hosts = [i for i, s in enumerate(steps) if isinstance(s, Host)]
    assert len(steps) == len(hosts) + 2  # exp with sin, and the product: nothing is copied
    # All memory that there is: the bucket.
    assert plan.memory.peak == 2 * X.nbytes


def test_what_somebody_else_reads_is_copied(world: Twins) -> None:
    """The sum takes place in the bucket, so who wants the operand needs it elsewhere."""

    @compiled(options=options(1 << 20))
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a = mge.functional.exp(x)
        return a, total(a), total(y), total(a.reshape(-1)[:8])

    a, twice, given, part = step(mge.tensor(X), mge.tensor(X))
    np.testing.assert_allclose(a.numpy(), np.exp(X), rtol=1e-6)
    np.testing.assert_allclose(twice.numpy(), 2 * np.exp(X), rtol=1e-6)
    np.testing.assert_allclose(given.numpy(), 2 * X)
    np.testing.assert_allclose(part.numpy(), 2 * np.exp(X).ravel()[:8], rtol=1e-6)


def test_one_operand_twice(world: Twins) -> None:
    @compiled(options=options(1 << 20))
    def step(x: Tensor) -> Tensor:
        a = mge.functional.exp(x)
        return total(a) + total(a, "mean")

    np.testing.assert_allclose(step(mge.tensor(X)).numpy(), 3 * np.exp(X), rtol=1e-6)


def test_what_a_later_collective_needs_is_waited_for_at_once(world: Twins) -> None:
    @compiled(options=options("auto"))
    def step(x: Tensor) -> Tensor:
        return total(total(x) + 1) + total(x, "max")

    step(mge.tensor(X))
    assert sorted(world.seen) == ["announce", "at once 64", "at once 64", "start 64", "wait 64"]


def test_types_do_not_mix(world: Twins) -> None:
    @compiled(options=options(1 << 20))
    def step(x: Tensor) -> tuple[Tensor, ...]:
        half = x.astype("float16")
        return total(x + 1), total(half), total(half, "mean"), total(x.astype("int32"))

    one, two, same, whole = step(mge.tensor(X))
    np.testing.assert_allclose(one.numpy(), 2 * (X + 1))
    np.testing.assert_array_equal(two.numpy(), 2 * X.astype(np.float16))
    np.testing.assert_array_equal(same.numpy(), X.astype(np.float16))
    np.testing.assert_array_equal(whole.numpy(), 2 * X.astype(np.int32))
    assert len([s for s in world.seen if s.startswith("start")]) == 4


def test_a_run_that_ends_early_leaves_nothing_to_the_next(
    world: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = compiled(options=options((1,)))(three)
    step(mge.tensor(X))
    start, count = Twins.start_all_reduce, itertools.count()

    def failing(self: Twins, x: Any, kind: str, /, announced: Any = None) -> DoneHandle:
        if next(count) == 1:
            raise CommunicationError("all_reduce", "the second one fails")
        return start(self, x, kind, announced)

    monkeypatch.setattr(Twins, "start_all_reduce", failing)
    with pytest.raises(CommunicationError, match="the second one fails"):
        step(mge.tensor(X))
    world.seen.clear()
    step(mge.tensor(X))
    assert world.seen[:2] == ["wait 64", "announce"]


def test_what_lies_between_the_parts_of_a_bucket_warns_nobody(world: Twins) -> None:
    """Parts begin at lines of their own; in between is what another value left there."""
    bucket, going = np.full(4, 3e38, np.float32), Reductions()
    for phase in (START, FINISH):
        going.serve(HostTask(AllReduceBucket("world", 2), (), (), phase=phase), bucket)
    assert np.isinf(bucket).all()


@pytest.mark.parametrize("how", ["none", 0, (3, 2), (2, 2), (0.5, 0.4), (1.5, -0.5)])
def test_what_cannot_be_asked_for(how: Any) -> None:
    with pytest.raises(GraphError, match=r"reductions=.*: "):
        Options(reductions=how)


def test_work_that_needs_no_result_comes_before_all_that_does() -> None:
    """Two buckets, each with an update; other work is left that needs neither."""
    op, add = AllReduceBucket(), Add()
    names = ("grad b", "start b", "finish b", "update b", "grad a", "start a", "finish a", "more")
    after = ((), (0,), (1,), (2,), (), (4,), (5,), (4,))
    phases = ("", START, FINISH, "", "", START, FINISH, "")
    work = [
        Work(op if p else add, (), (), None, n, phase=p) for n, p in zip(names, phases, strict=True)
    ]
    marks: list[Any] = [object(), object()]
    for start, finish, mark in ((1, 2, marks[0]), (5, 6, marks[1])):
        work[start].outputs = work[finish].inputs = (mark,)
    tasks = [Task(a) for a in after]
    order = overlapped(work, tasks, range(8))
    assert [names[t] for t in order] == [
        "grad b",
        "start b",
        "grad a",
        "start a",
        "more",
        "finish b",
        "update b",
        "finish a",
    ]
    assert sorted(work[2].after) == [1, 5] and {2, 3} <= set(work[6].after)


def test_programs_with_collectives_are_kept(world: Twins) -> None:
    def step(x: Tensor) -> tuple[Tensor, ...]:
        return (*three(x), total(total(x, "max") - 1))

    made = compiled(options=options((1,)))(step)
    wanted = [y.numpy() for y in made(mge.tensor(X))]
    seen = list(world.seen)
    world.seen.clear()
    again = compiled(options=options((1,)))(step)
    for ours, theirs in zip(again(mge.tensor(X)), wanted, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)
    assert world.seen == seen
    stages = again.variants[0].inspected
    assert "compile" not in stages.report.seconds
    assert stages.executor is not None and stages.executor.loaded.plan.host
    assert "2 buckets" in stages.explained()


def test_what_a_kept_program_depends_on(world: Twins) -> None:
    def graph(*names: str) -> Graph:
        def step(x: Tensor) -> tuple[Tensor, ...]:
            return tuple(AllReduce(name, 2)(x) for name in names)

        return compiled(step).graph(mge.tensor(X))

    one = settings(graph("world"), Options())
    assert one is not None and "world: loopback" in one
    world.machines = ("a", "b")
    assert settings(graph("world"), Options()) not in (one, None)
    assert settings(graph("7,8"), Options()) == "7,8: nobody"
    assert settings(graph("world", "7,8"), Options()) is None
    assert settings(graph("world", "7,8"), Options(reductions="off")) is not None
    assert shared(graph("7,8"), Options(), None) is None
