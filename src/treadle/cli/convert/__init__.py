"""`treadle convert`: a checkpoint and its model's code, or a foreign model, into one file."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli import arguments as a

CHECKPOINT = "Checkpoint"


class Format(enum.StrEnum):
    """Kinds of output."""

    MODEL = "model"
    ONNX = "onnx"


Source = Annotated[
    Path,
    typer.Argument(
        help="A checkpoint (Treadle, MegEngine, PyTorch, safetensors, a directory of Hugging Face)"
        " with --model; or a model: .onnx, .pt2, .tm.",
        metavar="SOURCE",
        show_default=False,
        exists=True,
    ),
]
Code = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="MODULE:FUNCTION",
        help="A function that builds the model: nets.resnet:resnet50, train.py:Net. Its code runs.",
        rich_help_panel=CHECKPOINT,
    ),
]
Args = Annotated[
    str,
    typer.Option(
        "--args",
        metavar="JSON",
        help="Arguments of that function: a list, or an object of named ones.",
        rich_help_panel=CHECKPOINT,
    ),
]
Key = Annotated[
    str,
    typer.Option(
        "--key",
        metavar="KEY",
        help="Key of the weights, if the checkpoint has several dicts of tensors.",
        rich_help_panel=CHECKPOINT,
    ),
]
Rename = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="RULE",
        help="PATTERN=REPLACEMENT, a regular expression for names of weights, or a JSON file"
        " of names; may be repeated.",
        rich_help_panel=CHECKPOINT,
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict/--no-strict",
        metavar="",
        help="Refuse weights that are missing, unused or of other shapes, or accept them.",
        rich_help_panel=CHECKPOINT,
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="X=1,3,8,8[:DTYPE]",
        help="An input of the model, in order; may be repeated.",
        rich_help_panel=a.INPUTS,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Beside the source where left out.",
        rich_help_panel=a.RESULTS,
    ),
]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--outputs",
        metavar="NAME",
        help="A result to keep; may be repeated. By default all results are kept.",
        rich_help_panel=a.RESULTS,
    ),
]
To = Annotated[
    Format | None,
    typer.Option(
        "--to",
        metavar="model|onnx",
        help="Format to write; by default that of the output's name, else a model file.",
        rich_help_panel=a.RESULTS,
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(
        metavar="X",
        min=0.0,
        help="Largest difference between outputs, absolute plus relative.",
        rich_help_panel=a.RESULTS,
    ),
]


def command(
    context: typer.Context,
    source: Source,
    model: Code = "",
    args: Args = "",
    key: Key = "",
    rename: Rename = None,
    strict: Strict = True,
    inputs: Inputs = None,
    output: Output = None,
    outputs: Outputs = None,
    to: To = None,
    tolerance: Tolerance = 1e-4,
    as_json: a.Json = False,
    allow_native: a.AllowNative = False,
) -> None:
    """Convert a checkpoint with its model's code, or a foreign model, and check what was written.

    The model is built, given the weights, traced for inference and written with them; the file is
    then read again, and its outputs on random inputs are compared with those of the source.
    Exit status: 0, 1 where something cannot be read, converted or loaded, 3 where outputs differ.
    """
    from treadle.cli.convert.converting import Wish, convert

    code = (model, args, key, tuple(rename or ()), strict)
    onnx = to is Format.ONNX or (to is None and output is not None and output.suffix == ".onnx")
    ends = tuple(inputs or ()), tuple(outputs or ())
    last = context.obj or (), allow_native
    wish = Wish(source, *code, *ends, output, onnx, tolerance, *last)
    convert(wish, as_json)
