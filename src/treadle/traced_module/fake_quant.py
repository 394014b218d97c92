"""Fake quantization for traced modules: a quantizer that brings its own parameters."""

from __future__ import annotations

from typing import Any

from treadle.base.qparams import QParams
from treadle.base.quantized import QuantDtypeMeta
from treadle.quantization import fake_quant
from treadle.tensor import Tensor

__all__ = ["FakeQuantize"]


class FakeQuantize(fake_quant.FakeQuantize):
    """Rounds as integers will be rounded, with parameters that are set on it.

    The quantizers of `treadle.quantization` get their parameters from the observer of the layer
    they belong to. This one can stand alone in a graph: insert a call of it behind any node.

    Args:
        dtype: the family of dtypes to round for, such as `"qint8"`.
        enable: whether it rounds; else it returns its input.
        qparams: scale and zero point; `set_qparams` sets them later.
        name: a name for messages and graphs.

    Raises:
        ValueError: when rounding, no parameters are set.
    """

    def __init__(
        self,
        dtype: str | QuantDtypeMeta,
        enable: bool = True,
        qparams: QParams | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dtype, enable, name=name)
        self.qparams = qparams

    def set_qparams(self, qparams: QParams) -> None:
        """Round with these parameters from now on."""
        self.qparams = qparams

    def get_qparams(self) -> QParams | None:
        """The parameters it rounds with."""
        return self.qparams

    def fake_quant_forward(self, inp: Tensor, qparams: Any = None) -> Tensor:
        """The input, rounded."""
        chosen = self.qparams if qparams is None else qparams
        if chosen is None:
            raise ValueError("FakeQuantize: no parameters; call set_qparams() first")
        return super().fake_quant_forward(inp, chosen)
