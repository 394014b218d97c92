"""Names below `megengine.core` that user programs import: `treadle.core`, made when first named.

MegEngine's core is its binding to C++; most of it has no counterpart. What has one is found through
the tables below.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import socket
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treadle import amp, config
from treadle.autodiff import GradManager
from treadle.base.errors import UnsupportedOp
from treadle.base.modes import install
from treadle.device import DeviceType
from treadle.engine.devices.lifetime import synchronize
from treadle.engine.devices.names import CompNode, resolve
from treadle.functional.arguments import as_tensor, promote_all
from treadle.interop.megengine import graphs, runtime, streams, tracer
from treadle.interop.megengine.builtin import MEMBERS
from treadle.interop.megengine.definitions import OpDef
from treadle.ops.op import Op
from treadle.tensor import Tensor
from treadle.traced_module.recording import listening
from treadle.utils.network import set_symbolic_shape
from treadle.utils.network_node import SymbolicShape, VarNode, const_var

__all__ = ["ROOMS", "core", "version"]

Callback = Callable[[Tensor], Any]


class At(str):
    """Place of a name: "package.module" or "package.module:member"."""


class Facade(types.ModuleType):
    """A module whose members live elsewhere.

    Args:
        name: its full name.
        members: values by name; an `At` is imported when it is first named.
    """

    def __init__(self, name: str, members: dict[str, Any]) -> None:
        super().__init__(name, "Names of MegEngine's core.")
        self.__path__: list[str] = []
        self._members = members

    def __getattr__(self, name: str) -> Any:
        members: dict[str, Any] = self.__dict__["_members"]
        if name not in members:
            known = ", ".join(sorted(members))
            raise AttributeError(f"module {self.__name__!r} has no {name!r}; it has {known}")
        found = members[name]
        if isinstance(found, At):
            path, _, member = found.partition(":")
            module = importlib.import_module(path)
            found = getattr(module, member) if member else module
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # Programs that are sent to other processes refer to this module as to any other.
        return importlib.import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        return sorted(self._members)


class Grad:
    """MegEngine's tape: one recording, whose results go to callbacks and nowhere else.

    Args:
        name: of the tape.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name or ""
        self._manager = GradManager()
        self._recording = False
        self._held: Any = None

    def wrt(self, *tensors: Tensor, callback: Callback | None = None) -> Grad:
        """Differentiate with respect to tensors; `callback(gradient)` gets the results.

        Recording begins here, unless the tape was entered before.
        """

        def given(tensor: Tensor, grad: Tensor) -> None:
            if callback is not None:
                callback(grad)

        for tensor in tensors:
            self._manager.attach([tensor], callbacks=[given])
        return self.__enter__()

    def suppress(self) -> None:
        """Record nothing until `resume`."""
        self._held = install(None)

    def resume(self) -> None:
        """Record again."""
        install(self._held)

    def __call__(self, ys: Any, dys: Any = None) -> None:
        """Run backwards from `ys` with the gradients `dys`, and end the recording."""
        self._recording = False
        if isinstance(ys, Tensor) and isinstance(dys, Tensor) and ys.shape != dys.shape:
            dys = dys.broadcast_to(ys.shape)
        self._manager.backward(ys, dys)

    def __enter__(self) -> Grad:
        if not self._recording:
            self._manager.record()
            self._recording = True
        return self

    def __exit__(self, *failure: Any) -> None:
        self._recording = False
        self._manager.release()


def sync() -> None:
    """Wait for all computation, as `megengine._full_sync` does."""
    synchronize()


def isscalar(x: Any) -> bool:
    """Return whether a tensor, or a number, has no axes."""
    return len(x.shape) == 0 if isinstance(x, Tensor) else np.isscalar(x)


def apply(op: Any, *inputs: Tensor) -> Sequence[Tensor]:
    """The results of an op (one of ours, or a loaded custom one) as a list."""
    if isinstance(op, Op):
        return list(op.outputs(*inputs))
    recorder = listening() if isinstance(op, OpDef) else None
    found = op(*inputs) if recorder is None else recorder.call_definition(op, inputs)
    return list(found) if isinstance(found, (tuple, list)) else [found]


