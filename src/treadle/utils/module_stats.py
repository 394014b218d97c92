"""Statistics of models: parameters, multiply-adds, activations, layer by layer.

A multiply-add counts once. Convolutions count out elements * (in / groups * kernel area + bias),
affine layers out elements * in features + bias, normalizations 7 per input element, pooling out
elements * kernel area; activation functions do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np

import treadle.module as M
from treadle.autodiff import no_grad
from treadle.base import tree
from treadle.tensor import Parameter, Tensor
from treadle.utils.module_stats_rules import (
    FLOPS,
    HOOKED,
    RECEPTIVE_FIELDS,
    flops_adaptivePool,
    flops_batchmatmul,
    flops_convNd,
    flops_convNdTranspose,
    flops_linear,
    flops_norm,
    flops_pool,
    register_flops,
    register_hook_module,
    register_receptive_field,
    rule_of,
)
from treadle.utils.module_stats_table import (
    Row,
    activation_header,
    dict2table,
    op_header,
    param_header,
    show,
    sizeof_fmt,
)
from treadle.utils.receptive_field import preprocess_receptive_field, receptive_fields

__all__ = [
    "dict2table",
    "disable_receptive_field",
    "enable_receptive_field",
    "flops_adaptivePool",
    "flops_batchmatmul",
    "flops_convNd",
    "flops_convNdTranspose",
    "flops_linear",
    "flops_norm",
    "flops_pool",
    "get_activation_stats",
    "get_op_stats",
    "get_param_stats",
    "module_stats",
    "preprocess_receptive_field",
    "print_activations_stats",
    "print_op_stats",
    "print_param_stats",
    "print_summary",
    "register_flops",
    "register_hook_module",
    "register_receptive_field",
    "sizeof_fmt",
    "sum_activations_stats",
    "sum_op_stats",
    "sum_param_stats",
]


class total_stats(NamedTuple):
    param_size: int
    param_dims: int
    flops: int
    act_size: int
    act_dims: int


"""Sums: bytes and numbers of parameters, multiply-adds, bytes and numbers of activations."""


class stats_details(NamedTuple):
    params: list[Row]
    flops: list[Row]
    activations: list[Row]


"""Rows of the three tables; the last of each is the total."""


class _Switch:
    """True if receptive fields are found, too."""

    on = False


def enable_receptive_field() -> None:
    """Find receptive fields and strides, too, from now on."""
    _Switch.on = True


def disable_receptive_field() -> None:
    """Find no receptive fields from now on."""
    _Switch.on = False


def receptive_field_enabled() -> bool:
    """Return whether receptive fields are found, too."""
    return _Switch.on


# -- one row -----------------------------------------------------------------------------------


def get_param_stats(param: Tensor) -> Row:
    """Element type, shape, mean, deviation, number of elements, bits and bytes of a parameter."""
    return {**_sizes(param, "param_dim"), **_values(param)}


def get_op_stats(module: Any, inputs: Any, outputs: Any) -> Row | None:
    """Shapes and multiply-adds of one call of a layer; None where no rule is known for it.

    An operator of a network (`utils.network_node`) has its receptive field and stride, too, where
    `enable_receptive_field` was called; operators are taken in order.
    """
    given, made = _several(inputs), _several(outputs)
    row: Row = {
        "input_shapes": [x.shape for x in given if isinstance(x, Tensor)],
        "output_shapes": [x.shape for x in tree.flatten(made)[0] if isinstance(x, Tensor)],
    }
    field = rule_of(RECEPTIVE_FIELDS, module)
    if _Switch.on and not isinstance(module, M.Module):
        module._rf, module._stride = (field or preprocess_receptive_field)(module, given, made)
        row |= {"receptive_field": module._rf, "stride": module._stride}
    rule = rule_of(FLOPS, module)
    return None if rule is None else {**row, "flops_num": rule(module, given, made)}


def get_activation_stats(output: Tensor, has_input: bool = False) -> Row:
    """Element type, shape, number of elements, bits and bytes of a layer's output.

    `has_input` adds mean and deviation, which say nothing of made-up inputs.
    """
    return {**_sizes(output, "act_dim"), **(_values(output) if has_input else {})}


def _several(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, (tuple, list)) else (given,)


def _sizes(x: Tensor, count: str) -> Row:
    bits = x.dtype.itemsize * 8
    return {
        "dtype": x.dtype,
        "shape": x.shape,
        count: x.size,
        "nbits": bits,
        "size": x.size * bits // 8,
    }


def _values(x: Tensor) -> Row:
    array = x.numpy().astype(np.float32)
    mean, std = (array.mean(), array.std()) if array.size else (np.nan, np.nan)
    return {"mean": f"{mean:.3g}", "std": f"{std:.3g}"}


# -- sums ------------------------------------------------------------------------------------


def sum_param_stats(params: list[Row], bar_length_max: int = 20) -> tuple[int, int, list[Row]]:
    """Add running sums, shares and bars to the rows of parameters, and a row for the total.

    Returns:
        Number of elements, bytes, and the rows.
    """
    return _summed(params, "param_dim", bar_length_max)


def sum_activations_stats(
    activations: list[Row], bar_length_max: int = 20
) -> tuple[int, int, list[Row]]:
    """Add running sums, shares and bars to the rows of activations, and a row for the total.

    Returns:
        Number of elements, bytes, and the rows.
    """
    return _summed(activations, "act_dim", bar_length_max)


def _summed(rows: list[Row], count: str, bar_length_max: int) -> tuple[int, int, list[Row]]:
    elements = sum(int(row[count]) for row in rows)
    total = _shares(rows, "size", "size_bar", "B", bar_length_max)
    for row in rows:
        row["size"] = sizeof_fmt(row["size"])
    rows.append({"name": "total", count: elements, "size": sizeof_fmt(total)})
    return elements, total, rows


def sum_op_stats(flops: list[Row], bar_length_max: int = 20) -> tuple[int, list[Row]]:
    """Add running sums, shares and bars to the rows of multiply-adds, and a row for the total.

    Returns:
        Multiply-adds, and the rows.
    """
    total = _shares(flops, "flops_num", "bar", "OPs", bar_length_max)
    for row in flops:
        row["flops"] = sizeof_fmt(row["flops_num"], suffix="OPs")
    channels = sum(shape[1] for row in flops for shape in row["output_shapes"] if len(shape) > 1)
    name = sizeof_fmt(total, suffix="OPs")
    flops.append({"name": "total", "flops": name, "output_shapes": channels})
    return total, flops


def _shares(rows: list[Row], key: str, bar: str, suffix: str, longest: int) -> int:
    """Add the running sum of a column, shares of the total and bars; returns the total."""
    numbers = [int(row[key]) for row in rows]
    total, most, running = sum(numbers), max(numbers, default=0), 0
    cumulative = "size_cum" if suffix == "B" else "flops_cum"
    for row, number in zip(rows, numbers, strict=True):
        running += number
        row[cumulative] = sizeof_fmt(running, suffix=suffix)
        row["ratio"] = number / total if total else 0.0
        row["percentage"] = f"{row['ratio'] * 100:.2f}%"
        row[bar] = "#" * (number * longest // most if most else 0)
    return total


# -- tables ----------------------------------------------------------------------------------


def print_param_stats(params: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of parameters."""
    show("parameters", dict2table(params, param_header()))


