"""Models as shared libraries with a C header: run without Python.

The library holds the compiled kernels, the program's steps, the weights as the program wants them
(packed, folded), and a small runtime in C. It needs the C library and threads, nothing else.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treadle.backends.program import LibraryCompiler, Linked, ShippingCompiler
from treadle.base.array import Array
from treadle.base.env import C_COMPILER
from treadle.base.errors import CompileError
from treadle.base.version import VERSION
from treadle.deploy.c_text import kernel_table
from treadle.deploy.extents_text import gear_tables
from treadle.deploy.prepared import WASM, PreparedWeights
from treadle.deploy.ranges import Maker, Wanted, opened
from treadle.engine.devices.placement import find_compiler
from treadle.engine.options import Options
from treadle.engine.package.extents import Ranges
from treadle.engine.package.models import Model
from treadle.engine.package.native_part import Gear
from treadle.graph.ir import Value

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_SUPPORTED = {
    "avx2": "avx2",
    "fma": "fma",
    "bmi1": "bmi",
    "bmi2": "bmi2",
    "avx512f": "avx512f",
    "avx512dq": "avx512dq",
    "avx512bw": "avx512bw",
    "avx512vl": "avx512vl",
    "avx512cd": "avx512cd",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx_vnni": "avxvnni",
}
"""Names that compilers have for features. They know no other ones of old; processors with these
have those as well."""
_MATRICES = "syscall(158, 0x1023, 18) == 0"
"""Linux is asked for matrix registers (`arch_prctl`), and refuses where there are none."""
_ARM = {"i8mm": 13, "bf16": 14}
"""Bits of what Linux tells of Arm processors (`AT_HWCAP2`)."""


@dataclass(frozen=True, slots=True)
class Library:
    """Files that were written.

    Attributes:
        library, header: the files.
        weights: bytes of weights in it.
        scratch: bytes of memory that each instance needs; with ranges, at most.
        ranges: least and largest of the extents that callers choose, by name, in their order.
    """

    library: Path
    header: Path
    weights: int
    scratch: int
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def write_library(
    model: Model,
    folder: str | os.PathLike[str],
    name: str = "model",
    options: Options | None = None,
    target: str | None = None,
    ranges: Mapping[str, Wanted] | None = None,
) -> Library:
    """Compile a model to `lib<name>.so` and `<name>.h`.

    Args:
        model: with extents that are numbers; see `read_models`.
        folder: made if it is not there.
        name: prefix of all functions, a C identifier.
        options: of the compilation.
        target: "generic", "avx2", "avx512", "neon" or "neon-dot"; by default this
            processor, with all that it has. For another architecture there must be a C compiler:
            `CC`, one that is named after it, or that of the extra `aot`.
        ranges: for each axis of inputs its extent, or the least and the largest one; see
            `compile_offline`. Callers choose extents by `<name>_set_extents`.

    Raises:
        CompileError: an op of the model needs Python, an extent is symbolic, there are no programs
            for the ranges, there is no C compiler, or it fails.
        ShapeError: the model does not take the ranges.
    """
    if _NAME.fullmatch(name) is None:
        raise CompileError("library", f"{name!r} is not a C identifier", hint="use letters and _")
    if target == WASM:
        raise CompileError("library", "WebAssembly has no shared libraries", hint="use write_wasm")
    chosen = options or Options()
    compiler = compiler_for(chosen, target)
    weights = PreparedWeights()
    make = Maker(chosen, compiler, weights, "library")
    declared = None
    if ranges is None:
        named_ends(model.graph.inputs, model.inputs)
        made = [make.fixed(model.graph)]
    else:
        wide = opened(model, ranges)
        made = make.programs(wide)
        declared = wide.declared(model.graph, [gear for gear, _ in made])
    gears = [gear for gear, _ in made]
    linked = compiler.linked([program for _, program in made], f"{name}_rt_")
    names = model.inputs, model.outputs
    parts = _Parts(name, linked, gears, weights.joined(), names, declared)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    library, header = place / f"lib{name}.so", place / f"{name}.h"
    with tempfile.TemporaryDirectory(prefix="treadle-") as scratch:
        parts.build(Path(scratch), library)
    header.write_text(_text("model.h", name), encoding="utf-8")
    extents = {} if declared is None else dict(declared.extents)
    return Library(library, header, weights.nbytes, max(g.arena for g in gears), extents)


def compiler_for(options: Options, target: str | None) -> Any:
    """The engine's compiler, for a target.

    Raises:
        CompileError: it writes no libraries, or knows no other targets.
    """
    found = find_compiler(options)
    if not isinstance(found, LibraryCompiler):
        raise CompileError(
            "library", "the engine cannot write libraries", hint="use the engine cpu"
        )
    if target is None:
        return found
    if not isinstance(found, ShippingCompiler):
        raise CompileError("library", "the engine knows no other targets", hint="leave it out")
    return found.toward(target)


def named_ends(values: Sequence[Value], names: Sequence[str]) -> list[tuple[str, Value]]:
    """Inputs or outputs with their names.

    Raises:
        CompileError: one has extents that are not numbers.
    """
    for name, value in zip(names, values, strict=True):
        if not value.type.is_static:
            raise CompileError("library", f"{name} has symbolic extents", saw=str(value.type))
    return list(zip(names, values, strict=True))


# -- files -------------------------------------------------------------------------------------


def _text(file: str, name: str) -> str:
    """A C file of this package, with the model's name in it."""
    source = importlib.resources.files("treadle.deploy").joinpath(file)
    return source.read_text(encoding="utf-8").replace("NAME", name)


