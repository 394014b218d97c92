"""The native part of this process: compiled once, and told where everything is.

It stands on three interfaces of C that are made to last: CPython's, DLPack's table of functions at
`torch.Tensor`, and PyTorch's own for extensions (`torch/csrc/stable`). Before it is used, a tuple,
a list and a tensor are read as native code reads them. Where they look otherwise, an interface is
missing, or PyTorch is of a version that was not tried, calls go through Python, as they do on
interpreters and machines without code of ours.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import torch

from treadle.backends import registry
from treadle.backends.native_code import Assembling
from treadle.backends.objects import are_as_expected
from treadle.base.errors import CompileError
from treadle.base.log import get_logger
from treadle.interop.torch.native.calls_text import calls_text
from treadle.interop.torch.native.layout import (
    CONTEXT,
    KEY_WORDS,
    OBJECTS,
    TENSOR,
    TUPLE,
)
from treadle.interop.torch.native.programs_text import programs_text
from treadle.interop.torch.native.tensors_text import tensors_text
from treadle.interop.torch.native.views_text import VIEWS, views_text

BUILT_FOR = (2, 13, 0)
"""The version of PyTorch's C interface that the texts are written for."""
TRIED = ((2, 13),)
"""Versions of PyTorch that the native part is used with."""
_MACHINES = ("x86_64", "aarch64", "arm64")
"""Machines on which the function that raises can take a kernel's place; see `views_text`."""
DLPACK = 1, 3
_CPYTHON = (
    *("PyObject_Call", "PyObject_CallOneArg", "PyErr_Clear", "PyErr_Occurred", "PyErr_NoMemory"),
    "PyObject_VectorcallMethod",
    *(
        "PyTuple_New",
        "PyTuple_SetItem",
        "PyList_New",
        "PyList_SetItem",
        "PyBytes_FromStringAndSize",
    ),
    *("PyLong_AsLongLong", "PyFloat_AsDouble", "PyUnicode_AsUTF8AndSize", "PyDict_Next"),
    *("Py_IncRef", "Py_DecRef", "PyMem_RawMalloc", "PyMem_RawFree"),
)
_PYTORCH = {
    "list_size": "torch_list_size",
    "list_item": "torch_list_get_item",
    "list_free": "torch_delete_list",
    "value_free": "torch_delete_stable_ivalue",
    "tensor_free": "aoti_torch_delete_tensor_object",
    "storage_bytes": "aoti_torch_get_storage_size",
    "offset": "aoti_torch_get_storage_offset",
    "ndim": "aoti_torch_get_dim",
    "sizes": "aoti_torch_get_sizes",
    "strides": "aoti_torch_get_strides",
    "type_of": "aoti_torch_get_dtype",
    "element_bytes": "aoti_torch_dtype_element_size",
    "reinterpret": "aoti_torch__reinterpret_tensor",
    "empty_strided": "aoti_torch_empty_strided",
    "dispatch": "torch_call_dispatcher",
    "what": "torch_exception_get_what_without_backtrace",
    "raise": "aoti_torch_check",
}
_ENTRIES = ("context", "kernel", "key", "program", "blank", *VIEWS.values())


class _Exchange(ctypes.Structure):
    """DLPack's `DLPackExchangeAPI`."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("before", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("look", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


class _Method(ctypes.Structure):
    """CPython's `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_WITH_NAMES, _ONE = 0x0001 | 0x0002, 0x0008


