"""Calls of programs on tensors' own memory, by native code.

A call of a small program costs what is done around it. Native code takes addresses out of tensors,
runs the program, and makes tensors of the results, all under Python's lock: so it is for programs
that are short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treadle.base.shape import row_major_strides
from treadle.engine.execute import Executor, ProgramInstance, Runner
from treadle.interop.torch.native.entries import (
    DLPACK_TYPES,
    Given,
    Lies,
    Made,
    NativeCall,
    dlpack_type,
    program_function,
)
from treadle.interop.torch.native.layout import AS_LIST
from treadle.interop.torch.native.library import library

LARGE = 1 << 16
"""Bytes from which on a result is better in memory that earlier ones gave back."""
SMALL = 1 << 20
"""Bytes of everything that a program touches up to which it is short."""
Run = Callable[[list[torch.Tensor]], list[Any]]


def straight(
    runner: Runner,
    inputs: Sequence[int],
    results: Sequence[Any],
    device: int,
    by_arrays: Callable[[Sequence[torch.Tensor]], list[Any]],
) -> Run | None:
    """The call of a program on tensors' memory; None where it has to go through arrays.

    Args:
        runner: of the program.
        inputs: bytes of its inputs.
        results: see `parts.PartResult`.
        device: that results are on, in DLPack's word.
        by_arrays: takes what native code does not: tensors without dense memory, and indices that
            are out of range.
    """
    native = library()
    if native is None or not results or any(r.dtype is None for r in results):
        return None
    if not isinstance(runner, Executor | ProgramInstance):
        return None
    made = [_made(r, device) for r in results]
    sizes = [m.nbytes for m in made]
    touched = sum(inputs) + sum(sizes) + runner.peak
    if not all(sizes) or max(sizes) >= LARGE or touched > SMALL:
        return None
    bound = runner.bound()
    if bound is None:
        return None
    given = [Given(i) for i in range(len(inputs))]
    entry = NativeCall(bound, given, made, range(len(made)), AS_LIST)
    native.wake()
    run: Run = program_function(native, entry, by_arrays)
    return run


def _made(result: Any, device: int) -> Made:
    """A tensor that a program returns."""
    if result.place is not None:
        shape, strides = result.place.shape, result.place.strides
    else:
        shape = tuple(map(int, result.value.shape))
        strides = row_major_strides(shape)
    held = [n for n, step in zip(shape, strides, strict=True) if step]
    nbytes = math.prod(held) * result.dtype.itemsize if 0 not in shape else 0
    type_ = dlpack_type(*DLPACK_TYPES[result.dtype])
    return Made(Lies(shape, strides, result.dtype.itemsize), nbytes, type_, device, shape, strides)
