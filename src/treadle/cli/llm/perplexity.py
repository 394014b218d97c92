"""`treadle llm perplexity`: how well a model foresees a text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from treadle.cli.console import progress, show_facts
from treadle.cli.llm.arguments import Dtype, Rounded, Source, Weights, opened
from treadle.cli.status import Misuse

Text = Annotated[Path, typer.Argument(metavar="TEXT", help="A file with text.")]
Window = Annotated[int, typer.Option(min=8, help="Tokens that are seen at a time.")]
Most = Annotated[int | None, typer.Option("--windows", min=1, metavar="N", help="At most so many.")]


def command(
    source: Source,
    text: Text,
    window: Window = 512,
    windows: Most = None,
    dtype: Dtype = Weights.stored,
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
    total, scored = 0.0, 0
    with progress("reading") as shown:
        for i in range(count):
            shown.tell(f"window {i + 1} of {count}")
            piece = np.asarray(tokens[i * window : (i + 1) * window], np.int32)
            cache = model.model.cache(1, window, widest=window)
            logits = model.model.step(piece[None], cache, [0], [window], all=True).numpy()[0]
            half = window // 2
            wanted = piece[half + 1 :]
            seen = logits[half : window - 1].astype(np.float64)
            largest = seen.max(-1)
            sums = largest + np.log(np.exp(seen - largest[:, None]).sum(-1))
            total += float((sums - seen[np.arange(len(wanted)), wanted]).sum())
            scored += len(wanted)
    mean = total / scored
    show_facts({"perplexity": f"{math.exp(mean):.4f}", "tokens": scored, "windows": count})
