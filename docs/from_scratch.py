"""The core of an engine in one file: a captured graph passes six stages, and runs.

    prepare -> partition -> optimize -> compile -> load -> execute

Each is a function from one frozen artifact to the next. Kernels are Python source over NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

Array = np.ndarray
Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Op:
    """What a node does: its name, its result's shape, its value, its gradient.

    `shape` takes the operands' shapes, `run` their arrays, and both the parameters. `vjp` takes the
    result, its gradient and the operands, and gives a gradient of each.
    """

    name: str
    shape: Callable[..., Shape]
    run: Callable[..., Array]
    vjp: Callable[..., Sequence[Node]] | None = None
    elementwise: bool = False


def _operator(name: str, *, swapped: bool = False) -> Callable[[Node, object], Node]:
    return lambda self, other: apply(name, *((other, self) if swapped else (self, other)))


@dataclass(frozen=True, eq=False)
class Node:
    """One value of a program, compared by identity: an op, its operands, and its parameters."""

    op: Op
    inputs: tuple[Node, ...] = ()
    params: tuple[Any, ...] = ()

    @cached_property
    def shape(self) -> Shape:
        return self.op.shape(*(x.shape for x in self.inputs), *self.params)

    __add__, __radd__ = _operator("add"), _operator("add", swapped=True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", swapped=True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", swapped=True)
    __truediv__, __matmul__ = _operator("div"), _operator("matmul")


def apply(name: str, *operands: object, params: tuple[Any, ...] = ()) -> Node:
    """Append an op to the program; numbers and arrays become constants."""
    nodes = tuple(x if isinstance(x, Node) else constant(x) for x in operands)
    node = Node(OPS[name], nodes, params)
    _ = node.shape  # Shapes that do not fit are an error here, at the line of the user.
    return node


def constant(value: object) -> Node:
    return Node(OPS["const"], (), (np.asarray(value, np.float32),))


exp, log, above = partial(apply, "exp"), partial(apply, "log"), partial(apply, "above")
relu, transposed = partial(apply, "maximum", 0.0), partial(apply, "transpose")


def total(x: Node, *axes: int) -> Node:
    """Sum over some axes, or all, which stay with one element."""
    return apply("sum", x, params=(axes or tuple(range(len(x.shape))),))


def summed_to(x: Node, shape: Shape) -> Node:
    """Undo a broadcast: what was repeated is added up."""
    if x.shape == shape:
        return x
    added = len(x.shape) - len(shape)
    axes = [i for i, n in enumerate(x.shape) if i < added or shape[i - added] != n]
    return apply("reshape", total(x, *axes), params=(shape,))


def _mm(x: Shape, y: Shape) -> Shape:
    if len(x) != 2 or len(y) != 2 or x[1] != y[0]:
        raise ValueError(f"a product of {x} and {y}: columns of the first are rows of the second")
    return x[0], y[1]


def _as(name: str) -> Callable[..., Sequence[Node]]:
    return lambda z, d, x: (apply(name, d, params=(x.shape,)),)


_zip = np.broadcast_shapes
_ALL = (
    Op("input", lambda name, shape: shape, lambda name, shape: np.empty(shape)),
    Op("const", np.shape, np.asarray),
    Op("add", _zip, np.add, lambda z, d, x, y: (d, d), True),
    Op("sub", _zip, np.subtract, lambda z, d, x, y: (d, 0 - d), True),
    Op("mul", _zip, np.multiply, lambda z, d, x, y: (d * y, d * x), True),
    Op("div", _zip, np.divide, lambda z, d, x, y: (d / y, 0 - d * z / y), True),
    Op("maximum", _zip, np.maximum, lambda z, d, x, y: (d * above(x, y), d * above(y, x)), True),
    Op("above", _zip, lambda x, y: (x > y).astype(np.float32), None, True),
    Op("exp", lambda x: x, np.exp, lambda z, d, x: (d * z,), True),
    Op("log", lambda x: x, np.log, lambda z, d, x: (d / x,), True),
    # Kernels need not repeat anything: NumPy does where the value is read.
    Op("expand", lambda x, shape: shape, lambda x, shape: x, None, True),
    Op("reshape", lambda x, shape: shape, np.reshape, _as("reshape")),
    Op(
        "sum",
        lambda x, axes: tuple(1 if i in axes else n for i, n in enumerate(x)),
        lambda x, axes: np.sum(x, axes, keepdims=True),
        _as("expand"),
    ),
    Op("transpose", lambda x: x[::-1], np.transpose, lambda z, d, x: (transposed(d),)),
    Op("matmul", _mm, np.matmul, lambda z, d, x, y: (d @ transposed(y), transposed(x) @ d)),
)
OPS = {op.name: op for op in _ALL}


@dataclass(frozen=True)
class Graph:
    """A program: inputs and outputs; the nodes between them follow from the outputs."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All that the outputs depend on, each after its operands."""
        found: dict[Node, None] = dict.fromkeys(self.inputs)
        waiting = [(node, False) for node in reversed(self.outputs)]
        while waiting:
            node, ready = waiting.pop()
            if ready:
                found[node] = None
            elif node not in found:
                waiting.append((node, True))
                waiting += [(x, False) for x in reversed(node.inputs)]
        return tuple(found)

    def __str__(self) -> str:
        names = {node: f"%{i}" for i, node in enumerate(self.nodes)}
        lines = ["graph"]
        for node in self.nodes:
            params = [f"array{p.shape}" if np.ndim(p) > 1 else str(p) for p in node.params]
            inside = ", ".join([*(names[x] for x in node.inputs), *params])
            lines.append(f"  {names[node]}{list(node.shape)} = {node.op.name}({inside})")
        return "\n".join([*lines, "  return " + ", ".join(names[x] for x in self.outputs)])


