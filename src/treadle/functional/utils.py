"""Checks that programs carry with them, under the name MegEngine has for this module."""

from __future__ import annotations

from typing import NoReturn

from treadle.base.errors import DeviceError, ShapeError
from treadle.functional.arguments import as_tensor
from treadle.functional.metric import topk_accuracy
from treadle.functional.tensor import copy
from treadle.ops.check import AssertEqual
from treadle.runtime.synchronous import SYNCHRONOUS
from treadle.tensor import Tensor

__all__ = ["copy", "topk_accuracy"]


def _assert_equal(
    expect: Tensor, actual: Tensor, *, maxerr: float = 0.0001, verbose: bool = False
) -> Tensor:
    """`expect`, checked when the program runs: no element of `actual` differs by more than maxerr.

    Differences count relative to the smaller magnitude, or to 1 where that is less than 1.

    Args:
        expect: any shape; returned.
        actual: the same shape.
        maxerr: the largest difference that passes.
        verbose: print the largest difference.

    Raises:
        NumericError, RuntimeError: the values differ (one error, which is both); its message has
            the largest difference.
        ShapeError: the shapes differ.
    """
    wanted, found = as_tensor(expect), as_tensor(actual)
    if wanted.shape != found.shape:
        raise ShapeError("_assert_equal", "the shapes differ", saw=f"{wanted.type}, {found.type}")
    return wanted.apply(AssertEqual(float(maxerr), verbose), (wanted, found.astype(wanted.dtype)))[
        0
    ]


class _Failed(Tensor):
    """A tensor whose op has failed on its device, as whoever reads it finds out."""

    __slots__ = ()

    def numpy(self) -> NoReturn:
        """Raise the error of the op."""
        raise DeviceError("op", "an earlier one has failed") from RuntimeError(_SIMULATED)


_SIMULATED = "a simulated error"


def _simulate_error() -> Tensor:
    """Fail as a kernel would: where the result is read, or at once if `config.async_level` is 0.

    Raises:
        RuntimeError: at level 0.
    """
    if SYNCHRONOUS.on:
        raise RuntimeError(_SIMULATED)
    return _Failed(0.0)
