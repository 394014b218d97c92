"""Models compiled into their files; `engine.package.offline` is the counterpart that runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from treadle.backends.program import ShippingCompiler
from treadle.base.errors import CompileError, ShapeError
from treadle.base.version import VERSION
from treadle.deploy.phases import Compiled, compiled
from treadle.deploy.prepared import WASM, PreparedWeights
from treadle.deploy.ranges import Maker, Wanted
from treadle.engine.devices.placement import compiling, engines_of, find_compiler
from treadle.engine.options import Options
from treadle.engine.package.models import Model
from treadle.engine.package.native_part import MOST_GEARS, NativePart
from treadle.engine.phases import finds_extents
from treadle.graph.ir import Graph

Shape = tuple[int, ...]
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_RECORDED = ("level", "fast", "winograd", "layouts", "disabled", "switched_off", "streams")
"""Options that are noted in the file; none of them holds a path."""


def compile_offline(
    model: Model,
    gears: Sequence[Mapping[str, Sequence[int]]] = (),
    options: Options | None = None,
    target: str | None = None,
    *,
    ranges: Mapping[str, Wanted] | None = None,
    command: str = "",
    source: Mapping[str, Any] = _NOTHING,
) -> Model:
    """Compile a model into what its file will hold.

    The result, written by `write_models`, is run by `load_offline` with nothing to compile. Equal
    models, options and versions give equal files, whatever was compiled before.

    Args:
        model: its graph is kept, for machines that the code does not fit. If it has native parts
            for other targets, those stay.
        gears: shapes of inputs by name, 2 to 100 sets of them; inputs that a gear does not name
            have the model's shape. Empty: the model's own shapes alone.
        options: of the compilation.
        target: "generic", "avx2", "avx512", "neon", "neon-sdot" or "neon-dot"; by default this
            processor, with all that it has. Weights are packed here in any case.
        ranges: for each axis of inputs its extent, or the least and the largest one, as in
            `{"image": [(1, 8), 3, (32, 640), (32, 640)]}`, in place of gears: a few programs serve
            all of them. The model has to have a graph for other sizes, as `dump` records it.
        command: the command line that asked for it, for the record.
        source: what the model came from, for the record: framework, version, file, digest.

    Raises:
        ShapeError: gears are too few, too many or equal, or have inputs that the model has not,
            or extents that are not sizes; or the model does not take the ranges.
        CompileError: an op of the model needs Python, an extent is symbolic, there are no programs
            for many extents, or the engine or LLVM does not have the target.
    """
    if target == WASM:
        raise CompileError("offline", "files hold no WebAssembly", hint="use write_wasm")
    chosen = options or Options()
    compiler = find_compiler(chosen)
    if not isinstance(compiler, ShippingCompiler):
        raise CompileError("offline", "the engine cannot ship code", hint="use the engine cpu")
    if target is not None:
        compiler = compiler.toward(target)
    pool = PreparedWeights()
    make = Maker(chosen, compiler, pool, "offline")
    if gears and ranges is not None:
        raise ShapeError("ranges", "there are gears or ranges, not both")
    if ranges is None and (gears or not finds_extents(model.graph)):
        made = _of_gears(make, model, gears)
    else:
        made = compiled(make, model, ranges)
    part = NativePart(
        made.gears,
        compiler.shipped(list(made.programs)),
        pool.joined(),
        compiling(engines_of(chosen)),
        _about(model.graph, chosen, compiler, command, source),
        made.ranges,
        made.phases,
    )
    others = [p for p in model.native if p.code.machine != part.code.machine]
    return replace(model, native=(*others, part))


# -- gears -------------------------------------------------------------------------------------


def _of_gears(make: Maker, model: Model, gears: Sequence[Mapping[str, Sequence[int]]]) -> Compiled:
    """A program for each set of shapes."""
    if finds_extents(model.graph):
        problem = "data decide extents in the model, which has no gears"
        raise ShapeError("gears", problem, hint="give ranges")
    made = [make.fixed(model.at(wanted)) for wanted in _checked(model, gears)]
    return Compiled(tuple(gear for gear, _ in made), tuple(program for _, program in made))


def _checked(model: Model, gears: Sequence[Mapping[str, Sequence[int]]]) -> list[tuple[Shape, ...]]:
    """The shapes of all inputs, gear by gear."""
    own = {n: v.type.shape for n, v in zip(model.inputs, model.graph.inputs, strict=True)}
    if gears and not 2 <= len(gears) <= MOST_GEARS:
        raise ShapeError(
            "gears",
            f"there are 2 to {MOST_GEARS} of them, not {len(gears)}",
            hint="for one set of shapes give it to the model itself, and no gears",
        )
    made: list[tuple[Shape, ...]] = []
    for gear in gears or [{}]:
        unknown = [name for name in gear if name not in own]
        if unknown:
            raise ShapeError(
                "gears", f"the model has no input {unknown[0]!r}", saw=f"inputs {', '.join(own)}"
            )
        shapes = [_sizes(name, gear.get(name, shape)) for name, shape in own.items()]
        if tuple(shapes) in made:
            raise ShapeError("gears", "two of them are equal", saw=str(dict(gear)))
        made.append(tuple(shapes))
    return made


def _sizes(name: str, shape: Sequence[Any]) -> Shape:
    if not all(isinstance(d, int | np.integer) and d >= 0 for d in shape):
        raise ShapeError(
            "gears",
            f"input {name} needs extents that are numbers",
            saw=str(list(map(str, shape))),
            hint="give every gear a shape for it",
        )
    return tuple(int(d) for d in shape)


# -- what is kept ------------------------------------------------------------------------------


def _about(
    graph: Graph,
    options: Options,
    compiler: ShippingCompiler,
    command: str,
    source: Mapping[str, Any],
) -> dict[str, Any]:
    """The record: nothing in it depends on when or where the model is compiled."""
    values = [v for node in graph.nodes for v in node.outputs]
    counts = Counter(v.type.dtype.name for v in (*graph.inputs, *values))
    return {
        "producer": f"treadle {VERSION}",
        "compiler": compiler.compiled_by(),
        "options": {name: _plain(getattr(options, name)) for name in _RECORDED},
        "dtypes": dict(sorted(counts.items())),
        "nodes": len(graph.nodes),
        "command": command,
        "source": dict(source),
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


__all__ = ["compile_offline"]
