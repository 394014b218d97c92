"""Exported programs written in ops: the graph for one set of input shapes."""

from __future__ import annotations

import operator
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument

from treadle.base import dtype as dt
from treadle.base.errors import LoadError, ShapeError, UnsupportedOp
from treadle.base.guards import deciding, require
from treadle.base.loc import UNKNOWN, Loc
from treadle.base.shape import Shape
from treadle.base.symbol import Dim, Expr, Relation, evaluate
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.evaluate import specialize
from treadle.graph.ir import Graph, Node, Value
from treadle.interop.torch.nodes import (
    input_of,
    lowered,
    note_what_is_read,
    refusal,
)
from treadle.interop.torch.pairs import Pair, is_complex, joined, parted
from treadle.interop.torch.symbols import LEAST, is_number, knowing
from treadle.interop.torch.table import name_of
from treadle.ops.complex_parts import MakeComplex
from treadle.ops.random import blocks_used
from treadle.random.generator import default_generator
from treadle.tensor import Tensor, create

Shapes = tuple[Shape, ...]
_TORCH = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_LISTED = 20


@dataclass(frozen=True, slots=True)
class Ends:
    """Placeholders and results of a program.

    Attributes:
        weights: placeholders of parameters and buffers, which are the graph's first inputs.
        tensors: those of the user's tensors, which are the others.
        constants: arrays and plain values by placeholder.
        outputs: of the program's signature, in order.
    """

    weights: Sequence[str]
    tensors: Sequence[str]
    constants: Mapping[str, Any]
    outputs: Sequence[OutputSpec]


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """A result that is the graph's output of this number."""

    index: int


