"""Libraries of C that load and run models of other engines, as MegEngine's `extern_c_opr.h` has it.

Such a library has a function, `mgb_c_opr_init`, that gets the address of another function, which
gives it a table of two: one to register a loader under a name, one to take it back. A loader makes
a descriptor of a model from its bytes; the descriptor infers shapes, and runs.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import DTypeError, LoadError, ShapeError
from treadle.ops.custom import blob_engine

INIT = "mgb_c_opr_init"
_VERSION, _MAX_NDIM = 0x24, 8
_DTYPES = tuple(map(np.dtype, ("float32", "int32", "uint8", "float16", "int16")))


class _Shape(ctypes.Structure):
    _fields_ = (("ndim", ctypes.c_uint32), ("shape", ctypes.c_uint32 * _MAX_NDIM))


class _Layout(ctypes.Structure):
    _fields_ = (("dtype", ctypes.c_uint32), ("shape", _Shape))


class _Tensor(ctypes.Structure):
    _fields_ = (("layout", _Layout), ("data", ctypes.c_void_p))


class _DeviceTensor(ctypes.Structure):
    _fields_ = (("layout", _Layout), ("device_ptr", ctypes.c_void_p))


class _Param(ctypes.Structure):
    """Arrays in memory of a library's device that a model gets beside its operands."""

    _fields_ = (
        ("dump_name", ctypes.c_char_p),
        ("n_inputs", ctypes.c_size_t),
        ("n_outputs", ctypes.c_size_t),
        ("inputs", ctypes.POINTER(_DeviceTensor)),
        ("outputs", ctypes.POINTER(_DeviceTensor)),
        ("device_id", ctypes.c_size_t),
        ("extra", ctypes.c_void_p),
        ("extra_size", ctypes.c_size_t),
    )


class _Desc(ctypes.Structure):
    """A model, ready to run."""


_Self = ctypes.POINTER(_Desc)
_Desc._fields_ = (
    ("size", ctypes.c_uint32),
    ("n_outputs", ctypes.c_uint32),
    ("type_name", ctypes.c_char_p),
    ("release", ctypes.CFUNCTYPE(None, _Self)),
    ("hash", ctypes.CFUNCTYPE(ctypes.c_size_t, _Self)),
    ("is_same", ctypes.CFUNCTYPE(ctypes.c_int, _Self, _Self)),
    (
        "execute",
        ctypes.CFUNCTYPE(None, _Self, ctypes.POINTER(_Tensor), ctypes.POINTER(_Tensor)),
    ),
    (
        "infer_shape",
        ctypes.CFUNCTYPE(None, _Self, ctypes.POINTER(_Shape), ctypes.POINTER(_Shape)),
    ),
    (
        "infer_dtype",
        ctypes.CFUNCTYPE(
            None, _Self, ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint32)
        ),
    ),
    ("user_data", ctypes.c_void_p),
    ("dynamic_param", ctypes.c_void_p),
)
_CREATE = ctypes.CFUNCTYPE(_Self, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)


class _LoaderStruct(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("create", _CREATE))


_REGISTER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LoaderStruct))
_UNREGISTER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)


class _Api(ctypes.Structure):
    _fields_ = (("register", _REGISTER), ("unregister", _UNREGISTER))


