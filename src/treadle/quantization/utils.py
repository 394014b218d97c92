"""MegEngine's `quantization.utils`: functions that round, and their parameters."""

from treadle.base.qparams import QParams, QuantMode, create_qparams
from treadle.functional.fake_quant import (
    Round,
    fake_quant_bias,
    fake_quant_tensor,
    lsq_forward,
    tqt_forward,
)
from treadle.quantization.rounding import LSQParams, QParamsModuleMixin, register_method_to_class

__all__ = [
    "LSQParams",
    "QParams",
    "QParamsModuleMixin",
    "QuantMode",
    "Round",
    "create_qparams",
    "fake_quant_bias",
    "fake_quant_tensor",
    "lsq_forward",
    "register_method_to_class",
    "tqt_forward",
]