class WrittenProgram:
    """A program for inputs of certain shapes.

    Args:
        graph: inputs are weights, then the user's tensors.
        results: one for each of the user's outputs: a place, or a plain value.
        updates: names of buffers, and what they become.
        drawn: how many of the graph's inputs, the last ones, are states of random ops.
    """

    def __init__(
        self,
        graph: Graph,
        results: Sequence[Any],
        updates: Sequence[tuple[str, OutputPlace]],
        drawn: int,
    ) -> None:
        self.graph = graph
        self.results = results
        self.updates = updates
        self._steps = list(zip(graph.nodes, _ends_of_life(graph), strict=True))
        self.drawn = drawn
        self._blocks = _blocks(graph, drawn)

    def apply(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The graph's outputs on tensors: its ops are applied to them one by one."""
        states = [default_generator()._state(n) for n in self._blocks]
        given = (*tensors, *states)
        values: dict[Value, Tensor] = dict(zip(self.graph.inputs, given, strict=True))
        for node, unused in self._steps:
            operands = tuple([values[v] for v in node.inputs])
            made = tensors[0].apply(node.op, operands) if tensors else create(node.op)
            values.update(zip(node.outputs, made, strict=True))
            for value in unused:
                del values[value]
        return [values[v] for v in self.graph.outputs]


def _blocks(graph: Graph, drawn: int) -> list[Dim]:
    """Return how many blocks of a generator the random ops use whose states are the last inputs."""
    states = graph.inputs[len(graph.inputs) - drawn :]
    readers = {node.inputs[0]: node for node in graph.nodes if node.inputs}
    found: list[Dim] = []
    for state in states:
        op: Any = readers[state].op
        types = [v.type for v in readers[state].inputs[1:]]
        found.append((op.words(*types) + 3) // 4 if types else blocks_used(op))
    return found


def _ends_of_life(graph: Graph) -> list[list[Value]]:
    """Return for each node the values that nobody needs after it."""
    last: dict[Value, Node] = {}
    for node in graph.nodes:
        last.update(dict.fromkeys((*node.outputs, *node.inputs), node))
    kept = set(graph.outputs)
    ending: dict[Node, list[Value]] = defaultdict(list)
    for value, node in last.items():
        if value not in kept:
            ending[node].append(value)
    return [ending[node] for node in graph.nodes]


class Open:
    """A program written with symbols for the extents that answer alike.

    Args:
        written: with symbols in its types.
        fixed: extents that are numbers in it.
    """

    def __init__(self, written: WrittenProgram, fixed: Mapping[str, int]) -> None:
        self._written = written
        self._fixed = fixed

    def serves(self, numbers: Mapping[str, int]) -> bool:
        """Return whether extents, as they are in this call, have this program."""
        small = {n: extent for n, extent in numbers.items() if extent < LEAST}
        return (
            small.keys() <= self._fixed.keys()
            and all(numbers[n] == extent for n, extent in self._fixed.items())
            and all(guard.holds(numbers) for guard in self._written.graph.guards)
        )

    def at(self, extents: Mapping[str, Dim]) -> WrittenProgram:
        """The program at extents that it serves; what it needs of symbols guards their capture."""
        graph = self._written.graph
        if not extents:
            return self._written
        for guard in graph.guards:
            require(Relation(guard.kind, evaluate(guard.expr, extents)), _unserved)
        results = [_at(r, extents) for r in self._written.results]
        return WrittenProgram(
            specialize(graph, extents), results, self._written.updates, self._written.drawn
        )


def _unserved() -> ShapeError:
    return ShapeError("torch.export", "extents of this call have another program")


def _at(result: Any, extents: Mapping[str, Dim]) -> Any:
    return evaluate(result, extents) if isinstance(result, Expr) else result


def write_program(
    code: fx.GraphModule, ends: Ends, dims: Mapping[str, Dim], numbers: Mapping[str, int]
) -> Open:
    """The program for extents that answer as those of a call.

    Args:
        code: a functional graph of ATen operators.
        ends: what its placeholders and results are.
        dims: extents of PyTorch's symbols: symbols, or numbers.
        numbers: what they are in this call.

    Raises:
        UnsupportedOp: operators have no counterpart; all are listed.
        LoadError: the program writes into its inputs.
    """
    note_what_is_read(code.graph)
    needed = _needed(code)
    builder = GraphBuilder("exported")
    with knowing(dims), deciding(numbers) as decisions:
        with deciding(numbers):
            _check(needed)
        operands = _operands(builder, code, ends)
        for node in needed:
            with builder.at(line_of(node)):
                operands[node] = lowered(builder, node, operands)
        builder.guard(decisions.guards)
        written = _finished(builder, code, ends, operands)
    return Open(written, {n: d for n, d in dims.items() if isinstance(d, int)})


def _needed(code: fx.GraphModule) -> list[fx.Node]:
    """Nodes whose results are used, in order; assertions, for one, are not."""
    found: list[fx.Node] = []
    used: set[fx.Node] = set()
    for node in reversed(code.graph.nodes):
        if node.op == "output":
            used.update(node.all_input_nodes)
        elif node.op not in ("placeholder", "get_attr") and node in used:
            found.append(node)
            used.update([] if is_number(node.meta.get("val")) else node.all_input_nodes)
    return found[::-1]


# -- what cannot be written --------------------------------------------------------------------


def _check(nodes: Sequence[fx.Node]) -> None:
    """Raise about all nodes that have no counterpart."""
    problems: dict[tuple[str, str], list[fx.Node]] = defaultdict(list)
    for node in nodes:
        if node.target is operator.getitem:
            continue
        reason = refusal(node, None)  # A module is on one device, whichever it came from.
        if reason:
            problems[name_of(node.target) or str(node.target), reason].append(node)
    if not problems:
        return
    ordered = sorted(problems.items(), key=lambda item: -len(item[1]))
    count = sum(len(nodes) for nodes in problems.values())
    lines = [_describe(name, why, nodes) for (name, why), nodes in ordered[:_LISTED]]
    lines += [f"and {len(ordered) - _LISTED} more"] if len(ordered) > _LISTED else []
    names = len({name for name, _ in problems})
    hint = 'torch.compile(model, backend="treadle") leaves such operators to PyTorch'
    if any(why.startswith("data decide") for _, why in problems):
        hint = f"use tensors for .item(), and torch.where for x[mask]; {hint}"
    raise UnsupportedOp(
        "torch.export",
        f"{names} operator{'s' * (names > 1)} ({count} node{'s' * (count > 1)}) of the program "
        "cannot be written in ops",
        saw="\n        ".join(lines),
        hint=hint,
        at=line_of(ordered[0][1][0]) or None,
    )


def _describe(name: str, why: str, nodes: Sequence[fx.Node]) -> str:
    places = list(dict.fromkeys(str(line_of(node)) for node in nodes))
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    count = f"{len(nodes)} node{'s' * (len(nodes) > 1)}"
    return f"{name} of {_inputs(nodes[0])}, {count}: {why} ({places[0]}{more})"


def _inputs(node: fx.Node) -> str:
    """Return a node's inputs, as names and types."""
    known = ((n.name, n.meta.get("val")) for n in node.all_input_nodes)
    shown = (
        f"{name} {str(value.dtype).rpartition('.')[2]}[{','.join(map(str, value.shape))}]"
        if isinstance(value, torch.Tensor)
        else str(name)
        for name, value in known
    )
    return ", ".join(shown) or "nothing"


def line_of(node: fx.Node) -> Loc:
    """The innermost line of the user's, rather than PyTorch's, that a node comes from."""
    found = list(_frames(node.meta.get("stack_trace") or ""))
    own = [f for f in found if not f.file.startswith(_TORCH)]
    return (own or found or [UNKNOWN])[-1]


def _frames(trace: str) -> Iterator[Loc]:
    for match in _FRAME.finditer(trace):
        yield Loc(match["file"], int(match["line"]), match["function"])


# -- ends --------------------------------------------------------------------------------------


def _operands(builder: GraphBuilder, code: fx.GraphModule, ends: Ends) -> dict[fx.Node, Any]:
    """Inputs and constants of the graph by placeholder."""
    known = {str(n.target): n for n in code.graph.find_nodes(op="placeholder")}
    operands: dict[fx.Node, Any] = {}
    for name in (*ends.weights, *ends.tensors):
        operands[known[name]] = input_of(builder, known[name].meta["val"], name)
    for name, value in ends.constants.items():
        plain = value is None or isinstance(value, (bool, int, float, str))
        made = value if plain else builder.constant(value)
        is_pair = is_complex(known[name].meta.get("val"))
        operands[known[name]] = parted(made) if is_pair and not plain else made
    return operands


def _finished(
    builder: GraphBuilder, code: fx.GraphModule, ends: Ends, operands: Mapping[fx.Node, Any]
) -> WrittenProgram:
    (output,) = code.graph.find_nodes(op="output")
    results: list[Any] = []
    updates: list[tuple[str, OutputPlace]] = []
    made: list[GraphOperand] = []
    for spec, value in zip(ends.outputs, output.args[0], strict=True):
        found = operands[value] if isinstance(value, fx.Node) else value
        if isinstance(found, GraphOperand) and is_number(value.meta["val"]):
            raise LoadError("torch.export", f"the result {value.name} is a real number of extents")
        if isinstance(found, Pair):  # weights stay as they lie in memory
            is_kept = spec.kind is OutputKind.BUFFER_MUTATION or found.type.dtype is not dt.float32
            found = joined(found) if is_kept else MakeComplex()(found.real, found.imag)
        if isinstance(found, GraphOperand):
            made.append(found)
            found = OutputPlace(len(made) - 1)
        if spec.kind is OutputKind.BUFFER_MUTATION:
            updates.append((str(spec.target), found))
        elif spec.kind is OutputKind.USER_OUTPUT:
            results.append(found)
        else:
            raise LoadError(
                "torch.export",
                f"the program has a result of kind {spec.kind.name}",
                hint="export a forward that writes into nothing but buffers",
            )
    builder.output(*made)
    graph = builder.build()
    drawn = len(graph.inputs) - len(ends.weights) - len(ends.tensors)
    return WrittenProgram(graph, results, updates, drawn)


def is_tensor(argument: object) -> bool:
    """Return whether an argument of a signature is a tensor."""
    return isinstance(argument, TensorArgument)
