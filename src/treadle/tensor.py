"""`Tensor`: a rebindable handle to an immutable array.

Results never alias and there are no views: `x += 1`, `x[i] = v` and parameter updates compute a
new array and rebind the handle, so everybody who holds the handle sees the change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np

from treadle.base import spelling
from treadle.base.dtype import DType, as_dtype, bool_
from treadle.base.errors import DeviceError, DTypeError
from treadle.base.modes import ACTIVE, LOCAL
from treadle.base.process import RUNTIME
from treadle.base.qparams import QParams, create_qparams
from treadle.base.quantized import quantized_type_of
from treadle.base.tree import flatten, unflatten
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode, default_device, resolve
from treadle.engine.eager.dispatch import EagerType, eager_type, lookup, run, run_nullary, type_of
from treadle.engine.eager.handle_members import HandleMembers
from treadle.engine.eager.hostdata import as_scalar_array, exported, host_data
from treadle.engine.eager.repeated import repeated
from treadle.engine.eager.scales import on_integers, real
from treadle.ops import elementwise as ew
from treadle.ops import indexing, logic
from treadle.ops.matmul import Matmul
from treadle.ops.methods import ArrayMethods
from treadle.ops.op import Op
from treadle.ops.operators import binary
from treadle.ops.requantize import requantized
from treadle.ops.transfer import StopGradient, Transfer
from treadle.ops.ufunc import run_ufunc
from treadle.runtime.array import from_host, to_host

Trace = Any
"""Place of a tensor in a recording; only whoever records knows its type (see autodiff/tape)."""


class Tensor(ArrayMethods, HandleMembers):
    """A multi-dimensional array on a device.

    Args:
        data: nested lists, a number, a NumPy array, a tensor, or None for an empty float32 one.
            The data is copied. Python and NumPy float64 become float32 and int64 become int32
            unless `dtype` names another type; a value that does not fit raises.
        dtype: element type, as a name, a NumPy type or a `DType`.
        device: device name; the default device if left out.
        is_const, no_cache, format: accepted for MegEngine's signature; `format` is a tag.
        name: a name to print and look up.

    Attributes:
        grad: what `GradManager.backward` accumulated, None before; anything may be assigned.
        name: the user's name, empty by default.
        dmap_callback: set by loaders to move tensors to another device; None outside of them.

    Raises:
        DTypeError: the data has no element type Treadle knows, or a value does not fit it.
        DeviceError: the device name is malformed or the device is missing.
    """

    __slots__ = ("__dict__", "__weakref__", "_data", "_kind", "_trace")
    __array_priority__ = 1001
    _data: Any
    _kind: EagerType
    _trace: Trace
    name: str = ""
    dmap_callback: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A handle; of a subclass with a constructor of its own, which need not call ours, one
        whose value is the first argument.
        """
        if kwargs and "requires_grad" in kwargs:
            raise TypeError(spelling.REQUIRES_GRAD)
        made = object.__new__(cls)
        if cls.__init__ is not Tensor.__init__ and args:
            Tensor.__init__(made, args[0])
        return made

    def __init__(
        self,
        data: Any = None,
        dtype: Any = None,
        device: Any = None,
        is_const: bool = False,
        no_cache: bool = False,
        name: str | None = None,
        format: str = "default",
    ) -> None:
        if isinstance(data, Tensor):
            if ACTIVE.count and LOCAL.capture is not None:
                data = data.reshape(data.shape)  # a value of the program, not the handle's array
            moved = data if device is None else data.to(device)
            source = moved if dtype is None else moved.astype(dtype)
            self._data, self._kind = source._data, source._kind
        else:
            array, quantized = host_data(data, dtype)
            where = default_device() if device is None else _as_device(device)
            self._kind = eager_type(as_dtype(array.dtype), where, quantized)
            self._data = array if where.on_host else from_host(array, where.open())
        self._trace = None
        if ACTIVE.count and LOCAL.capture is not None:
            LOCAL.capture.born(self)
        if name:
            self.name = name
        if format != "default":
            self.format = format

    # -- what it is ------------------------------------------------------------------------

    @property
    def grad(self) -> Any:
        """The gradient that was accumulated or assigned; a capture reads it at each call of its
        program.
        """
        notice_grad(self)
        return self.__dict__.get("grad")

    @grad.setter
    def grad(self, value: Any) -> None:
        notice_grad(self)
        self.__dict__["grad"] = value

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, as a tuple."""
        shape: tuple[int, ...] = self._data.shape
        return shape

    @property
    def ndim(self) -> int:
        """Number of axes; 0 for a scalar."""
        return len(self._data.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return spelling.counted(math.prod(self._data.shape))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type, as a `numpy.dtype`; that of a quantized tensor carries its scale."""
        return self._kind.surface

    @property
    def qparams(self) -> QParams:
        """Rounding of the tensor in quantization-aware training; empty where it was not rounded."""
        found: QParams | None = self.__dict__.get("_qparams")
        if found is None:
            found = self.__dict__["_qparams"] = create_qparams()
        return found

    @property
    def device(self) -> CompNode:
        """The device of the data; compares equal to device names."""
        return self._kind.device

    @property
    def type(self) -> TensorType:
        """Element type, shape and device, as ops see them."""
        return type_of(self._kind, self._data)

    # -- how ops run -----------------------------------------------------------------------

    def apply(self, op: Op, inputs: tuple[Tensor, ...], /) -> tuple[Tensor, ...]:
        """Run an op on tensors; a recording or capture of this thread sees it.

        An op without operands (`iota`, ...) runs on this tensor's device and is a constant.
        """
        if ACTIVE.count:
            if LOCAL.casting is not None:
                inputs = LOCAL.casting(op, inputs)
            hook = LOCAL.hook
            if hook is not None and inputs:
                return hook.apply(op, inputs)
        return execute(op, inputs) if inputs else create(op, self._kind.device)

    def _as_operand_of(self, op: Op) -> Tensor:
        return LOCAL.casting(op, (self,))[0] if ACTIVE.count and LOCAL.casting else self

    def constant(self, value: Any, dtype: DType | None = None) -> Tensor:
        """A tensor of `value` on this device that gradients do not flow into."""
        if isinstance(value, (bool, int, float)) and not isinstance(value, np.generic):
            return scalar_tensor(value, eager_type(dtype or self._kind.dtype, self._kind.device))
        if dtype is None and getattr(value, "dtype", None) == self._kind.dtype.numpy:
            dtype = self._kind.dtype  # float64 beside a float64 tensor needs no narrowing
        return Tensor(value, dtype=dtype, device=self._kind.device)

    def is_operand(self, other: object) -> bool:
        """Return whether another value is a tensor; subclasses mix."""
        return isinstance(other, Tensor)

    # -- out of Treadle --------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """The data (or quantized integers) as a read-only row-major array; shared on the host."""
        return exported(to_host(self._data), self._kind.surface)

    def item(self, *index: int) -> Any:
        """One element as a Python scalar; without `index` the tensor must have one element."""
        return (self.numpy() if index else np.asarray(_one(self))).item(*index)

    def tolist(self) -> Any:
        """Nested lists of Python scalars."""
        return self.numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        wanted = array if dtype is None else array.astype(dtype)
        return wanted.copy() if copy and wanted is array else wanted

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """NumPy's elementwise functions: the op of that name, which gives a tensor, or NumPy's own.

        What no op computes is computed of the values, and gives an array.
        """
        plain = method == "__call__" and not kwargs
        found = run_ufunc(ufunc, inputs) if plain else NotImplemented
        if found is not NotImplemented:
            return found
        return getattr(ufunc, method)(*_as_arrays(inputs), **_as_arrays(kwargs))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's other functions, such as `np.sum`, of the tensors' values."""
        if function in _OF_SHAPES:
            return function._implementation(*args, **kwargs)  # needs no value
        return function(*_as_arrays(args), **_as_arrays(kwargs))

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = {k: v for k, v in self.__dict__.items() if k != "grad"}
        dtype = self._kind.quantized or self._kind.dtype.name
        data = self.numpy(), dtype, self._kind.device.logical_name, self._kind.format
        return _rebuild, (type(self), *data), state or None

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        done: Tensor = _wrap(type(self), self._data, self._kind)
        memo[id(self)] = done
        done.__dict__.update(
            {k: deepcopy(v, memo) for k, v in self.__dict__.items() if k != "grad"}
        )
        return done

    # -- moving and casting ----------------------------------------------------------------

    def to(self, device: Any = None, *, dtype: Any = None) -> Tensor:
        """A copy on another device, or of another element type; gradients flow back through it."""
        if dtype is not None:
            moved = self if device is None else self.to(device)
            return moved.astype(dtype)
        return self.apply(Transfer(_as_device(device).logical_name), (self,))[0]

    def detach(self) -> Tensor:
        """The same value as a constant: no gradient flows through."""
        return self.apply(StopGradient(), (self,))[0]

    def astype(self, dtype: Any, /) -> Tensor:
        """A copy of another element type, given by name, NumPy type or `DType`.

        Floats become integers by truncation; what does not fit an integer type wraps. To a
        quantized type they are rounded, halves away from zero, and clamped.
        """
        quantized, mine = quantized_type_of(dtype), self._kind.quantized
        wanted = as_dtype(dtype) if quantized is None else quantized.stored
        if quantized is not None or mine is not None:
            made: Tensor = requantized(self, mine, quantized, wanted)
            made._kind = eager_type(wanted, made._kind.device, quantized)
            return made
        if wanted is self._kind.dtype:
            return self.reshape(self.shape)
        return self.apply(ew.Cast(wanted), (self,))[0]

    @property
    def T(self) -> Tensor:
        """Axes in reverse order."""
        return self.transpose()

    # -- rebinding -------------------------------------------------------------------------

    def _reset(self, other: Tensor) -> None:
        """Make this handle stand for the value of `other`, with its history."""
        if ACTIVE.count and LOCAL.capture is not None:
            LOCAL.capture.rebound(self, other)
        self._data, self._kind, self._trace = other._data, other._kind, other._trace

    def __setitem__(self, index: Any, value: Any) -> None:
        if self._kind.quantized is not None and index is not Ellipsis:
            given = value if isinstance(value, Tensor) else Tensor(value, device=self.device)
            value = given.astype(self.dtype)
        self._reset(indexing.setitem(self, index, value))

    # -- Python protocols ------------------------------------------------------------------

    def __repr__(self) -> str:
        with np.printoptions(precision=4, suppress=True):
            text = str(self.numpy())
        name = str(self._kind.quantized or self._kind.dtype.name)
        kind = "" if name == "float32" else f", dtype={name}"
        return f"{type(self).__name__}({text}{kind}, device={self.device})"

    __str__ = __repr__
    __hash__ = object.__hash__

    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]
        return binary(logic.Equal(), self, other)

    def __ne__(self, other: Any) -> Tensor:  # type: ignore[override]
        return binary(logic.NotEqual(), self, other)

    def __len__(self) -> int:
        return _rows(self, "ndim is 0")

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(_rows(self, "iteration over a 0-d tensor")))

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __getattr__(self, name: str) -> Any:
        raise spelling.MissingAttribute(self, name, spelling.of_method)

    def __contains__(self, item: object) -> bool:
        raise NotImplementedError("`in` compares by value; use F.equal(tensor, item) and reduce")

    def __bool__(self) -> bool:
        return bool(_one(self))

    def __int__(self) -> int:
        return int(_one(self))

    def __float__(self) -> float:
        return float(_one(self))

    def __complex__(self) -> complex:
        return complex(_one(self))

    def __index__(self) -> int:
        if not (self._kind.dtype.is_integer or self._kind.dtype is bool_):
            raise DTypeError("index", "only integer tensors can be indices", saw=str(self.type))
        return int(_one(self))


class Parameter(Tensor):
    """A tensor that modules register and optimizers train."""

    __slots__ = ()


# -- making tensors ----------------------------------------------------------------------------

_new: Callable[[type], Any] = object.__new__


def _wrap(cls: type[Tensor], data: Any, kind: EagerType, trace: Trace = None) -> Any:
    """A tensor around a payload that nobody else will write to."""
    made = _new(cls)
    made._data = data
    made._kind = kind
    made._trace = trace
    return made


def wrap(data: Any, kind: EagerType, trace: Trace = None) -> Tensor:
    """A plain tensor around a payload that nobody else will write to."""
    # Written out: every eager result comes through here.
    made: Tensor = _new(Tensor)
    made._data = data
    made._kind = kind
    made._trace = trace
    return made


def execute(op: Op, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Run an op unseen by any recording; a capture of this thread appends it to its graph."""
    if ACTIVE.count and LOCAL.capture is not None:
        return LOCAL.capture.apply(op, inputs)
    if len(inputs) == 1:
        # Most ops have one operand: two comprehensions less are a quarter of the overhead.
        x = inputs[0]
        kinds, results = run(op, (x._kind,), (x._data,))
    else:
        payloads = tuple([x._data for x in inputs])
        kinds, results = run(op, tuple([x._kind for x in inputs]), payloads)
    if type(results) is not tuple:
        return (wrap(results, kinds[0]),)
    return tuple([wrap(r, k) for r, k in zip(results, kinds, strict=True)])


