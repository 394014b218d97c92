"""Initializers: fill an existing tensor in place, keeping its shape, element type and device.

Random ones draw from `treadle.random`, so `treadle.random.seed` makes a model reproducible.
Formulas: Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
networks", 2010 (xavier); He et al., "Delving deep into rectifiers", 2015 (msra).
"""

from __future__ import annotations

import math

import numpy as np

from treadle import random
from treadle.autodiff import no_grad
from treadle.tensor import Tensor

_LINEAR = frozenset(
    {
        "linear",
        "sigmoid",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
    }
)


def fill_(tensor: Tensor, val: float) -> None:
    """Set every element to `val`."""
    with no_grad():
        array = np.full(tensor.shape, val, tensor.dtype)
        tensor._reset(Tensor(array, tensor.dtype, tensor.device, format=tensor.format))


def zeros_(tensor: Tensor) -> None:
    """Set every element to 0."""
    fill_(tensor, 0)


def ones_(tensor: Tensor) -> None:
    """Set every element to 1."""
    fill_(tensor, 1)


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> None:
    """Draw from the uniform distribution over [a, b)."""
    with no_grad():
        _put(tensor, random.uniform(a, b, size=tensor.shape))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> None:
    """Draw from the normal distribution."""
    with no_grad():
        _put(tensor, random.normal(mean, std, size=tensor.shape))


def _put(tensor: Tensor, drawn: Tensor) -> None:
    there = drawn if drawn.device == str(tensor.device) else drawn.to(tensor.device)
    tensor._reset(there.astype(tensor.dtype))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Factor by which a layer before `nonlinearity` should be scaled up.

    1 for linear layers and sigmoid, 5/3 for tanh, sqrt(2) for relu, and
    sqrt(2 / (1 + param**2)) for leaky_relu, whose slope `param` is 0.01 by default.

    Raises:
        ValueError: the nonlinearity is none of these, or the slope is not a number.
    """
    if nonlinearity in _LINEAR:
        return 1.0
    if nonlinearity == "tanh":
        return 5.0 / 3.0
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ValueError(f"negative_slope {slope!r} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    raise ValueError(f"Unsupported nonlinearity {nonlinearity}")


def calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """Numbers of inputs and outputs that one element of a weight connects.

    The axes are (out, in, *kernel). With five axes or more the first one counts as the group
    axis of a grouped convolution and is left out, as in MegEngine; this also hits the weight of
    an ungrouped Conv3d.

    Raises:
        ValueError: the tensor has fewer than two axes.
    """
    shape = tensor.shape
    if len(shape) < 2:
        raise ValueError(
            "fan_in and fan_out can not be computed for tensor with fewer than 2 dimensions"
        )
    outputs, inputs, *kernel = shape[1:] if len(shape) >= 5 else shape
    field = math.prod(kernel)
    return inputs * field, outputs * field


def calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    """The fan that `mode`, "fan_in" or "fan_out", names; others raise ValueError."""
    wanted = mode.lower()
    if wanted not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    fan_in, fan_out = calculate_fan_in_and_fan_out(tensor)
    return fan_in if wanted == "fan_in" else fan_out


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> None:
    """Uniform over [-a, a) with a = gain * sqrt(6 / (fan_in + fan_out))."""
    bound = gain * math.sqrt(6.0 / sum(calculate_fan_in_and_fan_out(tensor)))
    uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> None:
    """Normal with mean 0 and deviation gain * sqrt(2 / (fan_in + fan_out))."""
    normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(calculate_fan_in_and_fan_out(tensor))))


def msra_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> None:
    """Uniform over [-b, b) with b = gain * sqrt(3 / fan); `a` is the slope of leaky_relu."""
    fan = calculate_correct_fan(tensor, mode)
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3.0 / fan)
    uniform_(tensor, -bound, bound)


def msra_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> None:
    """Normal with mean 0 and deviation gain / sqrt(fan); `a` is the slope of leaky_relu."""
    fan = calculate_correct_fan(tensor, mode)
    normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(fan))
