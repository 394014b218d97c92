"""Products with weights in quantized blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.blocks.activations import ACTIVATIONS, rounded_activations
from treadle.base.blocks.panels import LAYOUTS, ROWS, from_panels
from treadle.base.dtype import DType
from treadle.base.errors import DTypeError, IndexRangeError, ShapeError
from treadle.base.shape import require_equal
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.gather import check_index
from treadle.ops.index_numpy import check_bounds
from treadle.ops.matmul import Matmul
from treadle.ops.op import BadSample, IndexRange, Op, Pullback, Sample, V, family, op
from treadle.ops.reduce import Sum


def _check_panels(op: BlockWeight, panels: TensorType, matrices: int = 0) -> Dim:
    """The elements of a row of panels, which suit the op's format and rows.

    They are those of one matrix, or have an axis before for several.
    """
    layout = LAYOUTS.get(op.format)
    if layout is None:
        known = ", ".join(LAYOUTS)
        raise op.error(
            f"no kernel reads the format {op.format!r}", (panels,), f"use one of {known}"
        )
    if panels.dtype is not dt.uint8:
        raise DTypeError(
            op.name,
            f"panels hold bytes, not {panels.dtype.name}",
            saw=op.saw((panels,)),
            hint="make them with treadle.base.blocks.panels.to_panels",
        )
    wanted = -(-op.rows // ROWS)

    def mismatch() -> ShapeError:
        axes = "[experts, " * matrices + "[" * (1 - matrices)
        problem = f"{op.rows} rows take {wanted} panels of {ROWS}, {axes}{wanted}, bytes]"
        return op.error(problem, (panels,), "state the rows that the weight has")

    if panels.ndim != 2 + matrices or op.rows < 1:
        raise mismatch()
    require_equal(panels.shape[-2], wanted, mismatch)
    width = panels.shape[-1]
    if isinstance(width, int) and width % layout.block:
        problem = f"panels of {op.format} have a multiple of {layout.block} bytes"
        raise op.error(problem, (panels,), "name the format that the blocks have")
    return width // layout.block * layout.elements


def _check_activations(op: BlockMatmul | BlockExperts, x: TensorType) -> None:
    if op.activations not in ACTIVATIONS:
        known = " or ".join(ACTIVATIONS)
        problem = f"activations are rounded to {known}, not {op.activations!r}"
        raise op.error(problem, (x,), "int16 is nearly exact")


@family
class BlockWeight(Op):
    """Attributes of an op on a matrix in panels of quantized blocks; see `BlockValues`."""

    operands: ClassVar[tuple[str, ...]] = ("x", "panels")
    dtypes: ClassVar[tuple[DType, ...]] = (dt.float32, dt.bfloat16, dt.float16)
    transposed: ClassVar[bool] = False
    """True for dy W, a gradient; products are x W^T."""
    format: str = "Q8_0"
    rows: int = 1


@op
class BlockValues(BlockWeight):
    """The values of a matrix in panels of quantized blocks: float32 [rows, k].

    `format` is a key of `treadle.base.blocks.panels.LAYOUTS`, which says where a panel's numbers
    lie; `rows` are those of the matrix, as the last panel may have more.
    """

    name = "block_values"
    operands = ("panels",)
    dtypes = (dt.uint8,)
    no_gradient = "takes bytes"

    def infer(self, panels: TensorType) -> tuple[TensorType, ...]:
        terms = _check_panels(self, panels)
        return (TensorType(dt.float32, (self.rows, terms), panels.device),)

    def reference(self, panels: Array) -> Array:
        return from_panels(self.format, panels, self.rows)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(
            Sample(cls(name, rows), (_panels(name, rows, 2),))
            for name, rows in (("Q8_0", 3), ("Q4_0", 17), ("Q6_K", 16))
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        return (
            BadSample(
                lambda: cls("Q9", 3), (Arg((1, 544), dt.uint8),), ShapeError, "the format 'Q9'"
            ),
            BadSample(
                lambda: cls("Q8_0", 17), (Arg((1, 544), dt.uint8),), ShapeError, "take 2 panels"
            ),
            BadSample(
                lambda: cls("Q8_0", 3), (Arg((1, 540), dt.uint8),), ShapeError, "a multiple of 544"
            ),
        )


@op
class BlockMatmul(BlockWeight):
    """x W^T over x [..., k] and a matrix W [rows, k] in panels of quantized blocks: [..., rows].

    `activations` says what x is rounded to. As "int16" or "int8", 32 neighbors with one scale
    (`rounded_activations`), it is multiplied with the levels of W as integers; the sum of every
    group is scaled and added in float32. As "bfloat16" it is multiplied with the values of W, which
    are rounded to bfloat16, too, and summed in float32: many rows are faster so, where processors
    multiply bfloat16.
    So a decoder reads its weights at the size they have in files. The gradient of x is that of a
    product with the values of W, as if nothing had been rounded; with "bfloat16" it is such a
    product, too (`block_matmul_grad`). W has none.
    """

    activations: str = "int16"

    name = "block_matmul"

    def infer(self, x: TensorType, panels: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        _check_activations(self, x)
        terms = _check_panels(self, panels)

        def mismatch() -> ShapeError:
            problem = f"x has rows of {terms} elements, as the panels do"
            return self.error(problem, (x, panels), "check the last extent of x")

        if not x.ndim:
            raise mismatch()
        require_equal(x.shape[-1], terms, mismatch)
        return (x.with_shape((*x.shape[:-1], self.rows)),)

    def reference(self, x: Array, panels: Array) -> Array:
        weight = _values(self, panels)
        found = rounded_activations(x, self.activations).reshape(-1, x.shape[-1]) @ weight.T
        return found.reshape(*x.shape[:-1], self.rows).astype(x.dtype)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x, panels = at.inputs
        if self.activations == "bfloat16":
            return BlockMatmulGrad(self.format, self.rows)(at.dy, panels), None
        values = BlockValues(self.format, self.rows)(panels).astype(x.type.dtype)
        return Matmul()(at.dy, values), None

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        made = []
        for name, shape, rows, kind in (
            ("Q8_0", (64,), 3, "int16"),
            ("Q4_0", (2, 64), 17, "int8"),
            ("Q4_1", (3, 1, 32), 5, "int16"),
            ("Q6_K", (2, 256), 16, "int16"),
            ("Q5_1", (18, 64), 33, "bfloat16"),
            ("IQ4_XS", (2, 256), 20, "int16"),
            ("MXFP4", (3, 64), 20, "int8"),
        ):
            layout = LAYOUTS[name]
            panels = _panels(name, rows, shape[-1] // layout.elements)
            made.append(Sample(cls(name, rows, kind), (Arg(shape), panels), gradient=False))
        return tuple(made)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        panels = Arg((1, 544), dt.uint8)
        return (
            BadSample(lambda: cls("Q8_0", 3), (Arg((2, 33)), panels), ShapeError, "32 elements"),
            BadSample(
                lambda: cls("Q8_0", 3, "int4"), (Arg((2, 32)), panels), ShapeError, "or bfloat16"
            ),
            BadSample(
                lambda: cls("Q8_0", 3),
                (Arg((2, 32)), Arg((1, 544), dt.int32)),
                DTypeError,
                "hold bytes",
            ),
        )


@op
class BlockMatmulGrad(BlockWeight):
    """dy W over dy [..., rows] and a matrix W [rows, k] in panels of blocks: [..., k].

    It is the gradient of x in `block_matmul`. dy and the values of W are rounded to bfloat16, sums
    are float32.
    """

    name = "block_matmul_grad"
    operands = ("dy", "panels")
    transposed = True

    def infer(self, dy: TensorType, panels: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((dy,))
        terms = _check_panels(self, panels)

        def mismatch() -> ShapeError:
            problem = f"dy has rows of {self.rows} elements"
            return self.error(problem, (dy, panels), "check the last extent of dy")

        if not dy.ndim:
            raise mismatch()
        require_equal(dy.shape[-1], self.rows, mismatch)
        return (dy.with_shape((*dy.shape[:-1], terms)),)

    def reference(self, dy: Array, panels: Array) -> Array:
        weight = rounded_activations(from_panels(self.format, panels, self.rows), "bfloat16")
        found = rounded_activations(dy, "bfloat16").reshape(-1, dy.shape[-1]) @ weight
        return found.reshape(*dy.shape[:-1], weight.shape[1]).astype(dy.dtype)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        _, panels = at.inputs
        return BlockMatmul(self.format, self.rows, "bfloat16")(at.dy, panels), None

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return tuple(
            Sample(cls(name, rows), (Arg((*batch, rows)), _panels(name, rows, 2)), gradient=False)
            for name, rows, batch in (
                ("Q8_0", 3, ()),
                ("Q4_0", 33, (2,)),
                ("Q6_K", 16, (3, 1)),
                ("Q4_K", 70, (18,)),
            )
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        panels = Arg((1, 544), dt.uint8)
        return (
            BadSample(lambda: cls("Q8_0", 3), (Arg((2, 4)), panels), ShapeError, "3 elements"),
            BadSample(lambda: cls("Q8_0", 17), (Arg((17,)), panels), ShapeError, "take 2 panels"),
        )


@op
class BlockExperts(BlockWeight):
    """Rows times the matrices that were chosen for them: y[t, s] = x[t, s or 0] W[experts[t, s]]^T.

    As `block_matmul` with several matrices [experts, rows, k] in panels; x is [tokens, 1 or chosen,
    k] and `experts` an integer [tokens, chosen]. The result is [tokens, chosen, rows]; only the
    matrices that were chosen are read. The gradient of x is that of `block_experts_grad`.
    """

    activations: str = "int16"

    name = "block_experts"
    operands = ("x", "panels", "experts")

    def infer(
        self, x: TensorType, panels: TensorType, experts: TensorType
    ) -> tuple[TensorType, ...]:
        types = x, panels, experts
        self.check_dtype((x,))
        _check_activations(self, x)
        check_index(self, types, 2)
        terms = _check_panels(self, panels, 1)
        _check_experts(self, types, ("x", terms, "1 or chosen"))
        return (x.with_shape((*experts.shape, self.rows)),)

    def index_ranges(self, types: tuple[TensorType, ...]) -> tuple[IndexRange, ...]:
        extent = types[1].shape[0]
        return ((2, -extent, extent),)

    def reference(self, x: Array, panels: Array, experts: Array) -> Array:
        given = rounded_activations(x, self.activations)

        def times(rows: Array, panels: Array) -> Array:
            return rows @ _values(self, panels).T

        return _routed(self, (x, panels, experts), given, self.rows, times)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x, panels, experts = at.inputs
        dx = BlockExpertsGrad(self.format, self.rows)(at.dy, panels, experts)
        if x.type.shape[1] == 1:
            dx = Sum((1,), keepdims=True)(dx)
        return dx, None, None

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        chosen = Arg((), dt.int32, values=((2, 0), (-1, 2), (1, 0)))
        return tuple(
            Sample(cls(name, rows, kind), (Arg((3, s, 64)), _panels(name, rows, 2, 3), chosen))
            for name, rows, s, kind in (
                ("Q8_0", 3, 1, "int16"),
                ("Q4_0", 17, 2, "int8"),
                ("Q5_0", 40, 1, "bfloat16"),
                ("IQ4_NL", 20, 1, "int16"),
            )
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x, panels = Arg((2, 1, 32)), Arg((3, 1, 544), dt.uint8)
        far, real = Arg((), dt.int32, values=((0,), (3,))), Arg((2, 1))
        near = Arg((), dt.int32, values=((0,), (2,)))
        return (
            BadSample(lambda: cls("Q8_0", 3), (x, panels, far), IndexRangeError, "index 3"),
            BadSample(lambda: cls("Q8_0", 3), (x, panels, real), DTypeError, "is float32"),
            BadSample(lambda: cls("Q8_0", 3), (Arg((2, 32)), panels, near), ShapeError, "x is ["),
            BadSample(lambda: cls("Q8_0", 40), (x, panels, near), ShapeError, "take 3 panels"),
        )


@op
class BlockExpertsGrad(BlockWeight):
    """dy[t, s] W[experts[t, s]] over dy [tokens, chosen, rows]: [tokens, chosen, k].

    It is the gradient of x in `block_experts`, for each matrix that was chosen. dy and the values
    of matrices are rounded to bfloat16, sums are float32.
    """

    name = "block_experts_grad"
    operands = ("dy", "panels", "experts")
    transposed = True

    def infer(
        self, dy: TensorType, panels: TensorType, experts: TensorType
    ) -> tuple[TensorType, ...]:
        types = dy, panels, experts
        self.check_dtype((dy,))
        check_index(self, types, 2)
        terms = _check_panels(self, panels, 1)
        _check_experts(self, types, ("dy", self.rows, "chosen"))
        return (dy.with_shape((*experts.shape, terms)),)

    def index_ranges(self, types: tuple[TensorType, ...]) -> tuple[IndexRange, ...]:
        extent = types[1].shape[0]
        return ((2, -extent, extent),)

    def reference(self, dy: Array, panels: Array, experts: Array) -> Array:
        layout = LAYOUTS[self.format]
        terms = panels.shape[2] // layout.block * layout.elements

        def times(rows: Array, panels: Array) -> Array:
            values = from_panels(self.format, panels, self.rows)
            return rows @ rounded_activations(values, "bfloat16")

        return _routed(
            self, (dy, panels, experts), rounded_activations(dy, "bfloat16"), terms, times
        )

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        _, panels, experts = at.inputs
        there = BlockExperts(self.format, self.rows, "bfloat16")
        return there(at.dy, panels, experts), None, None

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        chosen = Arg((), dt.int32, values=((2, 0), (-1, 2), (1, 0)))
        return tuple(
            Sample(
                cls(name, rows),
                (Arg((3, 2, rows)), _panels(name, rows, 2, 3), chosen),
                gradient=False,
            )
            for name, rows in (("Q8_0", 3), ("Q5_0", 40), ("Q3_K", 17))
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        dy, panels = Arg((2, 1, 3)), Arg((3, 1, 544), dt.uint8)
        far = Arg((), dt.int32, values=((0,), (3,)))
        near, two = (Arg((), dt.int32, values=((0,) * n, (2,) * n)) for n in (1, 2))
        return (
            BadSample(lambda: cls("Q8_0", 3), (dy, panels, far), IndexRangeError, "index 3"),
            BadSample(lambda: cls("Q8_0", 4), (dy, panels, near), ShapeError, "dy is ["),
            BadSample(lambda: cls("Q8_0", 3), (dy, panels, two), ShapeError, "dy is ["),
        )


def _check_experts(
    op: BlockExperts | BlockExpertsGrad,
    types: tuple[TensorType, ...],
    wanted: tuple[str, Dim, str],
) -> None:
    """Rows and the experts that they chose; `wanted` names the operand and its axes."""
    x, _, experts = types
    name, terms, axis = wanted

    def mismatch() -> ShapeError:
        problem = f"{name} is [tokens, {axis}, {terms}] and experts [tokens, chosen]"
        return op.error(problem, types, f"check the axes of {name}")

    if x.ndim != 3 or experts.ndim != 2:
        raise mismatch()
    require_equal(x.shape[2], terms, mismatch)
    require_equal(x.shape[0], experts.shape[0], mismatch)
    if x.shape[1] != 1 or axis == "chosen":
        require_equal(x.shape[1], experts.shape[1], mismatch)


def _routed(
    op: BlockExperts | BlockExpertsGrad,
    arrays: tuple[Array, Array, Array],
    given: Array,
    columns: int,
    times: Callable[[Array, Array], Array],
) -> Array:
    """Rows times the matrices that they chose, matrix by matrix."""
    x, panels, experts = arrays
    count = panels.shape[0]
    check_bounds(op, arrays, experts, 0, count, -count)
    rows = np.broadcast_to(given, (*experts.shape, x.shape[-1]))
    found = np.zeros((*experts.shape, columns), np.float32)
    for number in np.unique(experts):
        chosen = experts == number
        found[chosen] = times(rows[chosen], panels[number])
    return found.astype(x.dtype)


def _values(op: BlockMatmul | BlockExperts, panels: Array) -> Array:
    """The values of a matrix as they are multiplied."""
    values = from_panels(op.format, panels, op.rows)
    return rounded_activations(values, "bfloat16") if op.activations == "bfloat16" else values


def _panels(name: str, rows: int, blocks: int, matrices: int = 0) -> Arg:
    """Panels of small numbers, of one matrix or of several."""
    layout = LAYOUTS[name]
    rng = np.random.default_rng(len(name) + rows)
    count = -(-rows // ROWS) * max(matrices, 1)
    made = rng.integers(0, 256, (count, blocks, layout.block), dtype=np.uint8)
    # Where groups have scales of their own, levels are multiplied by these as well.
    most = 0.01 if layout.scales == "none" else 0.0005 / (16 if layout.bits == 8 else 1)
    header = rng.uniform(most / 10, most, (count, blocks, layout.header // 2)).astype(np.float16)
    made[..., : layout.header] = header.view(np.uint8)
    values = made.reshape(*(matrices,) * bool(matrices), -1, blocks * layout.block).tolist()
    return Arg((), dt.uint8, values=_tuples(values))


def _tuples(nested: Any) -> Any:
    return tuple(map(_tuples, nested)) if isinstance(nested, list) else nested
