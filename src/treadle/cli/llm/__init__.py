"""`treadle llm`: language models, from GGUF files or directories of safetensors."""

from __future__ import annotations

from treadle.cli.late import Late

_TEXT, _FILES = "Text", "Files"
COMMANDS = (
    Late("chat", "Talk with a model.", _TEXT, room="llm"),
    Late("run", "Continue a text.", _TEXT, room="llm"),
    Late("serve", "Serve models to clients of OpenAI's interface.", _TEXT, room="llm"),
    Late("perplexity", "Measure how well a model foresees a text.", _TEXT, room="llm"),
    Late("finetune", "Train an adapter on examples.", _FILES, room="llm"),
    Late("merge", "Write a model with what an adapter learned.", _FILES, room="llm"),
    Late("bench", "Measure how fast a model reads and writes.", _FILES, room="llm"),
    Late("explain", "Show what the compiler makes of a step.", _FILES, room="llm"),
    Late("convert", "Write a model as another kind of file.", _FILES, room="llm"),
    Late("quantize", "Write a model in fewer bits.", _FILES, room="llm"),
    Late("info", "Show what a file holds: extents, formats, tokenizer.", _FILES, room="llm"),
)
"""In the order of the list."""


def command() -> None:
    """Run language models, from GGUF files or directories as Hugging Face has them.

    Needs the extra `llm`: pip install 'treadle[llm]', or '.[llm]' in a checkout.
    """
