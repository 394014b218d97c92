"""All observers, where MegEngine has them."""

from treadle.quantization.bounds import (
    ChannelMinMaxObserver,
    ExponentialMovingAverageObserver,
    MinMaxObserver,
    Observer,
    PassiveObserver,
    SyncExponentialMovingAverageObserver,
    SyncMinMaxObserver,
)
from treadle.quantization.histogram import HistogramObserver, KLObserver

__all__ = [
    "ChannelMinMaxObserver",
    "ExponentialMovingAverageObserver",
    "HistogramObserver",
    "KLObserver",
    "MinMaxObserver",
    "Observer",
    "PassiveObserver",
    "SyncExponentialMovingAverageObserver",
    "SyncMinMaxObserver",
]
