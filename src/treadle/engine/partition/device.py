"""The device that a program lives on, as one of the engines among which partition chooses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from treadle.backends.api import Engine, Support
from treadle.backends.program import Compiler
from treadle.backends.segments import SegmentEngine
from treadle.base.types import TensorType
from treadle.engine.cost import CARD, RATES, Links, MemoryLink, links_of, rates_of
from treadle.engine.options import Options
from treadle.engine.partition.candidates import is_plain
from treadle.engine.partition.check import without_borders
from treadle.engine.partition.hosted import leave_to_host
from treadle.engine.partition.model import CostModel, PricingEngine
from treadle.engine.partition.stage import partition
from treadle.engine.plan import REFERENCE
from treadle.engine.report import CompileReport
from treadle.graph.flop_count import flops, nbytes
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.control import ControlFlow
from treadle.ops.fused import Fused
from treadle.ops.op import Op
from treadle.runtime.opened import OpenDevice


class DeviceEngine(PricingEngine):
    """Stands for what runs the ops of a device, where parts go to engines that compile them.

    Whatever its compiler or kernels refuse, it sees to it that the host runs that, and reckons with
    the copies.

    Args:
        kind: of the device.
        name: of the engine that compiles; of nobody, where ops run one by one.
        opened: the device, whose copies are measured if it says nothing about them.
        compiler: the engine's.
        whole: names of composites that are taken apart later on.
    """

    priority = 0

    def __init__(
        self,
        kind: str,
        name: str,
        opened: OpenDevice,
        compiler: Compiler | None = None,
        whole: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.serves: tuple[str, ...] = (kind,)
        self.rates = CARD if compiler is None else rates_of(opened.info)
        self.links = Links() if compiler is None else links_of(opened)
        self._compiler = compiler
        self._whole = whole

    @property
    def compiles(self) -> bool:
        """True if its programs are compiled; else its ops run one by one, and no copy is priced."""
        return self._compiler is not None

    def prepare(self, op: Op, types: Sequence[TensorType], /) -> Callable[..., Any] | Support:
        """Return the reference, which is never run: a device's domain takes every op."""
        return op.reference

    def price(self, node: Node, /) -> float:
        """Seconds of a node, with the copies of what is left to the host."""
        moved = sum(map(nbytes, (*node.inputs, *node.outputs)))
        if not self._refuses(node):
            return self.rates.seconds(flops(node), moved)
        down = sum(self.links.down.seconds(nbytes(v)) for v in node.inputs)
        up = sum(self.links.up.seconds(nbytes(v)) for v in node.outputs)
        return down + RATES[REFERENCE].seconds(flops(node), moved) + up

    def _refuses(self, node: Node) -> bool:
        """Return whether the host has to run it."""
        if isinstance(node.op, Fused):
            return bool(node.op.engine)
        types = tuple(TensorType(v.type.dtype, v.type.shape) for v in node.inputs)
        plain = isinstance(node.op, ControlFlow) or is_plain(node.op, types)
        if self._compiler is None or plain or node.op.name in self._whole:
            return False
        if not all(t.is_static for t in types):
            return False
        return isinstance(self._compiler.lower(node.op, types), Support)


def part_on_device(
    graph: Graph,
    engines: Sequence[SegmentEngine],
    device: DeviceEngine,
    options: Options,
    report: CompileReport,
    frozen: Collection[Value] = (),
) -> Graph:
    """The program of a device with one node for every segment that another engine gets.

    Engines may share the device's memory, or have that of the host; copies between the two are in
    the price. Whoever runs the program makes them, so that the graph shows none.
    """
    here = device.serves[0]
    links = {("cpu", here): device.links.up, (here, "cpu"): device.links.down}
    if device.compiles:
        link = f"{_describe(device.links.up)} to the device, {_describe(device.links.down)} back"
        report.decide("partition", "copies", link, "as the device says, or as measured")
    model = CostModel({**RATES, device.name: device.rates}, links=links)
    every: list[Engine] = [*engines, device]
    parts = partition(graph, every, options, report, model, frozen)
    return without_borders(leave_to_host(parts, every, device.name))


def _describe(link: MemoryLink) -> str:
    return f"{link.latency * 1e6:.1f} us and {link.bandwidth / 1e9:.1f} GB/s"
