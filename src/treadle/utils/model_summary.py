"""`summary`: the layers of a model as a table that fits a terminal."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from treadle.autodiff import no_grad
from treadle.base import tree
from treadle.module import Module
from treadle.tensor import Tensor
from treadle.utils import module_stats as stats
from treadle.utils.module_stats_rules import FLOPS, rule_of

_NAME, _SHAPE = 33, 17


@dataclass(frozen=True)
class Layer:
    """One call of a layer, or a layer that was not called.

    Attributes:
        name: its path in the model; "" for the model itself.
        kind: its class.
        shape: of its first output; None if it was not called.
        parameters: elements of its parameters, those counted in an earlier row left out.
        macs: multiply-adds of the call; None where no rule is known.
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None
    parameters: int
    macs: int | None


@dataclass(frozen=True)
class Summary:
    """Result of `summary`; printed, a table of at most 80 columns.

    Attributes:
        layers: in the order of their calls, then those that were not called.
        parameters: elements of all parameters, shared ones once.
        macs: multiply-adds of one run, as far as rules are known.
        size: bytes of the parameters.
    """

    layers: tuple[Layer, ...]
    parameters: int
    macs: int
    size: int

    def __str__(self) -> str:
        shown = any(layer.shape is not None for layer in self.layers)
        lines = [_line("layer", "output", "params", "share", "MACs", shown)]
        lines.append("-" * len(lines[0]))
        for layer in self.layers:
            shape = "not called"
            if layer.shape is not None:
                shape = str(list(layer.shape)).replace(" ", "")
            part = layer.parameters / self.parameters if layer.parameters else 0
            lines.append(
                _line(
                    f"{layer.name} {layer.kind}".strip(),
                    shape,
                    f"{layer.parameters:,}" if layer.parameters else "",
                    f"{part:.1%}" if part else "",
                    _short(layer.macs),
                    shown,
                )
            )
        lines.append("-" * len(lines[0]))
        size = stats.sizeof_fmt(self.size).replace(".000 ", " ")
        total = f"{self.parameters:,} parameters, {size}"
        lines.append(total + (f", {_short(self.macs)} MACs" if shown else ""))
        return "\n".join(lines)

    __repr__ = __str__


def summary(model: Module, inputs: Any = None, input_shapes: Any = None) -> Summary:
    """The layers of a model with output shapes, parameters and multiply-adds; print it to see them.

    The model runs once, in evaluation mode and without recording; afterwards every module has its
    mode back and nothing is left in it, so training is neither changed nor slower. Built modules
    are seen through; what computes by itself has a row for each call. Multiply-adds are counted as
    `module_stats` does.

    Args:
        model: the model.
        inputs: what to run it with: an array or tensor, or several in a list, tuple or dict.
        input_shapes: in place of inputs, a shape or several, filled with zeros. Without either the
            model does not run: the table has names and parameters only.

    Returns:
        A `Summary`: the rows (`layers`) and their sums; its text is the table.

    Example:
        >>> import treadle as mge
        >>> import treadle.module as M
        >>> net = M.Sequential(M.Linear(8, 16), M.ReLU(), M.Linear(16, 3))
        >>> print(mge.summary(net, input_shapes=(4, 8)))
        layer                              output                  params  share    MACs
        --------------------------------------------------------------------------------
        0 Linear                           [4,16]                     144  73.8%     528
        1 ReLU                             [4,16]
        2 Linear                           [4,3]                       51  26.2%     195
        --------------------------------------------------------------------------------
        195 parameters, 780 B, 723 MACs
    """
    rows: list[Layer] = []
    counted: set[int] = set()
    several = _seen(model)

    def row(name: str, module: Module, shape: Any, macs: int | None) -> None:
        whole = rule_of(FLOPS, module) is not None
        mine = [p for p in module.parameters(recursive=whole) if id(p) not in counted]
        counted.update(map(id, mine))
        rows.append(Layer(name, type(module).__name__, shape, sum(p.size for p in mine), macs))

    def look(name: str, module: Module, given: Any, made: Any) -> None:
        first = next((x for x in tree.flatten(made)[0] if isinstance(x, Tensor)), None)
        found = stats.get_op_stats(module, given, made)
        macs = None if found is None else int(found["flops_num"])
        row(name, module, () if first is None else tuple(first.shape), macs)

    if inputs is not None or input_shapes:
        with ExitStack() as stack:
            stack.enter_context(no_grad())
            stack.enter_context(stats._evaluation(model))
            for name, module in several:
                hook = module.register_forward_hook(functools.partial(look, name))
                stack.callback(hook.remove)
            model(*stats._inputs(inputs, input_shapes))
    called = {layer.name for layer in rows}
    for name, module in several:
        if name not in called and any(id(p) not in counted for p in module.parameters()):
            row(name, module, None, None)
    params = {id(p): p for p in model.parameters()}.values()
    return Summary(
        tuple(rows),
        sum(p.size for p in params),
        sum(layer.macs or 0 for layer in rows),
        sum(p.size * p.dtype.itemsize for p in params),
    )


def _seen(model: Module) -> list[tuple[str, Module]]:
    """Modules with a row: leaves, those with parameters of their own, and those with a rule."""
    found: list[tuple[str, Module]] = []
    inside: set[int] = set()
    for name, module in model.named_modules():
        parts = [m for m in module.modules() if m is not module]
        whole = rule_of(FLOPS, module) is not None
        if id(module) not in inside and (
            whole or not parts or any(True for _ in module.parameters(recursive=False))
        ):
            found.append((name, module))
        if whole:
            inside.update(map(id, parts))
    return found


def _line(name: str, shape: str, params: str, share: str, macs: str, shown: bool) -> str:
    name = name if len(name) <= _NAME else "..." + name[3 - _NAME :]
    middle = f"  {_cut(shape):<{_SHAPE}}" if shown else ""
    end = f"{macs:>8}" if shown else ""
    return f"{name:<{_NAME}}{middle}{params:>13}{share:>7}{end}".rstrip()


def _cut(shape: str) -> str:
    return shape if len(shape) <= _SHAPE else shape[: _SHAPE - 3] + "..."


def _short(number: int | None) -> str:
    """A number in at most six characters."""
    if not number:
        return ""
    value = float(number)
    for unit in ("", "K", "M", "G", "T"):
        if value < 999.5 or unit == "T":
            return f"{value:.3g}{unit}" if unit else str(number)
        value /= 1000
    return ""