def create(op: Op, device: CompNode | None = None) -> tuple[Tensor, ...]:
    """Run an op without operands (`full`, `iota`, ...) on a device, the default one if None."""
    if ACTIVE.count and LOCAL.capture is not None:
        return LOCAL.capture.create(op, device or default_device())
    kinds, results = run_nullary(op, device or default_device())
    several = results if type(results) is tuple else (results,)
    return tuple(wrap(r, k) for r, k in zip(several, kinds, strict=True))


def notice_grad(tensor: Tensor) -> None:
    """Tell a capture of this thread that `tensor.grad` is about to be read or replaced."""
    if ACTIVE.count and LOCAL.capture is not None:
        LOCAL.capture.watch_grad(tensor)


_SCALARS: dict[Any, Tensor] = RUNTIME.table("numbers as tensors", "launches")
_MOST_SCALARS = 4096


def scalar_tensor(value: float, kind: EagerType) -> Tensor:
    """A 0-d constant, kept for reuse: expressions repeat their literals."""
    if ACTIVE.count and LOCAL.capture is not None:
        captured: Tensor = LOCAL.capture.literal(value, kind)
        return captured
    key = (value, kind) if value else (repr(value), kind)
    found = _SCALARS.get(key)
    if found is None:
        array = as_scalar_array(value, kind.dtype)
        found = wrap(array if kind.device.on_host else from_host(array, kind.device.open()), kind)
        if len(_SCALARS) >= _MOST_SCALARS:
            _SCALARS.clear()
        _SCALARS[key] = found
    return found


