"""Treadle: a deep-learning framework with a graph engine that people can read.

The public names follow MegEngine: `import treadle as mge`. Importing Treadle imports no backend
and no compiler; packages that most programs never touch are imported when first named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from treadle import autodiff, config, device, functional, logger
from treadle.backends.registry import entries as _entries
from treadle.backends.registry import table as backends
from treadle.base import spelling
from treadle.base.env import COMPARE
from treadle.base.errors import TreadleError
from treadle.base.version import VERSION
from treadle.device import (
    coalesce_free_memory,
    get_allocated_memory,
    get_cuda_compute_capability,
    get_cuda_device_property,
    get_cuda_driver_version,
    get_cuda_version,
    get_cudnn_version,
    get_default_device,
    get_device_count,
    get_max_allocated_memory,
    get_max_reserved_memory,
    get_mem_status_bytes,
    get_reserved_memory,
    get_tensorrt_version,
    is_atlas_available,
    is_cambricon_available,
    is_cuda_available,
    is_rocm_available,
    reset_max_memory_stats,
    set_default_device,
    set_prealloc_config,
)
from treadle.engine import lifetime
from treadle.engine.fallback import fallback, fallback_report
from treadle.engine.forced import force
from treadle.logger import enable_debug_log, get_logger, set_log_file, set_log_level
from treadle.tensor import Parameter, Tensor

if TYPE_CHECKING:
    from treadle import (
        amp,
        data,
        graph,
        hub,
        jit,
        module,
        optimizer,
        quantization,
        random,
        serialization,
        traced_module,
    )
    from treadle.serialization import load, save
    from treadle.trainer import Trainer
    from treadle.utils.device_module import get_device_module

__version__ = VERSION

# Private in MegEngine too, but programs and tests call them.
_sync = _full_sync = lifetime.synchronize
_atexit, _exit = lifetime.at_exit, lifetime.leave

tensor = Tensor
"""The same class, under the name that reads well in a call: `treadle.tensor([1.0, 2.0])`."""

__all__ = [
    "Parameter",
    "Tensor",
    "Trainer",
    "TreadleError",
    "amp",
    "autodiff",
    "backends",
    "cgtools",
    "coalesce_free_memory",
    "config",
    "data",
    "device",
    "distributed",
    "distributions",
    "dtr",
    "enable_debug_log",
    "explain",
    "fallback",
    "fallback_report",
    "force",
    "functional",
    "get_allocated_memory",
    "get_cuda_compute_capability",
    "get_cuda_device_property",
    "get_cuda_driver_version",
    "get_cuda_version",
    "get_cudnn_version",
    "get_default_device",
    "get_device_count",
    "get_device_module",
    "get_logger",
    "get_max_allocated_memory",
    "get_max_reserved_memory",
    "get_mem_status_bytes",
    "get_reserved_memory",
    "get_tensorrt_version",
    "graph",
    "hub",
    "is_atlas_available",
    "is_cambricon_available",
    "is_cuda_available",
    "is_rocm_available",
    "jit",
    "load",
    "logger",
    "module",
    "optimizer",
    "quantization",
    "random",
    "report",
    "reset_max_memory_stats",
    "save",
    "serialization",
    "set_default_device",
    "set_log_file",
    "set_log_level",
    "set_prealloc_config",
    "tensor",
    "traced_module",
    "utils",
]

_LATER = {
    "Trainer": "treadle.trainer",
    "amp": "treadle.amp",
    "core": "treadle.interop.megengine.internals",
    "data": "treadle.data",
    "distributed": "treadle.distributed",
    "distributions": "treadle.distributions",
    "dtr": "treadle.dtr",
    "explain": "treadle.jit.decisions",
    "get_device_module": "treadle.utils.device_module",
    "graph": "treadle.graph",
    "hub": "treadle.hub",
    "jit": "treadle.jit",
    "load": "treadle.serialization",
    "module": "treadle.module",
    "optimizer": "treadle.optimizer",
    "quantization": "treadle.quantization",
    "random": "treadle.random",
    "report": "treadle.engine.reports",
    "save": "treadle.serialization",
    "serialization": "treadle.serialization",
    "traced_module": "treadle.traced_module",
    "utils": "treadle.utils",
    "version": "treadle.interop.megengine.internals",
}


def __getattr__(name: str) -> Any:
    """Import a package when it is first named; functions for devices by their backend's name."""
    if name == "cgtools":
        return importlib.import_module("treadle.utils.comp_graph_tools")
    if name not in _LATER:
        if not name.startswith("_") and name in _entries():
            return _device_module(name)
        advice = spelling.of_top_level(name, __all__)
        raise AttributeError(f"module 'treadle' has no attribute {name!r}{advice}", name=name)
    found = importlib.import_module(_LATER[name])
    return found if _LATER[name].endswith("." + name) else getattr(found, name)


def _device_module(name: str) -> Any:
    """The functions for devices of a backend."""
    make = importlib.import_module("treadle.utils.device_module").get_device_module
    try:
        return make(name)
    except TreadleError as error:
        raise AttributeError(f"module 'treadle' has no attribute {name!r}: {error}") from error


def __dir__() -> list[str]:
    return __all__


if COMPARE.get():
    importlib.import_module("treadle.utils.check_ops").install()
