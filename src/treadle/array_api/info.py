"""Capabilities of the namespace: `__array_namespace_info__`."""

from __future__ import annotations

from typing import Any

from treadle.array_api import dtypes
from treadle.engine.devices.names import CompNode, default_device, resolve


class Info:
    """Answers about devices and element types."""

    def capabilities(self) -> dict[str, Any]:
        """Masks as indices and shapes that depend on data work; any number of axes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> CompNode:
        """The device of arrays for which none is named."""
        return default_device()

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """The types of arrays for which none is named."""
        return dict(dtypes.DEFAULTS)

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        """Types by name, all or those of kinds."""
        wanted = kind if isinstance(kind, tuple) else (kind,)
        return {
            str(d): d
            for d in dtypes.ALL
            if kind is None or any(dtypes.isdtype(d, k) for k in wanted)
        }

    def devices(self) -> list[Any]:
        """All devices."""
        return list(dict.fromkeys((default_device(), resolve("cpux"))))


def __array_namespace_info__() -> Info:
    """Answers about what the namespace can do."""
    return Info()
