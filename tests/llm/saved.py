"""A small model with random weights in a directory, with a tokenizer of bytes and a template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file
from tests.llm.models.small import llama

START, END = "<|start|>", "<|end|>"
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant:{% endif %}"
)


def bytes_tokenizer(*special: str) -> Any:
    """Tokens are bytes, and special ones from 256."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in shown]
    words = {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(others)}
    library = Tokenizer(models.BPE(words, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(token, special=True) for token in special])
    return library


def saved(folder: Path, *, template: str | None = TEMPLATE, **changes: Any) -> Path:
    """The directory; changes go to the config."""
    given = llama(vocab_size=264, **{"max_position_embeddings": 512, **changes})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(given.config))
    save_file(dict(given.tensors), folder / "model.safetensors")
    bytes_tokenizer(START, END).save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"eos_token": END}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