class Loader:
    """One loader of a library; calling it runs a model, given as bytes, on arrays."""

    def __init__(self, name: str, create: Any) -> None:
        self.name = name
        self._create = create
        self._models: dict[tuple[bytes, int], Any] = {}
        self._lock = threading.Lock()

    def __call__(self, blob: bytes, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """The model's results.

        Raises:
            LoadError: the library makes no model of these bytes.
            DTypeError, ShapeError: an operand is of a type or rank that its interface cannot say.
        """
        model = self._model(blob, len(arrays))
        given = [np.ascontiguousarray(a) for a in arrays]
        inputs = (_Tensor * len(given))(*map(self._tensor, given))
        desc = model.contents
        shapes, dtypes = self._inferred(model, inputs)
        results = [
            np.empty(tuple(s.shape[: s.ndim]), _DTYPES[d])
            for s, d in zip(shapes, dtypes, strict=True)
        ]
        outputs = (_Tensor * len(results))(*map(self._tensor, results))
        _Dynamic.reach(model)
        desc.execute(model, inputs, outputs)
        return tuple(results)

    def _model(self, blob: bytes, count: int) -> Any:
        with self._lock:
            model = self._models.get((blob, count))
            if model is None:
                room = ctypes.create_string_buffer(blob, len(blob))
                model = self._create(count, ctypes.cast(room, ctypes.c_void_p), len(blob))
                if not model or model.contents.size != ctypes.sizeof(_Desc):
                    raise LoadError(self.name, f"its library makes no model of {len(blob)} bytes")
                self._models[blob, count] = model
        return model

    def _inferred(self, model: Any, inputs: Any) -> tuple[Any, list[int]]:
        """Shapes and numbers of element types of the results."""
        desc = model.contents
        shapes = (_Shape * desc.n_outputs)()
        desc.infer_shape(model, (_Shape * len(inputs))(*(x.layout.shape for x in inputs)), shapes)
        dtypes = (ctypes.c_uint32 * desc.n_outputs)(*[inputs[0].layout.dtype] * desc.n_outputs)
        if desc.infer_dtype:
            given = (ctypes.c_uint32 * len(inputs))(*(x.layout.dtype for x in inputs))
            desc.infer_dtype(model, given, dtypes)
        if any(s.ndim > _MAX_NDIM for s in shapes) or any(d >= len(_DTYPES) for d in dtypes):
            raise LoadError(self.name, "its library infers shapes or types that do not exist")
        return shapes, list(dtypes)

    def _tensor(self, array: Array) -> _Tensor:
        return _Tensor(_layout(self.name, array), array.ctypes.data)


def _layout(name: str, array: Array) -> _Layout:
    if array.dtype not in _DTYPES:
        known = ", ".join(d.name for d in _DTYPES)
        raise DTypeError(name, f"takes {known}", saw=array.dtype.name)
    if array.ndim > _MAX_NDIM:
        raise ShapeError(name, f"takes {_MAX_NDIM} axes at most", saw=str(array.shape))
    shape = _Shape(array.ndim, (ctypes.c_uint32 * _MAX_NDIM)(*array.shape))
    return _Layout(_DTYPES.index(array.dtype), shape)


class _Dynamic:
    """The parameter that the first model to run gets."""

    param: _Param | None = None
    model: Any = None

    @classmethod
    def reach(cls, model: Any) -> None:
        """Give it to a model that is about to run, if none has it."""
        if cls.param is not None and cls.model is None:
            cls.model = model
            model.contents.dynamic_param = ctypes.addressof(cls.param)

    @classmethod
    def take_back(cls) -> None:
        if cls.model is not None:
            cls.model.contents.dynamic_param = None
        cls.param = cls.model = None


@contextmanager
def dynamic_parameter(path: str, arrays: Sequence[Array]) -> Iterator[None]:
    """Give the arrays to the first model that runs in the block, in memory of its library's device.

    Args:
        path: of the library, whose functions `copr_param_device_ptr_malloc`, `..._h2d` and
            `..._free` have that memory.
        arrays: on the host.

    Raises:
        LoadError: the library lacks one of the functions.
        DTypeError, ShapeError: an array is of a type or rank that its interface cannot say.
    """
    try:
        library = ctypes.CDLL(path)
        names = ("malloc", "h2d", "free")
        allocate, copy, free = [getattr(library, f"copr_param_device_ptr_{n}") for n in names]
    except (OSError, AttributeError) as error:
        problem = f"{path} takes no parameters that change between runs"
        raise LoadError("c loaders", problem, saw=str(error)) from error
    tensors = (_DeviceTensor * len(arrays))(
        *[_DeviceTensor(_layout("c loaders", a)) for a in arrays]
    )
    param = _Param(n_inputs=len(arrays), inputs=tensors)
    allocate(ctypes.byref(param))
    try:
        for number, array in enumerate(arrays):
            data = ctypes.c_void_p(array.ctypes.data)
            copy(ctypes.byref(param), data, ctypes.c_size_t(number))
        _Dynamic.param = param
        yield
    finally:
        _Dynamic.take_back()
        free(ctypes.byref(param))


_LOADERS: dict[str, Loader] = {}
_HEARD: list[Loader] = []


def _register(given: Any) -> int:
    name = given.contents.name.decode()
    if name in _LOADERS:
        return 0
    # The library may give back the memory of what it registers.
    create = ctypes.cast(given.contents.create, ctypes.c_void_p).value or 0
    _LOADERS[name] = Loader(name, _CREATE(create))
    _HEARD.append(_LOADERS[name])
    return 1


def _unregister(name: bytes) -> int:
    return int(_LOADERS.pop(name.decode(), None) is not None)


_API = _Api(_REGISTER(_register), _UNREGISTER(_unregister))


def _table(version: int) -> int | None:
    return ctypes.addressof(_API) if version == _VERSION else None


_GET = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(_table)


def has_loaders(path: str) -> bool:
    """Return whether a library has the function that registers loaders."""
    try:
        return hasattr(ctypes.CDLL(path), INIT)
    except OSError:
        return False


def open_loaders(path: str, init: str = INIT) -> list[str]:
    """Open a library, and have it register its loaders; their names.

    From then on `runtime_blob`s of these names run in this process.

    Args:
        path: of the library.
        init: its function that does so.

    Raises:
        LoadError: it cannot be opened, lacks that function, or registers nothing that is new.
    """
    try:
        function = getattr(ctypes.CDLL(path), init)
    except (OSError, AttributeError) as error:
        raise LoadError("c loaders", f"{path} is not a loader library", saw=str(error)) from error
    _HEARD.clear()
    function.restype, function.argtypes = None, (ctypes.c_void_p,)
    function(ctypes.cast(_GET, ctypes.c_void_p))
    if not _HEARD:
        raise LoadError(
            "c loaders",
            f"{path} registers no new loader",
            saw=f"registered: {', '.join(_LOADERS) or 'none'}",
            hint=f"its interface has to be version {_VERSION:#x}, and its names new",
        )
    for loader in _HEARD:
        blob_engine(loader.name, loader)
    return [loader.name for loader in _HEARD]
