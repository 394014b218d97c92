"""`treadle llm info`: what a file holds."""

from __future__ import annotations

import math
from collections import defaultdict

import typer

from treadle.base.blocks import BlockTensor
from treadle.base.table import size as readable
from treadle.cli.console import show_facts, show_table
from treadle.cli.llm.arguments import Source
from treadle.llm.files import TokenizerTables, open_checkpoint

_SHOWN = {
    "model_type": "family",
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "intermediate_size": "inner",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv heads",
    "head_dim": "head",
    "num_experts": "experts",
    "num_local_experts": "experts",
    "num_experts_per_tok": "of them used",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "context",
    "sliding_window": "window",
}


def command(source: Source) -> None:
    """Show what a file holds: extents, formats of weights, tokenizer, template."""
    checkpoint = open_checkpoint(source)
    config = checkpoint.config
    facts = {shown: config[key] for key, shown in _SHOWN.items() if config.get(key) is not None}
    kinds: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for name in checkpoint.names():
        tensor = checkpoint.tensor(name)
        blocks = isinstance(tensor, BlockTensor)
        kind = tensor.format.name if isinstance(tensor, BlockTensor) else str(tensor.dtype)
        nbytes = tensor.data.nbytes if blocks else tensor.nbytes
        for i, value in enumerate((1, math.prod(tensor.shape), nbytes)):
            kinds[kind][i] += value
    tokenizer = checkpoint.tokenizer
    if isinstance(tokenizer, TokenizerTables):
        facts["tokenizer"] = f"{tokenizer.model} {tokenizer.pre}".strip()
    else:
        facts["tokenizer"] = "none" if tokenizer is None else "tokenizer.json"
    facts["conversations"] = "yes" if checkpoint.chat_template else "no template"
    facts["parameters"] = f"{sum(n for _, n, _ in kinds.values()):,}"
    show_facts(facts)
    typer.echo()
    rows = [
        (kind, str(count), f"{size:,}", readable(nbytes), f"{8 * nbytes / size:.2f}")
        for kind, (count, size, nbytes) in sorted(kinds.items(), key=lambda x: -x[1][2])
    ]
    show_table("weights", ("format", "tensors", "numbers", "size", "bits each"), rows)
