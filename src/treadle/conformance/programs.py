"""Random programs of primitive ops, composites, moves, reductions and products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import TreadleError
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, GraphOperand, trace_body
from treadle.graph.evaluate import substitute_attributes
from treadle.graph.ir import Graph
from treadle.ops.activation import Gelu
from treadle.ops.control import FunctionRegion
from treadle.ops.elementwise import Add, Maximum, Mul, Sub
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Broadcast, Concat, Flip, Reshape, Transpose
from treadle.ops.norm import LayerNorm
from treadle.ops.op import Op
from treadle.ops.reduce import Max, Mean, Sum
from treadle.ops.select import Clip
from treadle.ops.softmax import Softmax
from treadle.ops.unary import Abs, Exp, Relu, Sigmoid, Square, Tanh
from treadle.tensor import Tensor

Allowed = Callable[[Op, Sequence[TensorType]], bool]
_SHAPES = ((2, 3), (3,), (2, 3, 4), (4, 3), (3, 3), (3, 5))
_MOST_ELEMENTS = 400
_ONE: tuple[Op, ...] = (
    Relu(), Tanh(), Sigmoid(), Square(), Abs(), Exp(), Gelu("tanh"), Clip(-1.0, 1.0),
)  # fmt: skip
_TWO: tuple[Op, ...] = (Add(), Sub(), Mul(), Maximum(), Matmul(), Concat(0))


class _Maker:
    """One program in the making."""

    def __init__(self, rng: np.random.Generator, allowed: Allowed) -> None:
        self.rng = rng
        self.allowed = allowed
        self.builder = GraphBuilder("random")
        count = int(rng.integers(2, 4))
        shapes = [_SHAPES[int(i)] for i in rng.integers(0, len(_SHAPES), count)]
        self.values = [self.builder.input(TensorType(dt.float32, s)) for s in shapes]

    def pick(self) -> GraphOperand:
        """One of the last values."""
        recent = self.values[-6:]
        return recent[int(self.rng.integers(len(recent)))]

    def step(self) -> None:
        """One more op, unless shapes do not fit or the op is not allowed."""
        x, y = self.pick(), self.pick()
        ops = self._ops(x)
        op = ops[int(self.rng.integers(len(ops)))]
        operands = (x, y) if op in _TWO else (self._bounded(x),) if op in _ONE else (x,)
        types = [o.type for o in operands]
        try:
            (result,) = op.infer(*types)
        except TreadleError:
            return
        small = int(np.prod([int(d) for d in result.shape])) <= _MOST_ELEMENTS
        if small and self.allowed(op, types):
            self.values.append(op(*operands))

    def _bounded(self, x: GraphOperand) -> GraphOperand:
        clip = Clip(-8.0, 8.0)
        return clip(x) if self.allowed(clip, [x.type]) else x

    def _ops(self, x: GraphOperand) -> tuple[Op, ...]:
        shape = tuple([int(d) for d in x.type.shape])
        if not shape:
            return (*_ONE, *_TWO, Broadcast((2, 3)), Reshape((1, 1)))
        axis = int(self.rng.integers(len(shape)))
        order = tuple([int(i) for i in self.rng.permutation(len(shape))])
        return (
            *_ONE, *_TWO, Transpose(order), Reshape((int(np.prod(shape)),)), Flip((axis,)),
            Broadcast((2, *shape)), Sum((axis,)), Mean((axis,), True), Max((axis,)),
            Softmax(axis), LayerNorm(1),
        )  # fmt: skip


def random_program(
    rng: np.random.Generator, *, most: int = 14, allowed: Allowed = lambda op, types: True
) -> Graph:
    """A float32 program of up to `most` ops that are allowed; its values stay small."""
    maker = _Maker(rng, allowed)
    for _ in range(most):
        maker.step()
    maker.builder.output(maker.values[-1], maker.pick())
    return maker.builder.build()


def inputs_of(graph: Graph, rng: np.random.Generator) -> list[Array]:
    """Inputs in [-2, 2)."""
    return [
        np.asarray(rng.uniform(-2, 2, t.shape)).astype(t.dtype.numpy) for t in graph.input_types
    ]


def graph_of(op: Op, types: Sequence[TensorType]) -> Graph:
    """A graph of one op."""
    builder = GraphBuilder("sample")
    inputs = [builder.input(t) for t in types]
    builder.output(*builder.apply(_with_graphs(op), inputs))
    return builder.build()


def _with_graphs(op: Op) -> Op:
    """The op with graphs in place of the Python functions that samples use as regions."""

    def change(value: object) -> object:
        if isinstance(value, FunctionRegion):
            return trace_body(value.function, value.input_types, value.name)
        return value

    return substitute_attributes(op, change)


def interpret(graph: Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a graph, op by op, on tensors."""
    known = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        results = node.op.outputs(*[known[v] for v in node.inputs])
        known.update(zip(node.outputs, results, strict=True))
    return [known[v] for v in graph.outputs]