class NativeLibrary:
    """The code, its context, and what PyTorch registered of it.

    It is never given back: PyTorch may call it while the process ends.

    Raises:
        CompileError: this interpreter, machine or PyTorch cannot have it.

    Attributes:
        address: of its functions, by name.
        key: a function of (arguments, names, whether real numbers are not part of it) that gives
            the key of a call, or None.
        blank: a function of (DLPack's type, bytes of an element, DLPack's device, shape, strides or
            None) that gives a tensor with memory of its own. Shape and strides are tuples.
    """

    def __init__(self) -> None:
        _check_process()
        if not are_as_expected():
            raise CompileError("treadle.torch", "objects are laid out in an unknown way")
        text = "\n".join((tensors_text(), programs_text(), calls_text(), views_text()))
        version = hashlib.sha256(text.encode()).hexdigest()[:16]
        symbols = [f"treadle_torch_{name}_{version}" for name in _ENTRIES]
        for name in _ENTRIES:
            text = text.replace(f"@treadle_torch_{name}(", f"@treadle_torch_{name}_{version}(")
        self._engine = _engine()
        addresses = self._engine.assemble(symbols, text)
        self.address = {n: addresses[s] for n, s in zip(_ENTRIES, symbols, strict=True)}
        where = ctypes.CFUNCTYPE(ctypes.c_void_p)(self.address["context"])()
        self._context = (ctypes.c_int64 * len(CONTEXT)).from_address(where)
        self._keys = (ctypes.c_int64 * KEY_WORDS)()
        self._methods: list[_Method] = []
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        self._fill()
        self._try()

    def _fill(self) -> None:
        exchange = _exchange()
        known = {"look": exchange.look, "to_object": exchange.to_object}
        known["run"] = self._engine.run_address()
        known |= {name: _address(getattr(ctypes.pythonapi, name)) for name in _CPYTHON}
        pytorch = _pytorch()
        known |= {name: _address(_function(pytorch, theirs)) for name, theirs in _PYTORCH.items()}
        objects = [torch.Tensor, torch.nn.Parameter, type(None), bool, int, float, list, tuple, str]
        self._objects = [*objects, torch.dtype, torch.layout, torch.memory_format, None, True]
        self._objects.append(sys.intern("is_neg"))
        known |= {name: id(value) for name, value in zip(OBJECTS, self._objects, strict=True)}
        known["keys"], known["room"] = ctypes.addressof(self._keys), KEY_WORDS
        known["version"] = DLPACK[1] << 32 | DLPACK[0]
        known["meta"] = int(_function(pytorch, "aoti_torch_device_type_meta")())
        known["built"] = _built()
        for name, value in known.items():
            self._context[CONTEXT[name]] = int(value or 0)
        self.key = self.function("key", None, takes_names=False)
        self.blank = self.function("blank", None, takes_names=False)
        self.wake()
        self.enable(True)

    def _try(self) -> None:
        """Look at one tensor and make another.

        Raises:
            CompileError: they are not as they should be.
        """
        axes, cpu = 2 | (2 | 32 << 8 | 1 << 16) << 32, 1
        given = torch.zeros(3, 2, dtype=torch.float32, device="cpu").t()[1:]
        key = self.key(((given,), {}, False))
        wanted = [1 << 8 | TUPLE, TENSOR, cpu, axes, 1, 1, 3, 2]
        if key is None or np.frombuffer(key, np.int64).tolist() != wanted:
            raise CompileError("treadle.torch", "a tensor is described in an unknown way")
        made = self.blank((axes >> 32, 4, cpu, (2, 3), None))
        found = made.dtype, made.device.type, tuple(made.shape), made.stride()
        if found != (torch.float32, "cpu", (2, 3), (3, 1)):
            raise CompileError("treadle.torch", "a tensor is made in an unknown way")

    def enable(self, on: bool) -> None:
        """Switch the search for known calls on or off."""
        self._context[CONTEXT["enabled"]] = int(on)

    def wake(self) -> None:
        """Tell it of the pool of threads, starting it if need be."""
        self._context[CONTEXT["pool"]] = self._engine.pool_address()

    def function(self, name: str, own: Any, *, takes_names: bool) -> Any:
        """A function of Python that runs native code.

        Args:
            name: of the code.
            own: an array of words, which it reads.
            takes_names: whether it is called with a tuple and a dict, rather than one object.
        """
        flags = _WITH_NAMES if takes_names else _ONE
        method = _Method(name.encode(), self.address[name], flags, None)
        self._methods.append(method)  # CPython keeps its address.
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p)
        return make(method, own, None)

    def register_views(self) -> bool:
        """Register kernels for views of our tensors with PyTorch; False if it takes none."""
        pytorch, made, here = _pytorch(), ctypes.c_void_p(), b"treadle"
        version = ctypes.c_uint64(_built())
        if pytorch.aoti_torch_library_init_impl(
            b"aten", b"PrivateUse1", here, ctypes.c_uint32(0), ctypes.byref(made)
        ):
            return False
        codes = {name.encode(): ctypes.c_void_p(self.address[v]) for name, v in VIEWS.items()}
        return not any(
            pytorch.torch_library_impl(made, name, code, version) for name, code in codes.items()
        )


def _engine() -> Assembling:
    """The engine that makes machine code."""
    for engine in registry.engines("cpu"):
        if isinstance(engine, Assembling):
            return engine
    raise CompileError("treadle.torch", "no engine here makes machine code")


def _built() -> int:
    """`BUILT_FOR` in a word, as PyTorch has it."""
    major, minor, patch = BUILT_FOR
    return major << 56 | minor << 48 | patch << 40


def _check_process() -> None:
    """Look at the interpreter, the machine and the version of PyTorch.

    Raises:
        CompileError: the texts were not tried with one of them.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED") or sys.implementation.name != "cpython":
        raise CompileError("treadle.torch", "this interpreter is not CPython with its lock")
    if sys.platform not in ("linux", "darwin") or platform.machine() not in _MACHINES:
        raise CompileError("treadle.torch", f"{sys.platform} on {platform.machine()} was not tried")
    if tuple(torch.__version__.split(".")[:2]) not in [(str(a), str(b)) for a, b in TRIED]:
        raise CompileError("treadle.torch", f"PyTorch {torch.__version__} was not tried")


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def _pytorch() -> Any:
    """PyTorch's library of C functions, which is loaded already."""
    names = {"darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}
    name = names.get(sys.platform, "libtorch_cpu.so")
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))


def _function(pytorch: Any, name: str) -> Any:
    found = getattr(pytorch, name, None)
    if found is None:
        raise CompileError("treadle.torch", f"PyTorch {torch.__version__} has no function {name}")
    return found


def _exchange() -> _Exchange:
    """DLPack's functions of `torch.Tensor`.

    Raises:
        CompileError: it has none, or those of another version.
    """
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        raise CompileError("treadle.torch", f"PyTorch {torch.__version__} has no table of DLPack")
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = _Exchange.from_address(get(capsule, b"dlpack_exchange_api"))
    if table.major != DLPACK[0] or not (table.look and table.to_object):
        version = f"{table.major}.{table.minor}"
        raise CompileError("treadle.torch", f"PyTorch's table is of DLPack {version}")
    return table


@functools.cache
def library() -> NativeLibrary | None:
    """The native part; None where this interpreter, machine or PyTorch cannot have it."""
    try:
        return NativeLibrary()
    except (CompileError, OSError, AttributeError) as error:
        get_logger("torch").info("calls go through Python: %s", error)
        return None