def capture(function: Callable[..., Any], shapes: Sequence[Shape]) -> Graph:
    """Call a function once, on symbols: what it does to them is the program."""
    inputs = tuple(Node(OPS["input"], (), (f"x{i}", shape)) for i, shape in enumerate(shapes))
    made = function(*inputs)
    return Graph(inputs, tuple(made) if isinstance(made, (tuple, list)) else (made,))


def gradients(y: Node, of: Sequence[Node]) -> list[Node]:
    """The gradients of a sum of `y`, as more nodes: walk back, and add up what meets."""
    known: dict[Node, Node] = {y: constant(np.ones(y.shape))}
    for node in reversed(Graph((), (y,)).nodes):
        if node in known and node.op.vjp is not None:
            parts = node.op.vjp(node, known[node], *node.inputs)
            for x, part in zip(node.inputs, parts, strict=True):
                dx = summed_to(part, x.shape)
                known[x] = known[x] + dx if x in known else dx
    return [known[x] if x in known else constant(np.zeros(x.shape)) for x in of]


# -- prepare: the same program, smaller ------------------------------------------------------------


def prepare(graph: Graph) -> Graph:
    """Compute what is constant, apply rules, make equal nodes one; what nobody reads is gone."""
    made: dict[Node, Node] = {x: x for x in graph.inputs}
    known: dict[object, Node] = {}
    for node in graph.nodes:
        if node not in made:
            new = Node(node.op, tuple(made[x] for x in node.inputs), node.params)
            if new.inputs and all(x.op.name == "const" for x in new.inputs):
                data = new.op.run(*(x.params[0] for x in new.inputs), *new.params)
                new = constant(np.broadcast_to(data, new.shape))
            new = simpler(new)
            params = tuple(p.tobytes() if isinstance(p, Array) else p for p in new.params)
            made[node] = known.setdefault((new.op, new.inputs, new.shape, params), new)
    return Graph(graph.inputs, tuple(made[x] for x in graph.outputs))


