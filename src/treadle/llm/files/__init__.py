"""Files of language models: directories of safetensors and GGUF, read as one kind of checkpoint."""

from __future__ import annotations

from treadle.llm.files.checkpoint import (
    Checkpoint,
    Stored,
    TokenizerFile,
    TokenizerSource,
    TokenizerTables,
)
from treadle.llm.files.info import Info, info
from treadle.llm.files.opening import open_checkpoint

__all__ = [
    "Checkpoint",
    "Info",
    "Stored",
    "TokenizerFile",
    "TokenizerSource",
    "TokenizerTables",
    "info",
    "open_checkpoint",
]
