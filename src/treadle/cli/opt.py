"""`treadle opt`: single passes on the text form of a graph."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from treadle.backends.program import Compiler
from treadle.base.errors import GraphError
from treadle.cli import arguments as a
from treadle.cli.models.settings import Tuning
from treadle.cli.status import Misuse
from treadle.engine.devices.placement import find_compiler
from treadle.engine.optimize import STEPS, run_step
from treadle.engine.options import Options
from treadle.engine.prepare import prepare as _  # noqa: F401  # Its passes are known by name.
from treadle.engine.report import CompileReport
from treadle.graph.ir import Graph, Value
from treadle.graph.parser import parse
from treadle.graph.pass_text import parse_passes
from treadle.graph.passes import PASSES, PassReport, run_passes
from treadle.graph.printer import to_text, value_names
from treadle.graph.verify import verify

Text = Annotated[
    str,
    typer.Argument(
        help="A file with the text of a graph; - reads standard input.",
        metavar="[FILE]",
        show_default=False,
    ),
]
Names = Annotated[
    str,
    typer.Option(
        "--passes",
        metavar="A,B",
        help="Passes in order, with options where they have some: cse,simplify{fuel=50},fuse.",
    ),
]
Listed = Annotated[bool, typer.Option("--list", metavar="", help="Name the passes, and stop.")]
Frozen = Annotated[
    list[str] | None,
    typer.Option(
        "--frozen",
        metavar="NAME",
        help="An input that keeps its contents from run to run; may be repeated, * is all.",
    ),
]
Why = Annotated[
    bool,
    typer.Option("--why", metavar="", help="Tell on standard error what was decided, and why."),
]


def command(
    source: Text = "",
    passes: Names = "",
    listed: Listed = False,
    frozen: Frozen = None,
    why: Why = False,
    level: a.Level = None,
    engine_options: a.EngineOptions = None,
) -> None:
    """Run passes on the text of a graph, and print the graph after them.

    The text is what `treadle info MODEL --graph graph.txt` and TREADLE_DUMP write. Passes are those
    of the optimize stage, and those of prepare that run on any graph. Without any the graph is
    checked and printed.
    """
    if listed:
        typer.echo(list_passes())
        return
    if not source:
        raise Misuse("treadle opt", "no graph was named", hint="name a file, or - for a pipe")
    text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    steps = _split(passes)
    graph = parse(text)
    verify(graph)
    options = Tuning(level=level, file=engine_options).options()
    report = CompileReport(graph.name)
    compiler = find_compiler(options)
    _inputs(graph, frozen or ())
    for step in steps:
        graph = _run(step, graph, compiler, options, report, frozen or ())
    typer.echo(to_text(graph), nl=False)
    if why:
        typer.echo(str(report), err=True)


def list_passes() -> str:
    """Name the passes with what they do, stage by stage."""
    general = {
        name: (cls.__doc__ or "").splitlines()[0].rstrip(".") for name, cls in PASSES.items()
    }
    steps = {name: step.summary for name, step in STEPS.items()}
    width = max(map(len, (*general, *STEPS)))
    parts = []
    for stage, listed in (("prepare", general), ("optimize", steps)):
        parts.append(f"{stage}:")
        parts += [f"  {name:<{width}}  {summary}" for name, summary in listed.items()]
    return "\n".join(parts)


def _split(text: str) -> list[str]:
    """The passes of a list; every name is looked up before the first pass runs."""
    found = [part.strip() for part in re.split(r",(?![^{]*\})", text)] if text.strip() else []
    known = [*PASSES, *STEPS]
    for part in found:
        name = part.partition("{")[0].strip()
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise Misuse(
                "--passes", f"no pass is named {name!r}", hint=f"{hint}treadle opt --list names all"
            )
        if name in STEPS and name != part:
            raise Misuse(
                "--passes",
                f"{name} takes no options",
                hint="--level and --options are for all passes",
            )
        if name in PASSES:
            try:
                parse_passes(part)
            except GraphError as error:
                raise Misuse("--passes", error.problem, hint=error.hint) from None
    return found


def _run(
    step: str,
    graph: Graph,
    compiler: Compiler,
    options: Options,
    report: CompileReport,
    frozen: Sequence[str],
) -> Graph:
    if step in STEPS:
        with report.stage(step):
            made = run_step(step, graph, compiler, options, report, _inputs(graph, frozen))
        verify(made)
        return made
    found: list[PassReport] = []
    made = run_passes(graph, parse_passes(step), report=found)
    report.passes += [("prepare", entry) for entry in found]
    return made


def _inputs(graph: Graph, names: Sequence[str]) -> tuple[Value, ...]:
    """The inputs of these names; passes keep names, and make values anew."""
    called = value_names(graph)
    known = {called[value].removeprefix("%"): value for value in graph.inputs}
    wanted = {name.removeprefix("%") for name in names}
    for name in sorted(wanted - {"*", *known}):
        raise Misuse("--frozen", f"no input is named {name!r}", hint=f"inputs: {', '.join(known)}")
    return tuple(v for name, v in known.items() if "*" in wanted or name in wanted)
