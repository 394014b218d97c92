"""Between text, conversations and tokens; needs the extra `llm`."""

from treadle.llm.text.template import Template
from treadle.llm.text.tokenizer import Pieces, Tokenizer

__all__ = ["Pieces", "Template", "Tokenizer"]
