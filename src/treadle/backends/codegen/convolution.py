"""Convolutions and their gradients as products of a matrix with gathered patches.

Each of the three is c[m, n] = sum over k of a[m, k] * b[k, n] with rows of weights or of dy as a,
and b picked from an input by two tables of offsets:

  op              m               n                k               source of b
  conv            output channel  output position  channel, tap    x within its padding
  gradient in x   input channel   input position   channel, tap    dy, spread by the strides
  gradient in w   output channel  channel, tap     image, output   x within its padding
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from treadle.backends.api import Support, no
from treadle.backends.codegen.contraction_body import EpilogueReader, Refused
from treadle.backends.codegen.contraction_launch import Area, Copies, Launches, packing_launch
from treadle.backends.codegen.contraction_pack import Packing
from treadle.backends.codegen.contraction_patches import AXES, spread_kernel
from treadle.backends.codegen.contraction_problem import Matrix, Problem
from treadle.backends.codegen.contraction_tile import choose_tile
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import Shape, dense, extents, strided_input
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base.dtype import DType
from treadle.graph.ir import Graph, Node
from treadle.ops.conv import ConvGradInput, ConvGradWeight, Convolution
from treadle.ops.movement import Reshape

Offsets = npt.NDArray[np.int64]
Axis = tuple[int, int]
"""Extent and step of one axis of a table."""


@dataclass(frozen=True, slots=True)
class Planes:
    """Where the cells of a source's planes come to lie: among zeros, or as they are."""

    count: int
    extents: Shape
    lows: Shape
    steps: Shape
    spread: Shape

    @property
    def strides(self) -> Shape:
        """Elements from cell to cell along each axis."""
        return dense(0, self.spread).strides

    @property
    def size(self) -> int:
        """Elements of a plane."""
        return math.prod(self.spread)


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution as a product: see the table above.

    Attributes:
        batch, m, n, k: extents; the last batch axis is the group.
        planes: the source of b, and `source` the number of that operand.
        b_batch: elements of the source from batch to batch.
        terms, columns: offsets of b's rows and columns.
        a_batch, a_row, a_term: steps of the other operand, where those suffice.
        packing: how it is made rows where they do not.
    """

    batch: Shape
    m: int
    n: int
    k: int
    planes: Planes
    source: int
    b_batch: Shape
    terms: Offsets
    columns: Offsets
    a_batch: Shape
    a_row: int
    a_term: int
    packing: Area | None = None


def lower_convolution(body: Graph, anchor: Node, target: Target) -> Lowered | Support:
    """A body around one convolution or gradient of one."""
    op = anchor.op
    if not isinstance(op, Convolution):
        return no("op", f"{op.name} is no convolution")
    types = [v.type for v in anchor.inputs]
    shapes = [extents(t.shape) for t in types]
    geometry = _geometry(op, *shapes)
    last = int(geometry.terms.max() + geometry.columns.max())
    if last >= 1 << 31:
        return no("size-limit", "offsets into the operand do not fit in 31 bits")
    shape = (*geometry.batch, geometry.m, geometry.n)
    views = [strided_input(body, v) for v in anchor.inputs]
    try:
        reader = EpilogueReader(body, anchor, lambda view: view.after(Reshape(shape)))
        extras, results, epilogue = reader.read()
    except Refused as refusal:
        return no("layout", str(refusal))
    if not all(v is not None and v.strides == dense(0, v.shape).strides for v in views):
        return no("layout", "convolutions take dense operands")
    origins = [v for v in views if v is not None]
    a, b = (
        Matrix.of("input", types[i].dtype, replace(origins[i], strides=(0, 0)))
        for i in (1 - geometry.source, geometry.source)
    )
    a = replace(a, batch=geometry.a_batch, row=geometry.a_row, column=geometry.a_term)
    b = replace(b, batch=geometry.b_batch)
    problem = Problem(
        geometry.batch, geometry.m, geometry.n, geometry.k, a, b, extras, results, epilogue, True
    )
    launches = Launches(problem, target, tuple(reader.constants))
    return _launched(launches, geometry)


def _launched(launches: Launches, geometry: Geometry) -> Lowered:
    """The launches that prepare the operands, and the product."""
    dtype, problem = launches.dtype, launches.problem
    tile = choose_tile(launches.target, dtype, geometry.m, geometry.n)
    b = problem.b
    planes = geometry.planes
    if planes.spread != planes.extents or b.dtype is not dtype:
        place = launches.workspace(planes.count * planes.size * dtype.itemsize)
        launches.launches.append(_spread(launches.target, planes, b, dtype, place))
        b = replace(b, kind="workspace", index=place.index, offset=0, dtype=dtype)
    a, area = problem.a, geometry.packing
    if area is not None:
        count = geometry.m * area.pitch * (geometry.batch[-1] if problem.a.batch[-1] else 1)
        place = launches.workspace(count * dtype.itemsize)
        packing = Packing(tile, a.dtype, "straight", False, len(area.batch))
        launches.launches.append(packing_launch(packing, a, place, area))
        a = replace(a, kind="workspace", index=place.index, offset=0, dtype=dtype)
    constants = len(launches.constants)
    # Panels are gathered whole; a step back tells that what it ends is no run of neighbors.
    columns = np.concatenate([geometry.columns, np.repeat(geometry.columns[:1], tile.width)])
    launches.constants += (geometry.terms.astype(np.int32), columns.astype(np.int32))
    launches.tables = {
        "terms": Ref("constant", constants),
        "columns": Ref("constant", constants + 1),
    }
    launches.problem = replace(problem, a=a, b=b).simplified()
    return launches.tiles(False)


def _spread(target: Target, planes: Planes, source: Matrix, dtype: DType, place: Ref) -> Launch:
    """The launch that copies a source's planes into zeros."""
    lead = AXES - len(planes.extents)
    of, at = (1,) * lead + planes.extents, (1,) * lead + planes.spread
    lows, steps = (0,) * lead + planes.lows, (1,) * lead + planes.steps
    arguments: dict[str, Ref | int] = {
        "source": Ref("input", source.index, source.offset * source.dtype.itemsize),
        "target": place,
    }
    for name, numbers in (("extent", of), ("low", lows), ("step", steps)):
        arguments |= {f"{name}{i}": number for i, number in enumerate(numbers)}
    arguments |= {"rows": at[0] * at[1], "height": at[1], "pitch": at[2]}
    kernel = spread_kernel(source.dtype, dtype, target.lanes(dtype), apart=steps[2] != 1)
    nbytes = planes.count * planes.size * dtype.itemsize
    return Launch(
        kernel.kernel,
        tuple(arguments[name] for name in kernel.names),
        items=planes.count,
        serial=nbytes < 1 << 16,
        nbytes=nbytes,
    )


