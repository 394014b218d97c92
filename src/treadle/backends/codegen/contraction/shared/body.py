"""Bodies of fused groups read as contractions: operands as views, the rest as an epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from treadle.backends.api import Support, no
from treadle.backends.codegen.contraction.shared.epilogue import Epilogue, EpilogueOp, Term
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem, Matrix, Moments
from treadle.backends.codegen.scalars.convert import compute_dtype
from treadle.backends.codegen.views import Dims, Strided, dense, is_reversible, strided_input
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.symbol import is_identical
from treadle.graph.analysis import is_widening
from treadle.graph.ir import Graph, Node, Value, constant_of
from treadle.ops.column_moments import ColumnMoments
from treadle.ops.elementwise import Cast
from treadle.ops.families import Elementwise
from treadle.ops.matmul import MatrixProduct
from treadle.ops.op import Op

Pull = Callable[[Strided], "Strided | None"]
"""From a view in the shape of some value to one in the shape of the contraction's result."""


def _itself(view: Strided) -> Strided:
    return view


class BodyRefused(Exception):
    """The body is not a contraction this generator knows."""


@dataclass(slots=True)
class Reading:
    """A body as it was read; `constants` are the arrays that operands of kind constant name."""

    problem: ContractionProblem
    constants: list[Array]


def anchor_of(body: Graph) -> Node | Support:
    """The one contraction of a body, or why there is none."""
    anchors = [node for node in body.nodes if node.op.contraction]
    if len(anchors) != 1:
        return no("op", f"a contraction group has one contraction, not {len(anchors)}")
    return anchors[0]


def read_product(body: Graph, anchor: Node) -> Reading | Support:
    """A body around a matrix product, or why it cannot be read."""
    try:
        reader = EpilogueReader(body, anchor)
        loaded = _as_loaded(anchor)
        a, b = _operands(body, anchor, loaded)
        extras, results, epilogue = reader.read()
    except BodyRefused as refusal:
        return no("layout", str(refusal))
    *batch, m, n = anchor.output.type.shape
    k = a.shape[-1]
    x, y = (operand.dtype for operand in loaded)
    left, right = Matrix.of("input", x, a), Matrix.of("input", y, b)
    if x.is_float or y.is_float:  # Bytes beside floats are widened, and their sums are floats.
        left, right = replace(left, integer=False), replace(right, integer=False)
    problem = ContractionProblem(tuple(batch), m, n, k, left, right, extras, results, epilogue)
    return Reading(problem, reader.constants)


class _Loaded(NamedTuple):
    """A product's operand as kernels load it: before it is widened, which they do, and moved."""

    value: Value
    moves: tuple[Op, ...]

    @property
    def dtype(self) -> DType:
        return self.value.type.dtype


def _as_loaded(anchor: Node) -> tuple[_Loaded, _Loaded]:
    """Both operands; of two in bytes the first is widened before: sums of bytes are integers."""
    x, y = anchor.inputs
    left, right = _unwidened(x), _unwidened(y)
    both = x.type.dtype.is_float and left.dtype.is_integer and right.dtype.is_integer
    return _Loaded(x, ()) if both else left, right


def _unwidened(value: Value) -> _Loaded:
    moves: list[Op] = []
    before = value
    while before.producer is not None and before.producer.op.strided:
        moves.append(before.producer.op)
        before = before.producer.inputs[0]
    node = before.producer
    if node is None or not is_widening(node):
        return _Loaded(value, ())
    return _Loaded(node.inputs[0], tuple(reversed(moves)))


def _operands(
    body: Graph, anchor: Node, loaded: tuple[_Loaded, _Loaded]
) -> tuple[Strided, Strided]:
    """Both operands of a product as views of one batch shape, rows before columns."""
    op = anchor.op
    if not isinstance(op, MatrixProduct):
        raise BodyRefused(f"{op.name} is not a matrix product")
    batch = anchor.output.type.shape[:-2]
    made: list[Strided] = []
    for (value, moves), transposed in zip(loaded, (op.transpose_x, op.transpose_y), strict=True):
        view = strided_input(body, value)
        for move in moves:
            view = None if view is None else view.after(move)
        if view is None:
            raise BodyRefused("an operand of the product is computed in the group")
        axes = (*range(len(view.shape) - 2), len(view.shape) - 1, len(view.shape) - 2)
        if transposed:
            view = view.transposed(axes)
        made.append(view.broadcast_to((*batch, *view.shape[-2:])))
    return made[0], made[1]


