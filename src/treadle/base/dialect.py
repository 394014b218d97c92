"""The dialect of a process: MegEngine's meaning or Treadle's, where the two differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class Dialect:
    """Settings that `import megengine` changes for the process that runs under that name.

    Attributes:
        megengine: whether numbers and refusals are MegEngine's where the two differ.
        single: what NumPy arrays of one element, along some axes, are handed out as; None for
            themselves.
    """

    megengine: ClassVar[bool] = False
    single: ClassVar[Callable[[Any], Any] | None] = None
