"""An import finder that serves every `megengine...` module as the Treadle module of that name.

`megenginelite`, the package that runs models out of files, is `treadle.lite`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from treadle.base import version
from treadle.base.dialect import Dialect
from treadle.base.workers import WorkerStart
from treadle.interop.megengine import numpy_names
from treadle.interop.megengine.internals import ROOMS
from treadle.interop.megengine.tracer import VERSION

_ALIAS, _REAL = "megengine", "treadle"
_LITE = "megenginelite"
_LITE_MODULES = {"global_setting": "globals", "struct": "config", "utils": "collector"}
"""Modules of `megenginelite` that have other names in `treadle.lite`."""

_ELSEWHERE = {
    "amp.convert_format": "amp",
    "core._config": "config",
    "core.ops.custom": "utils.custom",
    "core.tensor_factory": "functional",
    "core.tensor.amp": "amp",
    "core.tensor.dtype": "quantization.dtype",
    "data.dataset.meta_dataset": "data.dataset",
    "data.transform.meta_transform": "data.transform",
    "data.transform.vision.transform": "data.transform.vision",
    "functional.distributed": "distributed.functional",
    "functional.types": "utils.tuple_function",
    "hub.hub": "hub",
    "jit.dtr_config": "jit",
    "jit.graph_opt_config": "jit",
    "jit.partial_tracing": "jit",
    "jit.sublinear_memory_config": "jit",
    "jit.tracing": "jit",
    "jit.xla_backend": "jit",
    "module.adaptive_pooling": "module",
    "module.concat": "module",
    "module.lrn": "module",
    "module.pixel_shuffle": "module",
    "module.qat.concat": "module.qat",
    "module.qat.conv_transpose_bn": "module.qat",
    "module.quantized.concat": "module.quantized",
    "module.quantized.conv_bn": "module.quantized",
    "module.quantized.conv_transpose_bn": "module.quantized",
    "module.quantized.linear_bn": "module.quantized",
    "module.sliding_window": "module",
    "optimizer.multi_step_lr": "optimizer",
    "random.rng": "random",
    "traced_module._passes.utils": "interop.megengine.passes",
    "traced_module.module_tracer": "interop.megengine.tracer",
    "utils.types": "utils.tuple_function",
}
"""Modules that stand elsewhere here, by their path in MegEngine."""

_REGISTRIES = ("data.dataset", "data.dataset.vision", "data.transform")
"""Packages whose members programs enter in tables of their own."""

_MEGENGINE = "interop.megengine"
_NOISE = "module.vision_noise"
_GUESTS = {
    "amp": {
        name: f"{_MEGENGINE}.runtime"
        for name in ("_get_amp_high_prec_dtype", "_get_amp_low_prec_dtype")
    },
    "config": {
        "get_auto_format_convert": f"{_MEGENGINE}.switches",
        "set_auto_format_convert": f"{_MEGENGINE}.switches",
    },
    "device": {"CompNode": "engine.devices.names"},
    "distributed": {"get_free_ports": f"{_MEGENGINE}.internals"},
    "distributed.helper": {
        "AllreduceCallback": "distributed:make_allreduce_cb",
        **dict.fromkeys(("make_allreduce_cb", "synchronized"), "distributed"),
    },
    "functional": {
        **dict.fromkeys(("interpolate", "nms", "roi_align", "roi_pooling"), "functional.vision"),
        **dict.fromkeys(
            ("binary_cross_entropy", "cross_entropy", "hinge_loss", "l1_loss", "square_loss"),
            "functional.loss",
        ),
    },
    "functional.elemwise": {
        "Elemwise": f"{_MEGENGINE}.builtin",
        "_elemwise_multi_type": f"{_MEGENGINE}.switches:multi_type",
    },
    "functional.nn": dict.fromkeys(("expand_dhw", "expand_hw"), f"{_MEGENGINE}.switches"),
    "jit": {
        "set_symbolic_shape": f"{_MEGENGINE}.internals",
        "use_symbolic_shape": f"{_MEGENGINE}.internals",
    },
    "logger": {
        "_all_loggers": "logger:_NAMED",
        "_imperative_rt_logger": f"{_MEGENGINE}.runtime:Logger",
    },
    "module.conv": {
        "ConvTranspose2d": "module",
        "ConvTranspose3d": "module",
        "ConvTransposeRelu2d": "module",
        "DeformableConv2d": "module",
        "LocalConv2d": "module",
        "RegionRestrictedConv": "module",
    },
    "module.module": {
        name: f"{_MEGENGINE}.switches"
        for name in ("_expand_structure", "_is_buffer", "_is_module", "_is_parameter", "_is_tensor")
    },
    "module.qat.conv": {name: "module.qat" for name in ("ConvTranspose2d", "ConvTransposeRelu2d")},
    "module.quantized.conv": {
        name: "module.quantized"
        for name in ("ConvTranspose2d", "ConvTransposeBn2d", "ConvTransposeRelu2d")
    },
    "module.vision": {
        name: _NOISE
        for name in (
            "ActiveBlur",
            "AdditiveElemwise",
            "AdditiveGaussianNoise",
            "AdditiveLaplaceNoise",
            "AdditivePoissonNoise",
            "Cutmix",
            "Emboss",
            "GaussianBlur",
            "LinearContrast",
            "Mixup",
            "Sharpen",
        )
    },
    "random": {"gaussian": f"{_MEGENGINE}.switches"},
    "tensor": {"tensor": ""},
    "utils.custom_op_tools": {"_get_default_build_root": f"{_MEGENGINE}.switches"},
    "utils.module_stats": {"hook_modules": "utils.module_stats_rules:HOOKED"},
    "traced_module.pytree": {
        "LeafDef": f"{_MEGENGINE}.tracer",
        "SUPPORTED_TYPE": "traced_module.pytree:CONTAINERS",
    },
    "traced_module.node": {"NodeMixin": "traced_module.node:Node"},
    "traced_module.traced_module": {
        **dict.fromkeys(("ExprFilter", "NodeFilter"), "traced_module.filters"),
        "BaseFilter": "traced_module.filters:Filter",
        **dict.fromkeys(("register_as_builtin", "trace_module", "wrap"), "traced_module"),
        **dict.fromkeys(
            (
                *("ExprFilterCallFunction", "ExprFilterCallMethod", "ExprFilterExprId"),
                *("NodeFilterName", "NodeFilterNodeId", "NodeFilterType"),
            ),
            f"{_MEGENGINE}.tracer",
        ),
    },
}
"""Names that MegEngine has, or early versions had, in modules whose namesakes here lack them, and
where they are."""

_LISTED = ("functional.elemwise", "functional.nn")
"""Modules that have an `__all__` in MegEngine as well, which leaves those names out."""


def _real(fullname: str) -> ModuleType:
    """The module that stands behind a name below `megengine` or `megenginelite`.

    Raises:
        ModuleNotFoundError: there is none of that name.
    """
    root, _, path = fullname.partition(".")
    if root == _LITE:
        path = _LITE_MODULES.get(path, path)
        return importlib.import_module(f"{_REAL}.lite.{path}" if path else f"{_REAL}.lite")
    if path in ROOMS:
        return ROOMS[path]
    path = _ELSEWHERE.get(path, path)
    return importlib.import_module(f"{_REAL}.{path}" if path else _REAL)


def _guests() -> Iterator[tuple[ModuleType, str, Any]]:
    """Modules, names in them while the alias is installed, and what these mean."""
    for path, names in _GUESTS.items():
        host = sys.modules.get(f"{_REAL}.{path}") or importlib.import_module(f"{_REAL}.{path}")
        for name, place in names.items():
            owner, _, other = place.partition(":")
            module = importlib.import_module(f"{_REAL}.{owner}" if owner else _REAL)
            yield host, name, getattr(module, other or name)
    for path, target in _ELSEWHERE.items():
        parent, _, name = path.rpartition(".")
        here = sys.modules.get(f"{_REAL}.{parent}") if parent == target else None
        # MegEngine imports such a module with its package.
        if here is not None and vars(here).get(name, here) is here:
            yield here, name, here


def _make_known(besides: str = "") -> None:
    """Register all modules of Treadle that are loaded under their aliases, too.

    `import` would otherwise bind them anew in their packages, and so replace the class
    `treadle.tensor` or the function `treadle.quantization.quantize` by the module of that name.
    """
    for name in [n for n in sys.modules if n == _REAL or n.startswith(_REAL + ".")]:
        alias = _ALIAS + name[len(_REAL) :]
        if alias != besides:
            sys.modules.setdefault(alias, sys.modules[name])
    for path in _REGISTRIES:
        if f"{_REAL}.{path}" in sys.modules:
            _complete(f"{_REAL}.{path}")


def _complete(name: str) -> None:
    """Import what a package imports when it is named: programs go through `vars` of these."""
    package = sys.modules[name]
    for member in package.__all__:
        with suppress(ImportError):  # OpenCV is missing: whoever names the member is told.
            setattr(package, member, getattr(package, member))


class _AliasLoader(Loader):
    """Loads `megengine.x` by importing `treadle.x`; both names mean one module object."""

    def __init__(self) -> None:
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _real(spec.name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give a module back the spec it had when it was executed under its own name."""
        module.__spec__ = self._spec


