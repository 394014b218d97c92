"""Gradients in the weight of convolutions whose operands are channels-last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.backends.api import Support, no, yes
from treadle.backends.codegen.contraction.api import Answer, LoweringRequest
from treadle.backends.codegen.contraction.pairs.lower import MOST_SHIFTS, unit_of
from treadle.backends.codegen.contraction.pairs.packed import LINES
from treadle.backends.codegen.contraction.pairs.tiles import Multiplier
from treadle.backends.codegen.contraction.shared.body import BodyRefused, EpilogueReader, Reading
from treadle.backends.codegen.contraction.shared.form import ResultForm
from treadle.backends.codegen.contraction.shared.launch import Launches
from treadle.backends.codegen.contraction.shared.offsets import (
    along,
    count_of,
    grid,
    joined,
    steps_of,
)
from treadle.backends.codegen.contraction.shared.pack import order_of
from treadle.backends.codegen.contraction.shared.positions import RowPart, forward_part
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem, Matrix
from treadle.backends.codegen.contraction.shared.spread import Margins, SpreadOperand, spread
from treadle.backends.codegen.contraction.shared.tile import Tile, choose_tile
from treadle.backends.codegen.contraction.weights.kernel import (
    ElementSteps,
    WeightConfig,
    WeightParameters,
    weight_kernels,
)
from treadle.backends.codegen.contraction.weights.pairs import lower_weight_pairs
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import Strided, extents
from treadle.backends.program import Lowered, Ref
from treadle.base.estimates import estimate, is_many
from treadle.base.symbol import Dim, Expr, is_identical
from treadle.ops.conv import ConvGradWeight
from treadle.ops.movement import Reshape

_ROWS = 288
"""Rows of an item; more only where it has many taps."""
_CHANNELS = 16
"""Least channels of an item, if there are so many: a line of the cache."""
_TAPS = 1024
"""Rows of an item with many taps."""
_DEPTH = 128
"""Positions packed at a time: one line of the cache each in the tiles of a row."""
_FEW = 512
"""Positions up to which a pointwise gradient is a plain product: its rows are packed as a whole."""
_LINES = 128
"""Positions that are a multiple of two lines apart fill less than the whole cache."""
_APART = 2048
"""Bytes between neighboring cells from which they lie on more pages than are kept near."""
_PACKED = 256 << 10
"""Most bytes of packed rows."""
_STACK = 1 << 20
"""Most bytes of the sums of an item."""
_VAIN = 1.9
"""Cells for each that a window begins at, from which products of float32 take less time than those
of all cells by vectors of bfloat16."""
_ITEM = 1 << 21
"""Arithmetic operations that make an item worth its own turn."""
_ITEMS = 8
"""Items that keep a few threads equally busy."""


@dataclass(frozen=True, slots=True)
class _WeightPlan:
    """Sizes of items.

    Attributes:
        tile: the register tile.
        chunk, rows: channels of an item, and rows: all taps of them.
        depth: positions of a step.
        width: panels of an item.
        items: how many there are.
        parts, part: parts of all positions, and positions of one.
    """

    tile: Tile
    chunk: int
    rows: int
    depth: int
    width: int
    items: int
    parts: Dim
    part: Dim

    @property
    def pitch(self) -> int:
        """Elements from one packed position to the next: an odd number of lines of the cache."""
        line = 64 // self.tile.dtype.itemsize
        return (-(-self.rows // line) | 1) * line

    @property
    def sums(self) -> int:
        """Elements of the sums of an item."""
        return self.rows * self.width * self.tile.width


def claims(request: LoweringRequest) -> Support:
    """Return whether both operands have a stride per axis, and are not row-major."""
    if request.gathers:
        return no("layout", "row-major maps are gathered")
    if None in request.views:
        return no("layout", "gradients of weights take no blocks of channels")
    return yes()


def lower(request: LoweringRequest) -> Answer:
    """A plain product, products of pairs, or kernels of their own."""
    body, anchor, target = request.body, request.anchor, request.target
    op, views = anchor.op, [view for view in request.views if view is not None]
    if not isinstance(op, ConvGradWeight):
        return no("op", f"{op.name} is not a gradient in a weight")
    outputs, channels, *kernel = extents(anchor.output.type.shape)
    groups, taps = op.groups, math.prod(kernel)
    shape = groups, outputs // groups, channels * taps
    try:
        reader = EpilogueReader(body, anchor, lambda view: view.after(Reshape(shape)))
        extras, results, epilogue = reader.read()
    except BodyRefused as refusal:
        return no("layout", str(refusal))
    images, _, *positions = views[1].shape
    dy = ResultForm(images, groups, outputs // groups, (*positions,), True).pull(views[1])
    if dy is None:
        return no("layout", "the images of dy do not follow one another")
    types = [v.type.dtype for v in anchor.inputs]
    a, b = Matrix.of("input", types[0], views[0]), Matrix.of("input", types[1], dy)
    k = dy.shape[1]
    whole = ContractionProblem((groups,), shape[1], shape[2], k, a, b, extras, results, epilogue)
    unit = unit_of(whole, target)
    if op.window((*kernel,)).is_pointwise and (estimate(k) <= _FEW or unit is not None):
        x = ResultForm(images, groups, channels, (*positions,), True).pull(views[0])
        if x is not None:
            b, a = Matrix.of("input", types[0], x), b.transposed()
            problem = ContractionProblem(
                (groups,), shape[1], channels, k, a, b, extras, results, epilogue
            )
            return Reading(problem, reader.constants)
    if unit is not None and not whole.is_open and _pays(op, views, (*kernel,), unit):
        return lower_weight_pairs(body, anchor, (views[0], views[1]), target, unit)
    launches = Launches(whole, target, reader.constants)
    plan = _plan(launches, channels, taps, target)
    if plan.sums * plan.tile.dtype.itemsize > _STACK:
        return no("size-limit", f"a window of {taps} cells")
    margins, part = forward_part(op, views[0].shape, (*kernel,))
    source = SpreadOperand(a, views[0].shape, views[0].strides)
    if taps == 1 and all(map(is_identical, margins.extents, source.shape[2:])):
        # Cells that are not read would only keep those that are read apart.
        source = source.every(op.strides, (*positions,))
        margins, part = Margins.none((*positions,)), RowPart.whole((*positions,))
    # Tiles read many positions of few channels: those must not compete for lines of the cache.
    step = source.strides[-1] * launches.dtype.itemsize
    near = taps > 1 and is_identical(step % _LINES, 0)
    anyway = not is_identical(source.strides[1], 1) or near
    source = spread(launches, source, margins, anyway=anyway, clash=_LINES)
    if source.reach >= 1 << 31:
        return no("size-limit", "offsets into the operand do not fit in 31 bits")
    return _launch(launches, plan, op, source, part)


def _pays(
    op: ConvGradWeight, views: Sequence[Strided], kernel: tuple[int, ...], unit: Multiplier
) -> bool:
    """Return whether products of words, one for every tap, compute the gradient in less time."""
    shapes = [tuple(map(int, view.shape)) for view in views]
    (_, channels, *_), (_, outputs, *positions) = shapes
    taps = math.prod(kernel)
    # A cell that no window meets would bring its NaN to the sums of all.
    covered = taps == 1 or all(n >= step for n, step in zip(kernel, op.strides, strict=True))
    wide = min(channels, outputs) >= LINES  # Words of fewer channels are mostly empty.
    if op.groups > 1 or not covered or not wide or taps > MOST_SHIFTS:
        return False
    cells = [int(n) for n in forward_part(op, shapes[0], kernel)[0].extents]
    if unit.matrices or (taps == 1 and cells == list(shapes[0][2:])):
        return True  # With one tap, cells that no window begins at are left out.
    return math.prod(cells) <= _VAIN * math.prod(positions)


def _plan(launches: Launches, channels: int, taps: int, target: Target) -> _WeightPlan:
    problem = launches.problem
    n, k, size = int(problem.m), estimate(problem.k), launches.dtype.itemsize
    tile = choose_tile(target, launches.dtype, _ROWS, n)
    most = max(1, _ROWS // taps, min(_CHANNELS, _TAPS // taps))
    chunk = -(-channels // -(-channels // most))
    rows = taps * chunk
    depth = min(k, _DEPTH)
    quarter = target.l2 // (4 * size)
    panels = -(-n // tile.width)
    width = max(1, min(panels, 8, quarter // (max(rows, depth) * tile.width)))
    width = -(-panels // -(-panels // width))
    items = int(problem.count) * -(-channels // chunk) * -(-panels // width)
    wanted = max(1, min(_ITEMS, estimate(problem.flops) // _ITEM))
    parts = max(1, min(-(-wanted // items), k // (2 * depth)))
    part = -(-k // (parts * depth)) * depth
    if part >= k and isinstance(problem.k, Expr):  # No number of positions is divided.
        return _WeightPlan(tile, chunk, rows, depth, width, items, 1, problem.k)
    return _WeightPlan(tile, chunk, rows, depth, width, items, -(-problem.k // part), part)


def _launch(
    launches: Launches, plan: _WeightPlan, op: ConvGradWeight, source: SpreadOperand, part: RowPart
) -> Lowered:
    problem = launches.problem
    spatial = source.strides[2:]
    images = along(source.shape[0], source.strides[0])
    channels, width = source.shape[1] // op.groups, plan.tile.width
    taps, size = len(part.cells), plan.tile.dtype.itemsize
    # Cells of one tap are packed no more than once per panel, cells far apart would miss pages.
    step = 0 if count_of(part.axes[-1]) == 1 else op.strides[-1]
    apart = estimate(step * spatial[-1] * size) if step else 0
    packs = plan.depth * plan.pitch * size <= _PACKED and (taps == 1 or apart > _APART)
    term_table = launches.offsets(joined(images, part.rows(spatial)))
    row_table = launches.offsets(joined(part.reads(spatial), steps_of(plan.chunk, 1)))
    order = launches.offsets(grid(steps_of(plan.chunk, 1), steps_of(taps, plan.chunk)))
    dy = problem.b
    spec = WeightConfig(
        plan.tile,
        dy.dtype,
        order_of(dy.row, dy.column),
        packs,
        (plan.depth * plan.pitch if packs else 0, plan.depth * plan.width * width),
        plan.sums,
        is_many(plan.parts),
        problem.accessed().epilogue,
    )
    partials = None
    if is_many(plan.parts):
        count = plan.items * plan.parts * plan.sums
        partials = launches.workspace(count * plan.tile.dtype.itemsize)
    panels = -(-problem.m // plan.tile.width)
    given: WeightParameters[Ref, Dim] = WeightParameters(
        a=source.matrix.place,
        b=dy.place,
        partials=partials,
        term_table=term_table,
        row_table=row_table,
        order=order,
        memory=problem.sides.map(lambda matrix: matrix.place),
        k=problem.k,
        n=problem.m,
        channels=channels,
        taps=taps,
        chunk=plan.chunk,
        rows=plan.rows,
        depth=plan.depth,
        pitch=plan.pitch,
        chunks=-(-channels // plan.chunk),
        panel_items=-(-panels // plan.width),
        width=plan.width,
        parts=plan.parts,
        part=plan.part,
        a_group=channels,
        b_group=dy.batch[0],
        b_term=dy.row,
        b_column=dy.column,
        steps=problem.sides.map(_steps),
    )
    _add(launches, plan, spec, given)
    return launches.lowered()


def _add(
    launches: Launches, plan: _WeightPlan, spec: WeightConfig, given: WeightParameters[Ref, Dim]
) -> None:
    """The launch that makes sums, and those that add up and store them."""
    flops = launches.problem.flops
    first, *rest = weight_kernels(spec)
    for items, work, made in (
        (plan.items * plan.parts, flops, first),
        *((plan.items, 0, made) for made in rest),
    ):
        launch = made.launch(
            given,
            items=items,
            serial=estimate(flops) < 1 << 17,
            flops=work,
            nbytes=plan.items * plan.sums * plan.tile.dtype.itemsize,
        )
        launches.launches.append(launch)


def _steps(matrix: Matrix) -> ElementSteps[Dim]:
    return ElementSteps(matrix.batch[0], matrix.row, matrix.column)
