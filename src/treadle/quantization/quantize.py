"""From float networks to ones that round in training, and from those to integers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

import treadle.functional as F
import treadle.module as Float
from treadle.autodiff import no_grad
from treadle.base import tree
from treadle.base.log import get_logger
from treadle.module import Module, qat, quantized
from treadle.module.qat import QATModule
from treadle.module.qat.module import ChannelAware
from treadle.module.quantized import QuantizedModule
from treadle.quantization.conversion import Conversion
from treadle.quantization.observer import PassiveObserver
from treadle.quantization.qconfig import QConfig, calibration_qconfig, ema_fakequant_qconfig
from treadle.tensor import Tensor

M = TypeVar("M", bound=Module)


def _get_quantable_module_names() -> list[str]:
    """Names of the layers that exist in float, with rounding, and on integers."""
    return [name for name in qat.__all__ if name != "QATModule"]


_FLOAT_TO_QAT: dict[type, Any] = {
    getattr(Float, name): getattr(qat, name) for name in _get_quantable_module_names()
}
_QAT_TO_QUANTIZED: dict[type, Any] = {
    getattr(qat, name): getattr(quantized, name) for name in _get_quantable_module_names()
}
_FLOAT_TO_DYNAMIC: dict[type, type[quantized.DynamicLinear]] = {
    Float.Linear: quantized.DynamicLinear,
    Float.LinearRelu: quantized.DynamicLinearRelu,
}


def quantize_qat(
    module: M,
    inplace: bool = True,
    qconfig: QConfig = ema_fakequant_qconfig,
    mapping: Mapping[type, Any] | None = None,
) -> M:
    """Put layers that round in training in the place of float layers, at any depth.

    Layers of `module.qat` have float counterparts of the same names; all others stay as they are,
    as do those that `disable_quantize` was called on. Parameters are shared.

    Args:
        module: a network.
        inplace: change the network itself, in place of a copy.
        qconfig: which observers and quantizers the layers get.
        mapping: further pairs of float class and class with `from_float_module`.

    Returns:
        The network. A network that is one layer gives the new layer.

    Raises:
        TypeError: module is no `Module`, or a layer is of a class derived from one that is known.
    """
    classes = {**_FLOAT_TO_QAT, **(mapping or {})}
    conversion = Conversion(classes, "from_float_module", (QATModule, QuantizedModule))
    changed: M = conversion.of(_checked(module, "quantize_qat", inplace))
    propagate_qconfig(changed, qconfig)
    return changed


def quantize(module: M, inplace: bool = True, mapping: Mapping[type, Any] | None = None) -> M:
    """Put integer layers in the place of layers that round in training, at any depth.

    Weights are rounded, and batch normalization is folded in. Call `eval()` before or after.

    Args:
        module: a network made by `quantize_qat` whose observers have seen data.
        inplace: change the network itself, in place of a copy.
        mapping: further pairs of QAT class and class with `from_qat_module`.

    Returns:
        The network. A network that is one layer gives the new layer.

    Raises:
        TypeError: module is no `Module`, or a layer is of a class derived from one that is known.
        ValueError: a layer has neither observers nor quantizers, or they saw what is not finite.
    """
    module = _checked(module, "quantize", inplace)
    if not any(isinstance(m, QATModule) for m in module.modules()):
        get_logger("quantization").warning("quantize: %s has no QAT layers", type(module).__name__)
    classes = {**_QAT_TO_QUANTIZED, **(mapping or {})}
    changed: M = Conversion(classes, "from_qat_module", (QuantizedModule,)).of(module)
    return changed


def quantize_dynamic(
    module: M,
    inplace: bool = True,
    mapping: Mapping[type, Any] | None = None,
    scales: str = "token",
) -> M:
    """Put layers that multiply on integers in the place of affine layers, at any depth.

    Weights are rounded to 8 bits with a scale per output feature; scales of what is multiplied by
    them are found while the network runs, so no data and no training are needed. `Linear` and
    `LinearRelu` change; all others stay, as do those that `disable_quantize` was called on. Call
    `eval()` before or after.

    Args:
        module: a float network.
        inplace: change the network itself, in place of a copy.
        mapping: further pairs of float class and class with `from_float_module`.
        scales: "token" for a scale for each row that a layer is given, "tensor" for one in all.

    Returns:
        The network. A network that is one layer gives the new layer.

    Raises:
        TypeError: module is no `Module`, or a layer is of a class derived from one that is known.
        ValueError: `scales` is unknown, or a weight is not finite.

    Example:
        >>> from treadle import quantization as Q
        >>> net = M.Sequential(M.Linear(4, 8), M.LayerNorm(8))
        >>> Q.quantize_dynamic(net, inplace=False)[0]
        Quantized.DynamicLinear(in_features=4, out_features=8, bias=True, scales=token)
    """
    if scales not in ("token", "tensor"):
        raise ValueError(f"quantize_dynamic: unknown scales {scales!r}; use 'token' or 'tensor'")
    known = {old: _WithScales(new, scales) for old, new in _FLOAT_TO_DYNAMIC.items()}
    conversion = Conversion(
        {**known, **(mapping or {})}, "from_float_module", (QATModule, QuantizedModule)
    )
    changed: M = conversion.of(_checked(module, "quantize_dynamic", inplace))
    return changed


class _WithScales(NamedTuple):
    """A class of dynamic layers that are made with one kind of scales."""

    layer: type[quantized.DynamicLinear]
    scales: str

    def from_float_module(self, float_module: Module) -> Module:
        """The layer in the place of a float one."""
        made: Module = self.layer.from_float_module(float_module, self.scales)
        return made


def calibrate(
    module: M,
    batches: Iterable[Any],
    inplace: bool = True,
    qconfig: QConfig = calibration_qconfig,
) -> M:
    """Post-training quantization, first half: let observers see batches of data in evaluation.

    `quantize` then makes the integer network.

    Args:
        module: a float network, or one made by `quantize_qat`, which keeps its observers.
        batches: inputs of the network: tensors or arrays, or tuples of them for several inputs.
        inplace: change the network itself, in place of a copy.
        qconfig: which observers a float network gets.

    Returns:
        The network with QAT layers, in evaluation mode.

    Raises:
        TypeError: as `quantize_qat` does.
        ValueError: there are no batches.
    """
    module = _checked(module, "calibrate", inplace)
    if not any(isinstance(m, QATModule) for m in module.modules()):
        module = quantize_qat(module, True, qconfig)
    module.eval()
    enable_observer(module)
    count = 0
    with no_grad():
        for batch in batches:
            count += 1
            given = batch if isinstance(batch, (tuple, list)) else (batch,)
            module(*(x if isinstance(x, Tensor) else Tensor(x) for x in given))
    disable_observer(module)
    if not count:
        raise ValueError("calibrate needs at least one batch")
    return module


def reset_qconfig(module: M, qconfig: QConfig, inplace: bool = True) -> M:
    """Give QAT layers other observers and quantizers, which start from the scales of the old ones.

    Args:
        module: a network made by `quantize_qat`.
        qconfig: which observers and quantizers the layers get.
        inplace: change the network itself, in place of a copy.

    Raises:
        AssertionError: a new one needs a scale to start from, and there is none.
    """
    module = _checked(module, "reset_qconfig", inplace)
    for layer in _qat_layers(module):
        if layer.with_weight:
            params = layer.get_weight_qparams()
            layer.weight_observer = _started(qconfig.weight_observer, params)
            layer.weight_fake_quant = _started(qconfig.weight_fake_quant, params)
            if isinstance(layer.weight_observer, ChannelAware):
                layer.weight_observer.channel_axes = layer.weight_channel_axes()
        if layer.with_act:
            params = layer.get_activation_qparams()
            layer.act_observer = _started(qconfig.act_observer, params)
            layer.act_fake_quant = _started(qconfig.act_fake_quant, params)
    return module


def _started(constructor: Any, params: Any) -> Any:
    made = None if constructor is None else constructor()
    start = getattr(made, "set_qparams", None)
    if start is not None:
        if params is None:
            raise AssertionError("Can not get an initialized scale")
        start(params)
    return made


def propagate_qconfig(module: Module, qconfig: QConfig) -> None:
    """Give every QAT layer new observers and quantizers."""
    for layer in _qat_layers(module):
        layer.set_qconfig(qconfig)


def disable_fake_quant(module: Module) -> None:
    """Compute without rounding in every QAT layer."""
    for layer in _qat_layers(module):
        layer.set_fake_quant(False)


def enable_fake_quant(module: Module) -> None:
    """Round in every QAT layer."""
    for layer in _qat_layers(module):
        layer.set_fake_quant(True)


def disable_observer(module: Module) -> None:
    """Freeze the scales of every QAT layer."""
    for layer in _qat_layers(module):
        layer.set_observer(False)


def enable_observer(module: Module) -> None:
    """Resume observing values in every QAT layer."""
    for layer in _qat_layers(module):
        layer.set_observer(True)


def hook_qat_module(module: Module, func: Callable[[Any, Any, Any], Any]) -> None:
    """Call `func(layer, inputs, outputs)` behind every QAT layer; see `register_forward_hook`."""
    for layer in _qat_layers(module):
        layer.register_forward_hook(func)


def _qat_layers(module: Module) -> list[QATModule]:
    return [m for m in module.modules() if isinstance(m, QATModule)]


# -- EasyQuant ---------------------------------------------------------------------------------


def apply_easy_quant(
    module: M, data: Tensor, start: float = 0.8, stop: float = 1.2, num: int = 40
) -> M:
    """Search scales near those set for which rounded results agree best with exact ones.

    Layer by layer, first for weights and then for results, the scale with the largest mean cosine
    between float and rounded result is kept (Wu et al. 2020, "EasyQuant", arXiv:2006.16669).

    Args:
        module: a network with `passive_qconfig`, see `reset_qconfig`.
        data: a batch of inputs.
        start, stop: the smallest and the largest factor of the scale.
        num: how many factors are tried.

    Returns:
        The network itself.

    Raises:
        ValueError: no factors are to be tried.
    """
    if num < 1 or start <= 0 or stop <= 0:
        raise ValueError(f"no factors between {start} and {stop} in {num} steps can be tried")
    factors = np.linspace(start, stop, num)
    both = F.concat([data, data])  # The first half goes through without rounding.
    with no_grad():
        for where in ("weight_observer", "act_observer"):
            search = partial(_search_scale, where=where, factors=factors, rows=data.shape[0])
            handles = [m.register_forward_hook(search) for m in _qat_layers(module)]
            try:
                module(both)
            finally:
                for handle in handles:
                    handle.remove()
    return module


def _search_scale(
    layer: QATModule, inputs: Any, outputs: Any, where: str, factors: Any, rows: int
) -> Any:
    """Find one layer's scale; its outputs, both halves, with it."""
    observer = getattr(layer, where)
    if not isinstance(observer, PassiveObserver):
        return outputs
    leaves, shape = tree.flatten(inputs)
    exact, rounded = (
        tree.unflatten(shape, [x[part] if isinstance(x, Tensor) else x for x in leaves])
        for part in (slice(None, rows), slice(rows, None))
    )
    layer.set_fake_quant(False)
    wanted = layer.forward(*exact)
    layer.set_fake_quant(True)
    best, least = None, 0.0
    for factor in factors:
        observer.scale = factor * observer.orig_scale
        likeness = _cosine(wanted, layer.forward(*rounded))
        if likeness > least:
            best, least = factor, likeness
    if best is None:
        get_logger("quantization").warning("EasyQuant finds no better scale for %r", layer)
    observer.scale = (1.0 if best is None else best) * observer.orig_scale
    return F.concat([wanted, layer.forward(*rounded)])


def _cosine(x: Tensor, y: Tensor) -> float:
    """The mean over the batch of the cosine between two tensors."""
    x, y = x.reshape((x.shape[0], -1)), y.reshape((y.shape[0], -1))
    lengths = F.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    return float(((x * y).sum(axis=1) / F.maximum(lengths, 1e-12)).mean().item())


# -- common to all ------------------------------------------------------------------------------


def _checked(module: M, where: str, inplace: bool) -> M:
    if not isinstance(module, Module):
        raise TypeError(f"{where} takes a Module, got {type(module).__name__}")
    return module if inplace else deepcopy(module)
