"""`TensorBatchCollector`: a batch that is filled image by image."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.lite.base import LiteDataType, LiteDeviceType
from treadle.lite.tensor import LiteLayout, LiteTensor


class TensorBatchCollector:
    """Collects arrays into the places of a batch.

    Args:
        shape: of the whole batch; the first extent is how many fit.
        dtype: element type.
        device_type, device_id, is_pinned_host: of the tensor.
        tensor: one to fill, in place of a new one.

    Raises:
        AssertionError: `tensor` has another shape.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any = LiteDataType.LITE_INT8,
        device_type: LiteDeviceType = LiteDeviceType.LITE_CPU,
        device_id: int = 0,
        is_pinned_host: bool = False,
        tensor: LiteTensor | None = None,
    ) -> None:
        layout = LiteLayout(shape, dtype)
        if tensor is not None and tensor.layout.shapes != layout.shapes:
            raise AssertionError(f"TensorBatchCollector: the tensor is {tensor.layout}")
        self._tensor = tensor or LiteTensor(layout, device_type, device_id, is_pinned_host)
        self._free = list(range(layout.shapes[0]))
        self._lock = threading.Lock()

    def collect(self, array: Any) -> int:
        """Copy an array to the next free place; returns its number, -1 where all are taken."""
        with self._lock:
            if not self._free:
                return -1
            place = self._free.pop(0)
        self._fill(place, array)
        return place

    def collect_id(self, array: Any, batch_id: int) -> None:
        """Copy an array to a place.

        Raises:
            AssertionError: the place is taken, or there is none of that number.
        """
        with self._lock:
            if batch_id not in self._free:
                raise AssertionError(f"TensorBatchCollector: place {batch_id} is not free")
            self._free.remove(batch_id)
        self._fill(batch_id, array)

    def collect_by_ctypes(self, data: Any, length: int) -> int:
        """Copy `length` bytes at an address to the next free place."""
        layout = self._tensor.layout
        one = LiteLayout(layout.shapes[1:], layout.data_type)
        made = LiteTensor()
        made.set_data_by_copy(data, length, one)
        return self.collect(made.get_data_by_share())

    def _fill(self, place: int, array: Any) -> None:
        given = array.get_data_by_share() if isinstance(array, LiteTensor) else np.asarray(array)
        self._tensor.get_data_by_share()[place] = given

    def free(self, indexes: Sequence[int] | int) -> None:
        """Make places free again."""
        gone = [indexes] if isinstance(indexes, int) else list(indexes)
        with self._lock:
            self._free = sorted({*self._free, *gone})

    def get_tensor_at(self, index: int) -> LiteTensor:
        """A place as a tensor, on the same memory."""
        return self._tensor.slice((index,), (index + 1,))

    def get(self) -> LiteTensor:
        """The batch."""
        return self._tensor

    def to_numpy(self) -> Any:
        """A copy of the batch."""
        return self._tensor.to_numpy()


__all__ = ["TensorBatchCollector"]
