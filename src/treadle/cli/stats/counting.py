"""Parameters, arithmetic and memory of a model, op by op."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from treadle.backends.program import MeasuringCompiler
from treadle.base.table import count, duration, size
from treadle.cli.console import progress, show_facts, show_json, show_table
from treadle.cli.models.opening import open_model, parsed_shapes, run_once
from treadle.engine.devices.placement import find_compiler
from treadle.engine.options import Options
from treadle.engine.phases import stages_of
from treadle.engine.report import Partition, describe_partitions
from treadle.graph.flop_count import flops, nbytes
from treadle.graph.ir import Graph, Node
from treadle.inspect import Inspected
from treadle.inspect.profile import predicted
from treadle.ops.constant import Constant
from treadle.ops.conv import Convolution
from treadle.ops.matmul import MatrixProduct


@dataclass(slots=True)
class OpWork:
    """Work of one op, or of one node.

    Attributes:
        name: of the op; of a node, what its source calls it.
        nodes: how many.
        flops: arithmetic operations.
        nbytes: bytes that are read and written, were each node run on its own.
        parameters: elements of the constants that it takes.
        result: type of the result, of a single node.
    """

    name: str
    nodes: int = 0
    flops: int = 0
    nbytes: int = 0
    parameters: int = 0
    result: str = ""


@dataclass(slots=True)
class Counts:
    """Counts of a model's parts.

    Attributes:
        parameters, parameter_bytes: of all constants.
        products: multiplications with additions in convolutions and matrix products.
        flops, nbytes: of all nodes, each run on its own.
        ops: by op, the heaviest first.
        heaviest: nodes.
        program: the same as a program of this machine, if it is compiled: kernels, launches, flops,
            bytes, scratch memory, and seconds that the machine's limits allow.
    """

    parameters: int = 0
    parameter_bytes: int = 0
    products: int = 0
    flops: int = 0
    nbytes: int = 0
    ops: list[OpWork] = field(default_factory=list)
    heaviest: list[OpWork] = field(default_factory=list)
    program: dict[str, Any] = field(default_factory=dict)


def shown(source: Path, shape: Sequence[str], top: int, level: int, as_json: bool) -> None:
    """Count what is in a file, and print it.

    Raises:
        TreadleError: the file cannot be read, or the model not be compiled.
    """
    with progress(f"opening {source.name}") as now:
        model = open_model(source, parsed_shapes(shape))
        now.tell("compiling")
        program = Inspected(stages_of(model.graph, options=Options(level=level)))
        graph = model.graph
        if program.in_phases:
            graph = run_once(program, model).graph()
        found = counted(graph, top)
        found.program = _program(program)
    if as_json:
        show_json(asdict(found))
    else:
        _show(found)


def counted(graph: Graph, top: int) -> Counts:
    """Counts of a graph, and its `top` heaviest nodes."""
    found, by_op, nodes = Counts(), defaultdict[str, OpWork](lambda: OpWork("")), []
    for node in graph.nodes:
        if isinstance(node.op, Constant):
            found.parameters += node.op.data.array.size
            found.parameter_bytes += node.op.data.array.nbytes
            continue
        made = _work(node)
        nodes.append(made)
        total = by_op[node.op.name]
        total.name, total.nodes = node.op.name, total.nodes + 1
        total.flops, total.nbytes = total.flops + made.flops, total.nbytes + made.nbytes
        total.parameters += made.parameters
        if isinstance(node.op, (Convolution, MatrixProduct)):
            found.products += made.flops // 2
    found.flops = sum(w.flops for w in nodes)
    found.nbytes = sum(w.nbytes for w in nodes)
    found.ops = sorted(by_op.values(), key=lambda w: -w.flops)
    found.heaviest = sorted(nodes, key=lambda w: -w.flops)[:top]
    return found


def _work(node: Node) -> OpWork:
    constants = [v for v in node.inputs if v.producer and isinstance(v.producer.op, Constant)]
    return OpWork(
        f"{node.op.name} {node.group or node.outputs[0].name}".strip(),
        1,
        flops(node),
        sum(nbytes(v) for v in (*node.inputs, *node.outputs)),
        sum(nbytes(v) // v.type.dtype.itemsize for v in constants),
        str(node.outputs[0].type) if node.outputs else "",
    )


def _program(program: Inspected) -> dict[str, Any]:
    parts = program.parts if program.in_phases else (program,)
    plans, explained = [p.planned() for p in parts], [p.explain() for p in parts]
    steps = [pair for plan in plans for pair in zip(plan.steps, plan.facts, strict=True)]
    found: dict[str, Any] = {
        "phases": len(parts),
        "launches": sum(plan.launches for plan in plans),
        "flops": sum(f.flops for _, f in steps),
        "bytes": sum(f.nbytes for _, f in steps),
        "scratch": max(plan.memory.peak for plan in plans),
        "predicted": sum(predicted(*pair) for pair in steps),
        "partitions": [asdict(part) for e in explained for part in e.partitions],
        "streams": max(e.streams["in_use"] for e in explained),
        "events": sum(e.streams["events_in_use"] for e in explained),
    }
    compiler = find_compiler(program.options)
    if isinstance(compiler, MeasuringCompiler):
        limits = compiler.limits()
        found["least"] = sum(f.least(limits) for _, f in steps)
    return found


def _show(found: Counts) -> None:
    facts = {
        "parameters": f"{count(found.parameters)} in {size(found.parameter_bytes)}",
        "multiply-adds": f"{count(found.products)} in convolutions and matrix products",
        "arithmetic": f"{count(found.flops)} operations",
        "traffic": f"{size(found.nbytes)} if every op ran alone",
    }
    program = found.program
    facts["compiled"] = (
        f"{program['launches']:.0f} launches, {size(program['bytes'])} of traffic, "
        f"{size(program['scratch'])} of scratch memory"
    )
    if program["phases"] > 1:
        facts["phases"] = f"{program['phases']}, as random inputs have them"
    facts["partitions"] = describe_partitions([Partition(**part) for part in program["partitions"]])
    facts["streams"] = f"{program['streams']}, {program['events']} events"
    facts["predicted"] = duration(program["predicted"])
    if "least" in program:
        facts["least time"] = f"{duration(program['least'])}, by this machine's limits"
    show_facts(facts)
    _show_works("by op", ("op", "nodes"), found.ops, found.flops)
    _show_works("heaviest nodes", ("node", "result"), found.heaviest, found.flops)


def _show_works(title: str, first: Sequence[str], works: Sequence[OpWork], total: int) -> None:
    rows: list[tuple[Any, ...]] = [
        (
            w.name,
            w.result or str(w.nodes),
            count(w.parameters),
            count(w.flops),
            f"{w.flops / (total or 1):.1%}",
            size(w.nbytes),
        )
        for w in works
    ]
    show_table(title, (*first, "parameters", "operations", "share", "traffic"), rows)
