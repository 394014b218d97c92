"""Models that MegEngine's own runtime dumped: `.mge` files of FlatBuffers, both versions."""

from treadle.interop.megengine.dumped.model import DumpedModel, read_model

__all__ = ["DumpedModel", "read_model"]
