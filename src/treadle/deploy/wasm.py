"""Models as WebAssembly modules, with a small JavaScript module around them.

The module holds the compiled kernels (vectors of 128 bits), the program's steps, the weights as the
program wants them, and grows by scratch memory, inputs and outputs of one instance. It imports
nothing.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from treadle.backends.program import Linked
from treadle.base.env import C_COMPILER
from treadle.base.errors import CompileError
from treadle.base.version import VERSION
from treadle.deploy.c_text import kernel_table
from treadle.deploy.extents_text import Names, gear_tables
from treadle.deploy.library import compiler_for, run_compiler
from treadle.deploy.phases import Compiled, compiled
from treadle.deploy.prepared import WASM, PreparedWeights
from treadle.deploy.ranges import Maker, Wanted
from treadle.engine.options import Options
from treadle.engine.package.models import Model
from treadle.engine.package.native_part import Gear
from treadle.engine.package.native_run import extents
from treadle.engine.phases import decisions_of, finds_extents
from treadle.engine.plan import aligned
from treadle.graph.ir import Graph

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_PREFIX = "treadle"
"""Of names in C."""
_STACK = 4 << 20
_MOST = 4 << 30
_FLAGS = [
    *("-O2", "-msimd128", "-mbulk-memory", "-nostdlib", "-fno-sanitize=all", "-Wl,--no-entry"),
    *("-Wl,--export-memory", "-Wl,--strip-all", f"-Wl,-z,stack-size={_STACK}"),
]
_WEIGHTS = """.section .rodata.treadle_weights,"",@
.globl treadle_weights
.p2align 6
treadle_weights:
.incbin "weights.bin"
.int8 0
.size treadle_weights, .-treadle_weights
"""
"""Weights as data, not as text that a compiler reads."""


@dataclass(frozen=True, slots=True)
class WebModule:
    """Files that were written.

    Attributes:
        wasm, script: the files; the script loads the other one.
        weights: bytes of weights in it.
        scratch: bytes of memory that each instance needs besides; with ranges, at most.
        ranges: least and largest of the extents that callers choose, by name, in their order.
    """

    wasm: Path
    script: Path
    weights: int
    scratch: int
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def write_wasm(
    model: Model,
    folder: str | os.PathLike[str],
    name: str = "model",
    options: Options | None = None,
    ranges: Mapping[str, Wanted] | None = None,
) -> WebModule:
    """Compile a model to `<name>.wasm` and `<name>.mjs`, for browsers, Node and other hosts.

    Args:
        model: with extents that are numbers; see `read_models`.
        folder: made if it is not there.
        name: of the files.
        options: of the compilation.
        ranges: for each axis of inputs its extent, or the least and the largest one; see
            `compile_offline`. Callers choose extents by `setExtents`.

    Raises:
        CompileError: an op of the model needs Python, an extent is symbolic, there are no programs
            for the ranges, the model needs more memory than 4 GiB, there is no compiler for
            WebAssembly, or it fails.
        ShapeError: the model does not take the ranges.
    """
    if _NAME.fullmatch(name) is None:
        raise CompileError("wasm", f"{name!r} is not a file name", hint="use letters and digits")
    _refuse_phases(model.graph)
    command = _command()
    chosen = options or Options()
    compiler = compiler_for(chosen, WASM)
    weights = PreparedWeights()
    made = compiled(Maker(chosen, compiler, weights, "wasm"), model, ranges)
    linked = compiler.linked(list(made.programs), f"{_PREFIX}_rt_")
    parts = _parts(linked, made, (model.inputs, model.outputs))
    if weights.nbytes + max(map(_needed, made.gears)) + _STACK > _MOST:
        raise CompileError("wasm", "the model needs more memory than the 4 GiB of WebAssembly")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    wasm, script = place / f"{name}.wasm", place / f"{name}.mjs"
    with tempfile.TemporaryDirectory(prefix="treadle-") as scratch:
        here = Path(scratch)
        texts = {"parts.h": parts, "weights.s": _WEIGHTS}
        for file, source in (("gears.h", "gears.h"), ("model.c", "model_wasm.c")):
            texts[file] = _text(source).replace("NAME", _PREFIX)
        for file, text in texts.items():
            (here / file).write_text(text, encoding="utf-8")
        (here / "weights.bin").write_bytes(weights.joined().data)
        objects = [f"{number}.o" for number in range(len(linked.objects))]
        for file, image in zip(objects, linked.objects, strict=True):
            (here / file).write_bytes(image)
        inputs = ["model.c", "weights.s", *objects]
        run_compiler(command, [*_FLAGS, "-o", "made.wasm", *inputs], here)
        # What a compiler makes is a program; this is data, which nobody runs by its name.
        wasm.write_bytes((here / "made.wasm").read_bytes())
    script.write_text(_text("model.mjs").replace("NAME", name), encoding="utf-8")
    chosen_by_callers = {} if made.ranges is None else dict(made.ranges.extents)
    scratch_bytes = max(g.arena for g in made.gears)
    return WebModule(wasm, script, weights.nbytes, scratch_bytes, chosen_by_callers)


def _refuse_phases(graph: Graph) -> None:
    """Refuse graphs that are several programs, with Python between them.

    Raises:
        CompileError: data decide extents.
    """
    if finds_extents(graph):
        raise CompileError(
            "wasm",
            "data decide extents in the model: it runs in phases, and a module holds one program",
            saw=", ".join(decisions_of(graph)),
            hint="end the model before these ops, or use write_library",
        )


def _needed(gear: Gear) -> int:
    """Bytes of scratch memory, inputs and outputs, each of them from a line of memory on."""
    return gear.arena + sum(aligned(max(int(t.nbytes), 1)) for t in (*gear.inputs, *gear.outputs))


def _parts(linked: Linked, made: Compiled, names: Names) -> str:
    """The header that model.c reads."""
    first, ranges = made.gears[0], made.ranges
    types = first.inputs, first.outputs
    shapes = (
        tuple(tuple(map(extents, side)) for side in types)
        if ranges is None
        else (ranges.inputs, ranges.outputs)
    )
    told = [
        [
            {"name": n, "dtype": t.dtype.name, "shape": list(shape)}
            for n, t, shape in zip(*side, strict=True)
        ]
        for side in zip(names, types, shapes, strict=True)
    ]
    open_ = {} if ranges is None else ranges.extents
    about = {
        "producer": f"treadle {VERSION}",
        "inputs": told[0],
        "outputs": told[1],
        "extents": [{"name": n, "low": low, "high": high} for n, (low, high) in open_.items()],
    }
    lines = [
        f"#define ARRAY_DATA_WORD {linked.layout['ARRAY_DATA_WORD']}",
        f"#define ABOUT {json.dumps(json.dumps(about))}",
        "extern const unsigned char treadle_weights[];",
        f"extern int64_t {_PREFIX}_rt_run(void *, const int64_t *, void *, int64_t);",
        *kernel_table(linked.symbols),
        *gear_tables(_PREFIX, made, linked.programs, names),
    ]
    return "\n".join((*lines, ""))


def _text(file: str) -> str:
    return importlib.resources.files("treadle.deploy").joinpath(file).read_text(encoding="utf-8")


def _command() -> list[str]:
    """A C compiler that makes WebAssembly: `CC`, that of the extra `aot`, or Clang with LLD.

    Raises:
        CompileError: there is none.
    """
    if C_COMPILER.source():
        return C_COMPILER.get().split()
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-freestanding"]
    if shutil.which("clang") and shutil.which("wasm-ld"):
        return ["clang", "--target=wasm32"]
    raise CompileError(
        "wasm",
        "there is no C compiler for WebAssembly",
        hint="pip install treadle[aot], install clang and lld, or name one in CC",
    )


__all__ = ["WebModule", "write_wasm"]
