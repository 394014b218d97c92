"""Questions to strategies of contractions, and their answers.

A strategy claims a request or says why not, and lowers what it claims. Its answer is launches, a
reason, a plain product in place of what it was asked for, or the same body around another op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from treadle.backends.api import Support
from treadle.backends.codegen.contraction.shared.body import Reading
from treadle.backends.codegen.contraction.shared.launch import Launches
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.views import (
    Blocked,
    Strided,
    blocked_input,
    sizes_of,
    split_after,
    strided_input,
    strided_output,
)
from treadle.backends.program import Lowered
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph, Node, Value
from treadle.ops.conv import ConvGradWeight, Convolution, IntConv
from treadle.ops.op import Op


@dataclass(frozen=True)
class LoweringRequest:
    """A body around one contraction, and for whom it is lowered.

    Attributes:
        body: what is computed: movement, the contraction, elementwise ops behind it.
        anchor: the contraction's node.
        frozen: which inputs of the body never change.
        target: what the kernels are written for.
        why: why it is asked in place of another one.
    """

    body: Graph
    anchor: Node
    frozen: tuple[bool, ...]
    target: Target
    why: str = ""

    @cached_property
    def views(self) -> tuple[Strided | None, ...]:
        """The operands where they lie; None for one that has no stride per axis."""
        return tuple(strided_input(self.body, v) for v in self.anchor.inputs)

    @cached_property
    def blocked(self) -> Blocked | None:
        """The first operand where its channels lie in blocks."""
        return None if self.views[0] else blocked_input(self.body, self.anchor.inputs[0])

    @cached_property
    def gathers(self) -> bool:
        """True where operands and results are row-major, so that patches are gathered.

        Small integers are not: their terms are channels, if there are several.
        """
        op, given = self.anchor.op, self.anchor.inputs
        words = isinstance(op, IntConv) and sizes_of(given[1].type.shape)[1] > 1
        if words or split_after(self.body, self.anchor.output) is not None:
            return False
        return self.is_row_major

    @cached_property
    def is_row_major(self) -> bool:
        """True where operands and results are dense and row-major."""
        if not all(view is not None and view.is_dense for view in self.views):
            return False
        outputs = [strided_output(self.body, i) for i in range(len(self.body.outputs))]
        return all(found is not None and found[1].is_dense for found in outputs)

    @property
    def is_depthwise(self) -> bool:
        """True where every input channel is a group of its own, of one output channel or more."""
        op = self.anchor.op
        if not isinstance(op, Convolution):
            return False
        made = self.anchor.inputs[1] if isinstance(op, ConvGradWeight) else self.anchor.output
        inputs, outputs = (sizes_of(v.type.shape)[1] for v in (self.anchor.inputs[0], made))
        return bool(op.groups == inputs > 1 and outputs % op.groups == 0)

    def around(self, op: Op, why: str) -> LoweringRequest:
        """The same body around another op with the same operands and result."""
        builder = GraphBuilder(self.body.name)
        known: dict[Value, Value] = {v: builder.input(v.type).value for v in self.body.inputs}
        made = self.anchor
        for node in self.body.nodes:
            given = tuple(known[v] for v in node.inputs)
            mine = node is self.anchor
            copy = builder.add(op, given) if mine else builder.copy(node, given)
            made = copy if mine else made
            known.update(zip(node.outputs, copy.outputs, strict=True))
        builder.output(*(builder.operand(known[v]) for v in self.body.outputs))
        return LoweringRequest(builder.build(), made, self.frozen, self.target, why)


Answer = Lowered | Support | Reading | LoweringRequest


@dataclass(frozen=True, slots=True)
class ConvolutionStrategy:
    """A way to compute some ops.

    Attributes:
        name: in reports.
        ops: that it may compute.
        claims: whether it computes a request, or why not.
        lower: what becomes of a request that it claims.
    """

    name: str
    ops: tuple[type[Op], ...]
    claims: Callable[[LoweringRequest], Support]
    lower: Callable[[LoweringRequest], Answer]


@dataclass(frozen=True, slots=True)
class ProductStrategy:
    """A way to compute products of matrices.

    Attributes:
        name: in reports.
        claims: whether it computes a problem on a target, or why not.
        lower: the launches of a problem that it claims.
        mixes: whether operands may be floats of two types, or floats and bytes.
    """

    name: str
    claims: Callable[[ContractionProblem, Target], Support]
    lower: Callable[[Launches], Lowered]
    mixes: bool = False
