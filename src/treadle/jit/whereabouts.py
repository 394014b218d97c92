"""On which device each value of a captured program is."""

from __future__ import annotations

from typing import Any

from treadle.engine.devices.names import CompNode, default_device
from treadle.graph.analysis import has_effect
from treadle.graph.ir import Node, Value
from treadle.ops.constant import Constant

_LONGEST = 16
"""Nodes that are moved in place of a value, at most."""


class Whereabouts:
    """Notes of a capture.

    Attributes:
        inputs: the device of each input, in the order in which they were made; None for what Python
            gives, which can be anywhere.
        nodes: the device of the nodes; constants, which can be anywhere, have none.
    """

    def __init__(self) -> None:
        self.inputs: dict[Value, CompNode | None] = {}
        self.nodes: dict[Node, CompNode] = {}

    def follow(self, value: Value, target: CompNode) -> bool:
        """Return whether a value can be had on another device without a copy, which it then is.

        So it is with constants, with what is read from Python, and with what is made of nothing
        else: random numbers, which are the same on every device, are drawn where they are used.
        """
        chain = self._free(value)
        for node in chain or ():
            self.nodes[node] = target
        return chain is not None

    def _free(self, value: Value) -> list[Node] | None:
        """The nodes between a value and what can be anywhere; None if there is something else."""
        found: dict[Node, None] = {}
        waiting = [value]
        while waiting:
            now = waiting.pop()
            node = now.producer
            if node is None:
                if self.inputs[now] is not None:
                    return None
                continue
            if isinstance(node.op, Constant) or node in found:
                continue
            if not node.inputs or has_effect(node.op) or len(found) == _LONGEST:
                return None
            found[node] = None
            waiting += node.inputs
        return list(found)

    def homes(self) -> list[CompNode]:
        """The devices of the program, those that share memory counting as one, inputs' first."""
        found: dict[Any, CompNode] = {}
        for device in (*self.inputs.values(), *self.nodes.values()):
            if device is not None:
                found.setdefault(device.memory, device)
        return list(found.values()) or [default_device()]
