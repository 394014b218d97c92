"""Compilers that take channels-last groups, as the oracle runs them or as analyses allow them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.engine.structural_compiler import StructuralCompiler

from treadle.backends.api import Support, no
from treadle.backends.codegen.views import strided_input, strided_output
from treadle.backends.program import Lowered, MapLayout
from treadle.base.types import TensorType
from treadle.engine.optimize.kinds import is_window
from treadle.graph.ir import Graph
from treadle.ops.fused import Fused
from treadle.ops.op import Op


class LayoutCompiler(StructuralCompiler):
    """Takes window groups of one op and moves as well, and groups of convolutions in any layout.

    Args:
        row_major: names of ops that have no channels-last form.
        layouts: what it says that its kernels like.
    """

    def __init__(
        self,
        row_major: Sequence[str] = (),
        layouts: Sequence[MapLayout] = (MapLayout("channels-last"),),
    ) -> None:
        super().__init__()
        self.row_major = frozenset(row_major)
        self.layouts = tuple(layouts)

    def lower(
        self, op: Op, types: Sequence[TensorType], frozen: Sequence[bool] = (), /
    ) -> Lowered | Support:
        if isinstance(op, Fused) and isinstance(op.body, Graph) and op.kind != "loop":
            names = {n.op.name for n in op.body.nodes}
            if names & self.row_major and "transpose" in names:
                return no("layout", "the test knows no other layout of it")
            if op.kind == "window":
                return _window(op.body)
        return super().lower(op, types, frozen)


def _window(body: Graph) -> Lowered | Support:
    (anchor,) = (n for n in body.nodes if is_window(n))
    if any(n is not anchor and not n.op.strided for n in body.nodes):
        return no("op", "something is computed beside the window")
    views = [strided_input(body, v) for v in anchor.inputs]
    views += [found[1] if (found := strided_output(body, 0)) else None]
    return Lowered() if None not in views else no("layout", "takes a copy")
