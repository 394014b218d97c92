"""Models as WebAssembly modules, with a small JavaScript module around them.

The module holds the compiled kernels (vectors of 128 bits), the program's steps, the weights as the
program wants them, and all memory of one instance. It imports nothing.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from treadle.backends.program import Linked, Program
from treadle.base.env import C_COMPILER
from treadle.base.errors import CompileError
from treadle.base.version import VERSION
from treadle.deploy.c_text import integers, kernel_table, stop_table
from treadle.deploy.library import compiler_for, run_compiler
from treadle.deploy.prepared import (
    WASM,
    PreparedWeights,
    moved,
    packed,
    refuse,
    stops_of,
)
from treadle.engine.options import Options
from treadle.engine.package.models import Model
from treadle.engine.phases import decisions_of, finds_extents
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Plan, aligned
from treadle.graph.ir import Graph, Value

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
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
        scratch: bytes of memory that each instance needs besides.
    """

    wasm: Path
    script: Path
    weights: int
    scratch: int


def write_wasm(
    model: Model,
    folder: str | os.PathLike[str],
    name: str = "model",
    options: Options | None = None,
) -> WebModule:
    """Compile a model to `<name>.wasm` and `<name>.mjs`, for browsers, Node and other hosts.

    Args:
        model: with extents that are numbers; see `read_models`.
        folder: made if it is not there.
        name: of the files.
        options: of the compilation.

    Raises:
        CompileError: an op of the model needs Python, an extent is symbolic, the model needs more
            memory than 4 GiB, there is no compiler for WebAssembly, or it fails.
    """
    if _NAME.fullmatch(name) is None:
        raise CompileError("wasm", f"{name!r} is not a file name", hint="use letters and digits")
    _refuse_phases(model.graph)
    command = _command()
    chosen = options or Options()
    compiler = compiler_for(chosen, WASM)
    plan = Stages(model.graph, options=chosen, crossing=compiler).planned.plan
    refuse(plan, "wasm")
    weights = PreparedWeights()
    steps = moved(plan, packed(plan, compiler.build), weights.add)
    linked = compiler.linked([Program(steps, plan.bases)], "treadle_wasm_")
    ends = [
        *_named_ends(model.graph.inputs, model.inputs),
        *_named_ends(model.graph.outputs, model.outputs),
    ]
    parts = _parts(linked, plan, ends)
    if weights.nbytes + plan.memory.peak + sum(_sizes(ends)) + _STACK > _MOST:
        raise CompileError("wasm", "the model needs more memory than the 4 GiB of WebAssembly")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    wasm, script = place / f"{name}.wasm", place / f"{name}.mjs"
    with tempfile.TemporaryDirectory(prefix="treadle-") as scratch:
        here = Path(scratch)
        texts = {"parts.h": parts, "model.c": _text("model_wasm.c"), "weights.s": _WEIGHTS}
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
    return WebModule(wasm, script, weights.nbytes, plan.memory.peak)


def _named_ends(values: Sequence[Value], names: Sequence[str]) -> list[tuple[str, Value]]:
    """Inputs or outputs with their names.

    Raises:
        CompileError: one has extents that are not numbers.
    """
    for name, value in zip(names, values, strict=True):
        if not value.type.is_static:
            raise CompileError("wasm", f"{name} has symbolic extents", saw=str(value.type))
    return list(zip(names, values, strict=True))


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


def _sizes(ends: Sequence[tuple[str, Value]]) -> list[int]:
    """Bytes that inputs and outputs take, each from a line of memory on."""
    return [aligned(max(int(value.type.nbytes), 1)) for _, value in ends]


def _parts(linked: Linked, plan: Plan, ends: Sequence[tuple[str, Value]]) -> str:
    """The header that model.c reads."""
    stops, sizes = stops_of(plan), _sizes(ends)
    told = [
        {"name": n, "dtype": v.type.dtype.name, "shape": [int(d) for d in v.type.shape]}
        for n, v in ends
    ]
    about = {
        "producer": f"treadle {VERSION}",
        "inputs": told[: plan.inputs],
        "outputs": told[plan.inputs :],
        "stops": [{"op": s.op, "extent": s.high} for s in stops],
    }
    numbers = {
        "INPUTS": plan.inputs,
        "OUTPUTS": plan.outputs,
        "PLACES": len(linked.programs[0].places),
        "ARENA_BYTES": max(plan.memory.peak, 1),
        "ENDS_BYTES": sum(sizes),
        "STOPS": len(stops),
        "ARRAY_DATA_WORD": linked.layout["ARRAY_DATA_WORD"],
    }
    lines = [
        *(f"#define {key} {value}" for key, value in numbers.items()),
        f"#define ABOUT {json.dumps(json.dumps(about))}",
        "extern const unsigned char treadle_weights[];",
        "extern int64_t treadle_wasm_run(void *, const int64_t *, void *, int64_t);",
        *kernel_table(linked.symbols),
        integers("program_words", linked.programs[0].words, "static"),
        integers("kernel_places", linked.programs[0].places),
        integers("end_offsets", np.cumsum([0, *sizes])[:-1]),
        stop_table(stops),
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
