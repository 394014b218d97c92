"""cuDNN on a device: plans, and calls in the order of a stream."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from typing import Any

from treadle.backends.api import Support, no, yes
from treadle.backends.cuda.device import CudaDevice, CudaStream
from treadle.backends.cuda.driver import count_devices
from treadle.backends.cuda.libraries.cudnn.calls import Call, parsed
from treadle.backends.cuda.libraries.cudnn.graphs import planned
from treadle.backends.rendering import Argument
from treadle.base.env import CUDA_TF32
from treadle.base.errors import DeviceError
from treadle.base.log import get_logger
from treadle.base.process import RUNTIME

PACKAGE = "cudnn"
"""The frontend's Python package; it finds the library itself."""


def frontend() -> Any:
    """The frontend.

    Raises:
        ImportError: it is not installed.
    """
    return importlib.import_module(PACKAGE)


def version() -> int:
    """The library's version, for example 92800 for 9.28.0; 0 where there is none."""
    try:
        return int(frontend().backend_version())
    except Exception:  # The package is there without the library, and says so in many ways.
        return 0


class Cudnn:
    """The library on one device; a handle serves one call at a time."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._handle = module.create_handle()
        self._plans: dict[tuple[Call, bool], tuple[Any, int]] = {}
        self._lock = threading.Lock()

    def run(
        self, call: Call, places: Sequence[int], stream: CudaStream, fast: bool = False
    ) -> None:
        """Submit a call on the addresses of its arrays; `fast` allows tensor cores for float32.

        Raises:
            DeviceError: the library has no plan for it.
        """
        with self._lock:
            graph, workspace = self._plan(call, fast)
            given = dict(enumerate(places, 1))
            memory = stream.scratch(workspace) if workspace else 0
            self._module.set_stream(handle=self._handle, stream=stream.queue.handle)
            graph.execute(given, memory, handle=self._handle)

    def _plan(self, call: Call, fast: bool) -> tuple[Any, int]:
        """The best plan that can be built, and its scratch memory."""
        found = self._plans.get((call, fast))
        if found is None:
            try:
                graph = planned(self._module, call, fast, handle=self._handle)
                graph.build_plans()
            except Exception as error:
                hint = "TREADLE_CUDA_LIBRARIES=cublasLt,nccl does without cuDNN"
                raise DeviceError("cudnn", "no plan computes this", saw=call.name, hint=hint) from (
                    error
                )
            found = self._plans[call, fast] = graph, int(graph.get_workspace_size())
        return found


class CudnnLaunchable:
    """A call in a program."""

    __slots__ = ("call", "library")
    recordable = True

    def __init__(self, call: Call, library: Cudnn) -> None:
        self.call = call
        self.library = library

    def submit(self, device: CudaDevice, stream: CudaStream, arguments: Sequence[Argument]) -> None:
        """Submit it; the arguments are the places of the call's arrays."""
        places = [a if isinstance(a, int) else a[0].address + a[1] for a in arguments]
        fast = CUDA_TF32.get() == "1"

        def work() -> None:
            device.gpu.select()
            self.library.run(self.call, places, stream, fast)

        device.call(work)


_OPEN: dict[int, tuple[CudaDevice, Cudnn]] = {}
_LOCK = threading.Lock()


def library_of(device: CudaDevice) -> Cudnn:
    """The library on a device, opened at the first call."""

    def opened() -> Cudnn:
        device.gpu.select()
        return Cudnn(frontend())

    with _LOCK:
        found = _OPEN.get(id(device))
        if found is None or found[0] is not device:
            found = _OPEN[id(device)] = device, device.call(opened)
        return found[1]


def launchable(device: CudaDevice, symbol: str) -> CudnnLaunchable:
    """Return the launchable call of a symbol."""
    return CudnnLaunchable(parsed(symbol), library_of(device))


# -- which calls there are plans for -------------------------------------------------------------


def accepts(call: Call) -> Support:
    """Return whether the library has a plan for a call on every GPU of the process, or why not.

    It is asked for the properties of the GPUs alone, so that no context is made, and for float32
    as such, which is the more difficult case.
    """
    try:
        found = _properties()
    except Exception as error:
        return no("device-feature", f"cuDNN cannot be used: {_first_line(error)}")
    return _accepted(call, found)


@RUNTIME.cached("backends", most=4096)
def _accepted(call: Call, properties: tuple[str, ...]) -> Support:
    module = frontend()
    if not properties:
        return no("device-feature", "cuDNN was asked without a GPU")
    for text in properties:
        try:
            planned(module, call, False, device_property=module.create_device_properties(text))
        except Exception as error:
            return no("device-feature", f"cuDNN has no plan: {_first_line(error)}")
    return yes()


@RUNTIME.cached("backends")
def _properties() -> tuple[str, ...]:
    """The distinct properties of the GPUs, as the library writes them down."""
    module = frontend()
    every = [module.create_device_properties(i).serialize() for i in range(count_devices()[0])]
    get_logger().info("convolutions and attention by cuDNN %s", module.backend_version())
    return tuple(dict.fromkeys(every))


def _first_line(error: Exception) -> str:
    return next(iter(f"{type(error).__name__}: {error}".splitlines()))[:200]
