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
from treadle.deploy.phases import Compiled, compiled
from treadle.deploy.prepared import WASM, PreparedWeights
from treadle.deploy.ranges import Maker, Wanted
from treadle.engine.devices.placement import find_compiler
from treadle.engine.options import Options
from treadle.engine.package.models import Model

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_CPUID = {
    "f16c": (1, 0, 2, 29, 0x6),
    "fma": (1, 0, 2, 12, 0x6),
    "movbe": (1, 0, 2, 22, 0),
    "avx2": (7, 0, 1, 5, 0x6),
    "bmi1": (7, 0, 1, 3, 0),
    "bmi2": (7, 0, 1, 8, 0),
    "avx512f": (7, 0, 1, 16, 0xE6),
    "avx512dq": (7, 0, 1, 17, 0xE6),
    "avx512cd": (7, 0, 1, 28, 0xE6),
    "avx512bw": (7, 0, 1, 30, 0xE6),
    "avx512vl": (7, 0, 1, 31, 0xE6),
    "avx512_vnni": (7, 0, 2, 11, 0xE6),
    "avx512_bf16": (7, 1, 0, 5, 0xE6),
    "avx_vnni": (7, 1, 0, 4, 0x6),
    "amx_bf16": (7, 0, 3, 22, 0x60000),
    "amx_tile": (7, 0, 3, 24, 0x60000),
    "amx_int8": (7, 0, 3, 25, 0x60000),
}
"""Features as `cpuid` tells of them: leaf, part of it, register (eax to edx), bit; and the bits of
XCR0 that say that the system keeps the registers. Source: Intel 64 and IA-32 Architectures Software
Developer's Manual, volume 1, chapters 13 and 20, and volume 2A, CPUID."""
_MATRICES = "syscall(158, 0x1023, 18) == 0"
"""Linux is asked for matrix registers (`arch_prctl`), and refuses where there are none."""
_ARM = {
    "asimddp": ("DotProd", 16, 20),
    "i8mm": ("I8MM", 26, 13),
    "bf16": ("BF16", 26, 14),
}
"""Features of Arm processors: macOS's names, and words and bits of what Linux tells of them
(`AT_HWCAP` is 16, `AT_HWCAP2` 26)."""
_HERE = {"darwin": "macos", "win32": "windows"}.get(sys.platform, "linux")
_SYSTEMS = {
    "linux": ("lib{}.so", "linux-gnu"),
    "linux-musl": ("lib{}.so", "linux-musl"),
    "macos": ("lib{}.dylib", "macos"),
    "windows": ("{}.dll", "windows-gnu"),
}
"""Systems: what files of libraries are called there, and what Zig calls the system."""
_ZIGS = ["-lapi-ms-win-core-synch-l1-2-0"]
"""Windows' synchronization library, as Zig names it."""
_FOREIGN = {
    "linux": ("{}-linux-gnu-gcc",),
    "linux-musl": ("{}-linux-musl-gcc",),
    "macos": (),
    "windows": ("{}-w64-mingw32-gcc-posix", "{}-w64-mingw32-clang"),
}
"""Names of C compilers for other systems and architectures."""
_WEIGHTS = {
    "macos": (".section __TEXT,__const", ".p2align 6", "_"),
    "windows": ('.section .rdata,"dr"', ".balign 64", ""),
}
"""Of weights as assembly: the section, its alignment, and what the names of C begin with."""
_OF_ELF = '.section .rodata,"a",%progbits', ".balign 64", ""


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
    system: str = "",
) -> Library:
    """Compile a model to a shared library, as a rule `lib<name>.so`, and `<name>.h`.

    Args:
        model: with extents that are numbers; see `read_models`.
        folder: made if it is not there.
        name: prefix of all functions, a C identifier.
        options: of the compilation.
        target: "generic", "avx2", "avx512", "neon", "neon-sdot" or "neon-dot"; by default this
            processor, with all that it has. For another architecture there must be a C compiler:
            `CC`, one that is named after it, or that of the extra `aot`.
        ranges: for each axis of inputs its extent, or the least and the largest one; see
            `compile_offline`. Callers choose extents by `<name>_set_extents`.
        system: "linux", "linux-musl", "macos" (`lib<name>.dylib`) or "windows" (`<name>.dll` and
            what linkers want for it, `<name>.lib`); "" for this one. For another system there must
            be a C compiler, as for another architecture.

    Raises:
        CompileError: an op of the model needs Python, an extent is symbolic, there are no programs
            for the ranges, there is no such target or system, there is no C compiler, or it fails.
        ShapeError: the model does not take the ranges.
    """
    if _NAME.fullmatch(name) is None:
        raise CompileError("library", f"{name!r} is not a C identifier", hint="use letters and _")
    if target == WASM:
        raise CompileError("library", "WebAssembly has no shared libraries", hint="use write_wasm")
    chosen = options or Options()
    compiler = compiler_for(chosen, target, system)
    weights = PreparedWeights()
    make = Maker(chosen, compiler, weights, "library")
    made = compiled(make, model, ranges)
    linked = compiler.linked(list(made.programs), f"{name}_rt_")
    names = model.inputs, model.outputs
    there = system or _HERE
    parts = _Parts(name, linked, made, weights.joined(), names, there)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    library = place / _SYSTEMS[there][0].format(name)
    header = place / f"{name}.h"
    with tempfile.TemporaryDirectory(prefix="treadle-") as scratch:
        parts.build(Path(scratch), library)
    header.write_text(_text("model.h", name), encoding="utf-8")
    extents = {} if made.ranges is None else dict(made.ranges.extents)
    return Library(library, header, weights.nbytes, max(g.arena for g in made.gears), extents)


