"""`treadle llm perplexity`: how well a model foresees a text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.console import progress, show_facts
from treadle.cli.llm.arguments import Dtype, Rounded, Source, WeightType, opened
from treadle.cli.status import Misuse
from treadle.llm.generation.scoring import surprises

Text = Annotated[Path, typer.Argument(metavar="TEXT", help="A file with text.")]
Window = Annotated[int, typer.Option(min=8, help="Tokens that are seen at a time.")]
Most = Annotated[int | None, typer.Option("--windows", min=1, metavar="N", help="At most so many.")]


def command(
    source: Source,
    text: Text,
    window: Window = 512,
    windows: Most = None,
    dtype: Dtype = WeightType.stored,
    prompts: Rounded = None,
) -> None:
    """Measure how well a model foresees a text: exp of the mean surprise of its tokens.

    As llama.cpp measures it: windows do not overlap, and of each the second half counts.
    """
    model, _ = opened(source, window + 1, dtype, prompts)
    tokens = model.tokenizer.encode(text.read_text(encoding="utf-8", errors="replace"))
    count = min(len(tokens) // window, windows or len(tokens))
    if not count:
        raise Misuse("TEXT", f"has {len(tokens)} tokens, a window {window}: take a smaller window")
    with progress("reading") as shown:

        def pieces() -> Iterator[Sequence[int]]:
            for i in range(count):
                shown.tell(f"window {i + 1} of {count}")
                yield tokens[i * window : (i + 1) * window]

        perplexity = math.exp(statistics.mean(surprises(model.model, pieces())))
    scored = count * (window - window // 2 - 1)
    show_facts({"perplexity": f"{perplexity:.4f}", "tokens": scored, "windows": count})
