"""`treadle compile`: from a trained network to one file, a library, or a module for the web."""

from __future__ import annotations

import enum
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli import arguments as a


class Emit(enum.StrEnum):
    """Kinds of output."""

    MODEL = "model"
    LIBRARY = "library"
    WASM = "wasm"


class InstructionSet(enum.StrEnum):
    """Instructions that code is made for."""

    NATIVE = "native"
    GENERIC = "generic"
    AVX2 = "avx2"
    AVX512 = "avx512"
    NEON = "neon"
    NEON_SDOT = "neon-sdot"
    NEON_DOT = "neon-dot"


class TargetSystem(enum.StrEnum):
    """Systems that libraries are made for."""

    NATIVE = "native"
    LINUX = "linux"
    LINUX_MUSL = "linux-musl"
    MACOS = "macos"
    WINDOWS = "windows"


Gear = Annotated[
    list[str] | None,
    typer.Option(
        metavar="X=..;Y=..",
        help="Shapes that the file is made for: one set per option, 2 to 100 of them.",
        rich_help_panel=a.INPUTS,
    ),
]
Batch = Annotated[
    str,
    typer.Option(
        metavar="1,4,8",
        help="The same, by the first extent of all inputs.",
        rich_help_panel=a.INPUTS,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="A file, or a folder for a library or .wasm; beside the source where left out.",
        rich_help_panel=a.RESULTS,
    ),
]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--outputs",
        metavar="NAME",
        help="A value or node whose result the model gives; may be repeated.",
        rich_help_panel=a.RESULTS,
    ),
]
Emitted = Annotated[
    Emit,
    typer.Option(
        metavar="model|library|wasm",
        help="A file that Treadle runs, a shared library with a C header, or WebAssembly.",
        rich_help_panel=a.RESULTS,
    ),
]
Name = Annotated[
    str,
    typer.Option(
        metavar="PREFIX",
        help="Of a library's functions or of .wasm files; that of the source where left out.",
        rich_help_panel=a.RESULTS,
    ),
]
WithCase = Annotated[
    bool,
    typer.Option(
        "--case/--no-case",
        metavar="",
        help="Keep inputs with their results in the file, for run --check.",
        rich_help_panel=a.CONTENTS,
    ),
]
Info = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Kept in the file; may be repeated.",
        rich_help_panel=a.CONTENTS,
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="For what the compiler did: text, JSON, and a page to look at.",
        rich_help_panel=a.RESULTS,
    ),
]
Targets = Annotated[
    list[InstructionSet] | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help=f"Instructions: {', '.join(InstructionSet)}; may be repeated.",
        rich_help_panel=a.CONTENTS,
    ),
]
ForSystem = Annotated[
    TargetSystem,
    typer.Option(
        metavar="NAME",
        help=f"System that a library is for: {', '.join(TargetSystem)}.",
        rich_help_panel=a.CONTENTS,
    ),
]
Native = Annotated[
    bool | None,
    typer.Option(
        "--native/--portable",
        metavar="",
        help="Put machine code into the file, or leave it out; by default in, where possible.",
        rich_help_panel=a.CONTENTS,
    ),
]


Sign = Annotated[
    Path | None,
    typer.Option(
        metavar="KEY",
        help="Sign the file with a private key, for machines that trust the public one.",
        rich_help_panel=a.RESULTS,
    ),
]


def command(
    context: typer.Context,
    source: a.Source,
    shape: a.RangedShape = None,
    gear: Gear = None,
    batch: Batch = "",
    preprocess: a.Preprocess = None,
    output: Output = None,
    outputs: Outputs = None,
    emit: Emitted = Emit.MODEL,
    name: Name = "",
    case: WithCase = True,
    info: Info = None,
    report: Report = None,
    as_json: a.Json = False,
    target: Targets = None,
    system: ForSystem = TargetSystem.NATIVE,
    native: Native = None,
    sign: Sign = None,
    precision: a.Mode = None,
    keep: a.Keep = None,
    allow: a.Allow = None,
    calibration: a.Calibration = None,
    level: a.Level = None,
    disable: a.Disable = None,
    fusion_switch: a.FusionSwitch = None,
    maps: a.Maps = None,
    winograd: a.Winograd = None,
    engine_options: a.EngineOptions = None,
) -> None:
    """Compile a model: to one file, to a library without Python, or for browsers and Node.

    The file holds the graph with its weights and, unless --portable, machine code for the targets.
    Exit status: 0, or 1 where the model cannot be read or compiled.
    """
    from treadle.cli.compile.making import Wish, keyed, make
    from treadle.cli.models.opening import parsed_shapes
    from treadle.cli.models.programs import Change
    from treadle.cli.models.ranges import are_ranged, parsed_ranges
    from treadle.cli.models.settings import Tuning

    started = time.perf_counter()
    ranges = parsed_ranges(shape or []) if are_ranged(shape or []) else {}
    shapes, chosen = {} if ranges else parsed_shapes(shape or []), tuple(outputs or ())
    change = Change(shapes, chosen, preprocess, precision, keep, allow, calibration)
    tuning = Tuning(level, disable, fusion_switch, maps, winograd, engine_options)
    targets = [t.value for t in target or (InstructionSet.NATIVE,)]
    wanted = (targets, native, case, keyed(info or ()), output, name, report)
    wish = Wish(source, change, tuning, gear or (), batch, *wanted, emit.value, sign, ranges=ranges)
    if system is not TargetSystem.NATIVE:
        wish = replace(wish, system=system.value)
    make(wish, context.obj or (), started, as_json)
