"""Parameters that observers and quantizers give, and where they get them."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import numpy as np

from treadle.base.qparams import QParams, QuantMode
from treadle.base.quantized import QuantDtypeMeta, create_quantized_dtype
from treadle.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])


class LSQParams(QParams):
    """`QParams` with what the gradient of the step is multiplied by.

    Attributes:
        grad_scale: a number or tensor.
    """

    __slots__: ClassVar[tuple[str, ...]] = ("grad_scale",)
    _fields: ClassVar[tuple[str, ...]] = (*QParams._fields, "grad_scale")

    def __init__(
        self,
        mode: QuantMode | None,
        dtype_meta: QuantDtypeMeta | None,
        scale: Any,
        zero_point: Any,
        grad_scale: Any,
    ) -> None:
        super().__init__(mode, dtype_meta, scale, zero_point)
        self.grad_scale = grad_scale


class QParamsModuleMixin(abc.ABC):
    """Mixin of what knows its rounding: `get_qparams`, and the dtype that follows from it."""

    @abc.abstractmethod
    def get_qparams(self) -> Any:
        """Scale and zero point as far as they are known."""

    def get_quantized_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype with this scale and zero point; see `create_quantized_dtype`.

        Raises:
            ValueError: the scale is not known yet, or a zero point belongs to a signed dtype.
        """
        qparams = self.get_qparams()
        if qparams is None or qparams.scale is None:
            raise ValueError(f"{type(self).__name__} has no scale yet; run the network on data")
        scale = np.asarray(_plain(qparams.scale), np.float64)
        zero = None if qparams.zero_point is None else _plain(qparams.zero_point)
        if zero is not None:
            zero = round(float(np.asarray(zero).reshape(-1)[0]))
        if not qparams.dtype_meta.is_unsigned and not zero:
            zero = None
        return create_quantized_dtype(qparams.dtype_meta, scale, zero)


def _plain(x: Any) -> Any:
    return x.numpy() if isinstance(x, Tensor) else x


def register_method_to_class(cls: type) -> Callable[[F], F]:
    """A decorator that makes a function a method of a class, under the function's name."""

    def register(function: F) -> F:
        setattr(cls, function.__name__, function)
        return function

    return register
