"""The layout pass: choose, rebuild, and say what was chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from treadle.engine.optimize.bodies import Trial
from treadle.engine.optimize.layout import LAYOUTS, Layout
from treadle.engine.optimize.layout_hoist import Converted, conversions, hoisted
from treadle.engine.optimize.layout_offers import has_offers
from treadle.engine.optimize.layout_problem import assign
from treadle.engine.optimize.layout_rebuild import rebuild
from treadle.graph.ir import Graph, Value
from treadle.graph.regions import replace_ops, substituted_regions
from treadle.ops.conv import Convolution
from treadle.ops.fused import Fused
from treadle.ops.movement import Transpose
from treadle.ops.op import Op


@dataclass(slots=True)
class Layouts:
    """Outcome of the pass, regions included.

    Attributes:
        held: by the layout's name, ops that care and are in it, by what reports call them.
        row_major: those that stayed row-major.
        copies: between layouts.
        seconds, before: modelled time of both kinds of ops and of copies, and all row-major.
        is_proven: whether no other choice is cheaper, as modelled.
    """

    held: dict[str, Counter[str]] = field(default_factory=dict)
    row_major: Counter[str] = field(default_factory=Counter)
    copies: int = 0
    seconds: float = 0.0
    before: float = 0.0
    is_proven: bool = True

    @property
    def ops(self) -> Counter[str]:
        """Ops that care and are not row-major."""
        return sum(self.held.values(), Counter[str]())

    @property
    def outcome(self) -> str:
        """Choices in a line."""
        if not self.ops:
            return f"row-major: {_listed(self.row_major)}"
        copies = f"{self.copies} conversion{'s' * (self.copies != 1)}"
        left = f"; row-major: {_listed(self.row_major)}" if self.row_major else ""
        held = "; ".join(f"{name}: {_listed(ops)}" for name, ops in self.held.items())
        return f"{held}, {copies}{left}"

    @property
    def reason(self) -> str:
        """Reason in a line."""
        best = "least" if self.is_proven else "found"
        if not self.ops:
            return "as modelled, or the compiler takes nothing else"
        return (
            f"modelled {self.seconds * 1e3:.3g} ms against {self.before * 1e3:.3g} ms row-major, "
            f"the {best} of all choices"
        )


def lay_out(
    graph: Graph, trial: Trial, domain: Sequence[Layout] = LAYOUTS
) -> tuple[Graph, Layouts]:
    """A program whose values lie as its ops like best, regions of control flow like the program.

    Args:
        graph: without groups.
        trial: asks the compiler.
        domain: the layouts to choose from, row-major first.
    """
    done = Layouts()
    converted: list[Converted] = []

    def inside(op: Op) -> Op:
        # Groups there are at this stage run elsewhere, op by op.
        return op if isinstance(op, Fused) else substituted_regions(op, lay)

    def lay(part: Graph) -> Graph:
        part = replace_ops(part, inside)
        if converted:
            part = hoisted(part, converted)
        if not has_offers(part):
            return part
        made, copies = _laid(part, trial, domain, done)
        converted.extend(conversions(made, copies, domain))
        return made

    return lay(graph), done


def _laid(
    graph: Graph, trial: Trial, domain: Sequence[Layout], done: Layouts
) -> tuple[Graph, list[Value]]:
    """A graph in its layouts, and the values that it copies."""
    chosen = assign(graph, trial, domain)
    done.seconds += chosen.seconds
    done.before += chosen.row_major
    done.is_proven &= chosen.is_proven
    for node in chosen.considered:
        if not isinstance(node.op, Transpose):
            name = "convolution" if isinstance(node.op, Convolution) else node.op.name
            held = chosen.caring.get(node)
            kind = done.row_major
            if held is not None:
                kind = done.held.setdefault(held.main.name, Counter())
            kind[name] += 1
    if not chosen.caring:
        return graph, []
    graph, copies = rebuild(graph, chosen)
    done.copies += len(copies)
    return graph, copies


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {name}{'s' * (n != 1)}" for name, n in sorted(counts.items()))
