"""The interface ops see their operands through.

`Tensor` runs an op at once, the graph builder's operand records it; gradient rules and composite
bodies are written against this protocol and therefore work for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from treadle.base.dtype import DType
from treadle.base.shape import Shape
from treadle.base.types import TensorType

if TYPE_CHECKING:
    from treadle.ops.op import Op

V = TypeVar("V", bound="Operand")


class Operand(Protocol):
    """An input of an op: anything with a type that can apply ops to its own kind."""

    @property
    def type(self) -> TensorType:
        """Element type, shape and device."""
        ...

    @property
    def shape(self) -> Any:
        """The shape, as in `type`."""
        ...

    def apply(self: V, op: Op, inputs: tuple[V, ...], /) -> tuple[V, ...]:
        """Run or record `op` on operands of this kind."""
        ...

    def constant(self: V, value: Any, dtype: DType | None = None) -> V:
        """A constant (Python scalar or NumPy array) on this operand's device.

        A scalar takes this operand's element type unless `dtype` is given.
        """
        ...

    def astype(self: V, dtype: Any, /) -> V:
        """Cast; the operand itself where the type is the same."""
        ...

    def reshape(self: V, shape: Shape, /) -> V:
        """The same elements under another shape."""
        ...

    def transpose(self: V, permutation: Sequence[int], /) -> V:
        """Axes in another order."""
        ...

    def broadcast_to(self: V, shape: Shape, /) -> V:
        """NumPy's broadcast to exactly `shape`."""
        ...

    def sum_to(self: V, shape: Shape, /) -> V:
        """The transpose of `broadcast_to`: sums the axes along which `shape` was broadcast."""
        ...

    def sum(self: V, axis: Any = None, keepdims: bool = False) -> V:
        """Sum over axes; all of them for None."""
        ...

    def __add__(self: V, other: Any, /) -> V: ...
    def __radd__(self: V, other: Any, /) -> V: ...
    def __sub__(self: V, other: Any, /) -> V: ...
    def __rsub__(self: V, other: Any, /) -> V: ...
    def __mul__(self: V, other: Any, /) -> V: ...
    def __rmul__(self: V, other: Any, /) -> V: ...
    def __truediv__(self: V, other: Any, /) -> V: ...
    def __rtruediv__(self: V, other: Any, /) -> V: ...
    def __neg__(self: V) -> V: ...
    def __lt__(self: V, other: Any, /) -> V: ...
    def __le__(self: V, other: Any, /) -> V: ...
    def __gt__(self: V, other: Any, /) -> V: ...
    def __ge__(self: V, other: Any, /) -> V: ...
