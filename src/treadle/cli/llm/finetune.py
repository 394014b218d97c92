"""`treadle llm finetune`: train an adapter on examples."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.console import progress
from treadle.cli.llm.arguments import Dtype, WeightType
from treadle.cli.status import Misuse
from treadle.llm.files import ModelCheckpoint, open_checkpoint
from treadle.llm.models import build
from treadle.llm.text import Template, Tokenizer
from treadle.llm.tuning import Batches, Course, Lora, Reader, Schedule, Tuner, fresh, resume, take

_ADAPTER, _TRAINING = "Adapter", "Training"


class Kind(StrEnum):
    """Courses of the learning rate."""

    cosine = "cosine"
    linear = "linear"
    constant = "constant"


Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help='A JSONL file: {"messages": [...]}, {"prompt": "", "completion": ""} or {"text": ""}.',
    ),
]
Base = Annotated[str, typer.Option("--model", metavar="MODEL", help="The model to tune.")]
Output = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the adapter.")]
Rank = Annotated[int, typer.Option(min=1, max=4096, rich_help_panel=_ADAPTER)]
Alpha = Annotated[float, typer.Option(min=0.0, rich_help_panel=_ADAPTER, help="Scale times rank.")]
Dropout = Annotated[float, typer.Option(min=0.0, max=0.99, rich_help_panel=_ADAPTER)]
Target = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="NAME",
        rich_help_panel=_ADAPTER,
        help="A module, such as q_proj; may be repeated. By default all linear modules of layers.",
    ),
]
RankStable = Annotated[
    bool, typer.Option("--rslora", rich_help_panel=_ADAPTER, help="Scale by the root of the rank.")
]
Epochs = Annotated[int, typer.Option(min=1, rich_help_panel=_TRAINING)]
Length = Annotated[
    int, typer.Option(min=8, rich_help_panel=_TRAINING, help="Tokens of a row; longer is cut.")
]
RowsOfUpdate = Annotated[
    int, typer.Option("--rows", min=1, rich_help_panel=_TRAINING, help="Rows of an update.")
]
Rate = Annotated[float, typer.Option(min=0.0, rich_help_panel=_TRAINING, help="The largest rate.")]
Warmup = Annotated[int, typer.Option(min=0, rich_help_panel=_TRAINING, help="In updates.")]
Falls = Annotated[Kind, typer.Option("--schedule", rich_help_panel=_TRAINING)]
Decay = Annotated[float, typer.Option(min=0.0, rich_help_panel=_TRAINING)]
Clip = Annotated[
    float, typer.Option(min=0.0, rich_help_panel=_TRAINING, help="Norm of gradients; 0: any.")
]
Held = Annotated[
    float,
    typer.Option(
        "--held-out",
        min=0.0,
        max=0.9,
        rich_help_panel=_TRAINING,
        help="Share of examples kept for validation.",
    ),
]
SaveEvery = Annotated[
    int, typer.Option(min=0, rich_help_panel=_TRAINING, help="In updates; 0: at the end.")
]
LogEvery = Annotated[int, typer.Option(min=1, rich_help_panel=_TRAINING, help="In updates.")]
Resume = Annotated[
    bool, typer.Option("--resume", rich_help_panel=_TRAINING, help="Go on with what DIR holds.")
]
Again = Annotated[
    bool | None,
    typer.Option(
        "--recompute/--no-recompute",
        rich_help_panel=_TRAINING,
        help="Compute layers again in backward: less memory, half as much time again. "
        "By default where their values would take more than half of the weights' memory.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, rich_help_panel=_TRAINING)]


def command(
    data: Data,
    model: Base,
    output: Output,
    rank: Rank = 8,
    alpha: Alpha = 16.0,
    dropout: Dropout = 0.0,
    target: Target = None,
    rslora: RankStable = False,
    epochs: Epochs = 1,
    length: Length = 512,
    rows: RowsOfUpdate = 1,
    learning_rate: Rate = 2e-4,
    warmup: Warmup = 0,
    schedule: Falls = Kind.cosine,
    weight_decay: Decay = 0.0,
    clip: Clip = 1.0,
    held_out: Held = 0.0,
    save_every: SaveEvery = 0,
    log_every: LogEvery = 1,
    seed: Seed = 0,
    resumed: Resume = False,
    dtype: Dtype = WeightType.stored,
    recompute: Again = None,
) -> None:
    """Train an adapter of low rank (LoRA) that answers as examples do; the model stays as it is.

    Prompts are read, completions and the answers of assistants are learned. Examples are packed
    into rows. DIR is as `peft` has it, and can be merged or loaded with `--adapter`.
    """
    targets = tuple(target) if target else "all-linear"
    lora = Lora(rank, alpha, dropout, targets, rslora)
    with progress(f"loading {os.path.basename(model.rstrip('/')) or model}"):
        checkpoint, reader = _opened(model)
        examples = reader.read(data)
        plan = Batches(examples, Course(length, rows, epochs, held_out, seed))
        if not plan.updates:
            raise Misuse("DATA", f"no answer begins within {length} tokens: make --length longer")
        built = build(checkpoint, dtype.value)
        falls = Schedule(learning_rate, warmup, plan.updates, schedule.value)
        tuner = Tuner(
            built,
            fresh(lora, built.stack.products(), seed),
            falls,
            weight_decay=weight_decay,
            clip=clip,
            recompute=recompute,
        )
    if resumed:
        resume(tuner, str(output))
    longer = sum(len(e.tokens) > length for e in examples)
    cut = f", {longer} of them cut" if longer else ""
    typer.echo(f"{len(examples)} examples{cut}, {plan.updates} updates")
    with progress("making the program") as shown:
        for step in take(tuner, plan, str(output), model, save_every):
            speed = step.tokens / max(step.seconds, 1e-9)
            line = f"{step.update}/{step.updates}  loss {step.loss:.4f}  {speed:,.0f} tokens/s"
            shown.tell(line)
            if step.update % log_every == 0 or step.update == step.updates or step.held is not None:
                held = "" if step.held is None else f"  held out {step.held:.4f}"
                typer.echo(f"{line}  rate {step.rate:.2e}{held}")
    typer.echo(f"written to {output}")


def _opened(model: str) -> tuple[ModelCheckpoint, Reader]:
    """A model, and what reads examples for it."""
    checkpoint = open_checkpoint(model)
    if checkpoint.tokenizer is None:
        raise checkpoint.no_tokenizer()
    tokenizer = Tokenizer.of(checkpoint.tokenizer)
    source = checkpoint.chat_template
    template = None if source is None else Template(source, tokenizer)
    ends = checkpoint.generation.get("eos_token_id") or sorted(tokenizer.eos)
    return checkpoint, Reader(tokenizer, template, ends[0] if ends else None)