# -- index maps --------------------------------------------------------------------------------


def _grid(axes: Sequence[Axis]) -> Offsets:
    """Offsets of all positions of some axes, the last one fastest."""
    offsets = np.zeros(1, np.int64)
    for extent, step in axes:
        offsets = np.add.outer(offsets, np.arange(extent, dtype=np.int64) * step).ravel()
    return offsets


def _geometry(op: Convolution, first: Shape, second: Shape) -> Geometry:
    if isinstance(op, ConvGradInput):
        return _in_x(op, first, second)
    if isinstance(op, ConvGradWeight):
        return _in_weight(op, first, second)
    return _forward(op, first, second)


def _padded(op: Convolution, x: Shape) -> Planes:
    """x [N,C,*S] within its padding."""
    spatial = x[2:]
    lows = tuple(low for low, _ in op.padding)
    spread = tuple(n + low + high for n, (low, high) in zip(spatial, op.padding, strict=True))
    return Planes(x[0] * x[1], spatial, lows, (1,) * len(spatial), spread)


def _forward(op: Convolution, x: Shape, weight: Shape) -> Geometry:
    """x [N,C,*S], weight [O,C/groups,*K]."""
    planes, groups, taps = _padded(op, x), op.groups, math.prod(weight[2:])
    positions = extents(op.window(weight[2:]).extents(op.name, x[2:], ""))
    outputs, k = weight[0] // groups, weight[1] * taps
    size, strides = planes.size, planes.strides
    kernel = [(n, d * s) for n, d, s in zip(weight[2:], op.dilation, strides, strict=True)]
    steps = [(n, d * s) for n, d, s in zip(positions, op.strides, strides, strict=True)]
    return Geometry(
        batch=(x[0], groups),
        m=outputs,
        n=math.prod(positions),
        k=k,
        planes=planes,
        source=0,
        b_batch=(x[1] * size, weight[1] * size),
        terms=_grid([(weight[1], size), *kernel]),
        columns=_grid(steps),
        a_batch=(0, outputs * k),
        a_row=k,
        a_term=1,
    )


