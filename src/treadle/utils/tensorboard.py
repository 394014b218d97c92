"""`SummaryWriterExtend`: graphs of networks and programs beside scalars, for TensorBoard."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

from treadle.utils.network import Network
from treadle.utils.network_node import OpNode

if TYPE_CHECKING:
    from treadle.jit import Compiled


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "SummaryWriterExtend needs tensorboardX\n  hint: pip install treadle[tensorboard]"
        ) from None


class SummaryWriterExtend:
    """tensorboardX's writer, with graphs of networks.

    All methods of `tensorboardX.SummaryWriter` (`add_scalar`, `add_histogram`, ...) are there.

    Args:
        logdir: where events are written; a name with date and host unless given.
        comment: appended to that name.
        kwargs: of `tensorboardX.SummaryWriter`.

    Raises:
        ModuleNotFoundError: tensorboardX is not installed.
    """

    def __init__(self, logdir: str | None = None, comment: str = "", **kwargs: Any) -> None:
        self._writer = _package("tensorboardX").SummaryWriter(logdir, comment, **kwargs)
        self._nodes: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def __enter__(self) -> SummaryWriterExtend:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def add_node_raw(
        self,
        name: str,
        type: str,
        device: str = "cpu0:0",
        inputs: tuple[str, ...] = (),
        attributes: dict[str, Any] | None = None,
    ) -> None:
        """A node of the graph that `add_graph_by_node_raw_list` writes."""
        node_def = _package("tensorboardX.proto.node_def_pb2").NodeDef
        attr = _package("tensorboardX.proto.attr_value_pb2").AttrValue
        values = {k: attr(s=str(v).encode()) for k, v in (attributes or {}).items()}
        self._nodes[name] = node_def(
            name=name, op=type, device=device, input=list(inputs), attr=values
        )

    def add_graph_by_node_raw_list(self) -> None:
        """Write the graph of all nodes that were added, and start another one."""
        graph_def = _package("tensorboardX.proto.graph_pb2").GraphDef
        versions = _package("tensorboardX.proto.versions_pb2").VersionDef
        event = _package("tensorboardX.proto.event_pb2").Event
        graph = graph_def(node=list(self._nodes.values()), versions=versions(producer=22))
        made = event(graph_def=graph.SerializeToString(), wall_time=time.time())
        self._writer.file_writer.add_event(made)
        self._nodes.clear()

    def add_network(self, network: Network) -> None:
        """Write a network's graph: operators with their types, attributes and shapes."""
        names = {opr.key: _name(opr, n) for n, opr in enumerate(network.all_oprs)}
        for opr in network.all_oprs:
            attributes = {k: v for k, v in opr.params.items() if k != "data"}
            attributes["output_shapes"] = [tuple(v.shape) for v in opr.outputs]
            inputs = tuple(dict.fromkeys(names[v.owner.key] for v in opr.inputs))
            self.add_node_raw(names[opr.key], opr.type, "cpu0:0", inputs, attributes)
        self.add_graph_by_node_raw_list()

    def add_program(
        self, tag: str, function: Compiled[..., Any], global_step: int | None = None
    ) -> None:
        """Write what became of a compiled function, as a text and as numbers.

        The text is that of `explain()`, with its programs for many extents; numbers are how many
        signatures it has met (`TAG/signatures`), captures (`TAG/captures`) and programs that serve
        many extents (`TAG/programs`).

        Args:
            tag: the name under which they stand.
            function: made by `jit.compile`; it has been called.
            global_step: of the numbers, to see them grow.
        """
        found = function.explain(form="json").get("ranges", [])
        self._writer.add_text(tag, f"```\n{function.explain()}\n```", global_step)
        numbers = {
            "signatures": len(function.variants),
            "captures": function.captures,
            "programs": sum(len(capture["programs"]) for capture in found),
        }
        for name, number in numbers.items():
            self._writer.add_scalar(f"{tag}/{name}", number, global_step)


def _name(opr: OpNode, number: int) -> str:
    # A slash makes a box that opens; dots come from modules.
    return f"{(opr.name or opr.type).replace('.', '/')}_{number}"


__all__ = ["SummaryWriterExtend"]
