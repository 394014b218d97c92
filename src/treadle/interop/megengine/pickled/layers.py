"""Layers in records: their classes, and attributes that MegEngine's have and Treadle's lack."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import treadle.module as M
import treadle.quantization as Q
from treadle.base.log import get_logger
from treadle.module.module import Module
from treadle.serialization.pickle_machine import Malformed
from treadle.tensor import Parameter, Tensor
from treadle.traced_module import catalog, fake_quant

_BOOKS = frozenset(
    {
        *("_modules", "_forward_hooks", "_forward_pre_hooks", "_name", "_short_name"),
        "_m_dump_modulestate",
    }
)
"""Attributes that modules keep about themselves."""
_OBSERVER = ("qmin", "qmax", "dst_nbins")
_CONV = ("output_padding",)
_DROPPED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("BatchNorm1d", "BatchNorm2d", "SyncBatchNorm"),
        ("_track_running_stats_saved", "param_dim", "compute_mode"),
    ),
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d", "ConvRelu2d", "LocalConv2d"), _CONV),
    **dict.fromkeys(("DeformableConv2d", "RegionRestrictedConv"), _CONV),
    **dict.fromkeys(("LinearBn1d", "LinearBnRelu1d"), ("in_features", "out_features", "bias")),
    "MultiHeadAttention": ("unsupport_reason", "weight_bias_len"),
}
_ADDED: dict[str, dict[str, Any]] = {
    **{key: {"padding_mode": "zeros"} for key in ("Conv1d", "Conv2d", "ConvRelu2d")},
    **{f"quantized.{key}": {"padding_mode": "zeros"} for key in ("ConvBn2d", "ConvBnRelu2d")},
    "Conv3d": {"compute_mode": "default", "padding_mode": "zeros"},
    "ConvTranspose2d": {"output_padding": 0},
    "ConvTranspose3d": {
        "output_padding": 0,
        "conv_mode": "cross_correlation",
        "compute_mode": "default",
    },
    "RNNCell": {"weight_hr": None},
    "LSTMCell": {"weight_hr": None},
    "HistogramObserver": {"_chosen": None},
}
"""Attributes of later versions, and Treadle's own, with what earlier files mean."""
_WINDOW = ("kernel_size", "stride", "padding", "dilation")
_RECURRENT = {"RNN": (M.RNNCell, 1), "LSTM": (M.LSTMCell, 4)}
"""Layers that compute with all weights in one tensor: what their cells are, with how many gates."""

_CELL = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@functools.cache
def _classes() -> dict[tuple[str, str], type[Module]]:
    """Layers by the part of MegEngine's package and the name."""
    found: dict[tuple[str, str], type[Module]] = {}
    for part, home in (
        ("", M),
        ("qat", M.qat),
        ("quantized", M.quantized),
        ("quantization", Q),
        ("traced_module", fake_quant),
    ):
        for name, cls in vars(home).items():
            if not isinstance(cls, type) or not issubclass(cls, Module):
                continue
            if catalog.class_named(catalog.class_name(cls)) is cls:
                found[part, name] = cls
    return found


def part_of(home: str) -> str:
    """Return the part of MegEngine's package that a module is in."""
    first, *rest = home.removeprefix("megengine.").split(".")
    if first == "module":
        return rest[0] if rest[:1] in (["qat"], ["quantized"]) else ""
    return first


def is_registered(home: str, name: str) -> bool:
    """Return whether the program has registered a class of modules under a name."""
    found = catalog.class_named(f"{home}:{name}")
    return found is not None and issubclass(found, Module)


def class_of(home: str, name: str) -> type[Module] | None:
    """The class of a layer; None for one that there is not."""
    if home.partition(".")[0] == "megengine":
        return _classes().get((part_of(home), name))
    return catalog.class_named(f"{home}:{name}")


def adapted(home: str, name: str, state: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a layer as Treadle's have them."""
    dropped = {*_BOOKS, *_DROPPED.get(name, ())}
    part = part_of(home)
    if part == "quantization" and name.endswith("Observer"):
        dropped.update(_OBSERVER)
    if part == "quantized" and "Conv" in name and "Transpose" not in name:
        dropped.update(_CONV)
    found = {key: value for key, value in state.items() if key not in dropped}
    if home.partition(".")[0] != "megengine":
        return found
    for key in (name, f"{part}.{name}"):
        found = {**_ADDED.get(key, {}), **found}
        if key in _CHANGED:
            _CHANGED[key](found)
    return found


def fill_cells(layer: Module, weights: Any, where: str) -> None:
    """Give the cells of a recurrent layer the weights that MegEngine computes with.

    These are in one tensor, one cell after the other, each with its weights of the input, weights
    of the state and, if it has any, the biases of both; the cells' own are not used there.

    Args:
        layer: an `RNN` or `LSTM` whose other attributes are set.
        weights: the tensor.
        where: its path, for messages.

    Raises:
        Malformed: cells and weights are not those of the layer.
    """
    kind, gates = _RECURRENT[type(layer).__name__]
    own = vars(layer)
    cells = [cell for row in own["cells"] for cell in row]
    counts = [len(row) for row in own["cells"]]
    ways = 2 if own["bidirectional"] else 1
    hidden, has_bias = own["hidden_size"], bool(own["bias"])
    if counts != [ways] * own["num_layers"] or any(type(cell) is not kind for cell in cells):
        raise Malformed(f"the cells of {where} are not those of its layers")
    if type(weights) not in (Tensor, Parameter) or weights.ndim != 2 or weights.shape[0] < 1:
        raise Malformed(f"the weights of {where} are not a matrix")
    rows = gates * hidden
    inputs = [ways * hidden if i >= ways else own["input_size"] for i in range(len(cells))]
    widths = [(width, hidden, *([1, 1] if has_bias else [])) for width in inputs]
    if weights.shape != (rows, sum(map(sum, widths))):
        raise Malformed(f"{where} does not have as many weights as its sizes say")
    flat, begin = weights.numpy().reshape(-1), 0
    for cell, parts in zip(cells, widths, strict=True):
        for name, width in zip(_CELL, parts, strict=False):
            part = flat[begin : begin + rows * width]
            begin += rows * width
            part = part.reshape((rows, width) if name.startswith("weight") else (rows,))
            setattr(cell, name, Parameter(part, device=weights.device))
    layer.proj_size = 0  # MegEngine takes it and does not project.
    if has_bias and len(cells) > 1:
        get_logger().warning(
            "%s: its weights are read in the order of MegEngine's CPU; a model that was trained on "
            "a GPU may have them in another one (compare a result with MegEngine's)",
            where,
        )


def is_recurrent(cls: type[Module]) -> bool:
    """Return whether a class is that of a layer whose weights are in one tensor."""
    return cls.__name__ in _RECURRENT and cls.__module__ == M.RNN.__module__


def _of_tuples(keys: tuple[str, ...], count: int) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        for key in keys:
            if type(state.get(key)) is int:
                state[key] = (state[key],) * count

    return change


def _axes(state: dict[str, Any]) -> None:
    state["normalized_axis"] = tuple(state["normalized_axis"])


def _mode(state: dict[str, Any]) -> None:
    state["method"] = str(state["method"]).removeprefix("q").removeprefix("Q")


_CHANGED: dict[str, Callable[[dict[str, Any]], None]] = {
    "Conv1d": _of_tuples(_WINDOW, 1),
    "ConvTranspose2d": _of_tuples(("output_padding",), 2),
    "ConvTranspose3d": _of_tuples((*_WINDOW, "output_padding"), 3),
    "GeneralNorm": _axes,
    "quantized.Elemwise": _mode,
}
