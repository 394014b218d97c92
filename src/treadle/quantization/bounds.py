"""Observers: what ranges the values of a tensor have.

An observer is called with a tensor, returns it, and remembers what it saw in buffers, so that it
is saved with the network. `get_qparams` then chooses scale and zero point.
"""

from __future__ import annotations

import abc
import copy
from typing import Any

import numpy as np

import treadle.functional as F
from treadle.autodiff import no_grad
from treadle.base.log import get_logger
from treadle.base.modes import depend_on
from treadle.base.qparams import QParams, QuantMode, create_qparams, family_of
from treadle.base.quantized import QuantDtypeMeta
from treadle.distributed import functional as collectives
from treadle.distributed import is_distributed
from treadle.module import Module
from treadle.module.qat.module import ChannelAware
from treadle.quantization.rounding import QParamsModuleMixin
from treadle.tensor import Tensor

_LARGEST = float(np.finfo(np.float32).max)


class Observer(Module, QParamsModuleMixin):
    """Base of all observers; a subclass defines `forward` and `get_qparams`.

    Args:
        dtype: the family of dtypes to choose a scale for, or its name.
        kwargs: `name`; `narrow_range` is accepted from old programs and ignored: the family
            "qint8_narrow" says so now.

    Attributes:
        enabled: whether it looks at what it is given.

    Raises:
        ValueError: there is no family of that name.
    """

    def __init__(self, dtype: str | QuantDtypeMeta, **kwargs: Any) -> None:
        super().__init__(name_option(self, kwargs))
        self.dtype: QuantDtypeMeta = family_of(dtype)
        self.enabled = True

    def enable(self) -> None:
        """Observe tensors from now on."""
        self.enabled = True

    def disable(self) -> None:
        """Pass tensors on unobserved from now on."""
        self.enabled = False

    def train(self, mode: bool = True, recursive: bool = True) -> None:
        """Switch training behavior; observers look in training only, unless enabled anew."""
        super().train(mode, recursive)
        self.enabled = mode

    @abc.abstractmethod
    def get_qparams(self) -> Any:
        """Scale and zero point for what was seen so far."""

    def _looks(self) -> bool:
        depend_on(lambda: self.enabled)
        return self.enabled


class MinMaxObserver(Observer):
    """The smallest and the largest value seen.

    Symmetric: scale = 2 max(|min|, |max|) / (qmax - qmin). Asymmetric: scale = (max - min) /
    (qmax - qmin) and zero point = qmin - round(min / scale). 0.0 always counts as seen.

    Args:
        mode: a `QuantMode`.
        eps: the smallest scale.
        dtype: the family of dtypes to choose a scale for, or its name.
        kwargs: `name`.

    Attributes:
        min_val, max_val: 0-d buffers.
    """

    def __init__(
        self,
        mode: QuantMode = QuantMode.SYMMERTIC,
        eps: float = 1e-5,
        dtype: str | QuantDtypeMeta = "qint8",
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype, **kwargs)
        self.mode = mode
        self.min_val = Tensor(_LARGEST, dtype="float32")
        self.max_val = Tensor(-_LARGEST, dtype="float32")
        self.scale_limit = eps

    def _calculate_qparams(self, inp_min_val: Tensor, inp_max_val: Tensor) -> QParams:
        """Scale and zero point for values between two bounds."""
        low, high = F.minimum(inp_min_val, 0.0), F.maximum(inp_max_val, 0.0)
        levels = self.dtype.qmax - self.dtype.qmin
        if self.mode is QuantMode.SYMMERTIC:
            scale = F.maximum(F.maximum(-low, high) * 2 / levels, self.scale_limit)
            return create_qparams(self.mode, self.dtype, scale)
        scale = F.maximum((high - low) / levels, self.scale_limit)
        zero_point = self.dtype.qmin - F.round(low / scale)
        return create_qparams(self.mode, self.dtype, scale, zero_point)

    def get_qparams(self) -> QParams:
        """Scale and zero point for what was seen so far."""
        with no_grad():
            return self._calculate_qparams(self.min_val, self.max_val)

    def get_quantized_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype for what was seen so far.

        Where nothing was seen, the scale is `eps`, as in MegEngine, and a warning is logged: it
        fits a layer that is never used, and no other.

        Raises:
            ValueError: the values were not finite.
        """
        low, high = self.min_val.numpy(), self.max_val.numpy()
        if (low > high).any():
            get_logger("quantization").warning(
                "%s has seen nothing yet, so its scale is %g; run the network on data with "
                "observers enabled",
                type(self).__name__,
                self.scale_limit,
            )
        return super().get_quantized_dtype()

    def _range(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The bounds of one tensor."""
        return x.min().astype("float32"), x.max().astype("float32")

    def _saw(self, low: Tensor, high: Tensor) -> None:
        self.min_val._reset(F.minimum(self.min_val, low))
        self.max_val._reset(F.maximum(self.max_val, high))

    def forward(self, x_orig: Tensor) -> Tensor:
        """The tensor itself, looked at while the observer is enabled."""
        if self._looks():
            with no_grad():
                self._saw(*self._range(x_orig.detach()))
        return x_orig


class ChannelMinMaxObserver(MinMaxObserver, ChannelAware):
    """`MinMaxObserver` with a scale for each output channel of a weight; symmetric.

    The layer that it observes for tells it which axes are channels.

    Args:
        eps: the smallest scale.
        dtype: the family of dtypes to choose scales for, or its name.
        kwargs: `name`.

    Attributes:
        min_val, max_val: after the first tensor, its shape with 1 for all but channel axes.
    """

    def __init__(
        self, eps: float = 1e-5, dtype: str | QuantDtypeMeta = "qint8_narrow", **kwargs: Any
    ) -> None:
        super().__init__(QuantMode.SYMMERTIC, eps, dtype, **kwargs)

    def _range(self, x: Tensor) -> tuple[Tensor, Tensor]:
        axes = [i for i in range(x.ndim) if i not in self.channel_axes]
        if len(axes) == x.ndim:
            return super()._range(x)
        return x.min(axes, True), x.max(axes, True)


class ExponentialMovingAverageObserver(MinMaxObserver):
    """Moving averages of smallest and largest values; the first tensor's are taken as they are.

    Args:
        momentum: the share of the OLD value that is kept.
        mode, eps, dtype, kwargs: as those of `MinMaxObserver`.

    Attributes:
        runtime_momentum: 0 before the first tensor, then the momentum; a buffer.
    """

    def __init__(
        self,
        momentum: float = 0.9,
        mode: QuantMode = QuantMode.SYMMERTIC,
        eps: float = 1e-5,
        dtype: str | QuantDtypeMeta = "qint8",
        **kwargs: Any,
    ) -> None:
        super().__init__(mode, eps, dtype, **kwargs)
        self.momentum = Tensor(momentum, dtype="float32")
        # A tensor, so that the first tensor needs no branch, which a compiled program could not
        # take.
        self.runtime_momentum = Tensor(0.0)

    def set_momentum(self, momentum: float) -> None:
        """Keep another share from now on."""
        self.momentum._reset(Tensor(momentum, dtype="float32"))

    def _saw(self, low: Tensor, high: Tensor) -> None:
        old = self.runtime_momentum
        self.min_val._reset(self.min_val * old + (1 - old) * low)
        self.max_val._reset(self.max_val * old + (1 - old) * high)
        self.runtime_momentum._reset(self.momentum.reshape(self.momentum.shape))


class SyncMinMaxObserver(MinMaxObserver):
    """`MinMaxObserver` of the values of all ranks; in one process, of its own."""

    def _range(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low, high = super()._range(x)
        if not is_distributed():
            return low, high
        return collectives.all_reduce_min(low), collectives.all_reduce_max(high)


class SyncExponentialMovingAverageObserver(ExponentialMovingAverageObserver, SyncMinMaxObserver):
    """`ExponentialMovingAverageObserver` of the values of all ranks."""


class PassiveObserver(Observer):
    """Looks at nothing: scale and zero point are set from outside.

    Args:
        dtype: the family of dtypes, or its name.
        kwargs: `name`.

    Attributes:
        qparams: what was set; None before.
        orig_scale: the scale that was set first, as an array.
    """

    def __init__(self, dtype: str | QuantDtypeMeta, **kwargs: Any) -> None:
        super().__init__(dtype, **kwargs)
        self.qparams: QParams | None = None
        self.orig_scale: Any = None

    @property
    def scale(self) -> Any:
        """The scale; a positive number may be assigned.

        Raises:
            AssertionError: nothing was set yet, or the number is not positive.
        """
        return self._known().scale

    @scale.setter
    def scale(self, value: Any) -> None:
        if not np.all(np.asarray(value) > 0):
            raise AssertionError(f"a scale is positive, got {value!r}")
        known = self._known()
        like = known.scale
        fresh = Tensor(np.broadcast_to(np.asarray(value, np.float32), np.shape(like)).copy())
        known.scale = fresh

    def _known(self) -> QParams:
        if self.qparams is None:
            raise AssertionError("PassiveObserver has no scale yet; call set_qparams first")
        return self.qparams

    def get_qparams(self) -> QParams | None:
        """Return the parameters that were set."""
        return self.qparams

    def set_qparams(self, qparams: QParams) -> None:
        """Take scale and zero point over.

        Raises:
            AssertionError: there is no scale.
        """
        if qparams.scale is None:
            raise AssertionError("Can not get an initialized scale")
        self.qparams = copy.deepcopy(qparams)
        if not isinstance(self.qparams.scale, Tensor):
            self.qparams.scale = Tensor(np.asarray(self.qparams.scale, np.float32))
        self.orig_scale = self.qparams.scale.numpy()

    def forward(self, x: Tensor) -> Tensor:
        """The tensor itself."""
        return x


def name_option(observer: Any, options: dict[str, Any]) -> str | None:
    """The name among options; old ones are reported, unknown ones refused."""
    left = dict(options)
    if left.pop("narrow_range", None) is not None:
        get_logger("quantization").warning(
            "%s: narrow_range is ignored; name a dtype such as qint8_narrow",
            type(observer).__name__,
        )
    name: str | None = left.pop("name", None)
    if left:
        raise TypeError(f"{type(observer).__name__} takes no argument {', '.join(sorted(left))}")
    return name
