"""`network_visualize MODEL`: parameters, operations and activations of a model file.

python -m treadle.tools.network_visualize model.mge --all --log_path log
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from treadle.base.errors import TreadleError
from treadle.graph.flop_count import flops
from treadle.graph.ir import Node, Value
from treadle.interop.files import read_foreign_models
from treadle.utils.network import Network
from treadle.utils.network_node import ConstOpBase, OpNode
from treadle.utils.tensorboard import SummaryWriterExtend

TITLES = {"params": "parameters", "flops": "multiply-adds", "act": "activations"}


def visualize(
    model_path: Any,
    log_path: str | None = None,
    input: Any = None,
    inp_dict: Any = None,
    cal_params: bool = True,
    cal_flops: bool = True,
    cal_activations: bool = True,
    logging_to_stdout: bool = True,
    bar_length_max: int = 20,
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Statistics of a model file.

    Args:
        model_path: a path, or a file object.
        log_path: a directory for TensorBoard, to which the graph is written.
        input, inp_dict: for MegEngine's signature; shapes are in the file.
        cal_params, cal_flops, cal_activations: what to look at.
        logging_to_stdout: print tables.
        bar_length_max: characters of the longest bar.

    Returns:
        Totals (`params`, `flops` as multiply-adds, `act` elements), and a row per operator.

    Raises:
        CheckpointError: the file is damaged, or holds no model.
    """
    network = Network.load(model_path)
    rows = [_row(opr) for opr in network.all_oprs]
    totals = {name: float(sum(r[name] for r in rows)) for name in ("params", "flops", "act")}
    if logging_to_stdout:
        console = Console()
        wanted = {"params": cal_params, "flops": cal_flops, "act": cal_activations}
        for name, yes in wanted.items():
            if yes:
                console.print(_table(rows, name, totals[name], bar_length_max))
        counts = [f"{_short(totals[k])} {what}" for k, what in TITLES.items()]
        console.print(f"{len(rows)} operators, {', '.join(counts)}")
    if log_path is not None:
        with SummaryWriterExtend(log_path) as writer:
            writer.add_network(network)
    return totals, rows


def _row(opr: OpNode) -> dict[str, Any]:
    is_constant, elements = isinstance(opr, ConstOpBase), sum(v.size for v in opr.outputs)
    row: dict[str, Any] = {"name": opr.name or f"{opr.type}_{opr.id}", "type": opr.type}
    row |= {"shapes": [tuple(v.shape) for v in opr.outputs]}
    row["params"] = elements if is_constant else 0
    row["act"] = 0 if is_constant or opr.op is None else elements
    row["flops"] = 0
    if opr.type.startswith(("Convolution", "MatrixMul", "Batched", "ConvBias")):
        row["flops"] = _multiply_adds(opr)
    return row


def _multiply_adds(opr: OpNode) -> int:
    if opr.op is None:
        return 0
    values = tuple(Value(v.type) for v in opr.inputs)
    return flops(Node(opr.op, values)) // 2


def _table(rows: list[dict[str, Any]], by: str, total: float, width: int) -> Table:
    table = Table(title=TITLES[by])
    for title in ("operator", "type", "shape", by, "share", ""):
        table.add_column(title, justify="right" if title in (by, "share") else "left")
    largest = max([r[by] for r in rows], default=0) or 1
    for row in rows:
        if row[by]:
            bar = "#" * int(np.ceil(width * row[by] / largest))
            shapes = ", ".join("x".join(map(str, s)) or "scalar" for s in row["shapes"])
            share = f"{100 * row[by] / total:.1f} %"
            table.add_row(row["name"], row["type"], shapes, _short(row[by]), share, bar)
    return table


def _short(count: float) -> str:
    for unit in ("", " k", " M", " G"):
        if count < 1000:
            return f"{count:.4g}{unit}"
        count /= 1000
    return f"{count:.4g} T"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser("network_visualize", description="Statistics of a model file.")
    parser.add_argument("model_path")
    parser.add_argument("--log_path", help="a directory for TensorBoard")
    parser.add_argument("--load_input_data", help="for MegEngine's command line; not needed")
    parser.add_argument("--bar_length_max", type=int, default=20)
    for name in ("cal_params", "cal_flops", "cal_activations", "logging_to_stdout", "all"):
        parser.add_argument(f"--{name}", action="store_true")
    args = parser.parse_args(arguments)
    read_foreign_models()
    one = args.cal_params or args.cal_flops or args.cal_activations
    everything = args.all or not one
    try:
        visualize(
            args.model_path,
            args.log_path,
            cal_params=args.cal_params or everything,
            cal_flops=args.cal_flops or everything,
            cal_activations=args.cal_activations or everything,
            bar_length_max=args.bar_length_max,
        )
    except (TreadleError, OSError) as error:
        print(f"network_visualize: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
