"""Homes of programs: which engines of a device kind compile, and who else may take part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle.backends import registry
from treadle.backends.api import Engine, Rewriting
from treadle.backends.program import Compiler, CompilingEngine
from treadle.backends.segments import SegmentEngine
from treadle.base.errors import CompileError
from treadle.base.types import TensorType
from treadle.engine.devices.host import HostCompiler
from treadle.engine.options import Options
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value, remake
from treadle.ops.fused import HOST as OF_HOST
from treadle.ops.fused import Fused

if TYPE_CHECKING:  # Nobody needs passes but who has some.
    from treadle.graph.passes import Pass

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


def has_compiler() -> bool:
    """Return whether something can be compiled for the host: what is in the cache runs in
    any case.
    """
    compilers = [e.name for e in registry.engines(HOST) if isinstance(e, CompilingEngine)]
    states = [registry.entries()[name].availability for name in compilers]
    return any(state is not None and state.ok for state in states)


def compiling(engines: Sequence[Engine]) -> str:
    """The name of the engine whose compiler it is; "" where none compiles."""
    return next((e.name for e in engines if isinstance(e, CompilingEngine)), "")


def engines_of(options: Options, kind: str = HOST) -> Sequence[Engine]:
    """Return the engines that may run parts of a program, best first: those that the options name,
    and the reference.

    Options that name engines of the host alone say nothing about programs of devices, and the
    other way round. Where they name a device's own compiler, segment engines of the host that they
    name beside it take part, too.

    Raises:
        CompileError: the options name an engine that is not there.
    """
    known = (*registry.engines(kind), *(() if kind == HOST else _aides()))
    known = (*known, *_guests(options, kind))
    names = [e.name for e in known]
    elsewhere = _elsewhere(kind)
    chosen = [n for n in options.engines if n in names or n not in elsewhere]
    if kind == HOST and not chosen:
        chosen = list(options.engines)
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


def _elsewhere(kind: str) -> list[str]:
    """Names that options may have although nobody of that name serves this kind."""
    if kind != HOST:
        return [e.name for e in registry.engines(HOST)]
    return [name for name, entry in registry.entries().items() if entry.state != "disabled"]


def _guests(options: Options, kind: str) -> list[Engine]:
    """Segment engines of the host that options name together with a device's compiler."""
    own = [e.name for e in registry.engines(kind) if isinstance(e, CompilingEngine)]
    if kind == HOST or not set(own) & set(options.engines):
        return []
    found = [e for e in registry.engines(HOST) if e.name in options.engines]
    return [e for e in found if isinstance(e, SegmentEngine) and kind not in e.serves]


def _aides() -> list[Engine]:
    """Return the engines that run the rest of a device's programs on the host."""
    return [e for e in registry.engines(HOST) if e.name == _AIDE]


def segment_engines(engines: Sequence[Engine]) -> list[SegmentEngine]:
    """Return those engines that compile parts of programs."""
    return [e for e in engines if isinstance(e, SegmentEngine)]


def passes_of(options: Options, kind: str = HOST) -> tuple[Pass, ...]:
    """Passes of the backend that has the devices, then those of engines that take part."""
    home = registry.for_kind(kind)
    takers = [*([] if home is None else [home.backend]), *engines_of(options, kind)]
    rewriting = {id(taker): taker for taker in takers if isinstance(taker, Rewriting)}
    return tuple(p for taker in rewriting.values() for p in taker.passes)


def stated(passes: Sequence[Pass]) -> str | None:
    """Passes of backends with the versions that they state; None where one states none: nobody
    would see that its code has changed.
    """
    versions = [getattr(p, "version", "") for p in passes]
    if not all(versions):
        return None
    pairs = zip(passes, versions, strict=True)
    return "".join(f"\n{type(p).__module__} {p!r} {version!r}" for p, version in pairs)


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
