"""Mixed precision: `autocast`, `GradScaler`, and switches for the whole process.

`amp.enabled = True` casts as an `autocast` block does, in every thread that is in none;
`amp.low_prec_dtype` and `amp.high_prec_dtype` name the types. Reading them tells what holds here.
"""

from __future__ import annotations

import sys

from treadle.amp.autocast import AmpModule, autocast
from treadle.amp.grad_scaler import GradScaler, Xla_GradScaler
from treadle.amp.layout import convert_module_format, convert_tensor_format

__all__ = [
    "GradScaler",
    "Xla_GradScaler",
    "autocast",
    "convert_module_format",
    "convert_tensor_format",
]

enabled: bool
low_prec_dtype: str
high_prec_dtype: str

sys.modules[__name__].__class__ = AmpModule
