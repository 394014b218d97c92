"""Treadle: a deep-learning framework with a graph engine that people can read.

The public names follow MegEngine: `import treadle as mge`. Importing Treadle imports nothing else:
every name is imported when it is first used, so that programs pay for what they use, and a program
that only runs compiled models for no more than that (`treadle.lite`).
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from treadle.base import late, tracebacks
from treadle.base.env import COMPARE
from treadle.base.version import LITE, VERSION

if TYPE_CHECKING:
    from treadle import (
        amp,
        array_api,
        autodiff,
        config,
        data,
        device,
        functional,
        graph,
        hub,
        jit,
        logger,
        module,
        optimizer,
        quantization,
        random,
        serialization,
        traced_module,
    )
    from treadle.backends.registry import table as backends
    from treadle.base.errors import TreadleError
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
        get_device_properties,
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
    from treadle.engine.devices import lifetime
    from treadle.engine.eager.fallback import fallback, fallback_report
    from treadle.engine.eager.forced import force
    from treadle.inspect.devices import report
    from treadle.jit.decisions import explain
    from treadle.logger import enable_debug_log, get_logger, set_log_file, set_log_level
    from treadle.serialization import load, save
    from treadle.tensor import Parameter, Tensor
    from treadle.trainer import Trainer
    from treadle.utils.device_module import get_device_module
    from treadle.utils.model_summary import summary

    tensor = Tensor
    _sync = _full_sync = lifetime.synchronize
    _atexit, _exit = lifetime.at_exit, lifetime.leave

__version__ = VERSION

__all__ = [
    "Parameter",
    "Tensor",
    "Trainer",
    "TreadleError",
    "amp",
    "array_api",
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
    "get_device_properties",
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
    "summary",
    "tensor",
    "traced_module",
    "utils",
]

_PACKAGES = (
    "amp",
    "array_api",
    "autodiff",
    "base",
    "config",
    "data",
    "deploy",
    "device",
    "distributed",
    "distributions",
    "dtr",
    "engine",
    "functional",
    "graph",
    "hub",
    "interop",
    "jit",
    "lite",
    "logger",
    "module",
    "ops",
    "optimizer",
    "quantization",
    "random",
    "runtime",
    "serialization",
    "traced_module",
    "utils",
)
_MEMBERS = {
    "treadle.base.errors": ("TreadleError",),
    "treadle.device": (
        "coalesce_free_memory",
        "get_allocated_memory",
        "get_cuda_compute_capability",
        "get_cuda_device_property",
        "get_cuda_driver_version",
        "get_cuda_version",
        "get_cudnn_version",
        "get_device_properties",
        "get_default_device",
        "get_device_count",
        "get_max_allocated_memory",
        "get_max_reserved_memory",
        "get_mem_status_bytes",
        "get_reserved_memory",
        "get_tensorrt_version",
        "is_atlas_available",
        "is_cambricon_available",
        "is_cuda_available",
        "is_rocm_available",
        "reset_max_memory_stats",
        "set_default_device",
        "set_prealloc_config",
    ),
    "treadle.engine.eager.fallback": ("fallback", "fallback_report"),
    "treadle.engine.eager.forced": ("force",),
    "treadle.inspect.devices": ("report",),
    "treadle.interop.megengine.internals": ("core", "version"),
    "treadle.jit.decisions": ("explain",),
    "treadle.logger": ("enable_debug_log", "get_logger", "set_log_file", "set_log_level"),
    "treadle.serialization": ("load", "save"),
    "treadle.tensor": ("Parameter", "Tensor"),
    "treadle.trainer": ("Trainer",),
    "treadle.utils.device_module": ("get_device_module",),
    "treadle.utils.model_summary": ("summary",),
}
_LATER: dict[str, tuple[str, str]] = {
    **{name: (f"treadle.{name}", "") for name in _PACKAGES},
    **{name: (home, name) for home, names in _MEMBERS.items() for name in names},
    "backends": ("treadle.backends.registry", "table"),
    "cgtools": ("treadle.utils.comp_graph_tools", ""),
    # The same class, under the name that reads well in a call: `treadle.tensor([1.0, 2.0])`.
    "tensor": ("treadle.tensor", "Tensor"),
    # Private in MegEngine too, but programs and tests call them.
    "_atexit": ("treadle.engine.devices.lifetime", "at_exit"),
    "_exit": ("treadle.engine.devices.lifetime", "leave"),
    "_full_sync": ("treadle.engine.devices.lifetime", "synchronize"),
    "_sync": ("treadle.engine.devices.lifetime", "synchronize"),
}
"""Place of each name: a module, and its name there; the module itself if there is none."""


def __getattr__(name: str) -> Any:
    """Import what a name stands for when it is first used; devices' functions by backend."""
    if name in _LATER:
        home, member = _LATER[name]
        try:
            module = importlib.import_module(home)
        except ModuleNotFoundError as error:
            if LITE is None:
                raise
            raise AttributeError(str(error), name=name) from None
        found = globals()[name] = getattr(module, member) if member else module
        return found
    if LITE is not None and not name.startswith("_"):
        said = importlib.import_module("treadle.base.edition").left_out(f"treadle.{name}")
        raise AttributeError(said, name=name)
    if not name.startswith("_"):
        if name in importlib.import_module("treadle.backends.registry").entries():
            return _device_module(name)
        importlib.import_module("treadle.functional")  # Its names are among those advised.
        advice = importlib.import_module("treadle.base.spelling").of_top_level(name, __all__)
        raise AttributeError(f"module 'treadle' has no attribute {name!r}{advice}", name=name)
    raise AttributeError(f"module 'treadle' has no attribute {name!r}", name=name)


def _device_module(name: str) -> Any:
    """The functions for devices of a backend."""
    make = importlib.import_module("treadle.utils.device_module").get_device_module
    error_class = importlib.import_module("treadle.base.errors").TreadleError
    try:
        return make(name)
    except error_class as error:
        raise AttributeError(f"module 'treadle' has no attribute {name!r}: {error}") from error


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """This module, in which two names do not mean the modules of the same names.

    The import system binds a module in its package once it is imported. `tensor` is a class here,
    and `backends` a function.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in ("backends", "tensor") and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # Functions that are sent to other processes refer to this module as to any other.
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package

if LITE is not None:
    importlib.import_module("treadle.base.edition").install(__path__[0])

late.array_api.provide(lambda: importlib.import_module("treadle.array_api"))
late.collectives.provide(lambda: importlib.import_module("treadle.distributed.functional"))
late.elementwise_by_mode.provide(lambda: importlib.import_module("treadle.module.elemwise").elwise)
late.traced_module_from_plain.provide(
    lambda: importlib.import_module("treadle.traced_module.codec").from_plain
)
late.objects_of_pickles.provide(
    lambda: importlib.import_module("treadle.interop.megengine.pickled").Objects
)

tracebacks.install()
if COMPARE.get():
    importlib.import_module("treadle.utils.check_ops").install()
