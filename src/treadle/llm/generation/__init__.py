"""Text from a model: sampling, sequences that join and leave, and what people call."""

from treadle.llm.generation.engine import Engine
from treadle.llm.generation.language_model import LanguageModel, load
from treadle.llm.generation.options import Options
from treadle.llm.generation.sequence import Generation, Token

__all__ = ["Engine", "Generation", "LanguageModel", "Options", "Token", "load"]
