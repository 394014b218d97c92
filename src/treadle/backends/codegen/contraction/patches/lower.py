"""Convolutions and their gradients as products of a matrix with gathered patches.

`convolution_maps` says which; here the operands are prepared and the launches made.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from treadle.backends.api import Support, no, yes
from treadle.backends.codegen.contraction.api import Answer, LoweringRequest
from treadle.backends.codegen.contraction.patches.operands import (
    AXES,
    ReorderParameters,
    SpreadParameters,
    reorder_kernel,
    spread_kernel,
)
from treadle.backends.codegen.contraction.shared.body import BodyRefused, EpilogueReader
from treadle.backends.codegen.contraction.shared.geometry import (
    ColumnPart,
    ConvolutionGeometry,
    Planes,
    geometry_of,
)
from treadle.backends.codegen.contraction.shared.items import ItemTables
from treadle.backends.codegen.contraction.shared.launch import Launches, packing_launch
from treadle.backends.codegen.contraction.shared.offsets import (
    Sums,
    count_of,
    fixed,
    grid,
    steps_of,
)
from treadle.backends.codegen.contraction.shared.pack import Packing
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem, Matrix
from treadle.backends.codegen.contraction.shared.tile import choose_tile
from treadle.backends.codegen.contraction.tiles.lower import multiply_in_tiles
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import sizes_of
from treadle.backends.program import Launch, Ref
from treadle.base.dtype import DType
from treadle.base.estimates import estimate
from treadle.base.symbol import Dim, is_identical
from treadle.ops.conv import ConvGradInput, Convolution
from treadle.ops.movement import Reshape

_WASTE = 1.05
"""Columns of panels per column of the result from which images share panels."""


def claims(request: LoweringRequest) -> Support:
    """Return whether operands and results are row-major."""
    if request.gathers:
        return yes()
    return no("layout", "operands and results are not row-major")


def lower(request: LoweringRequest) -> Answer:
    """The operands made ready, then a product for every part."""
    body, anchor, target = request.body, request.anchor, request.target
    op, found = anchor.op, [view for view in request.views if view is not None]
    if not isinstance(op, Convolution):
        return no("op", f"{op.name} is not a convolution")
    types = [v.type for v in anchor.inputs]
    shapes = [sizes_of(t.shape) for t in types]
    # Phases of a symbolic axis would be as many as it has positions, or their places unknown.
    phased = not isinstance(op, ConvGradInput) or all(isinstance(n, int) for n in op.spatial)
    geometry = geometry_of(op, *shapes, phased=phased)
    shape = (*geometry.batch, geometry.m, geometry.n)
    try:
        reader = EpilogueReader(body, anchor, lambda view: view.after(Reshape(shape)))
        extras, results, epilogue = reader.read()
    except BodyRefused as refusal:
        return no("layout", str(refusal))
    if any(x.column for x in extras) or any(c.column != 1 for c in results):
        # What varies along the columns needs them in order.
        geometry = geometry_of(op, *shapes, phased=False)
    if geometry.planes.count * geometry.planes.size >= 1 << 31:
        return no("size-limit", "offsets into the operand do not fit in 31 bits")
    b, a = (
        Matrix.of("input", t.dtype, replace(v, strides=(0, 1)))
        for t, v in zip(types, found, strict=True)
    )
    a = replace(a, batch=geometry.a_batch, row=geometry.a_row)
    b = replace(b, batch=geometry.b_batch)
    problem = ContractionProblem(
        geometry.batch, geometry.m, geometry.n, 0, a, b, extras, results, epilogue
    )
    launches = Launches(replace(problem, patches=True), target, reader.constants, request.frozen)
    if _wastes_columns(launches, geometry):
        geometry = _with_images_in_columns(launches, geometry)
    _prepare(launches, geometry)
    whole = launches.problem
    for part in geometry.parts:
        _multiply(launches, whole, part)
    return launches.lowered()


def _wastes_columns(launches: Launches, geometry: ConvolutionGeometry) -> bool:
    """Return whether the images are so small that panels of one image each would be half empty."""
    problem = launches.problem
    if len(geometry.batch) < 2 or geometry.batch[0] == 1:
        return False
    if problem.is_open or any(isinstance(part.columns, Sums) for part in geometry.parts):
        return False
    if any(x.column or x.batch[0] for x in problem.extras):
        return False
    if any(c.column != 1 for c in problem.results):
        return False
    used, held, rows = 0, 0, int(problem.m)
    for part in geometry.parts:
        columns = estimate(count_of(part.columns))
        width = choose_tile(launches.target, launches.dtype, rows, columns).width
        used += columns
        held += -(-columns // width) * width
    # Columns that lie apart are stored one by one: few terms would not pay for that.
    terms = min(estimate(count_of(part.terms)) for part in geometry.parts)
    return held > _WASTE * used and terms >= 64


def _with_images_in_columns(
    launches: Launches, geometry: ConvolutionGeometry
) -> ConvolutionGeometry:
    """All images as one: panels go from one to the next, and a table says where columns lie."""
    problem = launches.problem
    images, step = geometry.batch[0], int(problem.results[0].batch[0])
    parts = []
    for part in geometry.parts:
        own = fixed(part.columns)
        places = steps_of(len(own), 1) if part.places is None else part.places
        columns = grid(steps_of(images, geometry.b_batch[0]), own)
        places = grid(steps_of(images, step), places)
        parts.append(replace(part, columns=columns, places=places))
    arrays = [replace(x, batch=x.batch[1:]) for x in problem.arrays]
    a, b, *others = arrays
    count = len(problem.extras)
    launches.problem = replace(
        problem,
        batch=problem.batch[1:],
        a=a,
        b=b,
        extras=(*others[:count],),
        results=(*others[count:],),
    )
    return replace(
        geometry,
        batch=geometry.batch[1:],
        b_batch=geometry.b_batch[1:],
        a_batch=geometry.a_batch[1:],
        parts=tuple(parts),
    )


def _prepare(launches: Launches, geometry: ConvolutionGeometry) -> None:
    """The launches that make b's source and a's rows what tiles and panels need."""
    dtype, problem, planes = launches.dtype, launches.problem, geometry.planes
    a, b = problem.a, problem.b
    as_is = all(map(is_identical, planes.spread, planes.extents))
    if not as_is or b.dtype is not dtype:
        place = launches.workspace(planes.count * planes.size * dtype.itemsize)
        launches.launches.append(_spread(launches.target, planes, b, dtype, place))
        b = replace(b, kind="workspace", index=place.index, offset=0, dtype=dtype)
    if geometry.packing is not None or geometry.order is not None:
        rows = geometry.m * (1 if is_identical(geometry.a_batch[-1], 0) else geometry.batch[-1])
        place = launches.workspace(rows * geometry.a_row * dtype.itemsize)
        if geometry.packing is not None:
            tile = choose_tile(launches.target, dtype, geometry.m, estimate(geometry.n))
            packing = Packing(tile, a.dtype, "straight", False, len(geometry.packing.batch))
            launches.launches.append(packing_launch(packing, a, place, geometry.packing))
        else:
            launches.launches.append(_reorder(launches, geometry, a, rows, place))
        a = replace(a, kind="workspace", index=place.index, offset=0, dtype=dtype)
    launches.problem = replace(problem, a=a, b=b)


def _multiply(launches: Launches, whole: ContractionProblem, part: ColumnPart) -> None:
    """The product of one part."""
    terms, columns = (launches.offsets(table) for table in (part.terms, part.columns))
    launches.tables = ItemTables(terms=terms, columns=columns)
    results = whole.results
    if part.places is not None:
        places = launches.offsets(part.places)
        launches.tables = launches.tables._replace(places=places)
        results = tuple(replace(c, table=True) for c in results)
    a = replace(whole.a, offset=whole.a.offset + part.start)
    n, k = count_of(part.columns), count_of(part.terms)
    launches.problem = replace(whole, a=a, n=n, k=k, results=results).simplified()
    multiply_in_tiles(launches)


def _reorder(
    launches: Launches, geometry: ConvolutionGeometry, a: Matrix, rows: int, place: Ref
) -> Launch:
    """The launch that reorders the elements of a's rows."""
    order = np.zeros(0, np.int64) if geometry.order is None else geometry.order
    given: ReorderParameters[Ref, Dim] = ReorderParameters(
        source=a.place,
        order=launches.constant(order.astype(np.int32)),
        target=place,
        rows=geometry.m,
        terms=geometry.a_row,
        group_step=geometry.order_steps[0],
        row_step=geometry.order_steps[1],
    )
    kernel = reorder_kernel(a.dtype, launches.dtype)
    nbytes = 2 * rows * geometry.a_row * launches.dtype.itemsize
    return kernel.launch(
        given,
        items=rows,
        serial=nbytes < 1 << 16,
        nbytes=nbytes,
    )


def _spread(target: Target, planes: Planes, source: Matrix, dtype: DType, place: Ref) -> Launch:
    """The launch that copies a source's planes into zeros."""
    lead = AXES - len(planes.extents)
    of, at = ((1,) * lead + x for x in (planes.extents, planes.spread))
    lows, steps = (0,) * lead + planes.lows, (1,) * lead + planes.steps
    given: SpreadParameters[Ref, Dim] = SpreadParameters(
        source=source.place,
        target=place,
        extents=of,
        steps=steps,
        lows=lows,
        rows=at[0] * at[1],
        height=at[1],
        pitch=at[2],
    )
    kernel = spread_kernel(source.dtype, dtype, target.lanes(dtype), apart=steps[2] != 1)
    nbytes = planes.count * planes.size * dtype.itemsize
    return kernel.launch(
        given,
        items=planes.count,
        serial=estimate(nbytes) < 1 << 16,
        nbytes=nbytes,
    )
