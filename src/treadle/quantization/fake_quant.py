"""Fake quantizers: modules that round real numbers as integers will be rounded."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

import treadle.functional as F
from treadle.base.modes import depend_on
from treadle.base.qparams import QParams, QuantMode, create_qparams, family_of
from treadle.base.quantized import QuantDtypeMeta
from treadle.functional.fake_quant import fake_quant_tensor, lsq_forward, tqt_forward
from treadle.module import Module
from treadle.quantization.bounds import name_option
from treadle.quantization.rounding import LSQParams, QParamsModuleMixin
from treadle.tensor import Parameter, Tensor


class _FakeQuantize(Module):
    """Rounds while it is enabled, and passes its input on while it is not.

    Args:
        dtype: the family of dtypes to round for, or its name.
        enable: whether it rounds at first.
        kwargs: `name`.

    Raises:
        ValueError: there is no family of that name.
    """

    def __init__(self, dtype: str | QuantDtypeMeta, enable: bool = True, **kwargs: Any) -> None:
        super().__init__(name_option(self, kwargs))
        self.dtype: QuantDtypeMeta = family_of(dtype)
        self.qmin = self.dtype.qmin
        self.qmax = self.dtype.qmax
        self.enabled = enable

    def enable(self) -> None:
        """Round from now on."""
        self.enabled = True

    def disable(self) -> None:
        """Pass tensors on."""
        self.enabled = False

    @abc.abstractmethod
    def fake_quant_forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        """The input, rounded."""

    def normal_forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        """The input."""
        return inp

    def forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        depend_on(lambda: self.enabled)
        if self.enabled:
            return self.fake_quant_forward(inp, qparams)
        return self.normal_forward(inp, qparams)


class FakeQuantize(_FakeQuantize):
    """Rounds with the scale and zero point of an observer; see `fake_quant_tensor`.

    Args:
        dtype: the family of dtypes to round for, or its name.
        enable: whether it rounds at first.
        kwargs: `name`.

    Raises:
        AssertionError: when called, parameters are for another family of dtypes.
    """

    def fake_quant_forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        """The input, rounded."""
        if qparams is None or qparams.dtype_meta != self.dtype:
            raise AssertionError(
                f"FakeQuantize rounds for {self.dtype.name}, got parameters {qparams}; "
                "give observer and quantizer one dtype"
            )
        return fake_quant_tensor(inp, qparams)


class TQT(_FakeQuantize, QParamsModuleMixin):
    """Rounds to multiples of a power of two, whose exponent is trained; see `tqt_forward`.

    Args:
        dtype: the family of dtypes to round for, or its name.
        enable: whether it rounds at first.
        kwargs: `name`.

    Parameters: `scale`, 0-d: the logarithm of the step to base 2.
    """

    def __init__(self, dtype: str | QuantDtypeMeta, enable: bool = True, **kwargs: Any) -> None:
        super().__init__(dtype, enable, **kwargs)
        self.scale = Parameter(0.0, dtype="float32")

    def fake_quant_forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        """The input, rounded."""
        return tqt_forward(self.qmin, self.qmax, inp, self.scale)

    def set_qparams(self, qparams: QParams) -> None:
        """Begin with a scale.

        Raises:
            AssertionError: there is no scale, or the mode is not symmetric.
        """
        if qparams.mode is not QuantMode.SYMMERTIC:
            raise AssertionError("only symmetric quantization is supported by TQT")
        step = _initial_scale(qparams)
        self.scale._reset(Tensor(np.log2(step), dtype="float32"))

    def get_qparams(self) -> QParams:
        """The scale as it is now."""
        return create_qparams(QuantMode.SYMMERTIC, self.dtype, 2.0 ** self.scale.detach())


class LSQ(_FakeQuantize, QParamsModuleMixin):
    """Rounds to multiples of a trained step; see `lsq_forward`.

    Args:
        dtype: the family of dtypes to round for, or its name.
        enable: whether it rounds at first.
        eps: the smallest step.
        kwargs: `name`.

    Parameters: `step_size`, 0-d; the step is its magnitude plus eps.
    """

    def __init__(
        self,
        dtype: str | QuantDtypeMeta,
        enable: bool = True,
        eps: float = 1e-5,
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype, enable, **kwargs)
        self.eps = Tensor(eps, dtype="float32")
        self.step_size = Parameter(1.0, dtype="float32")
        self.mode: QuantMode | None = None
        self.zero_point = Tensor(0.0, dtype="float32")
        self.grad_scale = Tensor(1.0, dtype="float32")

    def set_qparams(self, qparams: LSQParams | QParams) -> None:
        """Begin with a scale, a zero point, and a factor of the step's gradient.

        `grad_scale` is 1 where the parameters have none. Esser et al. use
        1 / sqrt(elements * qmax).

        Raises:
            AssertionError: there is no scale.
        """
        step = _initial_scale(qparams)
        self.mode = qparams.mode
        zero = qparams.zero_point if qparams.mode is QuantMode.ASYMMERTIC else 0.0
        self.zero_point._reset(Tensor(zero, dtype="float32"))
        eps = self.eps.numpy()
        start = np.where(step < eps, 0.0, step - eps)
        self.step_size._reset(Tensor(start, dtype="float32"))
        factor = qparams.grad_scale if isinstance(qparams, LSQParams) else 1.0
        self.grad_scale._reset(Tensor(factor, dtype="float32"))

    def fake_quant_forward(self, inp: Tensor, qparams: QParams | None = None) -> Tensor:
        """The input, rounded."""
        step = F.abs(self.step_size) + self.eps
        return lsq_forward(self.qmin, self.qmax, inp, step, self.zero_point, self.grad_scale)

    def get_qparams(self) -> LSQParams:
        """The step as it is now."""
        step = F.abs(self.step_size.detach()) + self.eps
        return LSQParams(self.mode, self.dtype, step, self.zero_point, self.grad_scale)


def _initial_scale(qparams: QParams) -> Any:
    """The scale as an array."""
    scale = qparams.scale
    if scale is None:
        raise AssertionError("Can not get an initialized scale")
    return scale.numpy() if isinstance(scale, Tensor) else np.asarray(scale, np.float32)
