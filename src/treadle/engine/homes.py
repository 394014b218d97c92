"""Homes of programs: which engines of a device kind compile, and who else may take part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from treadle.backends import registry
from treadle.backends.api import Engine, Support
from treadle.backends.program import Compiler, CompilingEngine
from treadle.backends.segments import SegmentEngine
from treadle.base.errors import CompileError
from treadle.base.types import TensorType
from treadle.engine.host import HostCompiler
from treadle.engine.options import Options
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value, remake
from treadle.ops.fused import HOST as OF_HOST
from treadle.ops.fused import Fused
from treadle.ops.op import Op

HOST = "cpu"
"""The kind of the host, under whatever name."""
_AIDE = "reference"
"""The engine that takes part whether it is named or not."""


def find_compiler(options: Options, kind: str = HOST) -> Compiler:
    """The compiler of the kind's best engine that has one; else one that compiles nothing.

    Raises:
        CompileError: the options name an engine that is not there.
    """
    for engine in engines_of(options, kind):
        if isinstance(engine, CompilingEngine) and kind in engine.serves:
            return engine.compiler()
    return HostCompiler()


def compiling(engines: Sequence[Engine]) -> str:
    """The name of the engine whose compiler it is; "" where none compiles."""
    return next((e.name for e in engines if isinstance(e, CompilingEngine)), "")


def engines_of(options: Options, kind: str = HOST) -> Sequence[Engine]:
    """Who may run parts of a program, best first: those that the options name, and the reference.

    Options that name engines of the host alone say nothing about programs of devices.

    Raises:
        CompileError: the options name an engine that is not there.
    """
    known = (*registry.engines(kind), *(() if kind == HOST else _aides()))
    names = [e.name for e in known]
    elsewhere = [] if kind == HOST else [e.name for e in registry.engines(HOST)]
    chosen = [n for n in options.engines if n in names or n not in elsewhere]
    if not chosen:
        return [e for e in known if not (isinstance(e, SegmentEngine) and e.on_request)]
    for name in chosen:
        if name not in names:
            raise CompileError(
                "options",
                f"no engine on the host is called {name!r}"
                if kind == HOST
                else f"no engine of {kind} is called {name!r}",
                hint=f"choose from {', '.join(names)}",
            )
    wanted = {name: i for i, name in enumerate(chosen)}
    return sorted(
        (e for e in known if e.name in wanted or e.name == _AIDE),
        key=lambda e: wanted.get(e.name, len(wanted)),
    )


def _aides() -> list[Engine]:
    """What runs the rest of a device's programs on the host."""
    return [e for e in registry.engines(HOST) if e.name == _AIDE]


def segment_engines(engines: Sequence[Engine]) -> list[Engine]:
    """Those that compile parts of programs."""
    return [e for e in engines if isinstance(e, SegmentEngine)]


class Device:
    """Stands for what runs the ops of a device, where parts go to engines that compile them.

    Whatever its compiler or kernels refuse, it sees to it that the host runs that.

    Args:
        kind: of the device.
        name: of the engine that compiles; of nobody, where ops run one by one.
    """

    priority = 0

    def __init__(self, kind: str, name: str) -> None:
        self.name = name
        self.serves: tuple[str, ...] = (kind,)

    def prepare(self, op: Op, types: Sequence[TensorType], /) -> Callable[..., Any] | Support:
        """It takes every op, and is never asked to run one."""
        return op.reference


def forced_to_host(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph with a group around every op of these names, which returns to the host for it."""
    if not any(n.op.name in names for n in graph.nodes):
        return graph
    instead: dict[Value, Value] = {v: v for v in graph.inputs}
    nodes = []
    for node in graph.nodes:
        inputs = tuple([instead[v] for v in node.inputs])
        made = _hosted(node, inputs) if node.op.name in names else remake(node, node.op, inputs)
        instead.update(zip(node.outputs, made.outputs, strict=True))
        nodes.append(made)
    return graph.with_nodes(nodes, [instead[v] for v in graph.outputs])


def _hosted(node: Node, inputs: tuple[Value, ...]) -> Node:
    builder = GraphBuilder(node.op.name)
    types = [TensorType(v.type.dtype, v.type.shape) for v in inputs]
    made = builder.copy(node, tuple([builder.input(t).value for t in types]), named=False)
    builder.output(*(builder.operand(v) for v in made.outputs))
    group = Fused(OF_HOST + _AIDE, builder.build())
    return Node(group, inputs, node.loc, node.names, node.group)
