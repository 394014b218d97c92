"""`treadle llm explain`: the program of a step, as text, as data or as a page."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.cli import arguments as a
from treadle.cli.console import progress
from treadle.cli.explain import Full, Iterations, Page, shown
from treadle.cli.llm.arguments import CacheDtype, Dtype, Rounded, Source, WeightType, loading
from treadle.llm.files import open_checkpoint
from treadle.llm.models import build

Tokens = Annotated[int, typer.Option(min=1, help="Tokens of the step: 1 where an answer goes on.")]
Behind = Annotated[int, typer.Option(min=0, help="Tokens in the cache beforehand.")]
Measure = Annotated[
    bool,
    typer.Option(
        "--measure",
        metavar="",
        help="Run it, and show measured times.",
        rich_help_panel=a.MEASURING,
    ),
]


def command(
    source: Source,
    tokens: Tokens = 1,
    behind: Behind = 0,
    page: Page = None,
    full: Full = False,
    measure: Measure = False,
    iterations: Iterations = 10,
    dtype: Dtype = WeightType.stored,
    prompts: Rounded = None,
    cache_dtype: CacheDtype = None,
    as_json: a.Json = False,
) -> None:
    """Show what the compiler makes of a step: its kernels, what they read, and how long they take.

    A step reads one token where an answer goes on, or a piece of a prompt.
    """
    with loading(open_checkpoint(source)) as checkpoint:
        model = build(checkpoint, dtype.value, None if prompts is None else prompts.value)
    with progress("compiling"):
        kept = None if cache_dtype is None else cache_dtype.value
        program = model.inspected(tokens, behind, kept, iterations if measure else 0)
        if page is not None:
            program.picture(page)
    shown(program, page, full, as_json)
