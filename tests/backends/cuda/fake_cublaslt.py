"""cuBLASLt's calls on main memory, by columns as the library's documentation has them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treadle.base import dtype as dt

_TYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: dt.bfloat16.numpy}
_DESCRIPTION = {3: np.int32, 4: np.int32}
_LAYOUT = {5: np.int32, 6: np.int64}
_COMPUTE = {68: np.float32, 70: np.float64, 77: np.float32}


@dataclass
class _Made:
    """A description, a layout or a preference."""

    values: tuple[Any, ...]
    attributes: dict[int, int] = field(default_factory=dict)

    def set(self, attribute: int, address: int, size: int, types: dict[int, Any]) -> None:
        kind = np.dtype(types[attribute])
        assert size == kind.itemsize
        self.attributes[attribute] = int(_array(address, kind, 1)[0])


def _array(address: int, dtype: Any, count: int) -> np.ndarray:
    kind = np.dtype(dtype)
    raw = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(raw, np.uint8).view(kind)


class FakeCublasLt:
    """The functions that the backend calls, under the bindings' names."""

    matmul_heuristic_result_dtype = np.dtype(
        [("algo", [("data_", "<u8", (8,))]), ("workspace_size", "<u8"), ("state", "<i4")]
    )

    def __init__(self, submit: Callable[[int, Callable[[], None]], None]) -> None:
        self.submit = submit
        self.made: dict[int, _Made] = {}
        self.computes: list[int] = []
        self.calls = self.heuristics = 0
        self.answers = 1

    def _new(self, *values: Any) -> int:
        handle = len(self.made) + 1000
        self.made[handle] = _Made(values)
        return handle

    def create(self) -> int:
        return self._new("handle")

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        return self._new(compute, scale)

    def matmul_desc_set_attribute(self, made: int, attribute: int, at: int, size: int) -> None:
        self.made[made].set(attribute, at, size, _DESCRIPTION)

    def matrix_layout_create(self, kind: int, rows: int, columns: int, pitch: int) -> int:
        assert pitch >= rows
        return self._new(kind, rows, columns, pitch)

    def matrix_layout_set_attribute(self, made: int, attribute: int, at: int, size: int) -> None:
        self.made[made].set(attribute, at, size, _LAYOUT)

    def matmul_preference_create(self) -> int:
        return self._new("preference")

    def matmul_preference_set_attribute(self, made: int, attribute: int, at: int, n: int) -> None:
        self.made[made].set(
            attribute, at, n, {1: np.uint64, **dict.fromkeys(range(5, 9), np.uint32)}
        )

    def matmul_preference_destroy(self, made: int) -> None:
        self.made[made].values = ("destroyed",)

    def matmul_algo_get_heuristic(self, *given: int) -> None:
        *_, preference, requested, results, count = given
        assert requested == 1
        self.aligned = [self.made[preference].attributes[a] for a in range(5, 9)]
        self.heuristics += 1
        found = _array(results, self.matmul_heuristic_result_dtype, 1)
        found["algo"]["data_"][0][:] = 77
        found["workspace_size"] = 4096
        _array(count, np.int32, 1)[0] = self.answers

    def matmul(self, *given: int) -> None:
        _, description, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout = given[:12]
        algorithm, scratch, nbytes, stream = given[12:]
        assert (c, c_layout) == (d, d_layout) and nbytes == 4096 and scratch
        assert _array(algorithm, np.uint64, 8).tolist() == [77] * 8
        compute, scale = self.made[description].values
        self.computes.append(compute)
        kind = np.dtype(_TYPES[scale])
        assert _array(alpha, kind, 1)[0] == 1 and _array(beta, kind, 1)[0] == 0
        flags = self.made[description].attributes

        def work() -> None:
            self.calls += 1
            first = self._matrices(a, a_layout, flags[3], compute)
            second = self._matrices(b, b_layout, flags[4], compute)
            target = self._places(d, d_layout)
            for one, two, place in zip(first, second, target, strict=True):
                place[...] = (one @ two).astype(place.dtype)

        self.submit(stream, work)

    def _places(self, address: int, layout: int) -> list[np.ndarray]:
        """The matrices of a stack, by columns, as they lie in memory."""
        made = self.made[layout]
        kind, rows, columns, pitch = made.values
        dtype = np.dtype(_TYPES[kind])
        count, step = made.attributes.get(5, 1), made.attributes.get(6, 0)
        found = []
        for i in range(count):
            memory = _array(
                address + i * step * dtype.itemsize, dtype, pitch * (columns - 1) + rows
            )
            strides = dtype.itemsize, pitch * dtype.itemsize
            found.append(np.lib.stride_tricks.as_strided(memory, (rows, columns), strides))
        return found

    def _matrices(
        self, address: int, layout: int, transposed: int, compute: int
    ) -> list[np.ndarray]:
        found = [m.astype(_COMPUTE[compute]) for m in self._places(address, layout)]
        return [m.T for m in found] if transposed else found