def simpler(node: Node) -> Node:
    """What a node equals by a rule of algebra, or the node."""
    name, inputs = node.op.name, node.inputs
    if name == "transpose" and inputs[0].op.name == "transpose":
        return inputs[0].inputs[0]
    if name in ("reshape", "expand") and inputs[0].shape == node.shape:
        return inputs[0]
    neutral = {"add": 0, "sub": 0, "mul": 1, "div": 1}.get(name)
    if neutral is not None and inputs[1].op.name == "const" and inputs[0].shape == node.shape:
        return inputs[0] if (inputs[1].params[0] == neutral).all() else node
    return node


# -- partition: who runs what ----------------------------------------------------------------------

ENGINES = {"loops": lambda node: node.op.elementwise, "numpy": lambda node: True}
"""Engines, best first, with what they take: kernels made here, and calls of a library."""


@dataclass(frozen=True)
class Partitioned:
    """A graph, and the engine of each node that computes something."""

    graph: Graph
    engines: dict[Node, str]

    def __str__(self) -> str:
        return ", ".join(f"{n.op.name}: {engine}" for n, engine in self.engines.items())


def partition(graph: Graph, engines: Sequence[str] = tuple(ENGINES)) -> Partitioned:
    """Give every node to the first engine that takes it."""
    running = [n for n in graph.nodes if n.op.name not in ("input", "const")]
    return Partitioned(graph, {n: next(e for e in engines if ENGINES[e](n)) for n in running})


# -- optimize: what becomes one kernel -------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Nodes that run as one kernel; the last one's value is all that anybody else reads."""

    engine: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Optimized:
    """A graph, and its groups in an order in which they can run."""

    graph: Graph
    groups: tuple[Group, ...]

    def __str__(self) -> str:
        return "\n".join(f"{g.engine}: {[n.op.name for n in g.nodes]}" for g in self.groups)


def optimize(parted: Partitioned) -> Optimized:
    """Let a node join its readers, if those are one group of loops over elements of its shape."""
    graph, engines = parted.graph, parted.engines
    leader: dict[Node, Node] = {}
    for node in reversed(list(engines)):
        readers = {leader[n] for n in engines if node in n.inputs}
        leader[node] = node
        if node not in graph.outputs and len(readers) == 1 and engines[node] == "loops":
            (reader,) = readers
            if engines[reader] == "loops" and reader.shape == node.shape:
                leader[node] = reader
    found = [n for n in engines if leader[n] is n]
    members = {last: tuple(n for n in engines if leader[n] is last) for last in found}
    return Optimized(graph, tuple(Group(engines[n], members[n]) for n in found))


# -- compile: kernels, their order, and where values lie -------------------------------------------

ROWS = 64  # that a kernel takes at once: what it computes in between stays in the cache
Step = tuple[str, Node, tuple[Node, ...]]  # a kernel's name, what it makes, what it reads


@dataclass(frozen=True)
class Planned:
    """Source of the kernels, steps, and places of values in an arena of so many elements."""

    graph: Graph
    source: str
    steps: tuple[Step, ...]
    places: dict[Node, int]
    size: int

    def __str__(self) -> str:
        return f"{self.source}\n# {len(self.steps)} steps, an arena of {self.size} floats"


def compile_groups(optimized: Optimized) -> Planned:
    """Write a kernel for each group; kernels of equal text are one."""
    texts: dict[str, str] = {}
    steps: list[Step] = []
    for group in optimized.groups:
        operands = (x for n in group.nodes for x in n.inputs)
        reads = tuple(dict.fromkeys(x for x in operands if x not in group.nodes))
        name = texts.setdefault(_kernel(group, reads), f"k{len(texts)}")
        steps.append((name, group.nodes[-1], reads))
    source = "\n\n".join(f"def {name}({text}" for text, name in texts.items())
    places, size = _plan_memory(steps, optimized.graph)
    return Planned(optimized.graph, source, tuple(steps), places, size)


