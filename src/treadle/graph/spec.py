"""Grammar of the representation: what a graph may hold after each stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treadle.graph.ir import Node
from treadle.ops import REGISTRY
from treadle.ops.constant import Constant
from treadle.ops.transfer import Identity, StopGradient

Law = Callable[[Node], str]
"""Says what is wrong with a node, `""` where it is legal."""


@dataclass(frozen=True, slots=True)
class StageRules:
    """Rules of what is legal after a stage.

    Attributes:
        name: the stage.
        laws: what holds of each node.
        no_dead_nodes: whether every node must contribute to an output.
    """

    name: str
    laws: tuple[Law, ...]
    no_dead_nodes: bool = False

    def refuse(self, node: Node) -> str:
        """Return what is wrong with a node after this stage, `""` where it is legal."""
        return next((reason for law in self.laws if (reason := law(node))), "")


def registered(node: Node) -> str:
    """Require an op of the registry: others have no text form, and no oracle to be found."""
    if REGISTRY.get(node.op.name) is type(node.op):
        return ""
    return f"the op {node.op.name} is not registered"


def no_markers(node: Node) -> str:
    """Ops that only gradients look at are gone."""
    if isinstance(node.op, (Identity, StopGradient)):
        return f"{node.op.name} has no meaning once gradients are taken"
    return ""


def data_present(node: Node) -> str:
    """Constants carry their data."""
    if isinstance(node.op, Constant) and not node.op.data.is_present:
        return "the data of the constant is not attached"
    return ""


CAPTURED = StageRules("captured", (registered,))
PREPARED = StageRules("prepared", (registered, no_markers, data_present), no_dead_nodes=True)
SPECS: dict[str, StageRules] = {s.name: s for s in (CAPTURED, PREPARED)}