def compiler_for(options: Options, target: str | None, system: str = "") -> Any:
    """The engine's compiler, for a target on a system; None and "" for those that are here.

    Raises:
        CompileError: it writes no libraries, or knows no such targets or systems.
    """
    found = find_compiler(options)
    if not isinstance(found, LibraryCompiler):
        raise CompileError(
            "library", "the engine cannot write libraries", hint="use the engine cpu"
        )
    if target is None and not system:
        return found
    if not isinstance(found, ShippingCompiler):
        problem = "the engine knows no other targets and systems"
        raise CompileError("library", problem, hint="leave them out")
    return found.toward(target or "", system)


# -- files -------------------------------------------------------------------------------------


def _text(file: str, name: str) -> str:
    """A C file of this package, with the model's name in it."""
    source = importlib.resources.files("treadle.deploy").joinpath(file)
    return source.read_text(encoding="utf-8").replace("NAME", name)


def _functions(name: str) -> list[str]:
    """The functions of the header, for the linker: nothing else is seen from outside."""
    return list(dict.fromkeys(re.findall(rf"\b({name}_\w+)\(", _text("model.h", name))))


@dataclass(frozen=True, slots=True)
class _Parts:
    """All that goes into one library."""

    name: str
    linked: Linked
    made: Compiled
    weights: Array
    names: tuple[Sequence[str], Sequence[str]]
    system: str

    def build(self, folder: Path, target: Path) -> None:
        """Write sources and objects into a folder, and have the system's compiler join them."""
        name = self.name
        files = {
            f"{name}.h": _text("model.h", name),
            f"{name}.c": _text("model.c", name),
            "gears.h": _text("gears.h", name),
            f"{name}_parts.h": self._parts(),
            "weights.s": self._weights(),
        }
        command = compiler_command(self.linked.architecture, self.system)
        flags = ["-O2", "-shared", "-fvisibility=hidden"]
        if self.system == "windows":
            rest = ["-Wl,-Bstatic", "-lpthread", "-Wl,-Bdynamic"]
            is_zig = "ziglang" in command or Path(command[0]).stem == "zig"
            rest += _ZIGS if is_zig else ["-static-libgcc", "-lsynchronization"]
            flags.append(f"-Wl,--out-implib={folder / name}.lib")
        elif self.system == "macos":
            files["exports.list"] = "".join(f"_{function}\n" for function in _functions(name))
            rest = ["-fPIC", f"-Wl,-install_name,@rpath/{target.name}"]
            rest.append(f"-Wl,-exported_symbols_list,{folder / 'exports.list'}")
        else:
            files["exports.map"] = f"{{ global: {'; '.join(_functions(name))}; local: *; }};\n"
            rest = ["-fPIC", "-Wl,-z,noexecstack", "-lpthread", "-lm"]
            rest.append(f"-Wl,--version-script={folder / 'exports.map'}")
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        (folder / "weights.bin").write_bytes(self.weights.data)
        objects = []
        for number, image in enumerate(self.linked.objects):
            objects.append(f"{number}.o")
            (folder / objects[-1]).write_bytes(image)
        made = folder / target.name
        inputs = [f"{name}.c", "weights.s", *objects]
        run_compiler(command, [*flags, "-o", str(made), *inputs, *rest], folder)
        shutil.move(made, target)
        if self.system == "windows":
            shutil.move(folder / f"{name}.lib", target.with_suffix(".lib"))

    def _weights(self) -> str:
        """Weights as data that the system maps, not as text that a compiler reads."""
        section, aligned, before = _WEIGHTS.get(self.system, _OF_ELF)
        name = f"{before}{self.name}_weights"
        lines = [section, aligned, f".globl {name}", f"{name}:", '.incbin "weights.bin"']
        lines += [aligned, ".byte 0"]
        if self.system == "windows":
            lines += [
                ".section .drectve",
                *(f'.ascii " -export:{f}"' for f in _functions(self.name)),
            ]
        elif self.system != "macos":
            lines.append('.section .note.GNU-stack,"",%progbits')
        return "\n".join([*lines, ""])

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
            f"#define PROCESSOR_FITS {self._question()}",
            f"extern const unsigned char {name}_weights[];",
            f"extern int64_t {name}_rt_run(void *, const int64_t *, void *, int64_t);",
            f"extern void *{name}_rt_worker(void *);",
            f"extern void {name}_rt_stop(void *);",
            *kernel_table(linked.symbols),
            *gear_tables(name, self.made, linked.programs, self.names),
        ]
        return "\n".join((*lines, ""))

    def _question(self) -> str:
        """Return whether the processor has the features, in C."""
        needs = self.linked.requires
        on_linux = self.system in ("linux", "linux-musl")
        asked = [f"has({', '.join(map(str, _CPUID[f]))})" for f in needs if f in _CPUID]
        if "amx_tile" in needs:
            asked.append(_MATRICES if on_linux else "0")
        if on_linux:
            bits = [_ARM[f][1:] for f in needs if f in _ARM]
            asked += [f"(getauxval({word}) >> {bit} & 1)" for word, bit in bits]
        elif self.system == "macos":
            asked += [f'tells("hw.optional.arm.FEAT_{_ARM[f][0]}")' for f in needs if f in _ARM]
        elif set(needs) & set(_ARM):
            asked.append("0")
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
        signs = ("error:", "cannot find", "undefined")
        first = next((x for x in told if any(s in x for s in signs)), "\n".join(told[-3:]))
        raise CompileError("library", f"{command[0]} fails: {first}")


