"""The type of NumPy arrays of any element type and rank."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

__all__ = ["Array"]
