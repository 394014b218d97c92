"""Files of language models: directories of safetensors and GGUF, read as one kind of checkpoint."""

from __future__ import annotations

from treadle.llm.files.checkpoint import (
    ModelCheckpoint,
    Stored,
    TokenizerFile,
    TokenizerSource,
    TokenizerTables,
)
from treadle.llm.files.opening import open_checkpoint

__all__ = [
    "ModelCheckpoint",
    "Stored",
    "TokenizerFile",
    "TokenizerSource",
    "TokenizerTables",
    "open_checkpoint",
]