_OPTIONS: dict[str, Any] = {}


def get_option(name: str) -> Any:
    """A switch of the run time; 0 for one that was never set."""
    return config.async_level if name == "async_level" else _OPTIONS.get(name, 0)


def set_option(name: str, value: Any) -> Any:
    """Set a switch of the run time and return its value before; only async_level is known."""
    before = get_option(name)
    if name == "async_level":
        config.async_level = value
    else:
        _OPTIONS[name] = value
    return before


def use_symbolic_shape() -> bool:
    """Return what `set_symbolic_shape` set."""
    return SymbolicShape.on


def make_shape_tuple(shape: Any) -> tuple[int, ...]:
    """A shape given as a tensor, a sequence or nested sequences as a tuple of ints."""
    if isinstance(shape, Tensor):
        shape = shape.tolist()
    if isinstance(shape, (tuple, list)):
        return tuple(d for part in shape for d in make_shape_tuple(part))
    return (int(shape),)


def cast_tensors(*args: Any, promote: bool = False) -> tuple[Any, ...]:
    """Tensors in mixed precision's type of few bits, or of many with `promote`; None stays."""
    dtype = amp.high_prec_dtype if promote else amp.low_prec_dtype
    return tuple(a if a is None else a.astype(dtype) for a in args)


def result_type(*args: Any) -> np.dtype[Any]:
    """Element type that tensors, arrays and types promote to by NumPy's rules; others are skipped.

    Raises:
        ValueError: there is none.
    """
    dtypes = []
    for x in args:
        with contextlib.suppress(TypeError):
            dtypes.append(np.dtype(x.dtype if isinstance(x, Tensor) else x))
    return np.result_type(*dtypes)