def compiler_command(architecture: str = "", system: str = "") -> list[str]:
    """The C compiler: `CC`, the system's for an architecture and a system, or ziglang's.

    `architecture` is spelled as `platform.machine()` does on Linux; "" for this machine's. For
    `system` see `write_library`.

    Raises:
        CompileError: there is none.
    """
    architecture = architecture or platform.machine()
    there = system or _HERE
    foreign = architecture != platform.machine() or there != _HERE
    known = _FOREIGN[there] if foreign else ("cc", "gcc", "clang")
    names = [name.format(architecture) for name in known]
    own = C_COMPILER.get() if C_COMPILER.source() else ""
    found = own or next(filter(shutil.which, names), None)
    if found:
        return found.split()
    if importlib.util.find_spec("ziglang") is not None:
        asked = ["-target", f"{architecture}-{_SYSTEMS[there][1]}"] if foreign else []
        return [sys.executable, "-m", "ziglang", "cc", *asked]
    wanted = f" for {architecture} {there}" if foreign else ""
    raise CompileError(
        "library",
        f"there is no C compiler{wanted}",
        hint="install one, name one in CC, or pip install treadle[aot]",
    )


__all__ = [
    "Library",
    "compiler_command",
    "compiler_for",
    "run_compiler",
    "write_library",
]
