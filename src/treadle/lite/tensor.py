"""`LiteTensor`: memory with a layout, on the host; on devices by `placed`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.late import Late
from treadle.lite.base import (
    LiteDataType,
    LiteDeviceType,
    device_kind,
    lite_dtype_2_numpy,
    to_lite,
)

MAX_DIM = 7
Shapes = tuple[tuple[int, ...], ...]
"""Of the inputs of a run, in order."""


class LiteLayout:
    """Shape and element type of a tensor.

    Args:
        shape: at most seven extents.
        dtype: a `LiteDataType`, or a NumPy type or its name.

    Raises:
        AssertionError: there are more extents.
    """

    def __init__(self, shape: Sequence[int] | None = None, dtype: Any = None) -> None:
        extents = tuple(int(s) for s in shape or ())
        if len(extents) > MAX_DIM:
            raise AssertionError(f"LiteLayout: at most {MAX_DIM} axes, got {len(extents)}")
        self.shapes = extents
        given = LiteDataType.LITE_FLOAT if dtype is None else dtype
        self.data_type = given if isinstance(given, LiteDataType) else to_lite(given)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shapes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's element type."""
        return lite_dtype_2_numpy(self.data_type)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LiteLayout):
            return NotImplemented
        return (self.shapes, self.data_type) == (other.shapes, other.data_type)

    def __hash__(self) -> int:
        return hash((self.shapes, self.data_type))

    def __repr__(self) -> str:
        return f"LiteLayout({list(self.shapes)}, {self.data_type.name})"


PLACED: Late[type[LiteTensor]] = Late("tensors of devices")
"""Their class; who runs networks of the host does without its module."""