@dataclass(slots=True)
class EpilogueReader:
    """Reads what follows the anchor, node by node.

    `start` leads from views in the shape of the anchor's result to (*batch, rows, columns).
    `measures` says that statistics of the columns of a result may be taken beside it; then
    `moments` are those that were found.
    """

    body: Graph
    anchor: Node
    start: Pull = _itself
    constants: list[Array] = field(default_factory=list)
    measures: bool = False
    moments: Moments | None = None
    _extras: list[Matrix] = field(default_factory=list)
    _steps: list[EpilogueOp] = field(default_factory=list)
    _known: dict[Value, tuple[Term, Pull]] = field(default_factory=dict)

    def read(self) -> tuple[tuple[Matrix, ...], tuple[Matrix, ...], Epilogue]:
        """Further operands, results and the epilogue (whose accesses are not set yet)."""
        dtype = self.anchor.output.type.dtype
        if compute_dtype(dtype) is not dtype and any(
            isinstance(n.op, Elementwise) for n in self.body.nodes
        ):
            # Ops behind a product of 16-bit floats take what it rounds to.
            self._steps.append(EpilogueOp(Cast(dtype), (Term("sum"),), dtype))
            self._known[self.anchor.output] = Term("step", 0), self.start
        else:
            self._known[self.anchor.output] = Term("sum"), self.start
        for node in self.body.nodes:
            if node is not self.anchor and any(v in self._known for v in node.inputs):
                self._follow(node)
        results: list[Matrix] = []
        sources: list[Term] = []
        measured = self._measured()
        for index, value in enumerate(self.body.outputs):
            if measured is not None and value in measured.outputs:
                continue
            if value not in self._known:
                raise BodyRefused(f"output {index} does not depend on the product")
            term, pull = self._known[value]
            view = pull(dense(index, value.type.shape))
            if view is None:
                raise BodyRefused(f"output {index} is not laid out like the product")
            sources.append(term)
            results.append(Matrix.of("output", value.type.dtype, view))
        if measured is not None:
            self.moments = self._moments(measured, sources)
        epilogue = Epilogue((), tuple(self._steps), tuple(sources), ())
        return tuple(self._extras), tuple(results), epilogue

    def _measured(self) -> Node | None:
        """The node that takes statistics of a result."""
        found = [n for n in self.body.nodes if isinstance(n.op, ColumnMoments)]
        if len(found) > 1:
            raise BodyRefused("statistics are taken of several results")
        return found[0] if found else None

    def _moments(self, node: Node, sources: list[Term]) -> Moments:
        """Statistics of what is stored, whose rows are those of the contraction."""
        (value,) = node.inputs
        term, pull = self._known[value]
        view = pull(dense(0, value.type.shape))
        if view is None or term not in sources or not isinstance(node.op, ColumnMoments):
            raise BodyRefused("statistics are taken of a value that is not stored")
        *batch, _, n = view.shape
        if any(extent != 1 for extent in batch) or view.strides[-2:] != (n, 1) or view.offset:
            raise BodyRefused("statistics are taken of other rows")
        if value.type.dtype not in (dt.float32, dt.float64):
            raise BodyRefused("statistics are taken of floats of 32 or 64 bits")
        outputs = self.body.outputs
        if any(v not in outputs for v in node.outputs):
            raise BodyRefused("statistics are means and squares")
        means, squares = (outputs.index(v) for v in node.outputs)
        return Moments(node.op.rows, sources.index(term), means, squares)

    def _follow(self, node: Node) -> None:
        """A node behind the anchor: a movement to look through, or a step."""
        if isinstance(node.op, ColumnMoments) and self.measures:
            return
        if is_reversible(node.op):
            term, pull = self._known[node.inputs[0]]
            self._known[node.output] = term, _through(node, pull)
            return
        if not isinstance(node.op, Elementwise):
            raise BodyRefused(f"{node.op.name} behind the product is not elementwise")
        shape = node.output.type.shape
        like = [v for v in node.inputs if v in self._known and v.type.shape == shape]
        if not like:
            raise BodyRefused(f"{node.op.name} repeats the product")
        pull = self._known[like[0]][1]
        self._known[node.output] = self._step(node, pull), pull

    def _step(self, node: Node, pull: Pull) -> Term:
        shape = node.output.type.shape
        terms = tuple(self._term(v, _broadcast(shape, pull)) for v in node.inputs)
        if not isinstance(node.op, Elementwise):
            raise BodyRefused(f"{node.op.name} beside the product is not elementwise")
        if node.output.type.dtype.kind == "complex":
            raise BodyRefused(f"{node.op.name} gives complex numbers")
        self._steps.append(EpilogueOp(node.op, terms, node.output.type.dtype))
        return Term("step", len(self._steps) - 1)

    def _term(self, value: Value, pull: Pull) -> Term:
        """An operand of a step."""
        if value in self._known:
            term, own = self._known[value]
            whole = dense(0, value.type.shape)
            if not _is_same(own(whole), pull(whole)):
                raise BodyRefused("a step meets the product in two orders of axes")
            return term
        data = constant_of(value)
        if data is not None:
            return self._constant(value, data.array, pull)
        view = strided_input(self.body, value)
        if view is None:
            return self._beside(value, pull)
        return self._extra(Matrix.of("input", value.type.dtype, _pulled(pull, view)))

    def _constant(self, value: Value, array: Array, pull: Pull) -> Term:
        dtype = value.type.dtype
        if array.size == 1 and not (self._shares_kernels and _is_measured(array)):
            number = array.astype(np.float64).item() if dtype.is_float else array.item()
            return Term("literal", 0, number, repr(number), dtype)
        self.constants.append(np.ascontiguousarray(array))
        view = _pulled(pull, dense(len(self.constants) - 1, array.shape))
        return self._extra(Matrix.of("constant", dtype, view))

    @property
    def _shares_kernels(self) -> bool:
        """True where numbers are data: layers of a quantized network differ in scales only."""
        return self.anchor.output.type.dtype.is_integer

    def _beside(self, value: Value, pull: Pull) -> Term:
        """Return the values that are computed from further operands alone."""
        node = value.producer
        if node is not None and node.op.strided:
            return self._term(node.inputs[0], lambda view: _moved(node, view, pull))
        if node is None or not isinstance(node.op, Elementwise):
            raise BodyRefused("an operand behind the product is not elementwise")
        return self._step(node, pull)

    def _extra(self, matrix: Matrix) -> Term:
        if matrix not in self._extras:
            self._extras.append(matrix)
        return Term("extra", self._extras.index(matrix))


