"""Facts about a language model's files: parameters, formats, tokenizer; weights stay unread."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from treadle.base.blocks import BlockFormat
from treadle.llm.files.gguf import Form, read_gguf
from treadle.llm.files.opening import open_checkpoint

NUMBERS: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""Plain numbers by the names that reports and commands give them."""


def form_name(form: Form) -> str:
    """The name of what a tensor holds."""
    if isinstance(form, BlockFormat):
        return form.name
    return next((name for name, dtype in NUMBERS.items() if dtype == form), str(form))


@dataclass(frozen=True)
class Info:
    """Content of a file, without its weights.

    Attributes:
        parameters: elements of all tensors.
        nbytes: what they take, as far as files say so without being read; else 0.
        formats: bytes by what tensors hold.
    """

    path: str
    config: dict[str, Any]
    parameters: int
    tensors: int
    formats: dict[str, int]
    tokenizer: str
    has_template: bool

    def __str__(self) -> str:
        """A line for each."""
        config = self.config
        held = ", ".join(f"{kind} {size / 1e6:,.1f} MB" for kind, size in self.formats.items())
        template = "with" if self.has_template else "without"
        shown = ("model_type", "num_hidden_layers", "hidden_size", "num_attention_heads",
                 "num_key_value_heads", "vocab_size", "max_position_embeddings")  # fmt: skip
        return "\n".join((
            f"{self.path}: {self.parameters:,} parameters in {self.tensors} tensors",
            ", ".join(f"{key} {config[key]}" for key in shown if key in config),
            held,
            f"{self.tokenizer}, {template} a template of conversations",
        ))  # fmt: skip


def info(path: str | os.PathLike[str]) -> Info:
    """Describe a language model's file or directory; weights stay unread.

    Raises:
        CheckpointError, OSError: as `open_checkpoint`.
    """
    where = os.fspath(path)
    found = open_checkpoint(where)
    formats: Counter[str] = Counter()
    if not os.path.isdir(where):
        for entry in read_gguf(where).entries.values():
            formats[form_name(entry.form)] += entry.nbytes
    shapes = [found.shape(name) for name in found.names()]
    source = found.tokenizer
    kind = "no tokenizer" if source is None else f"tokenizer {getattr(source, 'model', 'file')}"
    return Info(
        where,
        found.config,
        sum(int(np.prod(shape, dtype=object)) for shape in shapes),
        len(shapes),
        dict(formats),
        kind,
        found.chat_template is not None,
    )
