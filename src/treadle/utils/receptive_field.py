"""Receptive fields: how many cells of the input each cell of a layer's output depends on.

The model is captured as a graph, so branches and sums count as what they are. A window of k cells,
d apart, over values of field r and stride s gives r + d (k - 1) s; its own stride multiplies s
(Araujo et al., Computing receptive fields of convolutional neural networks, Distill 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle.graph.ir import Node, Value
from treadle.jit.capture import Symbol, capture
from treadle.module import Module
from treadle.ops.conv import Conv
from treadle.ops.pool import AverageWindow, MaxWindow
from treadle.tensor import Tensor
from treadle.utils.module_stats_rules import RECEPTIVE_FIELDS, rule_of

Pair = tuple[int, int]
Field = tuple[Pair, Pair]
"""Extents (height, width), and the stride between neighbours, in cells of the input."""

_CELL: Field = ((1, 1), (1, 1))


def receptive_fields(
    model: Module, inputs: Sequence[Tensor], looked_at: Callable[[Module], bool]
) -> dict[str, Field]:
    """Fields of the outputs of some of a model's layers, by name.

    Args:
        model: is run once as a graph; nothing is computed.
        inputs: of the model.
        looked_at: whether a layer is wanted.

    Raises:
        TraceError: the model's course depends on values.
    """
    made: dict[str, Value] = {}
    stated: dict[Value, Field] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: Module, given: Any, result: Any) -> None:
            first = result[0] if isinstance(result, (tuple, list)) else result
            data = first._data if isinstance(first, Tensor) else None
            if not isinstance(data, Symbol):
                return
            made[name] = data.operand.value
            rule = rule_of(RECEPTIVE_FIELDS, module)
            if rule is not None:
                stated[data.operand.value] = rule(module, given, (first,))

        return hook

    hooks = [
        module.register_forward_hook(note(name))
        for name, module in model.named_modules()
        if looked_at(module)
    ]
    try:
        captured = capture(lambda *given: model(*given), tuple(inputs), {}, "receptive field")
    finally:
        for hook in hooks:
            hook.remove()
    fields = _walk(captured.graph.nodes, stated)
    return {name: fields.get(value, _CELL) for name, value in made.items()}


def _walk(nodes: Sequence[Node], stated: Mapping[Value, Field]) -> dict[Value, Field]:
    """Fields of all values."""
    found: dict[Value, Field] = {}
    for node in nodes:
        before = [found.get(v, _CELL) for v in node.inputs] or [_CELL]
        after = through(node, _joined(before))
        for value in node.outputs:
            found[value] = stated.get(value, after)
    return found


def preprocess_receptive_field(module: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Field:
    """The largest field and stride of the operands of a network's operator.

    What a rule that `register_receptive_field` registers begins with. An input of the network, and
    a tensor, which does not know where it comes from, is one cell.

    Args:
        module: the operator.
        inputs: its variables.
        outputs: its results; not looked at.
    """
    owners = [getattr(x, "owner", None) for x in inputs]
    fields = [(getattr(o, "_rf", (1, 1)), getattr(o, "_stride", (1, 1))) for o in owners]
    return _joined(fields or [_CELL])


def _joined(fields: Sequence[Field]) -> Field:
    return _largest([r for r, _ in fields]), _largest([s for _, s in fields])


def _largest(pairs: Sequence[Pair]) -> Pair:
    return max(p[0] for p in pairs), max(p[1] for p in pairs)


def through(node: Node, field: Field) -> Field:
    """The field behind an op, given that before it."""
    window = _window(node)
    if window is None:
        return field
    kernel, strides, dilation = window
    (height, width), (down, right) = field
    grown = (
        height + dilation[0] * (kernel[0] - 1) * down,
        width + dilation[1] * (kernel[1] - 1) * right,
    )
    return grown, (down * strides[0], right * strides[1])


def _window(node: Node) -> tuple[tuple[Any, ...], ...] | None:
    """Kernel, strides and dilation of an op that slides over two axes."""
    op = node.op
    if isinstance(op, Conv):
        found = node.inputs[1].type.shape[2:], op.strides, op.dilation
    elif isinstance(op, MaxWindow):
        found = op.kernel, op.strides, op.dilation
    elif isinstance(op, AverageWindow):
        found = op.kernel, op.strides, (1,) * len(op.kernel)
    else:
        return None
    return found if len(found[0]) == 2 else None
