"""The dialect of a process: MegEngine's meaning or Treadle's, where the two differ."""

from __future__ import annotations

from typing import ClassVar


class Dialect:
    """Settings that `import megengine` changes for the process that runs under that name.

    Attributes:
        megengine: whether numbers and refusals are MegEngine's where the two differ.
    """

    megengine: ClassVar[bool] = False
