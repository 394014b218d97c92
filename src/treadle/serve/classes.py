"""Results as classes: the largest elements of each row, as Triton's extension `classification`."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from treadle.base.array import Array


def ranked(array: Array, count: int) -> tuple[tuple[int, ...], list[str]]:
    """The largest elements of each row, largest first; of equal ones the first. NaN comes last.

    Args:
        array: shape (rows, ...), or (classes,); elements of a row count in row-major order.
        count: how many of each row, at least 1; all if a row has fewer.

    Returns:
        The shape, (rows, count) or (count,), and flat strings `value:index`.
    """
    rows = array.reshape(array.shape[0], -1) if array.ndim > 1 and array.size else array.ravel()
    table = np.atleast_2d(rows)
    if table.dtype.kind not in "biuf" or table.dtype.itemsize == 2:
        table = table.astype(np.float32)
    width = table.shape[1]
    keys = table
    if table.dtype.kind == "f":
        keys = np.where(np.isnan(table), -np.inf, table)
    backward = np.argsort(keys[:, ::-1], axis=1, kind="stable")
    order = (width - 1 - backward)[:, ::-1][:, :count]
    values = np.take_along_axis(table, order, axis=1)
    strings = [f"{value}:{index}" for value, index in zip(values.flat, order.flat, strict=True)]
    return (*rows.shape[:-1], order.shape[1]), strings


def to_bytes(strings: Sequence[str]) -> bytes:
    """A tensor of BYTES: every element with its length, four bytes, before it."""
    encoded = [text.encode() for text in strings]
    return b"".join(struct.pack("<I", len(one)) + one for one in encoded)


__all__ = ["ranked", "to_bytes"]