def _kernel(group: Group, reads: Sequence[Node]) -> str:
    """A function of NumPy; one of loops takes some rows at a time through all of its ops."""
    result, names = group.nodes[-1], {x: f"x{i}" for i, x in enumerate(reads)}
    listed, lines = ", ".join(names.values()), []
    rows = f"[i:i + {ROWS}]" if group.engine == "loops" and result.shape else ""
    for x in names:
        if len(x.shape) == len(result.shape) and x.shape[:1] == result.shape[:1]:
            names[x] += rows
    for number, node in enumerate(group.nodes):
        inside = ", ".join([*(names[x] for x in node.inputs), *map(repr, node.params)])
        names[node] = f"t{number}"
        lines.append(f"{names[node]} = {node.op.name}({inside})")
    lines.append(f"out{rows or '[...]'} = {names[result]}")
    if rows:
        lines = [
            f"for i in range(0, {result.shape[0]}, {ROWS}):",
            *(f"    {line}" for line in lines),
        ]
    return "\n    ".join([f"out, {listed}):", *lines])


def _plan_memory(steps: Sequence[Step], graph: Graph) -> tuple[dict[Node, int], int]:
    """Places of the values in between: two share memory if they are never needed together."""
    last = {x: i for i, (_, _, reads) in enumerate(steps) for x in reads}
    living: list[tuple[int, int, Node]] = []  # where a value begins and ends
    places: dict[Node, int] = {}
    inside = [(i, value) for i, (_, value, _) in enumerate(steps) if value not in graph.outputs]
    for number, value in inside:
        living = [entry for entry in living if last[entry[2]] >= number]
        length, at = math.prod(value.shape), 0
        for begin, end, _ in sorted(living, key=lambda entry: entry[0]):
            if begin - at >= length:
                break
            at = max(at, end)
        living.append((at, at + length, value))
        places[value] = at
    return places, max((at + math.prod(x.shape) for x, at in places.items()), default=0)


# -- load and execute ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loaded:
    """Kernels as functions, and the views of one arena that are their values."""

    plan: Planned
    kernels: dict[str, Any]
    values: dict[Node, Array]


def load(plan: Planned) -> Loaded:
    """Compile the source, allocate the arena."""
    space: dict[str, Any] = {name: op.run for name, op in OPS.items()}
    exec(compile(plan.source, "<kernels>", "exec"), space)
    arena = np.empty(plan.size, np.float32)
    values = {n: n.params[0] for n in plan.graph.nodes if n.op.name == "const"}
    for value, at in plan.places.items():
        values[value] = arena[at : at + math.prod(value.shape)].reshape(value.shape)
    return Loaded(plan, space, values)


def execute(loaded: Loaded, arrays: Sequence[Array]) -> list[Array]:
    """Run the steps: inputs and fresh outputs join the table of values."""
    graph = loaded.plan.graph
    table = loaded.values | dict(zip(graph.inputs, arrays, strict=True))
    for kernel, value, reads in loaded.plan.steps:
        if value in graph.outputs:
            table[value] = np.empty(value.shape, np.float32)
        loaded.kernels[kernel](table[value], *(table[x] for x in reads))
    return [table[x] for x in graph.outputs]


@dataclass
class Compiled:
    """A function whose calls are programs, one for each tuple of shapes."""

    function: Callable[..., Any]
    engines: Sequence[str] = tuple(ENGINES)
    programs: dict[tuple[Shape, ...], Loaded] = field(default_factory=dict)

    def stages(self, *shapes: Shape) -> Iterator[Any]:
        """The artifacts, from what was captured to what can run."""
        yield (captured := capture(self.function, shapes))
        yield (prepared := prepare(captured))
        yield (parted := partition(prepared, self.engines))
        yield (optimized := optimize(parted))
        yield (planned := compile_groups(optimized))
        yield load(planned)

    def __call__(self, *arrays: Array) -> Any:
        given = [np.asarray(a, np.float32) for a in arrays]
        shapes = tuple(a.shape for a in given)
        if shapes not in self.programs:
            *_, self.programs[shapes] = self.stages(*shapes)
        results = execute(self.programs[shapes], given)
        return results if len(results) > 1 else results[0]
