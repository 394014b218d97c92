"""Choice of observers and quantizers for a network."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from treadle.module import Module
from treadle.quantization.fake_quant import TQT, FakeQuantize
from treadle.quantization.observer import (
    ChannelMinMaxObserver,
    ExponentialMovingAverageObserver,
    HistogramObserver,
    MinMaxObserver,
    PassiveObserver,
    SyncExponentialMovingAverageObserver,
)


class _Parts(NamedTuple):
    weight_observer: Any
    act_observer: Any
    weight_fake_quant: Any
    act_fake_quant: Any


class QConfig(_Parts):
    """Constructors of a layer's observers and fake quantizers, each callable without arguments.

    Args:
        weight_observer: for weights; None for no observer, as for the others.
        act_observer: for results.
        weight_fake_quant: for weights.
        act_fake_quant: for results.

    Raises:
        ValueError: a module is given in the place of its class, so that layers would share it.

    Example:
        >>> from functools import partial
        >>> from treadle import quantization as Q
        >>> narrow = partial(Q.MinMaxObserver, dtype="qint8_narrow")
        >>> Q.QConfig(narrow, None, None, None).act_observer is None
        True
    """

    __slots__ = ()

    def __new__(
        cls,
        weight_observer: Any,
        act_observer: Any,
        weight_fake_quant: Any,
        act_fake_quant: Any,
    ) -> QConfig:
        """A checked tuple of the four."""
        parts = weight_observer, act_observer, weight_fake_quant, act_fake_quant
        if any(isinstance(p, Module) for p in parts):
            raise ValueError(
                "QConfig must not receive observer or fake quantizer instances; pass a class, or "
                "functools.partial of one, in place of what it makes"
            )
        return super().__new__(cls, *parts)


def _fake_quantized(weight: Any, act: Any, weight_dtype: str, act_dtype: str) -> QConfig:
    """A QConfig with plain rounding to these families."""
    return QConfig(
        partial(weight, dtype=weight_dtype),
        partial(act, dtype=act_dtype),
        partial(FakeQuantize, dtype=weight_dtype),
        partial(FakeQuantize, dtype=act_dtype),
    )


min_max_fakequant_qconfig = _fake_quantized(MinMaxObserver, MinMaxObserver, "qint8_narrow", "qint8")
"""Smallest and largest values ever seen."""

ema_fakequant_qconfig = _fake_quantized(
    MinMaxObserver, ExponentialMovingAverageObserver, "qint8_narrow", "qint8"
)
"""Moving averages for results; the default."""

sync_ema_fakequant_qconfig = _fake_quantized(
    MinMaxObserver, SyncExponentialMovingAverageObserver, "qint8_narrow", "qint8"
)
"""The same over all ranks."""

ema_lowbit_fakequant_qconfig = _fake_quantized(
    MinMaxObserver, ExponentialMovingAverageObserver, "qint4", "qint4"
)
"""The same in 4 bits."""

per_channel_fakequant_qconfig = _fake_quantized(
    ChannelMinMaxObserver, ExponentialMovingAverageObserver, "qint8_narrow", "qint8"
)
"""A scale for each output channel of a weight, moving averages for results."""

int16_fakequant_qconfig = _fake_quantized(
    MinMaxObserver, ExponentialMovingAverageObserver, "qint16_narrow", "qint16"
)
"""16 bits for weights and results; products are computed in float32."""

calibration_qconfig = QConfig(
    partial(MinMaxObserver, dtype="qint8_narrow"),
    partial(HistogramObserver, dtype="qint8"),
    None,
    None,
)
"""Histograms and no rounding: run data through the network, then convert it."""

per_channel_calibration_qconfig = QConfig(
    partial(ChannelMinMaxObserver, dtype="qint8_narrow"),
    partial(HistogramObserver, dtype="qint8"),
    None,
    None,
)
"""The same with a scale for each output channel of a weight."""

weight_only_qconfig = QConfig(
    partial(ChannelMinMaxObserver, dtype="qint8_narrow"),
    None,
    partial(FakeQuantize, dtype="qint8_narrow"),
    None,
)
"""Weights in 8 bits with a scale per output channel; results stay real numbers."""

tqt_qconfig = QConfig(None, None, partial(TQT, dtype="qint8_narrow"), partial(TQT, dtype="qint8"))
"""Trained thresholds; start from observers with `reset_qconfig`."""

passive_qconfig = QConfig(
    partial(PassiveObserver, dtype="qint8_narrow"),
    partial(PassiveObserver, dtype="qint8"),
    partial(FakeQuantize, dtype="qint8_narrow"),
    partial(FakeQuantize, dtype="qint8"),
)
"""Scales set from outside."""

easyquant_qconfig = passive_qconfig
"""Configuration that `apply_easy_quant` works on."""
