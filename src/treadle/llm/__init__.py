"""Language models: from a file to an answer.

Needs the extra `llm`. Nothing here is imported by `import treadle`.
"""

from treadle.llm.generation import LanguageModel, Options, load
from treadle.llm.vectors import TextEmbedder, load_embedder

__all__ = ["LanguageModel", "Options", "TextEmbedder", "load", "load_embedder"]
