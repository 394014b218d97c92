"""The table of formats."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from treadle.base.blocks import small, super_blocks
from treadle.base.blocks.layout import BlockFormat
from treadle.base.errors import CheckpointError

FORMATS: Mapping[str, BlockFormat] = MappingProxyType(
    {each.name: each for each in (*small.FORMATS, *super_blocks.FORMATS)}
)
_BY_NUMBER = {each.number: each for each in FORMATS.values()}


def by_number(number: int) -> BlockFormat:
    """The format of a type's number in GGUF.

    Raises:
        CheckpointError: no format has the number.
    """
    if number not in _BY_NUMBER:
        raise CheckpointError(
            "blocks",
            "no format has this number",
            saw=str(number),
            hint=f"known are {', '.join(f'{each} {n}' for n, each in sorted(_BY_NUMBER.items()))}",
        )
    return _BY_NUMBER[number]