def print_op_stats(flops: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of multiply-adds."""
    show("multiply-adds", dict2table(flops, op_header(_Switch.on)))


def print_activations_stats(
    activations: Sequence[Mapping[str, Any]], has_input: bool = False
) -> None:
    """Print the table of activations; `has_input` adds mean and deviation."""
    show("activations", dict2table(activations, activation_header(has_input)))


def print_summary(**kwargs: Any) -> None:
    """Print names and values as a table."""
    show("summary", [["item", "value"], *[list(item) for item in kwargs.items()]])


# -- the whole ---------------------------------------------------------------------------------


class _Collector:
    """Figures of one run of a model."""

    def __init__(self, has_inputs: bool) -> None:
        self.params: list[Row] = []
        self.flops: list[Row] = []
        self.activations: list[Row] = []
        self._has_inputs = has_inputs
        self._seen: set[int] = set()

    def hook(self, name: str) -> Callable[[M.Module, Any, Any], None]:
        """A hook for the layer of this name."""

        def look(module: M.Module, inputs: Any, outputs: Any) -> None:
            about = {"name": name, "class_name": type(module).__name__}
            counted = get_op_stats(module, inputs, outputs)
            if counted is not None:
                self.flops.append({**counted, **about})
            self.parameters(name, module)
            first = next(x for x in tree.flatten(outputs)[0] if isinstance(x, Tensor))
            self.activations.append({**get_activation_stats(first, self._has_inputs), **about})

        return look

    def parameters(self, name: str, module: M.Module) -> None:
        """Rows for a layer's parameters, unless there are some already."""
        named = dict(module.named_parameters())
        for key in sorted(named, key=lambda k: (k != "weight", k)):
            self._parameter(f"{name}-{_SHORT.get(key, key)}", named[key])
        if not named:  # Weights of quantized layers are not trained.
            for key, tensor in module.named_tensors(recursive=False):
                if key in _SHORT:
                    self._parameter(f"{name}-{_SHORT[key]}", tensor)

    def _parameter(self, name: str, tensor: Parameter | Tensor) -> None:
        if id(tensor) not in self._seen:
            self._seen.add(id(tensor))
            self.params.append({**get_param_stats(tensor), "name": name})


_SHORT = {"weight": "w", "bias": "b"}


def module_stats(
    model: M.Module,
    inputs: Any = None,
    input_shapes: Any = None,
    cal_params: bool = True,
    cal_flops: bool = True,
    cal_activations: bool = True,
    logging_to_stdout: bool = True,
    bar_length_max: int = 20,
) -> tuple[total_stats, stats_details]:
    """Run a model once and count, layer by layer, parameters, multiply-adds and activations.

    The model runs in evaluation mode, and every module gets its mode back. A parameter that several
    layers share counts once, and those of layers that are not called count, too; running statistics
    do not.

    Args:
        model: the model.
        inputs: what to run it with: an array or tensor, or several in a list, tuple or dict.
        input_shapes: in place of inputs, a shape or several, filled with zeros.
        cal_params, cal_flops, cal_activations: what to count.
        logging_to_stdout: print the tables; the summary is printed in any case.
        bar_length_max: characters of the longest bar.

    Returns:
        Two named tuples: sums (param_size, param_dims, flops, act_size, act_dims), sizes in bytes;
        and rows (params, flops, activations), as dicts, of which the last holds the total.

    Raises:
        ValueError: there are neither inputs nor shapes.

    Example:
        >>> import treadle.module as M
        >>> from treadle.utils.module_stats import module_stats
        >>> totals, rows = module_stats(M.Linear(3, 2), input_shapes=(1, 3))  # doctest: +ELLIPSIS
        parameters...
        >>> totals.param_dims, totals.flops
        (8, 8)
    """
    given = _inputs(inputs, input_shapes)
    found = _Collector(inputs is not None)
    with ExitStack() as stack:
        stack.enter_context(no_grad())
        stack.enter_context(_evaluation(model))
        fields = receptive_fields(model, given, _is_hooked) if _Switch.on and cal_flops else {}
        for name, module in model.named_modules():
            if _is_hooked(module):
                stack.callback(module.register_forward_hook(found.hook(name)).remove)
        model(*given)
    for name, module in model.named_modules():
        if _is_hooked(module):  # Its weights may be in use without the layer being called.
            found.parameters(name, module)
    for row in found.flops:
        if row["name"] in fields:
            row["receptive_field"], row["stride"] = fields[row["name"]]
    return _reported(
        found,
        (cal_params, cal_flops, cal_activations),
        logging_to_stdout,
        bar_length_max,
        inputs is not None,
    )


def _reported(
    found: _Collector,
    wanted: tuple[bool, bool, bool],
    verbose: bool,
    longest: int,
    has_inputs: bool,
) -> tuple[total_stats, stats_details]:
    """Sum up, print, and return."""
    rows = stats_details(
        found.params if wanted[0] else [],
        found.flops if wanted[1] else [],
        found.activations if wanted[2] else [],
    )
    summary: dict[str, Any] = {"#params": len(rows.params)}
    totals = total_stats(0, 0, 0, 0, 0)
    if wanted[0]:
        dims, size, _ = sum_param_stats(rows.params, longest)
        totals = totals._replace(param_dims=dims, param_size=size)
        summary["total_param_dims"] = sizeof_fmt(dims, suffix="")
        summary["total_param_size"] = sizeof_fmt(size)
    if wanted[1]:
        totals = totals._replace(flops=sum_op_stats(rows.flops, longest)[0])
        summary["total_flops"] = sizeof_fmt(totals.flops, suffix="OPs")
    if wanted[2]:
        dims, size, _ = sum_activations_stats(rows.activations, longest)
        totals = totals._replace(act_dims=dims, act_size=size)
        summary["total_act_dims"] = sizeof_fmt(dims, suffix="")
        summary["total_act_size"] = sizeof_fmt(size)
    if wanted[0] and wanted[1] and totals.param_size:
        summary["flops/param_size"] = f"{totals.flops / totals.param_size:3.3f}"
    if verbose:
        _print_tables(rows, wanted, has_inputs)
    print_summary(**summary)
    return totals, rows


def _print_tables(rows: stats_details, wanted: tuple[bool, bool, bool], has_inputs: bool) -> None:
    if wanted[0]:
        print_param_stats(rows.params)
    if wanted[1]:
        print_op_stats(rows.flops)
    if wanted[2]:
        print_activations_stats(rows.activations, has_inputs)


def _is_hooked(module: M.Module) -> bool:
    return isinstance(module, tuple(HOOKED))


def _inputs(inputs: Any, input_shapes: Any) -> list[Any]:
    """Return the arguments to call the model with."""
    if inputs is not None:
        several = inputs if isinstance(inputs, (tuple, list)) else [inputs]
        return [_as_tensors(x) for x in several]
    if not input_shapes:
        raise ValueError("module_stats needs inputs or input_shapes to run the model with")
    shapes = input_shapes if isinstance(input_shapes[0], (tuple, list)) else [input_shapes]
    return [Tensor(np.zeros(tuple(shape), np.float32)) for shape in shapes]


def _as_tensors(x: Any) -> Any:
    """Arrays and numbers as tensors, inside dicts, named tuples, lists and tuples, too."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, Mapping):
        return {key: _as_tensors(value) for key, value in x.items()}
    if isinstance(x, tuple) and "_fields" in dir(x):
        return type(x)(*[_as_tensors(value) for value in x])
    if isinstance(x, (tuple, list)):
        return [_as_tensors(value) for value in x]
    return Tensor(x) if isinstance(x, np.ndarray) else Tensor(x, dtype="float32")


@contextmanager
def _evaluation(model: M.Module) -> Iterator[None]:
    """Evaluation mode inside the block."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode
