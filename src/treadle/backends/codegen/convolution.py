"""Convolutions and their gradients as products of a matrix with gathered patches.

Each of the three is c[m, n] = sum over k of a[m, k] * b[k, n] with rows of weights or of dy as a,
and b picked from an input by two tables of offsets. Where strides make some taps reach some input
positions only, the gradient in x is computed in parts, one for all positions with the same taps.

  op              m               n                k               source of b
  conv            output channel  output position  channel, tap    x within its padding
  gradient in x   input channel   input position   channel, tap    dy within zeros
  gradient in w   output channel  channel, tap     image, output   x within its padding
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from treadle.backends.api import Support, no
from treadle.backends.codegen.contraction_body import EpilogueReader, Refused
from treadle.backends.codegen.contraction_launch import Area, Copies, Launches, packing_launch
from treadle.backends.codegen.contraction_pack import Packing
from treadle.backends.codegen.contraction_patches import AXES, reorder_kernel, spread_kernel
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
class Part:
    """Some columns of the result, and the terms their sums are made of.

    Attributes:
        terms, columns: offsets of b's rows and columns.
        start: where these terms begin in a row of a.
        places: offsets of the columns in the result; None: they are all there are, in order.
    """

    terms: Offsets
    columns: Offsets
    start: int = 0
    places: Offsets | None = None


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution as a product, in parts: see the table above.

    Attributes:
        batch: batch axes, the last of which is the group.
        m: rows.
        planes: the source of b, which is operand 0.
        b_batch: elements of that source from batch to batch.
        a_batch, a_row: steps of the rows of a, which is operand 1.
        parts: of the columns.
        packing: how a is made rows, if it does not consist of them.
        order: offsets of a row's elements, for the same purpose, and `order_steps` from group to
            group and row to row.
    """

    batch: Shape
    m: int
    planes: Planes
    b_batch: Shape
    a_batch: Shape
    a_row: int
    parts: tuple[Part, ...]
    packing: Area | None = None
    order: Offsets | None = None
    order_steps: tuple[int, int] = (0, 0)

    @property
    def n(self) -> int:
        """All columns."""
        return sum(len(part.columns) for part in self.parts)


def lower_convolution(
    body: Graph, anchor: Node, frozen: tuple[bool, ...], target: Target
) -> Lowered | Support:
    """A body around one convolution or gradient of one."""
    op = anchor.op
    if not isinstance(op, Convolution):
        return no("op", f"{op.name} is no convolution")
    types = [v.type for v in anchor.inputs]
    shapes = [extents(t.shape) for t in types]
    geometry = _geometry(op, *shapes, phased=True)
    shape = (*geometry.batch, geometry.m, geometry.n)
    views = [strided_input(body, v) for v in anchor.inputs]
    try:
        reader = EpilogueReader(body, anchor, lambda view: view.after(Reshape(shape)))
        extras, results, epilogue = reader.read()
    except Refused as refusal:
        return no("layout", str(refusal))
    if any(x.column for x in extras) or any(c.column != 1 for c in results):
        # What varies along the columns needs them in order.
        geometry = _geometry(op, *shapes, phased=False)
    if any(_reach(part) >= 1 << 31 for part in geometry.parts):
        return no("size-limit", "offsets into the operand do not fit in 31 bits")
    dense_views = [v for v in views if v is not None and v.strides == dense(0, v.shape).strides]
    if len(dense_views) != len(views):
        return no("layout", "convolutions take dense operands")
    b, a = (
        Matrix.of("input", t.dtype, replace(v, strides=(0, 1)))
        for t, v in zip(types, dense_views, strict=True)
    )
    a = replace(a, batch=geometry.a_batch, row=geometry.a_row)
    b = replace(b, batch=geometry.b_batch)
    problem = Problem(geometry.batch, geometry.m, geometry.n, 0, a, b, extras, results, epilogue)
    launches = Launches(replace(problem, patches=True), target, reader.constants, frozen)
    _prepare(launches, geometry)
    whole = launches.problem
    for part in geometry.parts:
        _multiply(launches, whole, part)
    return launches.lowered()


def _reach(part: Part) -> int:
    """The last offset a part uses."""
    return int(max(part.terms, default=0)) + int(part.columns[-1])


