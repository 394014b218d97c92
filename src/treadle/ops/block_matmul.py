"""Products with weights in quantized blocks."""

from __future__ import annotations

import numpy as np

from treadle.base import dtype as dt
from treadle.base.blocks.activations import rounded_activations
from treadle.base.blocks.panels import LAYOUTS, ROWS, from_panels
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.shape import require_equal
from treadle.base.symbol import Dim
from treadle.base.types import TensorType
from treadle.ops.matmul import Matmul
from treadle.ops.op import Array, Op, Pullback, op
from treadle.ops.operand import V
from treadle.ops.sample import Arg, BadSample, Sample


def _check_panels(op: BlockValues | BlockMatmul, panels: TensorType) -> Dim:
    """The elements of a row of panels, which suit the op's format and rows."""
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
        problem = f"{op.rows} rows take {wanted} panels of {ROWS}, [{wanted}, bytes]"
        return op.error(problem, (panels,), "state the rows that the weight has")

    if panels.ndim != 2 or op.rows < 1:
        raise mismatch()
    require_equal(panels.shape[0], wanted, mismatch)
    width = panels.shape[1]
    if isinstance(width, int) and width % layout.block:
        problem = f"panels of {op.format} have a multiple of {layout.block} bytes"
        raise op.error(problem, (panels,), "name the format that the blocks have")
    return width // layout.block * layout.elements


@op
class BlockValues(Op):
    """The values of a matrix in panels of quantized blocks: float32 [rows, k].

    `format` is a key of `treadle.base.blocks.panels.LAYOUTS`, which says where a panel's numbers
    lie; `rows` are those of the matrix, as the last panel may have more.
    """

    format: str = "Q8_0"
    rows: int = 1

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
class BlockMatmul(Op):
    """x W^T over x [..., k] and a matrix W [rows, k] in panels of quantized blocks: [..., rows].

    Activations are rounded to bytes, 32 neighbors with one scale (`rounded_activations`), and
    multiplied with the levels of W as integers; every group's sum is scaled and added in float32.
    So a decoder reads its weights at the size they have in files. The gradient of x is that of a
    product with the values of W, as if nothing had been rounded; W has none.
    """

    format: str = "Q8_0"
    rows: int = 1

    name = "block_matmul"
    operands = ("x", "panels")
    dtypes = (dt.float32, dt.bfloat16, dt.float16)

    def infer(self, x: TensorType, panels: TensorType) -> tuple[TensorType, ...]:
        self.check_dtype((x,))
        terms = _check_panels(self, panels)

        def mismatch() -> ShapeError:
            problem = f"x has rows of {terms} elements, as the panels do"
            return self.error(problem, (x, panels), "check the last extent of x")

        if not x.ndim:
            raise mismatch()
        require_equal(x.shape[-1], terms, mismatch)
        return (x.with_shape((*x.shape[:-1], self.rows)),)

    def reference(self, x: Array, panels: Array) -> Array:
        weight = from_panels(self.format, panels, self.rows)
        found = rounded_activations(x).reshape(-1, x.shape[-1]) @ weight.T
        return found.reshape(*x.shape[:-1], self.rows).astype(x.dtype)

    def vjp(self, at: Pullback[V]) -> tuple[V | None, ...]:
        x, panels = at.inputs
        values = BlockValues(self.format, self.rows)(panels).astype(x.type.dtype)
        return Matmul()(at.dy, values), None

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        made = []
        for name, shape, rows in (
            ("Q8_0", (64,), 3),
            ("Q4_0", (2, 64), 17),
            ("Q4_1", (3, 1, 32), 5),
            ("Q6_K", (2, 256), 16),
        ):
            layout = LAYOUTS[name]
            panels = _panels(name, rows, shape[-1] // layout.elements)
            made.append(Sample(cls(name, rows), (Arg(shape), panels), gradient=False))
        return tuple(made)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        panels = Arg((1, 544), dt.uint8)
        return (
            BadSample(lambda: cls("Q8_0", 3), (Arg((2, 33)), panels), ShapeError, "32 elements"),
            BadSample(
                lambda: cls("Q8_0", 3),
                (Arg((2, 32)), Arg((1, 544), dt.int32)),
                DTypeError,
                "hold bytes",
            ),
        )


def _panels(name: str, rows: int, blocks: int) -> Arg:
    """Panels of small numbers."""
    layout = LAYOUTS[name]
    rng = np.random.default_rng(len(name) + rows)
    count = -(-rows // ROWS)
    made = rng.integers(0, 256, (count, blocks, layout.block), dtype=np.uint8)
    header = rng.uniform(0.001, 0.01, (count, blocks, layout.header // 2)).astype(np.float16)
    made[..., : layout.header] = header.view(np.uint8)
    return Arg((), dt.uint8, values=tuple(map(tuple, made.reshape(count, -1).tolist())))
