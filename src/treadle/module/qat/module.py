"""The base of layers that are trained with rounding in the loop."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, TypeVar

from treadle.base.modes import depend_on
from treadle.base.qparams import QParams
from treadle.functional.fake_quant import fake_quant_bias
from treadle.module.module import Module
from treadle.tensor import Tensor

T = TypeVar("T", bound="QATModule")


class QATModule(Module):
    """A float layer whose weight and result are observed and rounded as integers will be.

    `quantization.quantize_qat` makes them of float layers, `quantization.quantize` makes integer
    layers of them.

    Args:
        name: a name for messages and graphs.

    Attributes:
        with_weight, with_act: whether the class rounds a weight, and its result.
        weight_observer, act_observer: see what ranges values have; None without a `QConfig`.
        weight_fake_quant, act_fake_quant: round to what the observers say, or to what they learn.
    """

    with_weight: ClassVar[bool] = True
    with_act: ClassVar[bool] = True

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._set_parts(None, None, None, None)

    def _set_parts(self, *parts: Any) -> None:
        weight, act, weight_rounds, act_rounds = parts
        self.act_observer, self.act_fake_quant = act, act_rounds  # MegEngine's order when printed
        self.weight_observer, self.weight_fake_quant = weight, weight_rounds

    def __repr__(self) -> str:
        return "QAT." + super().__repr__()

    @classmethod
    @abc.abstractmethod
    def from_float_module(cls, float_module: Any) -> Any:
        """The layer that rounds what `float_module` computes; they share parameters."""

    def set_qconfig(self, qconfig: Any) -> None:
        """Make new observers and fake quantizers as a `QConfig` says."""
        parts: list[Any] = [None, None, None, None]
        if self.with_weight:
            parts[0], parts[2] = _made(qconfig.weight_observer), _made(qconfig.weight_fake_quant)
            if isinstance(parts[0], ChannelAware):
                parts[0].channel_axes = self.weight_channel_axes()
        if self.with_act:
            parts[1], parts[3] = _made(qconfig.act_observer), _made(qconfig.act_fake_quant)
        self._set_parts(*parts)

    def weight_channel_axes(self) -> tuple[int, ...]:
        """Axes of the weight that stand for output channels."""
        return (0,)

    def set_fake_quant(self, enable: bool) -> None:
        """Switch rounding on or off."""
        _switch(enable, self.act_fake_quant, self.weight_fake_quant)

    def set_observer(self, enable: bool) -> None:
        """Switch observers on or off."""
        _switch(enable, self.act_observer, self.weight_observer)

    # -- rounding --------------------------------------------------------------------------

    def apply_quant_weight(self, target: Tensor) -> Tensor:
        """A weight observed and rounded; its `qparams` say how."""
        depend_on(lambda: (self.weight_observer, self.weight_fake_quant))
        return self._apply_fakequant_with_observer(
            target, self.weight_fake_quant, self.weight_observer
        )

    def apply_quant_activation(self, target: Tensor) -> Tensor:
        """A result observed and rounded; its `qparams` say how."""
        depend_on(lambda: (self.act_observer, self.act_fake_quant))
        return self._apply_fakequant_with_observer(target, self.act_fake_quant, self.act_observer)

    def _apply_fakequant_with_observer(
        self, target: Tensor, fake_quant: Any, observer: Any
    ) -> Tensor:
        """A tensor observed and rounded; layers of MegEngine's programs call it."""
        result, params = target, None
        if observer is not None:
            result = observer(target)
            params = observer.get_qparams()
        if fake_quant is not None:
            result = fake_quant(result, params)
            # Quantizers that learn know better than observers.
            own = getattr(fake_quant, "get_qparams", None)
            params = params if own is None else own()
        if params is not None:
            if result is target:  # The handle is the caller's.
                result = target.reshape(target.shape)
            result.qparams.update(params)
        return result

    def apply_quant_bias(self, target: Tensor | None, inp: Tensor, w_qat: Tensor) -> Tensor | None:
        """A bias rounded as the integer layer will, where results are rounded, too."""
        if self.act_fake_quant is not None and self.act_fake_quant.enabled:
            return fake_quant_bias(target, inp, w_qat)
        return target

    # -- what came out ---------------------------------------------------------------------

    def get_weight_dtype(self) -> Any:
        """The quantized dtype of the weight; None where nothing tells."""
        return _answer("get_quantized_dtype", self.weight_fake_quant, self.weight_observer)

    def get_activation_dtype(self) -> Any:
        """The quantized dtype of the result; None where nothing tells."""
        return _answer("get_quantized_dtype", self.act_fake_quant, self.act_observer)

    def get_weight_qparams(self) -> QParams | None:
        """Return the rounding of the weight; None where nothing tells."""
        found: QParams | None = _answer("get_qparams", self.weight_fake_quant, self.weight_observer)
        return found

    def get_activation_qparams(self) -> QParams | None:
        """Return the rounding of the result; None where nothing tells."""
        found: QParams | None = _answer("get_qparams", self.act_fake_quant, self.act_observer)
        return found


class ChannelAware:
    """Mixin of observers that look at channels one by one; a layer tells them which axes.

    Attributes:
        channel_axes: axes of the tensor whose indices have scales of their own.
    """

    channel_axes: tuple[int, ...] = (0,)


def adopted(cls: type[T], source: Module) -> T:
    """An object of another class with the attributes of a module: its parameters are shared."""
    made = cls.__new__(cls)
    held = dict(vars(source))
    held["_modules"] = list(held["_modules"])
    held["_forward_pre_hooks"] = dict(held["_forward_pre_hooks"])
    held["_forward_hooks"] = dict(held["_forward_hooks"])
    made.__dict__.update(held)
    made._set_parts(None, None, None, None)
    return made


def _made(constructor: Any) -> Any:
    return None if constructor is None else constructor()


def _switch(enable: bool, *parts: Any) -> None:
    for part in parts:
        if part is not None:
            (part.enable if enable else part.disable)()


def _answer(method: str, *parts: Any) -> Any:
    """Return the answer of the first part that has the method."""
    for part in parts:
        ask = getattr(part, method, None)
        if ask is not None:
            return ask()
    return None
