"""Members of `Tensor` that need nothing but its other members.

Layout, DLPack, what MegEngine reserves or has deprecated, and its private names that user programs
and their tests call.
"""

from __future__ import annotations

import re
from typing import Any, Protocol, TypeVar

import numpy as np

from treadle.base import late
from treadle.base.errors import ShapeError
from treadle.base.shape import row_major_strides
from treadle.base.spelling import REQUIRES_GRAD
from treadle.engine.eager.dispatch import tagged
from treadle.engine.eager.repeated import repeated
from treadle.ops import indexing


class _Handle(Protocol):
    """The interface of tensors for the members below."""

    name: str
    format: str
    _kind: Any

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def device(self) -> Any: ...
    @property
    def type(self) -> Any: ...
    def numpy(self) -> np.ndarray[Any, Any]: ...
    def broadcast_to(self, *shape: Any) -> Any: ...
    def reshape(self, *shape: Any) -> Any: ...
    def constant(self, value: Any, dtype: Any = None) -> Any: ...
    def _reset(self, other: Any) -> None: ...
    def __setitem__(self, index: Any, value: Any) -> None: ...


_FORMATS = re.compile(r"default|nchw([1-9][0-9]*)?|nhwc")
H = TypeVar("H", bound=_Handle)


_getitem: Any = indexing.getitem
_at: Any = repeated(indexing.getitem)
_between: Any = repeated(indexing.between)


class HandleMembers:
    """A base class without state for `Tensor`."""

    __slots__ = ()

    def __getitem__(self: H, index: Any) -> H:
        kind = index.__class__
        if kind is slice:
            part: H = _between(self, index.start, index.stop, index.step)
        elif kind is int:  # True is another index than 1.
            part = _at(self, index)
        else:
            part = _getitem(self, index)
        return part

    # -- the array standard -------------------------------------------------------------------

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """`treadle.array_api`, whose functions take tensors and return its own arrays.

        Raises:
            ValueError: another version of the standard is asked for.
        """
        return late.array_api().namespace(api_version)

    # -- layout: dense and row-major, for everyone who asks -----------------------------------

    @property
    def strides(self: _Handle) -> tuple[int, ...]:
        """Bytes between neighbours along each axis; every tensor is dense and row-major."""
        return tuple(s * self.dtype.itemsize for s in row_major_strides(self.shape))

    def is_contiguous(self) -> bool:
        """True: layouts are the engine's business and never show."""
        return True

    def contiguous(self: H) -> H:
        """The tensor itself."""
        return self

    @property
    def format(self: _Handle) -> str:
        """MegEngine's name for an order of axes: "default", "nchw", "nhwc", "nchw8" and the like.

        A tag that changes neither memory nor values, which results inherit from operands. Which
        order compiled programs use is in their reports.

        Raises:
            ShapeError: when set: no such name.
        """
        found: str = self._kind.format
        return found

    @format.setter
    def format(self: _Handle, name: str) -> None:
        if not _FORMATS.fullmatch(str(name)):
            raise ShapeError(
                "format",
                f"there is no order of axes named {name!r}",
                hint="use 'default', 'nchw', 'nhwc', or 'nchw' and the channels of a block",
            )
        self._kind = tagged(self._kind, str(name))

    @property
    def requires_grad(self) -> bool:
        """Reserved; attach tensors to a `GradManager` instead."""
        raise AttributeError(REQUIRES_GRAD)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        raise AttributeError(REQUIRES_GRAD)

    # -- exchange ------------------------------------------------------------------------------

    def __dlpack__(
        self: _Handle,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Export by DLPack: a copy, as consumers may write into what they get without asking.

        With `copy=False` the memory is shared, read-only; the consumer must know version 1.
        """
        array = self.numpy()
        if copy is not False:
            return array.copy().__dlpack__(max_version=max_version)
        if max_version is None or max_version[0] < 1:
            raise BufferError("sharing read-only memory needs DLPack 1; leave out copy=False")
        return array.__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __getnewargs__(self: _Handle) -> tuple[Any, ...]:
        """The constructor's arguments, as MegEngine pickles them."""
        place = self.device.logical_name
        return self.numpy(), self.dtype, place, False, False, self.name or None, self.format

    def __getstate__(self: _Handle) -> dict[str, Any]:
        """Return the state that pickles keep beside those arguments, as MegEngine has it: `qparams`
        once set.
        """
        found = self.__dict__.get("_qparams")
        return {} if found is None else {"qparams": found}

    # -- deprecated ----------------------------------------------------------------------------

    def set_value(self: _Handle, value: Any) -> None:
        """Replace the value; kept for old MegEngine programs, `x[...] = value` says the same."""
        self[...] = value

    def reset_zero(self: _Handle) -> None:
        """Fill with zeros, keeping shape and type."""
        self._reset(self.constant(np.zeros(self.shape, self.dtype), self.type.dtype))

    # -- private names of MegEngine's tensors ----------------------------------------------------

    @property
    def _tuple_shape(self: _Handle) -> tuple[int, ...]:
        """The shape, which MegEngine shows as a tensor while it traces."""
        return self.shape

    def _isscalar(self: _Handle) -> bool:
        """Return whether there are no axes."""
        return not self.shape

    def _broadcast(self: _Handle, *shape: Any) -> Any:
        """`broadcast_to` under its private name."""
        return self.broadcast_to(*shape)

    @property
    def comp_node(self: _Handle) -> Any:
        """The device, by an old name of MegEngine's."""
        return self.device

    def _dev_tensor(self: H) -> H:
        """The tensor itself: handles hold device memory directly."""
        return self

    def _set_name(self: _Handle, name: str) -> None:
        """Assign `name`."""
        self.name = name

    def _as_format(self: _Handle, format: str) -> Any:
        """A tensor of the same value with another layout tag."""
        made = self.reshape(self.shape)
        made.format = format
        return made

    def _drop(self) -> None:
        """A hint to free memory that can be computed again: not taken."""

    def _watch(self) -> None:
        """A hint to log what happens to the memory: not taken."""

    def _detail(self: _Handle) -> str:
        """The type and the place of the data, for debugging."""
        return f"{self.type} on {self.device!r}"
