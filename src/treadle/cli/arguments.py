"""Arguments and options that several commands have, each under one name with one meaning."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

INPUTS, RESULTS, MEASURING = "Inputs", "Results", "Measuring"
OPTIMIZATION, TARGET, PRECISION = "Optimization", "Target", "Precision"
CONTENTS = "Contents of the file"

PASSES = (
    "canonicalize",
    "check_ranges",
    "cse",
    "dce",
    "drop_markers",
    "expand",
    "find_attention",
    "fold",
    "fold_control",
    "fold_scales",
    "fuse",
    "integers",
    "join_scans",
    "layout",
    "precompute",
    "prepack",
    "propagate",
    "reductions",
    "simplify",
    "statistics",
    "together",
    "winograd",
)
"""Names of what can be left out, one by one."""
MAPS = ("channels-last", "blocked", "row-major")
"""Names of orders in which maps may be held; the last one alone is held in any case."""


def completing(words: Sequence[str]) -> Callable[[str], list[str]]:
    """Completes some words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def input_names(context: typer.Context, incomplete: str) -> list[str]:
    """Completes `x=` for the inputs of the model file that the command line names."""
    # Where the option has no value yet, words in front of it were not taken for arguments.
    path = next(filter(None, (context.params.get("source"), *context.args)), None)
    if path is None or Path(path).suffix == ".onnx":
        return []
    from treadle.base.files.source import open_source
    from treadle.engine.package import opened

    try:
        with open_source(path) as source:
            names = opened(source).manifest["models"][0]["inputs"]
    except (OSError, ValueError, LookupError, TypeError):  # There is nothing to complete.
        return []
    return [f"{name}=" for name in names if f"{name}=".startswith(incomplete)]


class Precision(enum.StrEnum):
    """Element types that a model computes in."""

    FLOAT32 = "float32"
    MIXED_BFLOAT16 = "mixed-bfloat16"
    MIXED_FLOAT16 = "mixed-float16"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT8 = "int8"


class ImageLayout(enum.StrEnum):
    """Orders of the axes of images."""

    NCHW = "nchw"
    NHWC = "nhwc"


Source = Annotated[
    Path,
    typer.Argument(help="An ONNX model, or a model file.", metavar="MODEL", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print as JSON.")]

# -- inputs --------------------------------------------------------------------------------------


def _extents(metavar: str, text: str) -> Any:
    return typer.Option(
        "--shape",
        metavar=metavar,
        help=f"{text}; may be repeated.",
        autocompletion=input_names,
        rich_help_panel=INPUTS,
    )


Shape = Annotated[list[str] | None, _extents("X=1,3,8,8", "Extents of an input")]
RangedShape = Annotated[
    list[str] | None,
    _extents("X=1..4,3,8,8", "Extents of an input, or ranges, both ends inclusive"),
]
Preprocess = Annotated[
    Path | None,
    typer.Option(
        "--preprocess",
        metavar="FILE",
        help="TOML file with what is done to images first; becomes a part of the model.",
        rich_help_panel=INPUTS,
    ),
]

# -- precision -----------------------------------------------------------------------------------

Mode = Annotated[
    Precision | None,
    typer.Option(
        "--precision",
        metavar="MODE",
        help=f"What it computes in: {', '.join(Precision)}. As it stands where left out.",
        rich_help_panel=PRECISION,
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="NAME",
        help="An op, node or value that keeps its element type; may be repeated, * stands for any.",
        rich_help_panel=PRECISION,
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="OP",
        help="An op that may be computed in few bits besides those of the table.",
        rich_help_panel=PRECISION,
    ),
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        metavar="FILE",
        help="Sample inputs for int8: .npz with an array per input, samples stacked in front.",
        rich_help_panel=PRECISION,
    ),
]

# -- optimization --------------------------------------------------------------------------------

Level = Annotated[
    int | None,
    typer.Option(
        "--level",
        min=0,
        max=3,
        metavar="N",
        help="0: op by op, 1: plain fusions, 2: by modelled cost (what is usual), 3: the rest.",
        rich_help_panel=OPTIMIZATION,
    ),
]
EngineOptions = Annotated[
    Path | None,
    typer.Option(
        "--options",
        metavar="FILE",
        help='JSON file with any options of the compiler, such as {"streams": 2}.',
        rich_help_panel=OPTIMIZATION,
    ),
]
Disable = Annotated[
    list[str] | None,
    typer.Option(
        "--disable",
        metavar="PASS",
        help="Leave a pass out; may be repeated. The report names all passes.",
        autocompletion=completing(PASSES),
        rich_help_panel=OPTIMIZATION,
    ),
]
FusionSwitch = Annotated[
    Path | None,
    typer.Option(
        "--fusion-switch",
        metavar="FILE",
        help="JSON file that turns rewrites and kinds of groups off, by name.",
        rich_help_panel=OPTIMIZATION,
    ),
]
Maps = Annotated[
    list[str] | None,
    typer.Option(
        "--maps",
        metavar="ORDER",
        help="Order in which maps may be held: channels-last, blocked, row-major; may be repeated.",
        autocompletion=completing(MAPS),
        rich_help_panel=OPTIMIZATION,
    ),
]
Winograd = Annotated[
    int | None,
    typer.Option(
        "--winograd",
        metavar="0|2|4",
        help="Results per axis of Winograd's tiles at most; 0: none.",
        rich_help_panel=OPTIMIZATION,
    ),
]

# -- target --------------------------------------------------------------------------------------

Threads = Annotated[
    int,
    typer.Option(
        "--threads",
        min=0,
        metavar="N",
        help="Threads that share a kernel's work; 0: one per core.",
        rich_help_panel=TARGET,
    ),
]
Portable = Annotated[
    bool,
    typer.Option(
        "--portable",
        metavar="",
        help="Leave native code alone: only the graph, which is compiled where it runs.",
        rich_help_panel=TARGET,
    ),
]
AllowNative = Annotated[
    bool,
    typer.Option(
        "--allow-native",
        metavar="",
        help="Run native code of any author; by default only yours, or signed by keys you trust.",
        rich_help_panel=TARGET,
    ),
]
Recompile = Annotated[
    bool,
    typer.Option(
        "--recompile",
        metavar="",
        help="Compile the graph where the file's native code does not fit.",
        rich_help_panel=TARGET,
    ),
]