def _is_measured(array: Array) -> bool:
    """Return whether a number looks like a measured one: no whole number and no power of two."""
    number = array.astype(np.float64).item() if array.dtype.kind == "f" else 0.0
    return math.isfinite(number) and number % 1 != 0 and abs(math.frexp(number)[0]) != 0.5


def _is_same(x: Strided | None, y: Strided | None) -> bool:
    """Return whether two views have the same elements at the same places."""
    if x is None or y is None or len(x.shape) != len(y.shape):
        return False
    if not all(map(is_identical, (*x.shape, x.offset), (*y.shape, y.offset))):
        return False
    axes = zip(x.shape, x.strides, y.strides, strict=True)
    return all(is_identical(n, 1) or is_identical(a, b) for n, a, b in axes)


def _through(node: Node, pull: Pull) -> Pull:
    """The pull of a movement's result, given that of its operand."""

    def pulled(view: Strided) -> Strided | None:
        before = view.before(node)
        return None if before is None else pull(before)

    return pulled


def _moved(node: Node, view: Strided, pull: Pull) -> Strided | None:
    after = view.after(node.op)
    return None if after is None else pull(after)


def _broadcast(shape: Dims, pull: Pull) -> Pull:
    return lambda view: pull(view.broadcast_to(shape))


def _pulled(pull: Pull, view: Strided) -> Strided:
    found = pull(view)
    if found is None:
        raise BodyRefused("an operand behind the product is not laid out like it")
    return found
