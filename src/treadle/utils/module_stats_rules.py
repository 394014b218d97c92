"""Rules that count multiply-adds: one per class of layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import treadle.module as M
from treadle.module.batchnorm import _BatchNorm
from treadle.module.conv import ConvolutionLayer
from treadle.module.conv_transpose import _Transposed
from treadle.module.rnn import RNNBase, RNNCellBase
from treadle.tensor import Tensor

Rule = Callable[[Any, Sequence[Any], Sequence[Any]], Any]
"""From (module, inputs, outputs) to what is counted."""

R = TypeVar("R", bound=Rule)

FLOPS: dict[type, Rule] = {}
RECEPTIVE_FIELDS: dict[type, Rule] = {}

HOOKED: list[type] = [
    ConvolutionLayer,
    M.Linear,
    M.BatchMatMulActivation,
    _BatchNorm,
    M.LayerNorm,
    M.GroupNorm,
    M.InstanceNorm,
    M.GeneralNorm,
    M.MaxPool2d,
    M.AvgPool2d,
    M.AdaptiveAvgPool2d,
    M.AdaptiveMaxPool2d,
    M.Embedding,
    M.PReLU,
    M.MultiHeadAttention,
    RNNBase,
    RNNCellBase,
]
"""Layers that statistics look at; modules built of others are seen through."""


def register_flops(*modules: type) -> Callable[[R], R]:
    """Decorator: count the multiply-adds of these classes, and of those below them, by a function.

    It takes (module, inputs, outputs), both tuples, and returns a number. A rule that was
    registered later for the same class replaces the earlier one.
    """
    return _register(FLOPS, modules)


def register_receptive_field(*modules: type) -> Callable[[R], R]:
    """Decorator: find the receptive field of these classes by a function.

    It takes (module, inputs, outputs) and returns ((height, width), (stride, stride)), both counted
    in cells of the model's input.
    """
    return _register(RECEPTIVE_FIELDS, modules)


def _register(table: dict[type, Rule], modules: tuple[type, ...]) -> Callable[[R], R]:
    def keep(rule: R) -> R:
        table.update(dict.fromkeys(modules, rule))
        return rule

    return keep


def register_hook_module(module: Any) -> None:
    """Look at layers of further classes.

    Args:
        module: a class of modules, a module, whose class is meant, or a list or tuple of them.

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(module, (list, tuple)):
        for item in module:
            register_hook_module(item)
    elif isinstance(module, M.Module):
        HOOKED.append(type(module))
    elif isinstance(module, type) and issubclass(module, M.Module):
        HOOKED.append(module)
    else:
        raise TypeError(
            "register_hook_module takes classes of modules, or a list or tuple of them; "
            f"got {type(module).__name__}"
        )


def rule_of(table: dict[type, Rule], module: M.Module) -> Rule | None:
    """The rule of the nearest class of a module that has one."""
    return next((table[cls] for cls in type(module).__mro__ if cls in table), None)


@register_flops(ConvolutionLayer)
def flops_convNd(module: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Return multiply-adds: results times taps of a kernel, and the bias."""
    taps = module.in_channels // module.groups * math.prod(module.kernel_size)
    return int(outputs[0].size * (taps + (module.bias is not None)))


@register_flops(_Transposed)
def flops_convNdTranspose(module: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Return multiply-adds: cells times taps of a kernel, and the bias for each result."""
    taps = module.out_channels // module.groups * math.prod(module.kernel_size)
    return int(inputs[0].size * taps + outputs[0].size * (module.bias is not None))


@register_flops(_BatchNorm, M.LayerNorm, M.GroupNorm, M.InstanceNorm, M.GeneralNorm)
def flops_norm(module: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Return seven operations per element: sums, a difference, products, a share of the root."""
    return inputs[0].size * 7


@register_flops(M.AvgPool2d, M.MaxPool2d)
def flops_pool(module: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Return multiply-adds: results times cells of a window."""
    size = module.kernel_size
    return int(outputs[0].size * (size * size if isinstance(size, int) else math.prod(size)))


@register_flops(M.AdaptiveAvgPool2d, M.AdaptiveMaxPool2d)
def flops_adaptivePool(module: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Return multiply-adds: results times cells of a window, which are those that fit the size."""
    sides = []
    for have, made in zip(inputs[0].shape[2:], outputs[0].shape[2:], strict=True):
        stride = have // max(made, 1)
        sides.append(have - (made - 1) * stride)
    return int(outputs[0].size * math.prod(sides))


@register_flops(M.Linear)
def flops_linear(module: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Return multiply-adds: results times features, and the bias."""
    bias = module.out_features if module.bias is not None else 0
    return int(outputs[0].size * module.in_features + bias)


@register_flops(M.BatchMatMulActivation)
def flops_batchmatmul(module: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Return multiply-adds: results times features, and the bias."""
    return int(outputs[0].size * (module.in_features + (module.bias is not None)))


@register_flops(M.MultiHeadAttention)
def _attention(module: Any, inputs: Sequence[Tensor], outputs: Sequence[Any]) -> int:
    query, key, value = inputs[:3]
    n, moments = query.shape[0], query.shape[-2]
    keys, width = key.shape[-2], module.embed_dim
    bias = 1 if module.bias else 0
    projected = 2 * moments * (width + bias) + keys * (key.shape[-1] + value.shape[-1] + 2 * bias)
    samples = n if query.ndim == 3 else 1
    return int(samples * width * (projected + 2 * moments * keys))


@register_flops(RNNCellBase)
def _recurrent_cell(module: Any, inputs: Sequence[Tensor], outputs: Sequence[Any]) -> int:
    return int(inputs[0].shape[0] * _per_moment(module))


@register_flops(RNNBase)
def _recurrent(module: Any, inputs: Sequence[Tensor], outputs: Sequence[Any]) -> int:
    moments = math.prod(inputs[0].shape[:2])
    return int(moments * sum(_per_moment(cell) for row in module.cells for cell in row))


def _per_moment(cell: RNNCellBase) -> int:
    """Multiply-adds of one step of one sample."""
    weights = [cell.weight_ih, cell.weight_hh]
    weights += [] if cell.weight_hr is None else [cell.weight_hr]
    return sum(w.size for w in weights) + (2 * cell.gate_hidden_size if cell.bias else 0)
