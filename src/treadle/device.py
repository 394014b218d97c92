"""Devices: which there are, which one new tensors use, and what their memory holds.

Names are a kind, a number or `x`, and optionally a stream: `xpux` (the fastest device), `cpux`,
`gpux`, `cpu0`, `gpu1`, `multithread2`, `gpu0:1`. `xpux` means a GPU that works, else the CPU.
"""

from __future__ import annotations

import gc
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.backends import registry
from treadle.base.dialect import Dialect
from treadle.base.errors import DeviceError
from treadle.base.log import tell_no_effect
from treadle.engine.devices import names as _devices
from treadle.engine.eager.choice import kernels_of
from treadle.ops.op import REGISTRY
from treadle.runtime.ahead import AHEAD, Ahead
from treadle.runtime.api import CachingDevice
from treadle.runtime.array import DeviceArray
from treadle.runtime.host import give_back
from treadle.runtime.opened import forget_peak
from treadle.runtime.synchronous import synchronous
from treadle.tensor import Tensor

__all__ = [
    "DeviceProperties",
    "DeviceType",
    "coalesce_free_memory",
    "get_allocated_memory",
    "get_cuda_compute_capability",
    "get_cuda_device_property",
    "get_cuda_driver_version",
    "get_cuda_version",
    "get_cudnn_version",
    "get_default_device",
    "get_device_count",
    "get_device_properties",
    "get_max_allocated_memory",
    "get_max_reserved_memory",
    "get_mem_status_bytes",
    "get_reserved_memory",
    "get_tensorrt_version",
    "is_atlas_available",
    "is_cambricon_available",
    "is_cuda_available",
    "is_rocm_available",
    "ops",
    "reset",
    "reset_max_memory_stats",
    "set_default_device",
    "set_prealloc_config",
    "synchronize",
    "synchronous",
    "what_is_xpu",
]


if TYPE_CHECKING:
    from treadle.engine.eager.properties import DeviceProperties as DeviceProperties


def __getattr__(name: str) -> Any:
    if name == "DeviceProperties":  # With the compilers' side, which importing Treadle lacks.
        from treadle.engine.eager import properties

        return properties.DeviceProperties
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_COUNTED = ("cpu", "gpu", "xpu", "rocm", "multithread", "cambricon", "atlas")


class DeviceType:
    """Names of accelerator kinds, for functions that take a `device_type`."""

    CUDA = "gpu"
    ROCM = "rocm"
    CAMBRICON = "cambricon"
    ATLAS = "atlas"


class InvalidDefaultDevice(DeviceError, AssertionError):
    """A name that no device can have was to become the default."""


def get_default_device() -> str:
    """The default device's name, exactly as it was given; `"xpux"` when nothing was set."""
    return _devices.default_name()


def set_default_device(device: str = "xpux") -> None:
    """Make new tensors on `device` from now on; existing tensors stay where they are.

    Raises:
        InvalidDefaultDevice: the name is malformed. It is a `DeviceError`, which lists the valid
            forms, and an `AssertionError`, as in MegEngine.
    """
    try:
        _devices.set_default_name(device)
    except DeviceError as error:
        raise InvalidDefaultDevice(error.where, error.problem, hint=error.hint) from None


def get_device_count(device_type: str) -> int:
    """Return how many devices of a kind exist: cpu, gpu, xpu, rocm, cambricon, atlas or a
    backend's.

    All names of CPUs are of the one host, which counts as one. To programs that import `megengine`
    each of its cores is a device, as there.
    """
    if device_type not in _COUNTED and registry.for_kind(device_type) is None:
        raise AssertionError(f"device type must be one of {', '.join(_COUNTED)}")
    if Dialect.megengine and _is_host(device_type):
        return get_device_properties("cpu0").cores
    return _devices.device_count(device_type)


def _is_host(device_type: str) -> bool:
    return device_type == "cpu" or (device_type == "xpu" and what_is_xpu() == "cpu")


def get_device_properties(device: str | None = None) -> DeviceProperties:
    """Return a device's properties: name, memory, cores, features, and what runs there without the
    host's help.

    Args:
        device: its name; the default device if None.

    Raises:
        DeviceError: there is no such device.

    Example:
        >>> import treadle as mge
        >>> host = mge.device.get_device_properties("cpu0")
        >>> host.kind, host.cores > 0, bool(host.supports("conv", "float32"))
        ('cpu', True, True)
    """
    from treadle.engine.eager import properties

    return properties.properties_of(_node(device))


def is_cuda_available() -> bool:
    """Return whether an NVIDIA GPU can be used."""
    return _devices.device_count("gpu") > 0


def is_rocm_available() -> bool:
    """Return whether an AMD GPU can be used through ROCm."""
    return _devices.device_count("rocm") > 0


