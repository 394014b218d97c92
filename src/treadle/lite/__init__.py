"""MegEngine Lite's Python API over model files: load a network, fill its inputs, run it.

    network = LiteNetwork()
    network.load("model.mge")
    network.get_io_tensor("data").set_data_by_copy(image)
    network.forward()
    network.wait()
    scores = network.get_io_tensor("scores").to_numpy()

Files are those that `trace.dump` and `treadle compile` write. Those with native code need no
compiler, which is not even imported. On devices that are not the host the graph is compiled.
"""

from treadle.lite.base import (
    LiteAlgoSelectStrategy,
    LiteBackend,
    LiteDataType,
    LiteDeviceType,
    LiteIOType,
    LiteLogLevel,
    LiteTensorPhase,
    get_log_level,
    lite_dtype_2_numpy,
    set_log_level,
    version,
)
from treadle.lite.collector import TensorBatchCollector
from treadle.lite.config import (
    LiteConfig,
    LiteExtraConfig,
    LiteIO,
    LiteNetworkIO,
    LiteOptions,
    start_finish_callback,
    wrap_async_callback,
)
from treadle.lite.globals import LiteGlobal, decryption_func
from treadle.lite.model import get_model_io_info
from treadle.lite.network import LiteNetwork
from treadle.lite.tensor import PLACED, LiteLayout, LiteTensor, LiteTensorConcat


def _placed() -> type[LiteTensor]:
    from treadle.lite.placed import PlacedTensor

    return PlacedTensor


PLACED.provide(_placed)

__all__ = [
    "LiteAlgoSelectStrategy",
    "LiteBackend",
    "LiteConfig",
    "LiteDataType",
    "LiteDeviceType",
    "LiteExtraConfig",
    "LiteGlobal",
    "LiteIO",
    "LiteIOType",
    "LiteLayout",
    "LiteLogLevel",
    "LiteNetwork",
    "LiteNetworkIO",
    "LiteOptions",
    "LiteTensor",
    "LiteTensorConcat",
    "LiteTensorPhase",
    "TensorBatchCollector",
    "decryption_func",
    "get_log_level",
    "get_model_io_info",
    "lite_dtype_2_numpy",
    "set_log_level",
    "start_finish_callback",
    "version",
    "wrap_async_callback",
]
