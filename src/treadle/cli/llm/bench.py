"""`treadle llm bench`: tokens per second."""

from __future__ import annotations

import os
import statistics
import time
from typing import Annotated

import numpy as np
import typer

from treadle.base.env import NUM_THREADS
from treadle.base.table import size as readable
from treadle.cli.console import progress, show_facts, show_table
from treadle.cli.llm.arguments import Dtype, Rounded, Source, WeightType, loading
from treadle.llm.files import open_checkpoint
from treadle.llm.models import build

Prompt = Annotated[int, typer.Option(min=1, max=4096, help="Tokens of the prompt.")]
Generate = Annotated[int, typer.Option(min=1, help="Tokens to generate.")]
Repeat = Annotated[int, typer.Option(min=1, help="Measured runs, after a first one.")]
Depth = Annotated[int, typer.Option(min=0, help="Tokens in the cache beforehand.")]


def command(
    source: Source,
    prompt: Prompt = 512,
    generate: Generate = 128,
    repeat: Repeat = 5,
    depth: Depth = 0,
    dtype: Dtype = WeightType.stored,
    prompts: Rounded = None,
) -> None:
    """Measure how fast a model reads a prompt, and how fast it writes, in tokens per second.

    As `llama-bench` measures it: tokens are random, nothing is sampled.
    """
    begun = time.perf_counter()
    with loading(open_checkpoint(source)) as checkpoint:
        model = build(checkpoint, dtype.value, None if prompts is None else prompts.value)
    seconds = time.perf_counter() - begun
    cache = model.cache(1, depth + prompt + generate, widest=max(depth, prompt))
    tokens = np.random.default_rng(0).integers(0, model.vocabulary, (1, depth + prompt))
    rates: dict[str, list[float]] = {f"pp{prompt}": [], f"tg{generate}": []}
    with progress("measuring") as shown:
        if depth:
            model.step(tokens[:, :depth], cache, [0], [depth]).numpy()
        for turn in range(repeat + 1):
            shown.tell("")
            begun = time.perf_counter()
            model.step(tokens[:, depth:], cache, [depth], [prompt]).numpy()
            read = time.perf_counter()
            for i in range(generate):
                model.step(tokens[:, i : i + 1], cache, [depth + i], [1]).numpy()
            written = time.perf_counter()
            if turn:
                rates[f"pp{prompt}"].append(prompt / (read - begun))
                rates[f"tg{generate}"].append(generate / (written - read))
    size = sum(_bytes(checkpoint.tensor(name)) for name in checkpoint.names())
    facts = {"model": source, "weights": readable(size), "loaded in": f"{seconds:.2f} s"}
    show_facts(facts | {"threads": NUM_THREADS.get() or len(os.sched_getaffinity(0))})
    rows = []
    for name, found in rates.items():
        deviation = statistics.stdev(found) if len(found) > 1 else 0.0
        rows.append(
            (name, f"{statistics.mean(found):.2f}", f"{deviation:.2f}", f"{max(found):.2f}")
        )
    show_table("tokens per second", ("test", "mean", "deviation", "best"), rows)


def _bytes(tensor: object) -> int:
    data = getattr(tensor, "data", tensor) if not isinstance(tensor, np.ndarray) else tensor
    return int(getattr(data, "nbytes", 0))
