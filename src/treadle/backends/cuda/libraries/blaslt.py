"""cuBLASLt by way of nvmath-python's bindings: descriptors, the choice of an algorithm, calls."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.backends.cuda.device import CudaDevice, CudaStream
from treadle.backends.cuda.libraries.products import GemmProduct, MatrixLayout, parsed
from treadle.backends.rendering import Argument
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.env import CUDA_TF32
from treadle.base.errors import DeviceError

BINDINGS = "nvmath.bindings.cublasLt"
WORKSPACE = 32 << 20
"""Most bytes of scratch memory an algorithm may take."""
# Numbers of the library's headers (library_types.h, cublas_api.h, cublasLt.h).
DATA_TYPES = {dt.float32: 0, dt.float64: 1, dt.float16: 2, dt.bfloat16: 14}
COMPUTE_32F, COMPUTE_64F, COMPUTE_TF32 = 68, 70, 77
TRANSPOSE_A, TRANSPOSE_B = 3, 4
BATCH_COUNT, BATCH_STEP = 5, 6
MOST_WORKSPACE = 1
ALIGNED = 5
"""The first of four preferences: what addresses of a, b, c and d are multiples of."""


@dataclass(frozen=True, slots=True)
class MatmulPlan:
    """Descriptors and the algorithm of a product."""

    description: int
    layouts: tuple[int, int, int]
    algorithm: np.ndarray[Any, Any]
    workspace: int
    scales: np.ndarray[Any, Any]


class BlasLt:
    """The library on one device; `library` has the functions of the bindings."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handle = library.create()
        self._plans: dict[tuple[GemmProduct, bool], MatmulPlan] = {}
        self._lock = threading.Lock()

    def multiply(
        self,
        product: GemmProduct,
        x: int,
        y: int,
        result: int,
        stream: CudaStream,
        fast: bool = False,
    ) -> None:
        """Submit a product of x and y; `fast` allows tensor cores for float32.

        Raises:
            DeviceError: the library knows no algorithm for it.
        """
        plan = self._plan(product, fast)
        first, second, third = plan.layouts
        alpha = plan.scales.ctypes.data
        self._library.matmul(
            self._handle,
            plan.description,
            alpha,
            y,
            first,
            x,
            second,
            alpha + plan.scales.itemsize,
            result,
            third,
            result,
            third,
            plan.algorithm.ctypes.data,
            stream.scratch(plan.workspace) if plan.workspace else 0,
            plan.workspace,
            stream.queue.handle,
        )

    def _plan(self, product: GemmProduct, fast: bool) -> MatmulPlan:
        with self._lock:
            plan = self._plans.get((product, fast))
            if plan is None:
                plan = self._plans[product, fast] = self._planned(product, fast)
            return plan

    def _planned(self, product: GemmProduct, fast: bool) -> MatmulPlan:
        library, dtype = self._library, product.type
        scale = dt.float64 if dtype is dt.float64 else dt.float32
        compute = COMPUTE_64F if dtype is dt.float64 else COMPUTE_32F
        if fast and dtype is dt.float32:
            compute = COMPUTE_TF32
        description = library.matmul_desc_create(compute, DATA_TYPES[scale])
        for attribute, layout in ((TRANSPOSE_A, product.first), (TRANSPOSE_B, product.second)):
            value = np.array([int(layout.transposed)], np.int32)
            library.matmul_desc_set_attribute(description, attribute, value.ctypes.data, 4)
        first, second, third = (
            self._layout(layout, dtype, product.count)
            for layout in (product.first, product.second, product.result)
        )
        layouts = first, second, third
        algorithm, workspace = self._algorithm(product, description, layouts)
        return MatmulPlan(description, layouts, algorithm, workspace, np.array([1, 0], scale.numpy))

    def _layout(self, layout: MatrixLayout, dtype: DType, count: int) -> int:
        library = self._library
        made: int = library.matrix_layout_create(
            DATA_TYPES[dtype], layout.rows, layout.columns, layout.pitch
        )
        if count > 1:
            number, step = np.array([count], np.int32), np.array([layout.step], np.int64)
            library.matrix_layout_set_attribute(made, BATCH_COUNT, number.ctypes.data, 4)
            library.matrix_layout_set_attribute(made, BATCH_STEP, step.ctypes.data, 8)
        return made

    def _algorithm(
        self, product: GemmProduct, description: int, layouts: tuple[int, int, int]
    ) -> tuple[np.ndarray[Any, Any], int]:
        """The first algorithm that the library's heuristics name, and its scratch memory."""
        library = self._library
        preference = self._preference(product)
        found = np.zeros(1, library.matmul_heuristic_result_dtype)
        number = np.zeros(1, np.int32)
        first, second, third = layouts
        library.matmul_algo_get_heuristic(
            self._handle,
            description,
            first,
            second,
            third,
            third,
            preference,
            1,
            found.ctypes.data,
            number.ctypes.data,
        )
        library.matmul_preference_destroy(preference)
        if not number[0]:
            raise DeviceError("cublasLt", "no algorithm computes this product", saw=product.name)
        return found["algo"].copy(), int(found["workspace_size"][0])

    def _preference(self, product: GemmProduct) -> int:
        """Return how much memory an algorithm may take, and how operands are aligned."""
        library = self._library
        made: int = library.matmul_preference_create()
        most = np.array([WORKSPACE], np.uint64)
        library.matmul_preference_set_attribute(made, MOST_WORKSPACE, most.ctypes.data, 8)
        layouts = (product.first, product.second, product.result, product.result)
        for position, layout in enumerate(layouts):
            value = np.array([layout.aligned], np.uint32)
            library.matmul_preference_set_attribute(made, ALIGNED + position, value.ctypes.data, 4)
        return made


class ProductLaunchable:
    """A product in a program."""

    __slots__ = ("library", "product")
    recordable = True

    def __init__(self, product: GemmProduct, library: BlasLt) -> None:
        self.product = product
        self.library = library

    def submit(self, device: CudaDevice, stream: CudaStream, arguments: Sequence[Argument]) -> None:
        """Submit it; the arguments are the places of the result and of both operands."""
        places = [a if isinstance(a, int) else a[0].address + a[1] for a in arguments]
        result, x, y = places
        fast = CUDA_TF32.get() == "1"

        def work() -> None:
            device.gpu.select()
            self.library.multiply(self.product, x, y, result, stream, fast)

        device.call(work)


_OPEN: dict[int, tuple[CudaDevice, BlasLt]] = {}
_LOCK = threading.Lock()


def library_of(device: CudaDevice) -> BlasLt:
    """The library on a device, opened at the first call."""
    with _LOCK:
        found = _OPEN.get(id(device))
        if found is None or found[0] is not device:
            found = _OPEN[id(device)] = device, device.call(lambda: _opened(device))
        return found[1]


def _opened(device: CudaDevice) -> BlasLt:
    bindings: Any = importlib.import_module(BINDINGS)
    device.gpu.select()
    return BlasLt(bindings)


def launchable(device: CudaDevice, symbol: str) -> ProductLaunchable:
    """Return the launchable product of a symbol."""
    return ProductLaunchable(parsed(symbol), library_of(device))
