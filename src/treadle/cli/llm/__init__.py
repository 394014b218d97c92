"""`treadle llm`: language models, from GGUF files or directories of safetensors."""

from __future__ import annotations

from treadle.cli.late import Lazy

_TEXT, _FILES = "Text", "Files"
COMMANDS = (
    Lazy("chat", "Talk with a model.", _TEXT, room="llm"),
    Lazy("run", "Continue a text.", _TEXT, room="llm"),
    Lazy("serve", "Serve models to clients of OpenAI's interface.", _TEXT, room="llm"),
    Lazy("perplexity", "Measure how well a model foresees a text.", _TEXT, room="llm"),
    Lazy("finetune", "Train an adapter on examples.", _FILES, room="llm"),
    Lazy("merge", "Write a model with what an adapter learned.", _FILES, room="llm"),
    Lazy("bench", "Measure how fast a model reads and writes.", _FILES, room="llm"),
    Lazy("explain", "Show what the compiler makes of a step.", _FILES, room="llm"),
    Lazy("convert", "Write a model as another kind of file.", _FILES, room="llm"),
    Lazy("quantize", "Write a model in fewer bits.", _FILES, room="llm"),
    Lazy("info", "Show what a file holds: extents, formats, tokenizer.", _FILES, room="llm"),
)
"""In the order of the list."""


def command() -> None:
    """Run language models, from GGUF files or directories as Hugging Face has them.

    Needs the extra `llm`: pip install 'treadle[llm]', or '.[llm]' in a checkout.
    """
