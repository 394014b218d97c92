"""Models of the common families, as declarations over one decoder and one encoder."""

from treadle.llm.models.attention import Cache
from treadle.llm.models.build import build, build_embedder
from treadle.llm.models.embedder import Embedder
from treadle.llm.models.model import DecoderModel

__all__ = ["Cache", "DecoderModel", "Embedder", "build", "build_embedder"]
