"""Files of language models: directories of safetensors and GGUF, read as one kind of checkpoint."""

from __future__ import annotations

from treadle.llm.files.checkpoint import (
    Checkpoint,
    Stored,
    TokenizerFile,
    TokenizerSource,
    TokenizerTables,
)
from treadle.llm.files.conversion import Converted, Info, Report, convert, info, quantize
from treadle.llm.files.opening import open_checkpoint

__all__ = [
    "Checkpoint",
    "Converted",
    "Info",
    "Report",
    "Stored",
    "TokenizerFile",
    "TokenizerSource",
    "TokenizerTables",
    "convert",
    "info",
    "open_checkpoint",
    "quantize",
]
