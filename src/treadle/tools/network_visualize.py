"""`network_visualize MODEL`: parameters, operations and activations of a model file.

python -m treadle.tools.network_visualize model.mge --all --log_path log
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import treadle.serialization as serialization
from treadle.base.errors import TreadleError
from treadle.interop.files import read_foreign_models
from treadle.utils.module_stats import (
    disable_receptive_field,
    enable_receptive_field,
    get_activation_stats,
    get_op_stats,
    get_param_stats,
    print_activations_stats,
    print_op_stats,
    print_param_stats,
    print_summary,
    receptive_field_enabled,
    sizeof_fmt,
    stats_details,
    sum_activations_stats,
    sum_op_stats,
    sum_param_stats,
    total_stats,
)
from treadle.utils.network import Network
from treadle.utils.network_node import ConstOpBase, OpNode, VarNode
from treadle.utils.tensorboard import SummaryWriterExtend


def visualize(
    model_path: Any,
    log_path: str | None = None,
    input: Any = None,
    inp_dict: Mapping[str, Any] | None = None,
    cal_params: bool = True,
    cal_flops: bool = True,
    cal_activations: bool = True,
    logging_to_stdout: bool = True,
    bar_length_max: int = 20,
) -> tuple[total_stats, stats_details]:
    """Statistics of a model file, operator by operator, with receptive fields.

    Args:
        model_path: a path, or a file object.
        log_path: a directory for TensorBoard, to which the graph is written.
        input: an array for the only input; with it, tables have means and deviations.
        inp_dict: arrays by names of inputs, where there are several.
        cal_params, cal_flops, cal_activations: what to look at.
        logging_to_stdout: print tables.
        bar_length_max: characters of the longest bar.

    Returns:
        Totals, with zeros for what is not wanted; and the rows of the tables.

    Raises:
        CheckpointError: the file is damaged, or holds no model.
        ValueError: there is another number of inputs than arrays.
    """
    if not receptive_field_enabled():
        enable_receptive_field()
        try:
            return visualize(**locals())
        finally:
            disable_receptive_field()
    network = Network.load(model_path)
    given = _given(network, input, inp_dict)
    if log_path is not None:
        with SummaryWriterExtend(log_path) as writer:
            writer.add_network(network)
    network.replace_vars({x: network.make_const(a, x.name) for x, a in given.items()})
    rows = _rows(network.all_oprs, bool(given))
    dims, size, rows.params[:] = sum_param_stats(rows.params, bar_length_max)
    flops, rows.flops[:] = sum_op_stats(rows.flops, bar_length_max)
    act_dims, act_size, rows.activations[:] = sum_activations_stats(
        rows.activations, bar_length_max
    )
    wanted = (cal_params, cal_flops, cal_activations)
    rows = stats_details(*(kept if yes else [] for kept, yes in zip(rows, wanted, strict=True)))
    totals = total_stats(
        *((size, dims) if cal_params else (0, 0)),
        flops if cal_flops else 0,
        *((act_size, act_dims) if cal_activations else (0, 0)),
    )
    if logging_to_stdout:
        _print(rows, wanted, bool(given))
        print_summary(**{"#ops": len(network.all_oprs)}, **_words(totals))
    return totals, rows


def _given(network: Network, input: Any, inp_dict: Mapping[str, Any] | None) -> dict[VarNode, Any]:
    """Arrays of the inputs; none where none are given."""
    if input is None and inp_dict is None:
        return {}
    inputs = network.input_vars
    arrays = {x.name: input for x in inputs} if inp_dict is None else dict(inp_dict)
    if len(arrays) != len(inputs) or (inp_dict is None and len(inputs) != 1):
        names = ", ".join(x.name for x in inputs)
        raise ValueError(f"network_visualize: the inputs are {names}; give an array for each")
    return {x: np.asarray(arrays[x.name], x.dtype) for x in inputs}


def _rows(operators: Sequence[OpNode], values: bool) -> stats_details:
    rows = stats_details([], [], [])
    for opr in operators:
        first, named = opr.outputs[0], {"name": opr.name or f"{opr.type}_{opr.id}"}
        kind = {"class_name": opr.type}
        cost = get_op_stats(opr, opr.inputs, opr.outputs)
        if cost is not None:
            rows.flops.append(cost | named | kind)
        if isinstance(opr, ConstOpBase):
            rows.params.append(get_param_stats(first) | named)
        else:
            rows.activations.append(get_activation_stats(first, values) | named | kind)
    return rows


def _print(rows: stats_details, wanted: tuple[bool, bool, bool], values: bool) -> None:
    params, flops, activations = wanted
    if params:
        print_param_stats(rows.params)
    if flops:
        print_op_stats(rows.flops)
    if activations:
        print_activations_stats(rows.activations, values)


def _words(totals: total_stats) -> dict[str, str]:
    """Totals as the summary has them."""
    found = {
        "total_param_dims": sizeof_fmt(totals.param_dims, suffix=""),
        "total_param_size": sizeof_fmt(totals.param_size),
        "total_flops": sizeof_fmt(totals.flops, suffix="OPs"),
        "total_act_dims": sizeof_fmt(totals.act_dims, suffix=""),
        "total_act_size": sizeof_fmt(totals.act_size),
    }
    if totals.param_size and totals.flops:
        found["flops/param_size"] = f"{totals.flops / totals.param_size:3.3f}"
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser("network_visualize", description="Statistics of a model file.")
    parser.add_argument("model_path")
    parser.add_argument("--log_path", help="a directory for TensorBoard")
    parser.add_argument(
        "--load_input_data", help="a file of an array, or of arrays by name of input"
    )
    parser.add_argument("--bar_length_max", type=int, default=20)
    for name in ("cal_params", "cal_flops", "cal_activations", "logging_to_stdout", "all"):
        parser.add_argument(f"--{name}", action="store_true")
    args = parser.parse_args(arguments)
    read_foreign_models()
    one = args.cal_params or args.cal_flops or args.cal_activations
    everything = args.all or not one
    try:
        data = serialization.load(args.load_input_data) if args.load_input_data else None
        visualize(
            args.model_path,
            args.log_path,
            None if isinstance(data, dict) else data,
            data if isinstance(data, dict) else None,
            cal_params=args.cal_params or everything,
            cal_flops=args.cal_flops or everything,
            cal_activations=args.cal_activations or everything,
            bar_length_max=args.bar_length_max,
        )
    except (TreadleError, OSError, ValueError) as error:
        print(f"network_visualize: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