class LiteTensor:
    """A dense array that networks read or write, in the host's memory or a device's.

    What a device holds goes in and comes out as a copy (`set_data_by_copy`, `copy_from`,
    `to_numpy`); what names memory of the host raises there.

    Args:
        layout: shape and element type.
        device_type, device_id: where it is.
        is_pinned_host: accepted; host memory is not pinned.
        shapes, dtype: in place of `layout`.
        physic_construct: accepted.

    Raises:
        RuntimeError: there is no such device.
    """

    def __new__(
        cls,
        layout: LiteLayout | None = None,
        device_type: LiteDeviceType = LiteDeviceType.LITE_CPU,
        *args: Any,
        **kwargs: Any,
    ) -> LiteTensor:
        """A tensor of the host, or one of a device."""
        if cls is LiteTensor and device_kind(device_type):
            # Devices are behind this import, which networks of the host do without.
            return super().__new__(PLACED())
        return super().__new__(cls)

    def __init__(
        self,
        layout: LiteLayout | None = None,
        device_type: LiteDeviceType = LiteDeviceType.LITE_CPU,
        device_id: int = 0,
        is_pinned_host: bool = False,
        shapes: Sequence[int] | None = None,
        dtype: Any = None,
        physic_construct: bool = True,
    ) -> None:
        self._device_type = LiteDeviceType(device_type)
        self._device_id = device_id
        self._pinned = is_pinned_host
        self._settle()
        if layout is None and (shapes is not None or dtype is not None):
            layout = LiteLayout(shapes, dtype)
        made = layout or LiteLayout()
        self._array: Array
        self._given: bool
        """True if the memory is not the tensor's own: `set_data_by_share` was called."""
        self._own(np.zeros(made.shapes if layout else (0,), made.dtype))

    def _settle(self) -> None:
        """Open the device, ahead of taking memory there."""

    def held(self) -> Any:
        """Return the tensor's content, as networks take it."""
        return self._array

    def hold(self, payload: Any) -> None:
        """Take over a result that a network has made."""
        self._own(payload)

    # -- what it is ------------------------------------------------------------------------

    @property
    def layout(self) -> LiteLayout:
        """Shape and element type; a new one makes new memory."""
        return LiteLayout(self._array.shape, self._array.dtype)

    @layout.setter
    def layout(self, layout: LiteLayout) -> None:
        self._lay_out(layout)

    def _lay_out(self, layout: LiteLayout) -> None:
        if not isinstance(layout, LiteLayout):
            raise TypeError(f"LiteTensor: a layout is a LiteLayout, not {type(layout).__name__}")
        if layout != self.layout:
            self._own(np.zeros(layout.shapes, layout.dtype))

    @property
    def device_type(self) -> LiteDeviceType:
        """Kind of device."""
        return self._device_type

    @property
    def device_id(self) -> int:
        """Number of the device."""
        return self._device_id

    @property
    def is_pinned_host(self) -> bool:
        """The flag that it was made with."""
        return self._pinned

    @property
    def is_continue(self) -> bool:
        """True if the elements are dense and row-major."""
        return bool(self._array.flags.c_contiguous)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return int(self._array.nbytes)

    def update(self) -> None:
        """Do nothing, for MegEngine's programs: properties are always those of the memory."""

    # -- contents --------------------------------------------------------------------------

    def fill_zero(self) -> None:
        """Set every element to zero."""
        self._array[...] = 0

    def share_memory_with(self, src_tensor: LiteTensor) -> None:
        """Share the memory of another tensor from now on."""
        self._array, self._given = src_tensor.get_data_by_share(), True

    def copy_from(self, src_tensor: LiteTensor) -> None:
        """Take over layout and contents of another tensor, as a copy."""
        self._own(src_tensor.to_numpy())

    def reshape(self, shape: Sequence[int]) -> None:
        """The same elements under another shape.

        Raises:
            ValueError: their numbers differ.
        """
        self._array = self._array.reshape(tuple(shape))

    def slice(
        self, start: Sequence[int], end: Sequence[int], step: Sequence[int] | None = None
    ) -> LiteTensor:
        """A tensor on a part of the same memory: `start` to `end` along the first axes."""
        steps = step or (1,) * len(start)
        part = tuple(slice(*s) for s in zip(start, end, steps, strict=True))
        made = LiteTensor()
        made._array = self._array[part]
        return made

    def get_ctypes_memory(self) -> ctypes.c_void_p:
        """Address of the first element, as long as the tensor lives."""
        return ctypes.c_void_p(self._array.ctypes.data)

    def set_data_by_share(
        self, data: Any, length: int = 0, layout: LiteLayout | None = None
    ) -> None:
        """Share the memory of an array from now on; networks read from it or write to it.

        An array is kept alive; what is at an address must stay there.

        Args:
            data: a NumPy array, or an address with `length` bytes and a layout.
            length: bytes at the address.
            layout: of what is at the address, or that the array is read as.

        Raises:
            AssertionError: the array is not dense, or an address has no layout.
        """
        array = self._array_of(data, length, layout)
        if not array.flags.c_contiguous:
            raise AssertionError("set_data_by_share: the array must be dense and row-major")
        self._array, self._given = array, True

    def set_data_by_copy(
        self, data: Any, data_length: int = 0, layout: LiteLayout | None = None
    ) -> None:
        """Take over a copy of an array, nested lists, or memory; see `set_data_by_share`.

        Raises:
            TypeError: what is given holds no numbers.
        """
        source = data if isinstance(data, np.ndarray | ctypes.c_void_p | int) else np.asarray(data)
        if isinstance(source, np.ndarray) and source.dtype.kind in "OSUmM":
            raise TypeError(f"LiteTensor: {type(data).__name__} of {source.dtype} holds no numbers")
        if isinstance(source, np.ndarray) and layout is None and not isinstance(data, np.ndarray):
            source = source.astype(self._array.dtype)
        found = self._array_of(source, data_length, layout)
        if not self._given and (found.shape, found.dtype) == (self._array.shape, self._array.dtype):
            np.copyto(self._array, found)  # Its address stays the same from run to run.
        else:
            self._own(np.array(found, order="C", copy=True))

    @staticmethod
    def _array_of(data: Any, length: int, layout: LiteLayout | None) -> Array:
        if isinstance(data, np.ndarray):
            return data if layout is None else data.view(layout.dtype).reshape(layout.shapes)
        address = data.value if isinstance(data, ctypes.c_void_p) else data
        if layout is None or not isinstance(address, int):
            raise AssertionError("LiteTensor: an address needs a layout")
        size = int(np.prod(layout.shapes, dtype=np.int64)) * layout.dtype.itemsize
        if length and length < size:
            raise AssertionError(f"LiteTensor: {length} bytes cannot hold {layout}")
        raw = (ctypes.c_ubyte * size).from_address(address)
        array: Array = np.frombuffer(memoryview(raw), layout.dtype).reshape(layout.shapes)
        return array

    def _own(self, array: Array) -> None:
        self._array, self._given = array, False

    def room_for(self, layout: LiteLayout, keep: bool = False) -> Array:
        """Memory to write a result to: the tensor's where it fits, so that nothing is copied.

        Args:
            layout: of the result.
            keep: memory that was given by `set_data_by_share` must be used.

        Raises:
            RuntimeError: it must be used, and has another layout or cannot be written to.
        """
        array = self._array
        if array.shape == layout.shapes and array.dtype == layout.dtype:
            flags = array.flags
            if flags.c_contiguous and flags.writeable:
                return array
        if keep and self._given:
            raise RuntimeError(
                f"LiteTensor: a result {layout} does not fit the memory that was given, "
                f"{self.layout}\n  hint: share dense memory of that layout, or leave out "
                "force_output_use_user_specified_memory"
            )
        self._own(np.empty(layout.shapes, layout.dtype))
        return self._array

    def get_data_by_share(self) -> Array:
        """The memory itself as an array."""
        return self._array

    def to_numpy(self) -> Array:
        """A copy of the contents."""
        return np.array(self._array, order="C", copy=True)

    def __repr__(self) -> str:
        where = device_kind(self._device_type)
        return f"LiteTensor({self.layout}{where and f', {where}{self._device_id}'})"


def LiteTensorConcat(
    tensors: Sequence[LiteTensor],
    dim: int,
    device_type: LiteDeviceType = LiteDeviceType.LITE_DEVICE_DEFAULT,
    device_id: int = -1,
) -> LiteTensor:
    """Tensors joined along an axis, as a new one, where the first one is unless a device is named.

    Raises:
        ValueError: their other extents differ, or there are none.
        RuntimeError: there is no such device.
    """
    joined = np.concatenate([t.to_numpy() for t in tensors], axis=dim)
    if device_type == LiteDeviceType.LITE_DEVICE_DEFAULT:
        device_type, device_id = tensors[0].device_type, tensors[0].device_id
    made = LiteTensor(device_type=device_type, device_id=max(device_id, 0))
    made.set_data_by_copy(joined)
    return made


__all__ = ["LiteLayout", "LiteTensor", "LiteTensorConcat"]
