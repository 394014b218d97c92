"""A compiler that says what native code generation takes, and generates nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from treadle.backends.api import Support, no
from treadle.backends.codegen.views import (
    blocked_input,
    split_after,
    strided_input,
    strided_output,
)
from treadle.backends.program import Launch, Lowered, Program
from treadle.base.types import TensorType
from treadle.engine.optimize.kinds import is_attention, is_contraction, is_elementwise
from treadle.graph.domains import NestRefusal, analyze
from treadle.graph.ir import Graph, Value, constant_of
from treadle.ops.fused import Fused
from treadle.ops.op import Op


class StructuralCompiler:
    """Takes every single op; groups as the generators' analyses allow them.

    Args:
        refused: names of ops that no group may hold.
    """

    target = "structural"

    def __init__(self, refused: Sequence[str] = ()) -> None:
        self.refused = frozenset(refused)
        self.asked = 0

    def keeps(self, name: str, /) -> bool:
        return name in ("attention", "attention_grad")

    def lower(
        self, op: Op, types: Sequence[TensorType], frozen: Sequence[bool] = (), /
    ) -> Lowered | Support:
        self.asked += 1
        if not isinstance(op, Fused) or not isinstance(op.body, Graph):
            return Lowered()
        assert [(t.dtype, t.shape) for t in types] == [
            (t.dtype, t.shape) for t in op.body.input_types
        ]
        for node in op.body.nodes:
            if node.op.name in self.refused:
                return no("op", f"{node.op.name} is refused")
        if op.kind == "loop":
            found = analyze(op.body)
            return no("op", found.reason) if isinstance(found, NestRefusal) else Lowered()
        return _anchored(op.kind, op.body)

    def build(self, program: Program, /) -> Any:
        raise NotImplementedError

    def inspect(self, launch: Launch, form: Literal["kernel", "llvm", "assembly"], /) -> str:
        raise NotImplementedError


def _in_blocks(body: Graph, value: Value) -> bool:
    return value.type.ndim > 2 and blocked_input(body, value) is not None


def _anchored(kind: str, body: Graph) -> Lowered | Support:
    anchors = [n for n in body.nodes if is_contraction(n) or is_attention(n)]
    if len(anchors) != 1:
        return no("op", f"{len(anchors)} anchors")
    (anchor,) = anchors
    if any(strided_input(body, v) is None and not _in_blocks(body, v) for v in anchor.inputs):
        return no("layout", "an operand needs a copy")
    outputs = range(len(body.outputs))
    is_split = is_contraction(anchor) and split_after(body, anchor.output) is not None
    if not is_split and any(strided_output(body, i) is None for i in outputs):
        return no("layout", "a result needs a copy")
    for node in body.nodes:
        if node is anchor or node.op.strided or constant_of(node.output) is not None:
            continue
        if kind != "contraction" or not is_elementwise(node):
            return no("op", f"{node.op.name} beside {anchor.op.name}")
    return Lowered()
