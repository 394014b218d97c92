"""Models of the common families, as declarations over one decoder and one encoder."""

from treadle.llm.models.attention import Cache
from treadle.llm.models.build import build
from treadle.llm.models.model import Model

__all__ = ["Cache", "Model", "build"]
