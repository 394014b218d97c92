"""Formats of quantized blocks: weights in 2 to 8 bits with scales, as GGUF files hold them.

A row of a matrix is a whole number of blocks, a block a fixed number of elements in a fixed number
of bytes. `FORMATS` has every format that is known by name, `by_number` finds one by the number that
GGUF gives it, `BlockTensor` is an array of such rows. Each format is a layout (a NumPy type with
named fields), a function from its fields to numbers, and one back. `panels` are the same bytes in
the order of kernels.
"""

from treadle.base.blocks.formats import FORMATS, by_number
from treadle.base.blocks.layout import BlockFormat, BlockTensor

__all__ = ["FORMATS", "BlockFormat", "BlockTensor", "by_number"]