def _in_x(op: ConvGradInput, dy: Shape, weight: Shape) -> Geometry:
    """dy [N,O,*P], weight [O,C/groups,*K]; the result is [N,C,*S].

    dx[i] = sum over t of w[t] * z[i + low - t * d], where z has dy[p] at p * s and zeros elsewhere.
    """
    spatial, groups, taps = extents(op.spatial), op.groups, math.prod(weight[2:])
    outputs, inputs, k = weight[0] // groups, weight[1], weight[0] // groups * taps
    lows, spread, origin = [], [], []
    for axis, n in enumerate(spatial):
        padding, dilation = op.padding[axis][0], op.dilation[axis]
        low = max(0, (weight[2 + axis] - 1) * dilation - padding)
        last = (dy[2 + axis] - 1) * op.strides[axis]
        lows.append(low)
        origin.append(low + padding)
        spread.append(low + max(last + 1, n + padding))
    planes = Planes(dy[0] * dy[1], dy[2:], tuple(lows), op.strides, tuple(spread))
    size, strides = planes.size, planes.strides
    kernel = [(n, -d * s) for n, d, s in zip(weight[2:], op.dilation, strides, strict=True)]
    start = sum(at * s for at, s in zip(origin, strides, strict=True))
    matrix = inputs * taps
    # Rows of a are rows of the transposed weight: input channel by (output channel, tap).
    packing = Area(
        inputs,
        taps,
        taps,
        1,
        k,
        (Copies(groups, outputs * matrix, inputs * k), Copies(outputs, matrix, taps)),
    )
    return Geometry(
        batch=(dy[0], groups),
        m=inputs,
        n=math.prod(spatial),
        k=k,
        planes=planes,
        source=0,
        b_batch=(dy[1] * size, outputs * size),
        terms=_grid([(outputs, size), *kernel]) + start,
        columns=_grid(list(zip(spatial, strides, strict=True))),
        a_batch=(0, inputs * k),
        a_row=k,
        a_term=1,
        packing=packing,
    )


def _in_weight(op: ConvGradWeight, x: Shape, dy: Shape) -> Geometry:
    """x [N,C,*S], dy [N,O,*P]; the result is [O,C/groups,*K]."""
    planes, groups, images = _padded(op, x), op.groups, x[0]
    kernel = extents(op.kernel)
    inputs, outputs, positions = x[1] // groups, dy[1] // groups, math.prod(dy[2:])
    size, strides = planes.size, planes.strides
    taps = [(n, d * s) for n, d, s in zip(kernel, op.dilation, strides, strict=True)]
    steps = [(n, d * s) for n, d, s in zip(dy[2:], op.strides, strides, strict=True)]
    k = images * positions
    packing = Area(
        outputs,
        positions,
        positions,
        1,
        k,
        (
            Copies(groups, outputs * positions, outputs * k),
            Copies(images, dy[1] * positions, positions),
        ),
    )
    return Geometry(
        batch=(groups,),
        m=outputs,
        n=inputs * math.prod(kernel),
        k=k,
        planes=planes,
        source=0,
        b_batch=(inputs * size,),
        terms=_grid([(images, x[1] * size), *steps]),
        columns=_grid([(inputs, size), *taps]),
        a_batch=(outputs * k,),
        a_row=k,
        a_term=1,
        packing=packing if images > 1 else None,
    )