def _prepare(launches: Launches, geometry: Geometry) -> None:
    """The launches that make b's source and a's rows what tiles and panels need."""
    dtype, problem, planes = launches.dtype, launches.problem, geometry.planes
    a, b = problem.a, problem.b
    if planes.spread != planes.extents or b.dtype is not dtype:
        place = launches.workspace(planes.count * planes.size * dtype.itemsize)
        launches.launches.append(_spread(launches.target, planes, b, dtype, place))
        b = replace(b, kind="workspace", index=place.index, offset=0, dtype=dtype)
    if geometry.packing is not None or geometry.order is not None:
        rows = geometry.m * (geometry.batch[-1] if geometry.a_batch[-1] else 1)
        place = launches.workspace(rows * geometry.a_row * dtype.itemsize)
        if geometry.packing is not None:
            tile = choose_tile(launches.target, dtype, geometry.m, geometry.n)
            packing = Packing(tile, a.dtype, "straight", False, len(geometry.packing.batch))
            launches.launches.append(packing_launch(packing, a, place, geometry.packing))
        else:
            launches.launches.append(_reorder(launches, geometry, a, rows, place))
        a = replace(a, kind="workspace", index=place.index, offset=0, dtype=dtype)
    launches.problem = replace(problem, a=a, b=b)


def _multiply(launches: Launches, whole: Problem, part: Part) -> None:
    """The product of one part."""
    terms = part.terms if len(part.terms) else np.zeros(1, np.int64)
    launches.tables = {
        "terms": launches.constant(terms.astype(np.int32)),
        "columns": launches.constant(part.columns.astype(np.int32)),
    }
    results = whole.results
    if part.places is not None:
        launches.tables["places"] = launches.constant(part.places.astype(np.int32))
        results = tuple(replace(c, table=True) for c in results)
    a = replace(whole.a, offset=whole.a.offset + part.start)
    n, k = len(part.columns), len(part.terms)
    launches.problem = replace(whole, a=a, n=n, k=k, results=results).simplified()
    launches.tiles()


def _reorder(launches: Launches, geometry: Geometry, a: Matrix, rows: int, place: Ref) -> Launch:
    """The launch that reorders the elements of a's rows."""
    order = np.zeros(0, np.int64) if geometry.order is None else geometry.order
    arguments: dict[str, Ref | int] = {
        "source": Ref("input", a.index, a.offset * a.dtype.itemsize),
        "order": launches.constant(order.astype(np.int32)),
        "target": place,
        "rows": geometry.m,
        "terms": geometry.a_row,
        "group_step": geometry.order_steps[0],
        "row_step": geometry.order_steps[1],
    }
    kernel = reorder_kernel(a.dtype, launches.dtype)
    nbytes = 2 * rows * geometry.a_row * launches.dtype.itemsize
    return Launch(
        kernel.kernel,
        tuple(arguments[name] for name in kernel.names),
        items=rows,
        serial=nbytes < 1 << 16,
        nbytes=nbytes,
    )


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


def _grid(*axes: Offsets) -> Offsets:
    """Sums of one offset per axis, the last axis fastest."""
    offsets = np.zeros(1, np.int64)
    for axis in axes:
        offsets = np.add.outer(offsets, axis).ravel()
    return offsets


def _axis(extent: int, step: int) -> Offsets:
    """Offsets along an axis."""
    return np.arange(extent, dtype=np.int64) * step


def _axes(extents: Sequence[int], *steps: Sequence[int]) -> list[Offsets]:
    """Offsets along several axes, whose steps are products."""
    return [_axis(n, math.prod(by)) for n, *by in zip(extents, *steps, strict=True)]


def _geometry(op: Convolution, first: Shape, second: Shape, *, phased: bool) -> Geometry:
    if isinstance(op, ConvGradInput):
        return _in_x(op, first, second, phased=phased)
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
    planes, groups = _padded(op, x), op.groups
    positions = extents(op.window(weight[2:]).extents(op.name, x[2:], ""))
    outputs, k = weight[0] // groups, math.prod(weight[1:])
    size, strides = planes.size, planes.strides
    part = Part(
        terms=_grid(_axis(weight[1], size), *_axes(weight[2:], op.dilation, strides)),
        columns=_grid(*_axes(positions, op.strides, strides)),
    )
    return Geometry(
        batch=(x[0], groups),
        m=outputs,
        planes=planes,
        b_batch=(x[1] * size, weight[1] * size),
        a_batch=(0, outputs * k),
        a_row=k,
        parts=(part,),
    )


@dataclass(frozen=True, slots=True)
class _Phase:
    """Input positions first, first + step, ... of one axis: `reads` are the taps that reach them,
    and how far from position q of the phase the cell of dy is that each of them meets."""

    first: int
    count: int
    reads: tuple[tuple[int, int], ...]


