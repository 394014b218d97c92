"""Segment engines beside the compiler of a device: who gets what, what is copied, what fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.backends.compiling_toy import CompilingToy, PartedDevice
from tests.backends.plugins import Plugins
from tests.backends.test_programs import DeviceSegment, SegmentBackend
from tests.backends.toy_backend import ToyBuffer
from tests.engine.test_partition import random_graph

import treadle as mge
import treadle.functional as F
from treadle.backends.api import Device, DeviceInfo, Stream
from treadle.backends.segments import Rates
from treadle.base.errors import CompileError
from treadle.engine import cost
from treadle.engine.cost import Links, MemoryLink, links_of
from treadle.engine.devices.names import resolve
from treadle.engine.execute import DeviceExecutor
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.inspect import Inspected
from treadle.runtime.opened import OpenDevice

RNG = np.random.default_rng(1)
FAST, SLOW = Rates(1e15, 1e15, 1e-9, 1e-9), Rates(1e3, 1e3, 1.0, 1.0)


def both() -> Options:
    """Options that name the engines of a fixture, which has to be there."""
    return Options(engines=("fake", "toy"))


class Card(PartedDevice):
    """Says how fast it is, and that copies take 20 us and a nanosecond per byte."""

    flops = 1e9

    def __init__(self, index: int, capacity: int) -> None:
        super().__init__(index, capacity)
        self.info = DeviceInfo(
            f"card {index}",
            flops=self.flops,
            bandwidth=1e9,
            copy_latency=2e-5,
            copy_bandwidth=1e9,
        )


class Fetching(Card):
    """Copies within its memory without the host."""

    fetched = 0

    def copy_peer(
        self, dst: ToyBuffer, source: Device, src: ToyBuffer, nbytes: int, stream: Stream, /
    ) -> None:
        assert source is self
        self.fetched += 1
        dst.view(np.uint8, (nbytes,))[:] = src.view(np.uint8, (nbytes,))


class Near(Fetching):
    """Copies to and from the host cost next to nothing."""

    def __init__(self, index: int, capacity: int) -> None:
        super().__init__(index, capacity)
        self.info = replace(self.info, copy_latency=1e-9, copy_bandwidth=1e15)


class WritingSegment(DeviceSegment):
    """Writes results into memory that it is given."""

    def run_into(self, payloads: Sequence[Any], results: Sequence[Any], /) -> None:
        for target, made in zip(results, self.run(payloads), strict=True):
            whole = made.buffer.view(made.dtype, made.shape)
            target.buffer.bytes[: made.nbytes] = whole.reshape(-1).view(np.uint8)


def beside(
    plugins: Plugins, serves: str = "toy", kind: Any = DeviceSegment, card: Any = Card
) -> tuple[CompilingToy, SegmentBackend]:
    """A device with a compiler, and an engine that has no relu."""
    toy = plugins.offer("toy", CompilingToy(device=card))
    engine = plugins.offer("fake", SegmentBackend(never=("relu",), serves=(serves,)))
    if serves == "toy":
        engine._kind = kind
    else:
        engine.on_request = True
    return toy, engine


def on(array: Any) -> mge.Tensor:
    return mge.tensor(np.asarray(array, np.float32), device="toy0")


def there(array: Any) -> mge.Tensor:
    """On the device alone."""
    return on(array) + 0.0


def chain(x: Any) -> Any:
    """Something for the engine on both sides of what it has not."""
    y = F.relu(F.exp(x * 2.0) - 3.0)
    return F.exp(-y) + x, y


def expected(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y = np.maximum(np.exp(x * 2) - 3, 0)
    return np.exp(-y) + x, y


def check(run: Any, x: np.ndarray) -> None:
    for found, wanted in zip(run(on(x)), expected(x), strict=True):
        assert found.device == "toy0"
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5)


def executor_of(run: Any) -> DeviceExecutor:
    found = run.variants[0].inspected.executor
    assert isinstance(found, DeviceExecutor)
    return found


@pytest.mark.parametrize("kind", [DeviceSegment, WritingSegment])
@pytest.mark.parametrize("card", [Card, Fetching])
def test_an_engine_of_the_device_works_on_its_memory(
    kind: Any, card: Any, plugins: Plugins
) -> None:
    toy, engine = beside(plugins, kind=kind, card=card)
    run = mge.jit.compile(chain)
    check(run, np.float32([0, 1, 2]))
    opened = toy.opened[0]
    launched, copies = toy.code.launches, opened.copies
    x = on([1, 2, 3])
    found = run(x)
    # Only what the engine made for the compiler goes from block to block, and only if it must.
    counters = executor_of(run).counters
    assert toy.code.launches > launched  # relu is the compiler's
    assert [len(e.calls) for e in engine.made] == [2, 2]
    ways = 0 if kind is WritingSegment else 1 if card is Fetching else 2
    assert counters.copies == 2 * ways
    by_host = opened.outs - copies[1]
    assert by_host == (1 if kind is DeviceSegment and card is Card else 0)
    assert getattr(opened, "fetched", 0) == (2 if kind is DeviceSegment and card is Fetching else 0)
    np.testing.assert_allclose(found[0].numpy(), expected(np.float32([1, 2, 3]))[0], rtol=1e-5)
    assert mge.fallback_report() == []


def test_the_compiler_keeps_what_it_runs_faster(plugins: Plugins) -> None:
    _, engine = beside(plugins)
    engine.rates = SLOW
    run = mge.jit.compile(chain)
    check(run, np.float32([0, 1, 2]))
    assert engine.made == [] and executor_of(run).counters.copies == 0
    report = str(run.variants[0].inspected.report)
    assert "costs less" in report and "toy alone" in report


@pytest.mark.parametrize("fail", ["compile", "run"])
def test_what_fails_is_compiled_for_the_device_after_all(fail: str, plugins: Plugins) -> None:
    toy, engine = beside(plugins)
    engine.fail = fail
    run = mge.jit.compile(chain)
    check(run, np.float32([0, 1, 2]))
    before = toy.code.launches
    check(run, np.float32([1, 2, 3]))
    assert toy.code.launches >= before + 3
    assert "demoted" in run.explain() and mge.fallback_report() == []


def test_weights_are_constants_of_a_segment_until_they_change(plugins: Plugins) -> None:
    _, engine = beside(plugins)
    w = mge.Parameter(np.float32([1, 2, 3]), device="toy0")
    run = mge.jit.compile(lambda x: F.relu(x * w + 1.0))
    x = np.float32([2, -2, 4])
    for scale in (1, 1, 3):
        w._reset(on(np.float32([1, 2, 3]) * scale))
        wanted = np.maximum(x * np.float32([1, 2, 3]) * scale + 1, 0)
        np.testing.assert_allclose(run(on(x)).numpy(), wanted, rtol=1e-6)
    assert all(len(graph.graph.inputs) == 1 for graph in engine.made)
    assert len(engine.made) <= 3


# -- engines of the host ----------------------------------------------------------------------


def test_an_engine_of_the_host_gets_what_is_worth_the_way(plugins: Plugins) -> None:
    _, engine = beside(plugins, "cpu")
    w = RNG.standard_normal((64, 64)).astype(np.float32)
    run = mge.jit.compile(options=both())(lambda x, w: F.relu(F.matmul(x, w)) * 2.0)
    x = RNG.standard_normal((64, 64)).astype(np.float32)
    np.testing.assert_allclose(
        run(there(x), there(w)).numpy(), np.maximum(x @ w, 0) * 2, rtol=1e-4, atol=1e-4
    )
    (product,) = engine.made
    assert [n.op.name for n in product.graph.nodes] == ["matmul"]
    report = str(run.variants[0].inspected.report)
    assert "copies between memories" in report and "20.0 us and 1.0 GB/s" in report
    counters = executor_of(run).counters
    assert (counters.copies, counters.copied) == (3, 3 * 64 * 64 * 4)
    assert mge.fallback_report() == []


@pytest.mark.parametrize("function", [lambda x: F.exp(x) * 2.0, lambda x: F.matmul(x, x)])
def test_what_is_small_is_not_moved_across(function: Callable[..., Any], plugins: Plugins) -> None:
    _, engine = beside(plugins, "cpu")
    run = mge.jit.compile(options=both())(function)
    x = RNG.standard_normal((4, 4)).astype(np.float32)
    np.testing.assert_allclose(run(on(x)).numpy(), function(mge.tensor(x)).numpy(), rtol=1e-5)
    assert engine.made == [] and executor_of(run).counters.copies == 0


def test_what_the_compiler_refuses_pays_for_its_copies(plugins: Plugins) -> None:
    """An op that comes down in any case takes its neighbors along to the engine of the host."""
    toy, engine = beside(plugins, "cpu")
    toy.code.refused = ("sort",)
    run = mge.jit.compile(options=both())(lambda x: F.sort(x * 2.0)[0] + 1.0)
    x = np.float32([[3, 1, 2]])
    np.testing.assert_array_equal(run(there(x)).numpy(), [[3, 5, 7]])
    (segment,) = engine.made
    assert {"sort", "mul", "add"} <= {n.op.name for n in segment.graph.nodes}
    assert executor_of(run).counters.copies == 2


def test_a_value_for_two_segments_comes_down_once(plugins: Plugins) -> None:
    toy, engine = beside(plugins, "cpu")
    toy.code.refused = ("sort",)

    def twice(x: Any) -> Any:
        ends = F.relu(x)  # never the engine's
        first = F.relu(F.sort(ends)[0])
        return F.relu(F.sort(F.concat([ends, first], 1))[0])

    run = mge.jit.compile(options=both())(twice)
    np.testing.assert_array_equal(run(there([[3, -1, 2]])).numpy(), [[0, 0, 2, 2, 3, 3]])
    assert len(engine.made) == 2
    assert [len(e.calls[0]) for e in engine.made] == [1, 2]
    counters = executor_of(run).counters  # down: ends and first; up: both results of sort
    assert (counters.copies, counters.copied) == (4, 12 + 12 + 12 + 24)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_of_three_compilers_compute_the_same(seed: int, plugins: Plugins) -> None:
    """Segments on the device and on the host, ops that come down, memory that is used again."""
    kind = (DeviceSegment, WritingSegment)[seed % 2]
    toy, inner = beside(plugins, kind=kind, card=Near)
    inner.never = ("neg", "tanh", "add")
    outer = plugins.offer("outer", SegmentBackend("outer", never=("exp", "tanh", "add")))
    outer.on_request = True
    toy.code.refused = frozenset(("tanh",))
    graph = random_graph(seed, 40)
    given = [RNG.standard_normal([int(d) for d in t.shape]) for t in graph.input_types]
    arrays = [(a / 10).astype(np.float32) for a in given]
    options = Options(engines=("outer", "fake", "toy"), check=True)
    program = Inspected(Stages(graph, Interface(), options, resolve("toy0")))
    with mge.fallback("silent"):
        for _ in range(2):
            found = program.compile().run(arrays)
            for x, y in zip(found, graph.evaluate(arrays), strict=True):
                np.testing.assert_allclose(x.host(), y, rtol=1e-4, atol=1e-5)


def test_names_of_options_may_be_of_other_devices(plugins: Plugins) -> None:
    _, engine = beside(plugins, "cpu")
    run = mge.jit.compile(options=both())(lambda x: F.exp(x) - 1.0)
    np.testing.assert_allclose(run(mge.tensor(np.float32([0, 1]))).numpy(), np.expm1([0, 1]))
    assert len(engine.made) == 1
    for names in (("cuda",), ("toy",)):
        with pytest.raises(CompileError, match="no engine on the host"):
            mge.jit.compile(options=Options(engines=names))(lambda x: x + 1.0)(mge.tensor([1.0]))


# -- copies -------------------------------------------------------------------------------------


def test_links_are_what_the_device_says_or_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    card = OpenDevice("card0", Card(0, 1 << 22))
    link = MemoryLink(2e-5, 1e9)
    assert links_of(card) == Links(link, link)
    toy = OpenDevice("toy0", PartedDevice(0, 1 << 22))
    found = links_of(toy)
    assert 0 < found.up.latency < 1 and 0 < found.down.bandwidth < 1e14
    assert toy.allocated == 0
    monkeypatch.setattr(cost, "_fastest", None)  # or the next call would fail
    assert links_of(toy) is found
    full = OpenDevice("toy1", PartedDevice(1, 1 << 10))
    assert links_of(full) == Links()
