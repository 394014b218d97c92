"""Model files of other frameworks, for programs that take whatever they are given."""

from __future__ import annotations

from typing import Any

from treadle.base.files.source import SizedStream
from treadle.engine.package import Foreign, is_megengines, read_also

__all__ = ["read_foreign_models"]


def _dumped(source: SizedStream) -> list[Any]:
    # Operators of MegEngine are functions of all of Treadle, which most programs never need.
    from treadle.interop.megengine.dumped.program import models_in

    return models_in(source)


def read_foreign_models() -> None:
    """Register files that MegEngine's own runtime dumped with every reader of model files."""
    read_also(Foreign(is_megengines, _dumped))