def astensor1d(x: Any, *reference: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Numbers as a tensor of one axis, on the device of the first reference that is a tensor."""
    like = next((r for r in reference if isinstance(r, Tensor)), None)
    place = like.device if device is None and like is not None else device
    made = x if isinstance(x, Tensor) else Tensor(x, dtype=dtype, device=place)
    if isinstance(like, VarNode) and not isinstance(made, VarNode):
        made = const_var(made.numpy())
    return made.reshape(-1)


def convert_inputs(*args: Any, device: Any = None) -> tuple[Any, ...]:
    """Tensors of all values, on one device; None stays."""
    like = next((a for a in args if isinstance(a, Tensor)), None)
    place = like.device if device is None and like is not None else device
    return tuple(a if a is None or isinstance(a, Tensor) else Tensor(a, device=place) for a in args)


def convert_single_value(v: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of a value; a tensor as it is."""
    return v if isinstance(v, Tensor) else Tensor(v, dtype=dtype, device=device)


def dtype_promotion(inps: Sequence[Any]) -> Any:
    """The element type that values have together."""
    return promote_all([as_tensor(x) for x in inps])[0].dtype


def get_device(inps: Sequence[Any]) -> Any:
    """The device of the first tensor; the default one if there is none."""
    found = next((x.device for x in inps if isinstance(x, Tensor)), None)
    return Tensor(0.0).device if found is None else found


def astype(x: Tensor, dtype: Any) -> Tensor:
    """A cast; the tensor itself where it has the type."""
    return x if x.dtype == dtype else x.astype(dtype)


def as_device(obj: Any) -> Any:
    """The device that a name or another device means."""
    return resolve(str(obj))


def getitem(x: Tensor, index: Any) -> Tensor:
    """Return the part of a tensor that an index takes."""
    return x[index]


def setitem(x: Tensor, index: Any, value: Any) -> Tensor:
    """A tensor with another value at an index."""
    made = Tensor(x)
    made[index] = value
    return made


def get_subattr(module: Any, target: str) -> Any:
    """Return the attribute at a dotted path below a module; the module itself for an empty one."""
    for name in target.split(".") if target else ():
        module = getattr(module, name)
    return module


def assign_attr(obj: Any, module: Any, target: str) -> None:
    """Put something at a dotted path below a module."""
    path, _, name = target.rpartition(".")
    setattr(get_subattr(module, path), name, obj)


def positional(
    function: Callable[..., Any], args: Any, kwargs: Any, is_bounded: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call with everything by position that can be, and all defaults.

    Args:
        function: what is called.
        args, kwargs: its arguments.
        is_bounded: whether the first parameter, `self`, is not among them.

    Raises:
        TypeError: they do not fit the function.
    """
    given = (None, *args) if is_bounded else args
    bound = inspect.signature(inspect.unwrap(function)).bind(*given, **kwargs)
    bound.apply_defaults()
    return bound.args[1:] if is_bounded else bound.args, bound.kwargs


def get_free_ports(num: int) -> list[int]:
    """Numbers of ports that nobody listens on at the moment."""
    sockets = [socket.socket() for _ in range(num)]
    for each in sockets:
        each.bind(("", 0))
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found


def _absent(name: str, why: str) -> Callable[..., Any]:
    """A function of MegEngine's that cannot work here and says so."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedOp("megengine", f"{name} has no counterpart", hint=why)

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    return refuse


class SymbolVar:
    """MegEngine's tensors of graphs under construction; here these are tensors, too."""


def setscalar(x: Tensor) -> None:
    """Do nothing: tensors without axes are scalars."""


def _beside() -> dict[str, dict[str, Any]]:
    """Modules outside of the core that exist only for programs that import them."""
    scaled = {
        name: _absent(f"experimental.{name}", "quantization has observers for ranges")
        for name in ("get_norm_mod_value", "get_scaled_model")
    }
    return {
        "_multistream": {
            name: _absent(f"_multistream.{name}", "the engine chooses: Options(streams=2)")
            for name in ("record_event", "wait_event")
        },
        "distributed.util": {"get_free_ports": get_free_ports},
        "data.dataset.vision.utils": {"is_img": At("treadle.data.dataset.vision.folder:is_img")},
        "experimental": scaled,
        "experimental.weight_scaler": scaled,
        "hub.const": {
            "DEFAULT_BRANCH_NAME": "master",
            "DEFAULT_GIT_HOST": "github.com",
            "DEFAULT_PROTOCOL": "HTTPS",
            "ENV_MGE_HOME": "MGE_HOME",
            "ENV_XDG_CACHE_HOME": "XDG_CACHE_HOME",
            "HTTP_CONNECTION_TIMEOUT": 5,
            "HTTP_READ_TIMEOUT": 120,
        },
        "hub.fetcher": {
            name: _absent(f"hub.fetcher.{name}", "hub.load fetches repositories")
            for name in ("GitHTTPSFetcher", "GitSSHFetcher", "RepoFetcherBase")
        },
        "traced_module.tm_config": {
            "disable_default_checker": At("treadle.traced_module:disable_default_checker"),
            "enable_expr_checker": At("treadle.traced_module:enable_expr_checker"),
        },
        "traced_module.compat": {},
        "traced_module.utils": {
            "_convert_kwargs_to_args": positional,
            "assign_attr": assign_attr,
            "get_subattr": get_subattr,
        },
        "quantization.internal_fake_quant": {
            "F": At("treadle.functional"),
            "Function": At("treadle.autodiff:Function"),
            "MinMaxObserver": At("treadle.quantization:MinMaxObserver"),
            "QConfig": At("treadle.quantization:QConfig"),
            "QParams": At("treadle.quantization.utils:QParams"),
            "_FakeQuantize": At("treadle.quantization.fake_quant:_FakeQuantize"),
            "__all__": ["F", "Function", "MinMaxObserver", "QConfig", "QParams", "partial"],
            "partial": functools.partial,
        },
        "xla": {"build_xla": _absent("xla.build_xla", "jit.compile makes native programs")},
    }


def _of_tensors() -> dict[str, dict[str, Any]]:
    """Modules of the core about tensors."""
    return {
        "core.tensor.array_method": {
            "ArrayMethodMixin": Tensor,
            "_broadcast": At("treadle.functional:broadcast_to"),
            "_elwise": At("treadle.functional.elemwise:_elwise"),
            "_matmul": At("treadle.functional:matmul"),
            "_remove_axis": At("treadle.functional:squeeze"),
        },
        "core.tensor.megbrain_graph": graphs.MEMBERS,
        "core.tensor.indexing": {"getitem": getitem, "setitem": setitem},
        "core.tensor": {
            "Tensor": Tensor,
            "amp": At("treadle.amp"),
            "dtype": At("treadle.quantization.dtype"),
        },
        "core.tensor.utils": {
            "astensor1d": astensor1d,
            "astype": astype,
            "cast_tensors": cast_tensors,
            "convert_inputs": convert_inputs,
            "convert_single_value": convert_single_value,
            "isscalar": isscalar,
            "make_shape_tuple": make_shape_tuple,
            "result_type": result_type,
            "setscalar": setscalar,
            "subgraph": runtime.subgraph,
            "subgraph_fn": runtime.subgraph_fn,
        },
    }


def _rooms() -> dict[str, Facade]:
    """All modules of the core, by their path below the package."""
    devices = {"CompNode": CompNode, "DeviceType": DeviceType}
    tables: dict[str, dict[str, Any]] = {
        **_beside(),
        **_of_tensors(),
        "core": {
            "_config": At("treadle.config"),
            "Graph": graphs.Graph,
            "get_option": get_option,
            "set_option": set_option,
        },
        "core._imperative_rt": {
            **devices,
            "Logger": runtime.Logger,
            "OperatorNodeConfig": runtime.OperatorNodeConfig,
            "TensorAttr": runtime.TensorAttr,
            "VarNode": graphs.MEMBERS["VarNode"],
        },
        "core._imperative_rt.common": devices,
        "core._imperative_rt.utils": runtime.UTILS,
        "core._imperative_rt.imperative": {"sync": sync},
        "core._imperative_rt.ops": {
            **MEMBERS,
            "delete_rng_handle": streams.delete_rng_handle,
            "get_global_rng_seed": runtime.get_seed,
            "new_rng_handle": streams.new_rng_handle,
            "set_global_rng_seed": runtime.set_seed,
        },
        "core._imperative_rt.core2": {
            **runtime.CORE2,
            "SymbolVar": SymbolVar,
            "Tensor": Tensor,
            "apply": apply,
            "dtype_promotion": dtype_promotion,
            "get_device": get_device,
            "get_option": get_option,
            "set_option": set_option,
            "sync": sync,
        },
        "core._wrap": {"Device": runtime.Device, "as_device": as_device, "device": as_device},
        "core._trace_option": {
            "set_symbolic_shape": set_symbolic_shape,
            "use_symbolic_shape": use_symbolic_shape,
        },
        "core.autodiff": {},
        "core.autodiff.grad": {"Function": At("treadle.autodiff:Function"), "Grad": Grad},
        "core.ops": {"custom": At("treadle.utils.custom")},
        "core.ops.special": {"Const": MEMBERS["Const"]},
        "core.ops.builtin": MEMBERS,
        "version": {"__version__": tracer.VERSION, "git_version": ""},
    }
    rooms = {path: Facade(f"treadle.{path}", dict(members)) for path, members in tables.items()}
    for path, room in rooms.items():
        above, _, name = path.rpartition(".")
        if above in rooms:
            rooms[above]._members[name] = room
    # Known as modules, so that `from treadle.core import name` says which name is missing.
    sys.modules.update({room.__name__: room for room in rooms.values()})
    return rooms


ROOMS = _rooms()
"""Modules by their path below `treadle`."""

core, version = ROOMS["core"], ROOMS["version"]
