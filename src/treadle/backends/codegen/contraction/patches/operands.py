"""Kernels that prepare the operands of row-major convolutions: planes in zeros, rows in order."""

from __future__ import annotations

from functools import lru_cache

from treadle.backends.codegen.contraction.shared.items import Contraction
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.base import dtype as dt
from treadle.base.dtype import DType

AXES = 3
"""Spatial axes of the kernel that spreads; those a source lacks have extent 1."""


@lru_cache(maxsize=64)
def spread_kernel(source: DType, target: DType, lanes: int, *, apart: bool) -> Contraction:
    """A kernel that copies planes into zeros: item i is plane i.

    Cell (d, h, w) goes to (d * step0 + low0, h * step1 + low1, w * step2 + low2) of a plane of
    `rows` rows of `pitch` elements, `height` of them per d. `apart` allows for a last step over 1.
    """
    values = {"source": ir.pointer(source), "target": ir.pointer(target)}
    names = [f"{n}{i}" for n in ("extent", "step", "low") for i in range(AXES)]
    values |= {name: ir.size(name) for name in (*names, "rows", "height", "pitch")}
    extents = [values[f"extent{i}"] for i in range(AXES)]
    steps = [values[f"step{i}"] for i in range(AXES)]
    lows = [values[f"low{i}"] for i in range(AXES)]

    def write(e: Builder, lo: Value, hi: Value) -> None:
        size = e.mul(values["rows"], values["pitch"])
        cells = e.mul(e.mul(extents[0], extents[1]), extents[2])

        def row(given: Value, made: Value) -> None:
            def cell(w: Value) -> None:
                place = e.add(e.mul(w, steps[2]), lows[2])
                e.store(made, place, e.cast(e.load(given, w), target))

            def together(w: Value, mask: Value | None = None) -> None:
                value = e.cast(e.load(given, w, lanes, mask), target)
                e.store(made, e.add(w, lows[2]), value, mask)

            if apart:
                e.loop(0, extents[2], 1, cell)
                return
            whole = e.sub(extents[2], e.rem(extents[2], lanes))
            e.loop(0, whole, lanes, together)
            rest = e.sub(extents[2], whole)
            e.branch(e.compare("lt", 0, rest), lambda: together(whole, e.first_lanes(rest, lanes)))

        def plane(i: Value) -> None:
            given = e.offset(values["source"], e.mul(i, cells))
            made = e.offset(values["target"], e.mul(i, size))
            e.zero(made, size)

            def each(d: Value, h: Value) -> None:
                line = e.add(e.mul(e.add(e.mul(d, steps[0]), lows[0]), values["height"]), lows[1])
                line = e.add(line, e.mul(h, steps[1]))
                begin = e.mul(e.add(e.mul(d, extents[1]), h), extents[2])
                row(e.offset(given, begin), e.offset(made, e.mul(line, values["pitch"])))

            e.loop(0, extents[0], 1, lambda d: e.loop(0, extents[1], 1, lambda h: each(d, h)))

        e.loop(lo, hi, 1, plane)

    kernel = builder.kernel(f"spread_{source.name}_{target.name}", list(values.values()), write)
    return Contraction(kernel, tuple(values))


@lru_cache(maxsize=64)
def reorder_kernel(source: DType, target: DType) -> Contraction:
    """A kernel that writes rows whose elements a table of offsets finds: item i is row i.

    Row r of group g begins at g * group_step + r * row_step of the source.
    """
    values = {"source": ir.pointer(source), "order": ir.pointer(dt.int32)}
    values["target"] = ir.pointer(target)
    values |= {name: ir.size(name) for name in ("rows", "terms", "group_step", "row_step")}

    def write(e: Builder, lo: Value, hi: Value) -> None:
        def row(i: Value) -> None:
            group = e.mul(e.div(i, values["rows"]), values["group_step"])
            start = e.add(group, e.mul(e.rem(i, values["rows"]), values["row_step"]))
            given = e.offset(values["source"], start)
            made = e.offset(values["target"], e.mul(i, values["terms"]))

            def term(k: Value) -> None:
                value = e.load(given, e.cast(e.load(values["order"], k), dt.int64))
                e.store(made, k, e.cast(value, target))

            e.loop(0, values["terms"], 1, term)

        e.loop(lo, hi, 1, row)

    kernel = builder.kernel(f"reorder_{source.name}_{target.name}", list(values.values()), write)
    return Contraction(kernel, tuple(values))
