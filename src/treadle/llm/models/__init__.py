"""Models of the common families, as declarations over one decoder and one encoder."""

from treadle.llm.models.attention import Cache
from treadle.llm.models.build import build, build_embedder
from treadle.llm.models.embedder import Embedder
from treadle.llm.models.model import Model

__all__ = ["Cache", "Embedder", "Model", "build", "build_embedder"]
