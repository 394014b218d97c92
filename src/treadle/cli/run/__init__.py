"""`treadle run`: a model on inputs from files, timed, compared and looked into."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli import arguments as a
from treadle.cli.status import Status

Given = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="X=FILE",
        help="x=file.npy, .npz, .npz:name, .json, an image, or x=[1, 2]; random where left out.",
        autocompletion=a.input_names,
        rich_help_panel=a.INPUTS,
    ),
]
Channels = Annotated[
    str,
    typer.Option(
        metavar="ORDER",
        help="Of images, where the model does not say: rgb, bgr or gray.",
        rich_help_panel=a.INPUTS,
    ),
]
Order = Annotated[
    a.ImageLayout,
    typer.Option(help="Axes of an input that takes images.", rich_help_panel=a.INPUTS),
]
Scale = Annotated[
    float, typer.Option(metavar="X", help="Bytes of images times this,", rich_help_panel=a.INPUTS)
]
Mean = Annotated[str, typer.Option(metavar="X,..", help="minus this,", rich_help_panel=a.INPUTS)]
Std = Annotated[
    str, typer.Option(metavar="X,..", help="divided by this.", rich_help_panel=a.INPUTS)
]
Iterations = Annotated[
    int,
    typer.Option(
        "--iterations", "-n", min=1, metavar="N", help="Timed runs.", rich_help_panel=a.MEASURING
    ),
]
Warmup = Annotated[
    int, typer.Option(min=0, metavar="N", help="Runs before them.", rich_help_panel=a.MEASURING)
]
Parallel = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="N",
        help="Call it from so many threads at once, too: throughput.",
        rich_help_panel=a.MEASURING,
    ),
]
Tried = Annotated[
    bool,
    typer.Option(
        "--try",
        metavar="",
        help="Try options, the fastest first: threads, maps, winograd, level.",
        rich_help_panel=a.MEASURING,
    ),
]
Profiled = Annotated[
    bool,
    typer.Option(
        "--profile", metavar="", help="Time of every kernel.", rich_help_panel=a.MEASURING
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The same, for Perfetto.", rich_help_panel=a.MEASURING),
]
Expect = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Compare results with an .npz or .npy.", rich_help_panel=a.RESULTS
    ),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check", metavar="", help="Run the cases that the file keeps.", rich_help_panel=a.RESULTS
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(metavar="X", help="Of --expect, relative.", rich_help_panel=a.RESULTS),
]
Save = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write results to an .npz.", rich_help_panel=a.RESULTS),
]
Dump = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Write what every op gives as .npy.", rich_help_panel=a.RESULTS
    ),
]


def command(
    source: a.Source,
    given: Given = None,
    shape: a.Shape = None,
    preprocess: a.Preprocess = None,
    layout: Order = a.ImageLayout.NCHW,
    channels: Channels = "",
    scale: Scale = 1.0,
    mean: Mean = "",
    std: Std = "",
    iterations: Iterations = 10,
    warmup: Warmup = 3,
    parallel: Parallel = 0,
    trying: Tried = False,
    profile: Profiled = False,
    trace: Trace = None,
    expect: Expect = None,
    tolerance: Tolerance = 1e-4,
    check: Check = False,
    save: Save = None,
    dump: Dump = None,
    as_json: a.Json = False,
    threads: a.Threads = 0,
    portable: a.Portable = False,
    allow_native: a.AllowNative = False,
    recompile: a.Recompile = False,
    level: a.Level = None,
    disable: a.Disable = None,
    fusion_switch: a.FusionSwitch = None,
    maps: a.Maps = None,
    winograd: a.Winograd = None,
    engine_options: a.EngineOptions = None,
    precision: a.Mode = None,
    keep: a.Keep = None,
    allow: a.Allow = None,
    calibration: a.Calibration = None,
) -> None:
    """Run a model: its results, and how long it takes.

    Exit status: 0, 1 where the model cannot be read or run, 3 where results differ, 4 where the
    file has code for another machine.
    """
    from treadle.cli.run.running import Inputs, RunOptions, carry_out

    inputs = Inputs(given or (), shape or (), preprocess, layout, channels, scale, mean, std)
    tuning = level, disable, fusion_switch, maps, winograd, engine_options
    types = precision, keep, allow, calibration
    finding = iterations, warmup, parallel, trying, profile, trace, expect, tolerance, check, dump
    allowed = True if allow_native else None
    native = False if portable else allowed
    asked = RunOptions(*finding, save=save, threads=threads, native=native, recompile=recompile)
    found = carry_out(source, inputs, types, tuning, asked)
    found.show(as_json)
    if not found.agrees:
        raise typer.Exit(Status.DIFFERENT)