_OF_SHAPES = (np.shape, np.ndim, np.size)


def _as_arrays(value: Any) -> Any:
    """Arguments of a NumPy function with arrays in place of tensors."""
    leaves, structure = flatten(value)
    arrays = [leaf.numpy() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return unflatten(structure, arrays)


def _as_device(device: Any) -> CompNode:
    return device if isinstance(device, CompNode) else resolve(str(device))


def _rebuild(cls: type[Tensor], data: Any, dtype: Any, device: str, format: str) -> Tensor:
    moved = Tensor.dmap_callback
    place = device if moved is None else moved(device)
    plain = Tensor(data, dtype=dtype, device=place, format=format)
    made: Tensor = _wrap(cls, plain._data, plain._kind)
    return made


def _rows(x: Tensor, problem: str) -> int:
    """The first extent."""
    if not x._data.shape:
        raise TypeError(problem)
    return int(x._data.shape[0])


def _one(x: Tensor) -> Any:
    """The single element of a tensor of any rank."""
    if x.size != 1:
        raise ValueError(spelling.of_truth(x.type))
    return x.numpy().reshape(-1)[0]


# -- operators -----------------------------------------------------------------------------


def _operator(op: Op) -> Callable[[Tensor, Any], Tensor]:
    """An arithmetic method whose launches are found by the operands' eager types alone."""
    table = _TABLES.setdefault(op.name, {})

    def method(self: Tensor, other: Any) -> Tensor:
        try:
            launch, kind = table[self._kind, other._kind]
            if ACTIVE.count:
                if LOCAL.casting is not None:
                    return _slow_binary(op, table, self, other)
                hook = LOCAL.hook
                if hook is not None:
                    made: Tensor = hook.binary(op, launch, kind, self, other)
                    return made
            data = launch(self._data, other._data)
        except DeviceError:
            raise  # A device that failed is not to be asked twice.
        except (AttributeError, KeyError, ValueError, MemoryError):
            pass  # Left before going on, so that the errors raised below have no history.
        else:
            made = _new(Tensor)
            made._data = data
            made._kind = kind
            made._trace = None
            return made
        literal = _literal(self._kind, other)
        if literal is None or (self._kind, self._kind) not in table:
            return _slow_binary(op, table, self, other)
        return method(self, literal)

    return method


def _reflected(op: Op, method: Callable[[Tensor, Any], Tensor]) -> Callable[[Tensor, Any], Tensor]:
    """The method that Python calls for numbers and arrays on the left."""
    table = _TABLES[op.name]

    def reflected(self: Tensor, other: Any) -> Tensor:
        literal = _literal(self._kind, other)
        if literal is None or (self._kind, self._kind) not in table:
            return binary(op, real(self), other, swap=True)
        return method(literal, self)

    return reflected


_MATMUL = Matmul()
_TABLES: dict[str, dict[tuple[EagerType, EagerType], tuple[Callable[..., Any], EagerType]]] = {}


def _literal(kind: EagerType, value: Any) -> Tensor | None:
    """The constant for a Python number that promotes to the tensor's own element type."""
    if value.__class__ is float:
        return scalar_tensor(value, kind) if kind.dtype.is_float else None
    if value.__class__ is int and kind.dtype.kind != "bool":
        return scalar_tensor(value, kind)
    return None


def _slow_binary(op: Op, table: Any, x: Tensor, other: Any) -> Tensor:
    """Scalars, promotion, first calls and errors."""
    other = x.constant(other) if isinstance(other, np.generic) else other
    theirs = other._kind if isinstance(other, Tensor) else x._kind
    if (x._kind.quantized or theirs.quantized) and not on_integers(op, x, other):
        return _slow_binary(op, table, real(x), real(other))
    if op is _MATMUL:
        result = ArrayMethods.__matmul__(x, other)
    else:
        result = binary(op, x, other)
    if (
        x._kind.dtype is theirs.dtype and not x._kind.quantized
    ):  # A launch that needs no promotion is known from now on.
        found = lookup((op, (x._kind, theirs)))
        if found is not None:
            table[x._kind, theirs] = (found.launch, found.results[0])
    return result


def _inplace(method: Callable[[Tensor, Any], Tensor]) -> Callable[[Tensor, Any], Tensor]:
    """The in-place form: compute anew and rebind the same handle."""

    def rebind(self: Tensor, other: Any) -> Tensor:
        self._reset(method(self, other))
        return self

    return rebind


_FAST: dict[str, Op] = {
    "add": ew.Add(),
    "sub": ew.Sub(),
    "mul": ew.Mul(),
    "truediv": ew.Div(),
    "lt": logic.Less(),
    "le": logic.LessEqual(),
    "gt": logic.Greater(),
    "ge": logic.GreaterEqual(),
    "matmul": _MATMUL,
}
_INPLACE = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"]
_INPLACE += ["lshift", "rshift", "and", "or", "xor"]

for _name, _op in _FAST.items():
    setattr(Tensor, f"__{_name}__", _operator(_op))
for _name in ("add", "sub", "mul", "truediv"):
    setattr(Tensor, f"__r{_name}__", _reflected(_FAST[_name], getattr(Tensor, f"__{_name}__")))
for _name in _INPLACE:
    setattr(Tensor, f"__i{_name}__", _inplace(getattr(Tensor, f"__{_name}__")))


for _name in ("reshape", "transpose", "flatten", "sum", "mean", "max", "min", "prod"):
    setattr(Tensor, _name, repeated(getattr(Tensor, _name)))


def _forget() -> None:
    """Another engine may be the best one from now on."""
    for table in _TABLES.values():
        table.clear()


RUNTIME.after("launches", _forget)
