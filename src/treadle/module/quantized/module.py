"""The base of layers that compute on integers."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from treadle.module.module import Module
from treadle.module.qat.module import QATModule
from treadle.tensor import Parameter, Tensor


class QuantizedModule(Module):
    """A layer of quantized tensors; for inference only.

    Raises:
        ValueError: it is called in training mode.
    """

    output_dtype: Any = None

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.training:
            raise ValueError(
                "quantized module only support inference. Call eval() on the network first."
            )
        return super().__call__(*inputs, **kwargs)

    def __repr__(self) -> str:
        return "Quantized." + super().__repr__()

    @classmethod
    @abc.abstractmethod
    def from_qat_module(cls, qat_module: Any) -> Any:
        """The integer layer that computes what `qat_module` does in evaluation."""

    def _take_mode(self, layer: Module) -> None:
        """Keep mode and name of the layer whose place this one takes."""
        self.training = layer.training
        self.name = layer.name


def take_weights(
    made: Any, qat_module: QATModule, weight: Tensor, bias: Tensor | None, bias_shape: Any
) -> None:
    """Give a layer the weight rounded as in training; without a bias it gets one of zeros."""
    dtype = qat_module.get_weight_dtype()
    if dtype is None:
        raise ValueError(
            f"{qat_module!r} has neither an observer nor a quantizer of its weight; "
            "give the network a QConfig with quantize_qat or propagate_qconfig"
        )
    made.weight = Parameter(weight.detach().astype(dtype).numpy(), name=weight.name)
    values = np.zeros(bias_shape, np.float32) if bias is None else bias.detach().numpy()
    made.bias = Parameter(values)


def folded(kind: Any, qat_module: Any, layer: Any) -> Any:
    """A layer like `layer` with the weight and bias that fold the norm behind it.

    Raises:
        ValueError: the norm has no running statistics.
    """
    if qat_module.bn.running_mean is None:
        raise ValueError(f"{qat_module!r} has no running statistics to fold")
    weight, bias = qat_module.fold_weight_bias()
    made = kind._like(layer, qat_module.get_activation_dtype())
    made._take_mode(qat_module)
    take_weights(made, qat_module, weight, bias, bias.shape)
    return made


def weight_only(module: Any, inp: Tensor) -> bool:
    """Return whether a layer multiplies real inputs by its integer weight."""
    return inp._kind.quantized is None and module.output_dtype is None