def is_cambricon_available() -> bool:
    """Return whether a Cambricon accelerator can be used."""
    return _devices.device_count("cambricon") > 0


def is_atlas_available() -> bool:
    """Return whether an Ascend accelerator can be used."""
    return _devices.device_count("atlas") > 0


def what_is_xpu() -> str:
    """Return the meaning of `xpu` on this machine: `"cpu"` or a backend's device kind."""
    return _devices.fastest_kind()


def ops(device: str | None = None) -> list[dict[str, str]]:
    """Return the kernels of a device's backend: op, kernel, priority, in the order of asking.

    `treadle.explain` says whether a kernel takes operands of given shapes and types. Kernels for
    ops that do not exist are left out.
    """
    kind = _node(device).kind
    entry = registry.for_kind(kind)
    names = sorted({k.op for k in entry.kernels()} & set(REGISTRY)) if entry is not None else []
    return [
        {"op": op, "kernel": name, "priority": str(kernel.priority)}
        for op in names
        for name, kernel in kernels_of(op, kind)
    ]


def synchronize(device: str | None = None) -> None:
    """Wait until a device has finished all submitted work.

    Raises:
        DeviceError: something failed in the meantime; ops that may be the cause are named.
    """
    node = _node(device)
    if not node.on_host:
        node.open().synchronize()


def reset(device: str) -> None:
    """Close a device, and open it anew when it is next used; after it was lost, for instance.

    Tensors that are only there are lost; what has a copy on the host stays.
    """
    _devices.reset(device)


def _valid_device(device: Any) -> bool:
    """Return whether a text is a device name."""
    try:
        _devices.parse(str(device))
    except DeviceError:
        return False
    return True


# -- memory --------------------------------------------------------------------------------


def _node(device: str | None) -> _devices.CompNode:
    return _devices.default_device() if device is None else _devices.resolve(str(device))


def get_mem_status_bytes(device: str | None = None) -> tuple[int, int]:
    """(total, free) bytes of a device's memory."""
    return _node(device).open().memory()


def get_allocated_memory(device: str | None = None) -> int:
    """Bytes held on a device: its live blocks, or the host's live tensors and recordings.

    The host is counted when asked, by walking the objects the garbage collector knows; shared
    memory counts once.
    """
    node = _node(device)
    place = node.place
    if not node.on_host:
        return node.open().allocated
    live: dict[int, int] = {}
    for found in gc.get_objects():
        # By type: isinstance would ask `__class__` of everybody's lazy proxies.
        if not issubclass(type(found), Tensor):
            continue
        kind = getattr(found, "_kind", None)  # One that is being made, by another thread, has none.
        if kind is not None and kind.device.place == place:
            _count(live, found._data)
    live.update(_saved_bytes(place))
    total = sum(live.values())
    _PEAK[place] = max(_PEAK.get(place, 0), total)
    return total


_PEAK: dict[tuple[str, int], int] = {}
_MOST_RESERVED: dict[tuple[str, int], int] = {}


def _count(live: dict[int, int], payload: Any) -> None:
    if isinstance(payload, DeviceArray):
        live[id(payload)] = payload.nbytes
        return
    array = np.asarray(payload)
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    live[id(base)] = base.nbytes


def _saved_bytes(place: tuple[str, int]) -> dict[int, int]:
    """Payloads that recordings hold besides the tensors: tuples (payload, eager type, trace)."""
    live: dict[int, int] = {}
    for found in gc.get_objects():
        saved = getattr(found, "inputs", None) if type(found).__name__ == "TapeNode" else None
        for item in saved if isinstance(saved, tuple) else ():
            if isinstance(item, tuple) and len(item) == 3 and item[1].device.place == place:
                _count(live, item[0])
    return live


def get_reserved_memory(device: str | None = None) -> int:
    """Bytes the allocator holds: what is allocated, and what a backend keeps of freed memory."""
    node = _node(device)
    total = get_allocated_memory(device)
    if not node.on_host:
        raw = node.open().raw
        total += raw.cached() if isinstance(raw, CachingDevice) else 0
    _MOST_RESERVED[node.place] = max(_MOST_RESERVED.get(node.place, 0), total)
    return total


def get_max_allocated_memory(device: str | None = None) -> int:
    """The most bytes that were held on a device at once since the last reset.

    A device's blocks are counted as they are made. NumPy does not report the host's arrays: the
    host's figure is the largest that `get_allocated_memory` gave or, where the system knows the
    process's peak (Linux), what is held now or was at the reset, plus the distance of the process's
    memory from its peak at that time, if that is more. The peak counts more than tensors.
    """
    node = _node(device)
    now = get_allocated_memory(device)
    if not node.on_host:
        return node.open().peak
    known = _PEAK[node.place]
    peak, present = _resident()
    before, at_reset, held = _RESET.get(node.place, (0, peak, 0))
    # A peak from before the last reset, where the system could not forget it, says nothing.
    if peak > before:
        known = max(known, now + peak - present, held + peak - at_reset)
        _PEAK[node.place] = (
            known  # What the process holds besides may grow: the figure never falls.
        )
    return known


