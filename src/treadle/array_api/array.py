"""`Array`: the array object of the standard, over tensors.

A complex array is a pair of real tensors, so that everything compiles and differentiates by the
ops that there are, and complex128 needs no kernels of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.array_api import dtypes
from treadle.array_api.dtypes import NumpyType
from treadle.base import late
from treadle.base.dtype import as_dtype
from treadle.engine.devices.names import CompNode, default_device, resolve
from treadle.ops.complex_parts import ImagPart, MakeComplex, RealPart
from treadle.ops.creation import Full
from treadle.ops.elementwise import Cast
from treadle.ops.movement import Broadcast
from treadle.tensor import Tensor, create

Part = Callable[[Tensor], Tensor]
API_VERSION = "2024.12"


class Array:
    """An array with the behavior of the Python array API standard 2024.12.

    Made by the functions of `treadle.array_api`. Arrays do not alias one another: an assignment to
    elements, or `x += y`, is seen through every reference to x and nowhere else.

    Attributes:
        real_part, imag_part: the tensors that hold the numbers; the second is None for real ones.
    """

    __slots__ = ("imag_part", "real_part")
    __array_priority__ = 1002
    real_part: Tensor
    imag_part: Tensor | None

    def __init__(self, real: Tensor, imag: Tensor | None = None) -> None:
        self.real_part = real
        self.imag_part = imag

    # -- what it is ------------------------------------------------------------------------

    @property
    def tensor(self) -> Tensor:
        """The tensor of the same values: the way back into Treadle; complex64 for both types."""
        if self.imag_part is None:
            return self.real_part
        parts = (cast(t, dtypes.float32) for t in (self.real_part, self.imag_part))
        return apply(MakeComplex(), *parts)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors that hold the numbers: one, or two of complex ones."""
        return (self.real_part,) if self.imag_part is None else (self.real_part, self.imag_part)

    @property
    def dtype(self) -> NumpyType:
        """Element type."""
        found: NumpyType = self.real_part.dtype
        return found if self.imag_part is None else dtypes.WHOLE[found]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the axes."""
        return tuple(self.real_part.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.real_part.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.real_part.size

    @property
    def device(self) -> CompNode:
        """Device of the data."""
        return self.real_part.device

    @property
    def T(self) -> Array:
        """The transposed matrix.

        Raises:
            ValueError: there are not two axes.
        """
        if self.ndim != 2:
            raise ValueError(
                f"T is for arrays of two axes, not {self.ndim}; use mT or permute_dims"
            )
        return self.mT

    @property
    def mT(self) -> Array:
        """Every matrix of a stack transposed.

        Raises:
            ValueError: there are fewer than two axes.
        """
        if self.ndim < 2:
            raise ValueError(f"mT is for arrays of at least two axes, not {self.ndim}")
        order = (*range(self.ndim - 2), self.ndim - 1, self.ndim - 2)
        return self.map(lambda t: t.transpose(order))

    def map(self, function: Part) -> Array:
        """The same movement of both parts."""
        imag = None if self.imag_part is None else function(self.imag_part)
        return Array(function(self.real_part), imag)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """`treadle.array_api`.

        Raises:
            ValueError: another version of the standard is asked for.
        """
        return namespace(api_version)

    # -- out -------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a NumPy array."""
        if self.imag_part is None:
            return self.real_part.numpy()
        made = np.empty(self.shape, self.dtype)
        made.real, made.imag = self.real_part.numpy(), self.imag_part.numpy()
        return made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """The values for another library, as host memory that nobody may write to.

        Raises:
            BufferError: the consumer cannot be told that, and forbids a copy.
        """
        array = self.numpy()
        if copy is None and (max_version is None or max_version[0] < 1):
            array = array.copy()  # that version of the protocol has no word for read-only
        return array.__dlpack__(
            stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> tuple[Any, int]:
        return np.empty(0).__dlpack_device__()

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """The array on another device; itself where it is there.

        Raises:
            ValueError: a stream is given: copies are ordered by themselves.
        """
        if stream is not None:
            raise ValueError("to_device: Treadle orders copies by itself; pass no stream")
        where = device_of(device)
        return self if where == self.device else self.map(lambda t: t.to(where))

    def __repr__(self) -> str:
        return f"Array({np.array2string(self.numpy(), separator=', ')}, dtype={self.dtype})"

    def _scalar(self) -> Any:
        if self.size != 1 or self.ndim:
            raise TypeError(f"only arrays of no axes are numbers, got shape {self.shape}")
        return self.numpy().item()

    def __bool__(self) -> bool:
        return bool(self._scalar())

    def __int__(self) -> int:
        return int(self._scalar())

    def __float__(self) -> float:
        return float(self._scalar())

    def __complex__(self) -> complex:
        return complex(self._scalar())

    def __index__(self) -> int:
        if self.dtype not in dtypes.KINDS["integral"]:
            raise TypeError(f"only integers are indices, not {self.dtype}")
        return int(self._scalar())

    def __iter__(self) -> Any:
        if not self.ndim:
            raise TypeError("iteration over an array of no axes")
        return (self[i] for i in range(self.shape[0]))

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of an array of no axes")
        return self.shape[0]

    __hash__ = None  # type: ignore[assignment]

    # -- elements --------------------------------------------------------------------------

    def __getitem__(self, key: Any, /) -> Array:
        index = _index(key, self.shape)
        if isinstance(index, tuple) and not index:
            return self.map(same)
        return self.map(lambda t: t[index])

    def __setitem__(self, key: Any, value: Any, /) -> None:
        given = converted(value, self.dtype, self.device)
        index = _index(key, self.shape)
        if index is Ellipsis or (isinstance(index, tuple) and not index):
            made = broadcast(given, self.shape)
            self.real_part, self.imag_part = made.real_part, made.imag_part
            return
        self.real_part = _written(self.real_part, index, given.real_part)
        if self.imag_part is not None and given.imag_part is not None:
            self.imag_part = _written(self.imag_part, index, given.imag_part)


def same(x: Tensor) -> Tensor:
    """A handle of its own for the same value, with its history."""
    return x.reshape(x.shape)


def _written(x: Tensor, index: Any, value: Tensor) -> Tensor:
    """A tensor with other elements in some places."""
    made = same(x)
    made[index] = value
    return made


def namespace(version: str | None) -> Any:
    """The module `treadle.array_api`, if it has the version that is asked for."""
    if version not in (None, "2021.12", "2022.12", "2023.12", API_VERSION):
        raise ValueError(f"treadle.array_api follows version {API_VERSION}, not {version!r}")
    return late.array_api()


def _index(key: Any, shape: tuple[int, ...]) -> Any:
    """An index as tensors take it."""
    if isinstance(key, tuple):
        return tuple(_one_index(k) for k in key)
    one = _one_index(key)
    if isinstance(one, Tensor) and one.dtype == dtypes.bool:
        wrong = one.ndim > len(shape) or any(
            m not in (n, 0) for m, n in zip(one.shape, shape, strict=False)
        )
        if wrong:
            raise IndexError(f"a mask of shape {one.shape} does not fit {shape}")
    return one


def _one_index(key: Any) -> Any:
    if isinstance(key, Array):
        kind = key.dtype
        if kind != dtypes.bool and kind not in dtypes.KINDS["integral"]:
            raise IndexError(f"arrays as indices hold integers or bool, not {kind}")
        if kind == dtypes.bool:
            return key.real_part
        return int(key) if not key.ndim else cast(key.real_part, dtypes.int64)
    return key


# -- helpers of all functions ------------------------------------------------------------------


def apply(op: Any, *tensors: Tensor) -> Tensor:
    """The one result of an op on tensors of the types it takes."""
    made: Tensor = op(*tensors)
    return made


def cast(x: Tensor, dtype: NumpyType) -> Tensor:
    """A tensor in another real type; itself where it has that."""
    wanted = as_dtype(dtype)
    return x if x.dtype == dtype else apply(Cast(wanted), x)


def device_of(device: Any) -> CompNode:
    """A device by name or object; the default one for None."""
    if device is None:
        return default_device()
    return device if isinstance(device, CompNode) else resolve(str(device))


def filled(shape: tuple[int, ...], value: float, dtype: NumpyType, device: Any = None) -> Tensor:
    """A tensor of one number, of a real type."""
    return create(Full(shape, value, as_dtype(dtype)), device_of(device))[0]


def number(value: Any, dtype: NumpyType, device: Any = None) -> Array:
    """A Python number as an array of no axes.

    Raises:
        OverflowError: an integer does not fit.
    """
    if dtype in dtypes.PARTS:
        whole, part = complex(value), dtypes.PARTS[dtype]
        return Array(*(filled((), v, part, device) for v in (whole.real, whole.imag)))
    if dtype in dtypes.KINDS["integral"]:
        limits = np.iinfo(dtype)
        if not limits.min <= int(value) <= limits.max:
            raise OverflowError(f"{value} does not fit {dtype}")
    with np.errstate(over="ignore"):
        return Array(Tensor(np.array(value).astype(dtype), dtype=dtype, device=device_of(device)))


def as_array(x: Any, name: str = "array_api") -> Array:
    """An array, or a tensor as one; nothing else."""
    if isinstance(x, Array):
        return x
    if isinstance(x, Tensor):
        if x.dtype == dtypes.complex64:
            return Array(apply(RealPart(), x), apply(ImagPart(), x))
        dtypes.as_numpy(x.dtype)
        return Array(x)
    raise TypeError(f"{name} takes arrays, not {type(x).__name__}; use asarray")


def converted(x: Any, dtype: NumpyType, device: Any = None) -> Array:
    """An array or a Python number in a type, to which casts lose nothing but digits."""
    if isinstance(x, (bool, int, float, complex)) and not isinstance(x, np.generic):
        return number(x, dtype, device)
    found = as_array(x)
    if found.dtype == dtype:
        return found
    part = dtypes.PARTS.get(dtype, dtype)
    real = cast(found.real_part, part)
    if dtype not in dtypes.PARTS:
        if found.imag_part is not None:
            raise TypeError(f"{found.dtype} does not become {dtype}: take real() or imag() of it")
        return Array(real)
    if found.imag_part is None:
        return Array(real, filled(tuple(real.shape), 0.0, part, real.device))
    return Array(real, cast(found.imag_part, part))


def promote(*values: Any) -> list[Array]:
    """Arrays and Python numbers in the type they meet in."""
    given = [as_array(v) if isinstance(v, Tensor) else v for v in values]
    dtype = dtypes.result_type(*given)
    device = next(v.device for v in given if isinstance(v, Array))
    return [converted(v, dtype, device) for v in given]


def whole(number: Any, name: str) -> int:
    """An integer as Python's; a float is none, not even a whole one.

    Raises:
        TypeError: it is something else.
    """
    try:
        return operator.index(number)
    except TypeError:
        kind = type(number).__name__
        raise TypeError(f"{name}: an integer is needed, not {number!r} ({kind})") from None


def broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    """An array under a larger shape."""
    return x if x.shape == shape else x.map(lambda t: apply(Broadcast(shape), t))


def require(name: str, x: Array, *kinds: str) -> None:
    """Refuse what a function is not defined for.

    Raises:
        TypeError: the array's type is of none of the kinds.
    """
    if not dtypes.isdtype(x.dtype, kinds):
        raise TypeError(f"{name} takes types of the kinds {', '.join(kinds)}, not {x.dtype}")
