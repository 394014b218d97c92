"""The door to files of language models."""

from __future__ import annotations

import os

from treadle.llm.files.checkpoint import ModelCheckpoint
from treadle.llm.files.directory import open_directory
from treadle.llm.files.gguf_checkpoint import open_gguf


def open_checkpoint(path: str | os.PathLike[str]) -> ModelCheckpoint:
    """A language model's config, tokenizer and weights, from a GGUF file or a directory.

    Nothing that the files hold is run, and nothing is believed before it was checked; weights are
    read when they are asked for. What GGUF changes is undone: names are those of Hugging Face's
    libraries, rows of q and k stand as they do there, norms of Gemma do not hold the 1 that is
    added, experts are single tensors. Blocks stay blocks.

    Args:
        path: a directory with `config.json` and safetensors, or a `.gguf` file (of a model in
            several, any one).

    Raises:
        CheckpointError: a file is damaged or hostile, or the model is of a kind that is not known.
        OSError: a file cannot be opened.
    """
    where = os.fspath(path)
    return open_directory(where) if os.path.isdir(where) else open_gguf(where)