_RESET: dict[tuple[str, int], tuple[int, int, int]] = {}
"""At the last reset: most and present bytes of the process in memory, and bytes held."""


def _resident() -> tuple[int, int]:
    """(most, present) bytes of the process in memory; zeros where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0, 0
    most, now = (re.search(rf"^{field}:\s*(\d+) kB", status, re.M) for field in ("VmHWM", "VmRSS"))
    return (int(most[1]) << 10, int(now[1]) << 10) if most and now else (0, 0)


def get_max_reserved_memory(device: str | None = None) -> int:
    """The largest figure that `get_reserved_memory` or `get_max_allocated_memory` gives or gave."""
    get_reserved_memory(device)
    return max(_MOST_RESERVED[_node(device).place], get_max_allocated_memory(device))


def reset_max_memory_stats(device: str | None = None) -> None:
    """Start the maxima anew, from what is held now.

    On Linux, the process's peak of resident memory starts anew with those of the host.
    """
    node = _node(device)
    for maxima in (_PEAK, _MOST_RESERVED):
        maxima.pop(node.place, None)
    if not node.on_host:
        forget_peak(node.open())
        return
    with suppress(OSError):  # some sandboxes forbid it
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    _RESET[node.place] = (*_resident(), get_allocated_memory(device))


def coalesce_free_memory() -> None:
    """Collect garbage, and give back what devices and the C library keep of freed memory."""
    gc.collect()
    give_back()
    for opened in _devices.opened():
        if isinstance(opened.raw, CachingDevice) and not (opened.lost or opened.closed):
            opened.raw.drop_cache()


def set_prealloc_config(
    alignment: int = 1,
    min_req: int = 32 * 1024 * 1024,
    max_overhead: int = 0,
    growth_factor: float = 2.0,
    device_type: str = DeviceType.CUDA,
) -> None:
    """Ask a GPU's driver for more memory than is wanted, to serve later requests from.

    Other kinds of devices ask for nothing ahead: a call for one warns once.

    Args:
        alignment: of what is asked for, in bytes; a power of two.
        min_req: bytes of the smallest request.
        max_overhead: bytes beyond what is wanted, at most; 0 asks for nothing ahead.
        growth_factor: of a request to what has been asked for so far.
        device_type: "gpu", or another kind.

    Raises:
        ValueError: a size is negative, alignment is not a power of two, or a factor below 1.
    """
    power = alignment >= 1 and not alignment & (alignment - 1)
    if not power or min_req < 0 or max_overhead < 0 or growth_factor < 1:
        raise ValueError(
            "alignment must be a power of two, growth_factor at least 1, sizes at least 0"
        )
    if device_type not in ("gpu", "cuda"):
        tell_no_effect("set_prealloc_config", f"{device_type} asks for no memory ahead")
        return
    AHEAD["gpu"] = Ahead(alignment, min_req, max_overhead, growth_factor)


# -- CUDA ----------------------------------------------------------------------------------


def _feature(device: int, pattern: str) -> str:
    """The part of a GPU's capability strings that a pattern finds."""
    for text in _devices.resolve(f"gpu{device}").open().info.features:
        match = re.fullmatch(pattern, text)
        if match is not None:
            return match[1]
    raise DeviceError(f"gpu{device}", f"its backend reports no {pattern}")


def get_cuda_compute_capability(device: int, device_type: str = DeviceType.CUDA) -> int:
    """major * 10 + minor of a GPU; raises `DeviceError` where there is none."""
    return int(_feature(device, r"compute_([0-9]+)"))


def get_cuda_device_property(device: int, device_type: str = DeviceType.CUDA) -> Any:
    """Return the properties that a GPU reports; raises `DeviceError` where there is none."""
    return _devices.resolve(f"gpu{device}").open().info


def _version(name: str) -> int:
    entry = registry.for_kind("gpu")
    versions: dict[str, int] = getattr(entry.backend, "versions", {}) if entry else {}
    return versions.get(name, 0)


def get_cuda_version() -> int:
    """Version of the CUDA runtime, for example 12040; 0 without a CUDA backend."""
    return _version("cuda")


def get_cuda_driver_version() -> int:
    """Version of the CUDA driver; 0 without a CUDA backend."""
    return _version("driver")


def get_cudnn_version() -> int:
    """Version of cuDNN, for example 92800; 0 where it is not installed, or without a GPU."""
    return _version("cudnn")


def get_tensorrt_version() -> int:
    """Version of TensorRT; 0 where it is not installed."""
    return _version("tensorrt")
