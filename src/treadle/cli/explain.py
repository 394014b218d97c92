"""`treadle explain`: what the compiler makes of a model, as text, as data or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from treadle.base.table import size
from treadle.cli import arguments as a
from treadle.cli.console import progress, show_json
from treadle.cli.models.opening import open_model, parsed_shapes, random_inputs, run_once
from treadle.cli.models.settings import Tuning
from treadle.engine.phases import stages_of
from treadle.inspect import Inspected

Page = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write a page that shows it all, and needs nothing but a browser.",
        rich_help_panel=a.RESULTS,
    ),
]
Full = Annotated[
    bool,
    typer.Option(
        "--full",
        metavar="",
        help="Every group, op and pass in a row of its own.",
        rich_help_panel=a.RESULTS,
    ),
]
Measure = Annotated[
    bool,
    typer.Option(
        "--measure",
        metavar="",
        help="Run it on random inputs, and show measured times, too.",
        rich_help_panel=a.MEASURING,
    ),
]
Iterations = Annotated[
    int,
    typer.Option(
        "--iterations", "-n", min=1, metavar="N", help="Measured runs.", rich_help_panel=a.MEASURING
    ),
]


def command(
    source: a.Source,
    shape: a.Shape = None,
    page: Page = None,
    full: Full = False,
    measure: Measure = False,
    iterations: Iterations = 10,
    level: a.Level = None,
    engine_options: a.EngineOptions = None,
    disable: a.Disable = None,
    as_json: a.Json = False,
) -> None:
    """Show what the compiler makes of a model.

    Stages, groups and their kernels, what was decided and why, memory and streams: as text, or as
    a page with the graph at every stage.
    """
    options = Tuning(level=level, disable=disable, file=engine_options).options()
    with progress(f"opening {source.name}") as now:
        model = open_model(source, parsed_shapes(shape or []))
        program = Inspected(stages_of(model.graph, options=options))
        now.tell("compiling")
        program.lower()
        if measure:
            now.tell("measuring")
            inputs = random_inputs(model)
            program.profile([inputs[name] for name in model.inputs], iterations)
        elif program.in_phases:  # What is compiled depends on what is found.
            run_once(program, model)
        if page is not None:
            now.tell("drawing")
            program.picture(page, model.inputs, model.outputs)
    shown(program, page, full, as_json)


def shown(program: Inspected, page: Path | None, full: bool, as_json: bool) -> None:
    """Show what was asked for; the page has been written."""
    if as_json:
        show_json(program.data())
    elif page is None or full:
        typer.echo(program.explained(full=full))
    if page is not None:
        # Standard output is for the text or the data, if they were asked for.
        typer.echo(f"{page}  {size(page.stat().st_size)}", err=as_json or full)