class _AliasFinder(MetaPathFinder):
    """Answers for `megengine` and everything below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in (_ALIAS, _LITE):
            return None
        try:
            found = _real(fullname)
        except ModuleNotFoundError as missing:
            if str(missing.name).startswith(_REAL):
                return None
            raise
        _make_known(besides=fullname)
        is_package = bool(getattr(found, "__path__", None))
        return ModuleSpec(fullname, _AliasLoader(), is_package=is_package)


_FINDER = _AliasFinder()


def install() -> None:
    """Make `import megengine` mean Treadle in this process, and NumPy know its old names.

    Raises:
        RuntimeError: a real MegEngine has been imported already.
    """
    loaded = sys.modules.get(_ALIAS)
    if loaded is not None and loaded.__name__ != _REAL:
        raise RuntimeError("megengine is imported already; install the alias before it")
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    importlib.import_module(_REAL)
    _make_known()
    # Known beforehand, since `import` would put the module in the place of the function `launcher`.
    package = importlib.import_module(f"{_REAL}.distributed")
    sys.modules.setdefault(f"{_ALIAS}.distributed.launcher", package)
    for host, name, meant in _guests():
        setattr(host, name, meant)
        starred = vars(host).get("__all__")
        if host.__name__.removeprefix(f"{_REAL}.") in _LISTED or name.startswith("_"):
            continue
        if isinstance(meant, ModuleType):  # Tables of layers are made of these lists.
            continue
        if isinstance(starred, list) and name not in starred:
            starred.append(name)  # `import *` brings what `dir` shows, as in MegEngine.
    numpy_names.keep()
    vars(sys.modules[_REAL])["__version__"] = VERSION
    # A fresh process would not know the alias; MegEngine forks its workers, too.
    WorkerStart.method = "fork"
    Dialect.megengine = True


def uninstall() -> None:
    """Forget the alias; modules that were imported through it stay usable."""
    WorkerStart.method = ""
    Dialect.megengine = False
    numpy_names.forget()
    vars(sys.modules[_REAL])["__version__"] = version.VERSION
    for host, name, meant in _guests():
        if vars(host).get(name) is meant:
            delattr(host, name)
            with suppress(KeyError, ValueError):
                vars(host)["__all__"].remove(name)
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    for name in [n for n in sys.modules if n.partition(".")[0] in (_ALIAS, _LITE)]:
        del sys.modules[name]
