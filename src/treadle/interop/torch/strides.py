"""Strides of results: PyTorch's, over memory that is row-major here.

Programs write row-major arrays. A result that PyTorch would give in another order of axes (channels
last, a transposed product) is written with its axes in the order of its memory, and given out with
the strides that PyTorch's shape propagation states. Axes that PyTorch only repeats have one element
in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from treadle.base.shape import row_major_strides
from treadle.graph.builder import GraphOperand
from treadle.ops.slicing import Slice

_SEEN = "treadle_strides_are_seen"


@dataclass(frozen=True, slots=True)
class Placed:
    """Placement of a tensor in memory that is not row-major.

    Attributes:
        axes: from the one with the largest stride to the one with the smallest.
        shape, strides: of the tensor, in its own order of axes; a stride of 0 repeats.
    """

    axes: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def in_order_of_memory(self, x: GraphOperand) -> GraphOperand:
        """Return the elements in the order of memory; parts of complex numbers stay last."""
        parts = range(len(self.axes), x.type.ndim)
        if 0 in self.strides and 0 not in self.shape:
            shape = x.type.shape[: len(self.strides)]  # its extents may be expressions
            extents = (1 if not step else d for d, step in zip(shape, self.strides, strict=True))
            stops = (*extents, *(2 for _ in parts))
            x = Slice((0,) * len(stops), stops, (1,) * len(stops))(x)
        order = (*self.axes, *parts)
        return x if order == tuple(range(len(order))) else x.transpose(order)

    def given(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory that was written in its own order as PyTorch's tensor.

        One without elements gets memory of PyTorch's, which alone can grow (`out=`).
        """
        if 0 in self.shape:
            return torch.empty_strided(self.shape, self.strides, dtype=tensor.dtype)
        return tensor.as_strided(self.shape, self.strides)


def placed(value: Any) -> Placed | None:
    """Return the placement of a tensor in memory; None where it is row-major, or has gaps."""
    shape, strides = tuple(value.shape), tuple(value.stride())
    if 0 in shape:  # NumPy's strides of such arrays may be 0.
        known = row_major_strides(shape) if has_gaps(value) else strides
        return Placed(tuple(range(len(shape))), shape, known)
    if strides == row_major_strides(shape) or has_gaps(value):
        return None
    wide = _in_memory(value)
    order = sorted(wide, key=lambda d: -strides[d])
    # Axes of one element in memory lie anywhere: here where no axis has to move for them.
    rest = iter(order)
    axes = (next(rest) if d in wide else d for d in range(len(shape)))
    return Placed(tuple(axes), shape, strides)


def _in_memory(value: Any) -> list[int]:
    """The axes with several elements in memory; one without elements counts as one of one."""
    strides = value.stride()
    return [d for d, extent in enumerate(value.shape) if extent > 1 and strides[d]]


def has_gaps(value: Any) -> bool:
    """Return whether the strides of a tensor jump over memory, as those of a slice do."""
    step, strides = 1, value.stride()
    for axis in sorted(_in_memory(value), key=lambda d: strides[d]):
        if strides[axis] != step:
            return True
        step *= value.shape[axis]
    return False


def note_who_sees(graph: fx.Graph, results: int | None, is_ours: Callable[[fx.Node], bool]) -> None:
    """Note at nodes that someone else sees the strides of their results.

    That is the program, for its first `results` results (None: for all), and PyTorch, for what it
    computes itself. What is kept for the gradient, and what programs hand to one another, stays
    row-major.
    """
    (output,) = graph.find_nodes(op="output")
    listed = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    given: Collection[Any] = set(listed if results is None else listed[:results])
    for node in graph.nodes:
        apart = any(u.op == "call_function" and not is_ours(u) for u in node.users)
        node.meta[_SEEN] = apart or node in given


def is_seen(node: fx.Node) -> bool:
    """Return whether someone sees how a node's result lies in memory; else it is row-major."""
    return bool(node.meta.get(_SEEN))


def look_at_bases(graph: fx.Graph) -> None:
    """Make `as_strided` read the tensors whose memory it means, not views of them.

    Views are tensors of their own in a program, in memory of their own.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default):
        view = base = node.args[0]
        while isinstance(base.target, torch._ops.OpOverload) and base.target.is_view:
            base = base.args[0]
        size, stride, *offset = node.args[1:]
        if base is not view:
            start = offset[0] if offset else None
            start = view.meta["val"].storage_offset() if start is None else start
            node.args = (base, size, stride, start)
