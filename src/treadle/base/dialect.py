"""Whose words a process speaks where MegEngine and Treadle mean different things by them."""

from __future__ import annotations

from typing import ClassVar


class Dialect:
    """What `import megengine` changes for the process that runs under that name.

    Attributes:
        megengine: whether numbers and refusals are MegEngine's where the two differ.
    """

    megengine: ClassVar[bool] = False
