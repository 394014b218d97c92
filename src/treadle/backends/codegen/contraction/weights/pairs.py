"""Gradients in the weight of convolutions of bfloat16: one product for every tap.

    dw[tap][o, c] = sum over cells q of dy[q, o] * x[q + shift of the tap, c]

x lies in its padding, and dy on the same cells: at those where windows begin, and 0 elsewhere. So a
tap is a shift by a number of cells, whatever the strides, and all taps share the words of dy and
those of x, of which there are two: words of pairs that begin at even cells, and at odd ones.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from treadle.backends.api import Support, no
from treadle.backends.codegen.contraction.pairs.lower import Shifted, multiply_shifted
from treadle.backends.codegen.contraction.pairs.tiles import Multiplier
from treadle.backends.codegen.contraction.shared.body import BodyRefused, EpilogueReader
from treadle.backends.codegen.contraction.shared.epilogue import Sides
from treadle.backends.codegen.contraction.shared.launch import Launches
from treadle.backends.codegen.contraction.shared.offsets import fixed
from treadle.backends.codegen.contraction.shared.positions import forward_part
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem, Matrix
from treadle.backends.codegen.contraction.shared.spread import Margins, SpreadOperand, spread
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import Strided, extents
from treadle.backends.program import Lowered
from treadle.graph.ir import Graph, Node
from treadle.ops.conv import Convolution
from treadle.ops.movement import Reshape, Transpose


def lower_weight_pairs(
    body: Graph, anchor: Node, views: tuple[Strided, Strided], target: Target, unit: Multiplier
) -> Lowered | Support:
    """A body around a gradient in the weight of one group, whose operands are x and dy."""
    op = anchor.op
    if not isinstance(op, Convolution):
        return no("op", f"{op.name} is not a convolution")
    outputs, channels, *kernel = extents(anchor.output.type.shape)
    taps = math.prod(kernel)

    def pull(view: Strided) -> Strided | None:
        found = view.after(Reshape((outputs, channels, taps)))
        return None if found is None else found.after(Transpose((2, 0, 1)))

    reader = EpilogueReader(body, anchor, pull)
    try:
        extras, results, epilogue = reader.read()
    except BodyRefused as refusal:
        return no("layout", str(refusal))
    sides = Sides(extras, results)
    steps = sides.map(lambda matrix: matrix.batch[0])
    extras, results = sides.map(lambda matrix: replace(matrix, batch=()))
    x, dy = (
        SpreadOperand(Matrix.of("input", v.type.dtype, view), view.shape, view.strides)
        for v, view in zip(anchor.inputs, views, strict=True)
    )
    problem = ContractionProblem(
        (), outputs, channels, 0, dy.matrix, x.matrix, extras, results, epilogue
    )
    launches = Launches(problem.accessed(), target, reader.constants)
    margins, part = forward_part(op, x.shape, (*kernel,))
    begins = Margins((0,) * len(kernel), op.strides, margins.extents)
    if taps == 1 and margins.extents == x.shape[2:]:
        # Cells that no window begins at are left out.
        x = x.every(op.strides, dy.shape[2:])
        margins = begins = Margins.none(dy.shape[2:])
    x = spread(launches, x, margins, anyway=not _is_dense(x), dtype=unit.b)
    dy = spread(launches, dy, begins, anyway=True, dtype=unit.a)
    cells = x.shape[0] * math.prod(margins.extents)
    pitch = x.strides[-1]
    shifts = fixed(part.reads(tuple(step // pitch for step in x.strides[2:])))
    given = Shifted(_cells(dy), _cells(x), cells, np.asarray(shifts), steps)
    multiply_shifted(launches, unit, given)
    return launches.lowered()


def _cells(source: SpreadOperand) -> Matrix:
    """A matrix of cells by channels."""
    return replace(source.matrix, batch=(), row=source.strides[-1], column=1)


def _is_dense(source: SpreadOperand) -> bool:
    """Return whether cells follow one another, with their channels as neighbors."""
    steps = [source.strides[-1]]
    for extent in source.shape[:1:-1]:
        steps.append(steps[-1] * extent)
    return source.strides[1] == 1 and (*source.strides[:1:-1], source.strides[0]) == tuple(steps)