def _functions(name: str) -> str:
    """The functions of the header, for the linker: nothing else is seen from outside."""
    declared = re.findall(rf"\b({name}_\w+)\(", _text("model.h", name))
    return " ".join(f"{function};" for function in dict.fromkeys(declared))


@dataclass(frozen=True, slots=True)
class _Parts:
    """All that goes into one library."""

    name: str
    linked: Linked
    gears: Sequence[Gear]
    weights: Array
    names: tuple[Sequence[str], Sequence[str]]
    ranges: Ranges | None

    def build(self, folder: Path, target: Path) -> None:
        """Write sources and objects into a folder, and have the system's compiler join them."""
        name = self.name
        files = {
            f"{name}.h": _text("model.h", name),
            f"{name}.c": _text("model.c", name),
            f"{name}_parts.h": self._parts(),
            "weights.s": self._weights(),
            "exports.map": f"{{ global: {_functions(name)} local: *; }};\n",
        }
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        (folder / "weights.bin").write_bytes(self.weights.data)
        objects = []
        for number, image in enumerate(self.linked.objects):
            objects.append(f"{number}.o")
            (folder / objects[-1]).write_bytes(image)
        made = folder / target.name
        flags = ["-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,noexecstack"]
        flags += [f"-Wl,--version-script={folder / 'exports.map'}", "-o", str(made)]
        inputs = [f"{name}.c", "weights.s", *objects]
        command = compiler_command(self.linked.architecture)
        run_compiler(command, [*flags, *inputs, "-lpthread", "-lm"], folder)
        shutil.move(made, target)

    def _weights(self) -> str:
        """Weights as data that the system maps, not as text that a compiler reads."""
        name = f"{self.name}_weights"
        lines = ['.section .rodata,"a",%progbits', ".balign 64", f".global {name}", f"{name}:"]
        lines += ['.incbin "weights.bin"', ".balign 64", ".byte 0"]
        return "\n".join([*lines, '.section .note.GNU-stack,"",%progbits', ""])

    def _parts(self) -> str:
        """The header that model.c reads."""
        name, linked = self.name, self.linked
        about = {
            "producer": f"treadle {VERSION}",
            "model": name,
            "target": linked.target,
            "kernels": len(linked.symbols),
        }
        numbers = {"WEIGHT_BYTES": self.weights.nbytes, **linked.layout}
        lines = [f"#define {key} {value}" for key, value in numbers.items()]
        lines += [
            f"#define ABOUT {json.dumps(json.dumps(about))}",
            f"#define PROCESSOR {json.dumps(linked.target)}",
            "extern long syscall(long, ...);",
            "extern unsigned long getauxval(unsigned long);",
            f"#define PROCESSOR_FITS {_question(linked.requires)}",
            f"extern const unsigned char {name}_weights[];",
            f"extern int64_t {name}_rt_run(void *, const int64_t *, void *, int64_t);",
            f"extern void *{name}_rt_worker(void *);",
            f"extern void {name}_rt_stop(void *);",
            f"extern int64_t {name}_rt_evaluate(const int32_t *, int64_t, int64_t *);",
            *kernel_table(linked.symbols),
            *gear_tables(name, self.gears, linked.programs, self.names, self.ranges),
        ]
        return "\n".join((*lines, ""))


def _question(features: Sequence[str]) -> str:
    """Return whether the processor has features, in C."""
    names = [_SUPPORTED[f] for f in features if f in _SUPPORTED]
    asked = [f'__builtin_cpu_supports("{n}")' for n in names]
    if "amx_tile" in features:
        asked.append(_MATRICES)
    asked += [f"(getauxval(26) >> {_ARM[f]} & 1)" for f in features if f in _ARM]
    return f"({' && '.join(asked) or 1})"


def run_compiler(command: Sequence[str], arguments: Sequence[str], folder: Path) -> None:
    """Run a C compiler in a folder.

    Raises:
        CompileError: it cannot be run, or fails.
    """
    try:
        done = subprocess.run(
            [*command, *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise CompileError("library", f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        told = done.stderr.strip().splitlines()
        first = next((line for line in told if "error" in line), "\n".join(told[-3:]))
        raise CompileError("library", f"{command[0]} fails: {first}")


def compiler_command(architecture: str = "") -> list[str]:
    """The C compiler: `CC`, the system's for an architecture, or ziglang's.

    `architecture` is spelled as `platform.machine()` does on Linux; "" for this machine's.

    Raises:
        CompileError: there is none.
    """
    foreign = architecture not in ("", platform.machine())
    names = [f"{architecture}-linux-gnu-gcc"] if foreign else ["cc", "gcc", "clang"]
    own = C_COMPILER.get() if C_COMPILER.source() else ""
    found = own or next(filter(shutil.which, names), None)
    if found:
        return found.split()
    if importlib.util.find_spec("ziglang") is not None:
        there = ["-target", f"{architecture}-linux-gnu"] if foreign else []
        return [sys.executable, "-m", "ziglang", "cc", *there]
    raise CompileError(
        "library",
        f"there is no C compiler{f' for {architecture}' if foreign else ''}",
        hint="install one, name one in CC, or pip install treadle[aot]",
    )


__all__ = [
    "Library",
    "compiler_command",
    "compiler_for",
    "named_ends",
    "run_compiler",
    "write_library",
]