def _phases(op: ConvGradInput, axis: int, taps: int, step: int) -> list[_Phase]:
    """The phases of an axis; the same taps reach positions that are a multiple of `step` apart."""
    n, low, dilation = extents(op.spatial)[axis], op.padding[axis][0], op.dilation[axis]
    found = []
    for first in range(min(step, n)):
        ways = [(t, first + low - t * dilation) for t in range(taps)]
        reads = tuple((t, way // step) for t, way in ways if way % step == 0)
        found.append(_Phase(first, -(-(n - first) // step), reads))
    return found


def _in_x(op: ConvGradInput, dy: Shape, weight: Shape, *, phased: bool) -> Geometry:
    """dy [N,O,*P], weight [O,C/groups,*K]; the result is [N,C,*S].

    dx[i] is the sum of w[t] * dy[p] over all p and t with p * s + t * d - low = i. Where positions
    are treated in phases, each phase is a convolution of dy; else dy is spread by its strides.
    """
    spatial, groups, kernel = extents(op.spatial), op.groups, weight[2:]
    outputs, inputs, taps = weight[0] // groups, weight[1], math.prod(kernel)
    steps = op.strides if phased else (1,) * len(spatial)
    spread = (1,) * len(spatial) if phased else op.strides
    cells = tuple((n - 1) * s + 1 for n, s in zip(dy[2:], spread, strict=True))
    phases = [_phases(op, i, kernel[i], step) for i, step in enumerate(steps)]
    ways = [[(p, way) for p in axis for _, way in p.reads] for axis in phases]
    lows = tuple(max(0, *(-way for _, way in axis)) for axis in ways)
    ends = (
        max(n, *(p.count + way for p, way in axis)) for n, axis in zip(cells, ways, strict=True)
    )
    extent = tuple(low + end for low, end in zip(lows, ends, strict=True))
    planes = Planes(dy[0] * dy[1], dy[2:], lows, spread, extent)
    size, strides = planes.size, planes.strides
    at, tap = dense(0, spatial).strides, dense(0, kernel).strides
    parts: list[Part] = []
    orders: list[Offsets] = []
    for chosen in itertools.product(*phases):
        reads = [np.array(p.reads, np.int64).reshape(-1, 2) for p in chosen]
        met = [(r[:, 1] + low) * s for r, low, s in zip(reads, lows, strides, strict=True)]
        starts = [
            _axis(p.count, s * w) + p.first * w for p, s, w in zip(chosen, steps, at, strict=True)
        ]
        part = Part(
            terms=_grid(_axis(outputs, size), *met),
            columns=_grid(*_axes([p.count for p in chosen], strides)),
            start=sum(map(len, orders)),
            places=_grid(*starts) if math.prod(steps) > 1 else None,
        )
        parts.append(part)
        orders.append(
            _grid(
                _axis(outputs, inputs * taps),
                *(r[:, 0] * s for r, s in zip(reads, tap, strict=True)),
            )
        )
    order = np.concatenate(orders)
    return Geometry(
        batch=(dy[0], groups),
        m=inputs,
        planes=planes,
        b_batch=(dy[1] * size, outputs * size),
        a_batch=(0, inputs * len(order)),
        a_row=len(order),
        parts=tuple(parts),
        order=order,
        order_steps=(outputs * inputs * taps, taps),
    )


def _in_weight(op: ConvGradWeight, x: Shape, dy: Shape) -> Geometry:
    """x [N,C,*S], dy [N,O,*P]; the result is [O,C/groups,*K]."""
    planes, groups, images = _padded(op, x), op.groups, x[0]
    inputs, outputs, positions = x[1] // groups, dy[1] // groups, math.prod(dy[2:])
    size, strides = planes.size, planes.strides
    k = images * positions
    part = Part(
        terms=_grid(_axis(images, x[1] * size), *_axes(dy[2:], op.strides, strides)),
        columns=_grid(_axis(inputs, size), *_axes(extents(op.kernel), op.dilation, strides)),
    )
    groupwise = Copies(groups, outputs * positions, outputs * k)
    imagewise = Copies(images, dy[1] * positions, positions)
    packing = Area(outputs, positions, positions, 1, k, (groupwise, imagewise))
    return Geometry(
        batch=(groups,),
        m=outputs,
        planes=planes,
        b_batch=(inputs * size,),
        a_batch=(outputs * k,),
        a_row=k,
        parts=(part,),
        packing=packing if images > 1 else None,
    )
