"""Models that MegEngine's own runtime dumped: `.mge` files of FlatBuffers, both versions."""

from treadle.interop.megengine.dumped.model import DumpedModel, read_model
from treadle.interop.megengine.dumped.program import as_model

__all__ = ["DumpedModel", "as_model", "read_model"]
