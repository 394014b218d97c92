"""`TracedModule`: a module that runs graphs in place of the `forward` it was traced from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.base.errors import EditError, TraceError
from treadle.base.saved_objects import refuse
from treadle.module.module import Module
from treadle.tensor import Tensor
from treadle.traced_module import flattening, order, probe, serialization
from treadle.traced_module.argspec import ArgSpec
from treadle.traced_module.expr import CallMethod
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.node import Node
from treadle.traced_module.pytree import TreeDef, tree_flatten

__all__ = ["InternalGraph", "TracedModule"]


@refuse  # `codec` reads them
class TracedModule(Module):
    """A module whose `forward` is a graph that can be read and edited.

    `trace_module` makes it. Its attributes are the sub-modules, parameters and buffers that the
    graph uses, under the names they had. Sub-modules that are built in stay what they were, so
    that `train()`, `eval()` and quantization reach them; others are traced modules themselves.

    It is copied by `copy.deepcopy`, saved by `treadle.save` and read by `treadle.load`, which
    needs no source code of the module it was traced from.

    Attributes:
        argspec: how `forward` names its arguments; None where any are taken by position.
    """

    argspec: ArgSpec | None
    _watch: probe.RunRecord
    _source: str

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        vars(self).update(_graphs=[], _watch=probe.RunRecord(), argspec=None, _source="")

    # -- graphs ----------------------------------------------------------------------------

    @property
    def graph(self) -> InternalGraph:
        """The graph of a module that was called with one structure of arguments.

        Raises:
            EditError: it was called with several structures of arguments, or was never called.
        """
        graphs: list[InternalGraph] = vars(self)["_graphs"]
        if len(graphs) != 1:
            raise EditError(
                f"TracedModule {self._source}",
                f"it has {len(graphs)} graphs, one for each structure of arguments",
                hint="choose one from argdef_graph_map",
            )
        return graphs[0]

    @property
    def argdef_graph_map(self) -> dict[TreeDef, InternalGraph]:
        """Graphs by the structure of arguments, the module itself being the first of these."""
        return {graph.arg_def: graph for graph in reversed(vars(self)["_graphs"])}

    @property
    def argdef_outdef_map(self) -> dict[TreeDef, TreeDef]:
        """Structures of results by the structure of arguments."""
        return {graph.arg_def: graph.out_def for graph in reversed(vars(self)["_graphs"])}

    def find_graph(self, arg_def: TreeDef, variant: int = 0) -> InternalGraph | None:
        """The graph for a structure of arguments; None if there is none."""
        for graph in vars(self)["_graphs"]:
            if graph.variant == variant and graph.arg_def == arg_def:
                found: InternalGraph = graph
                return found
        return None

    def add_graph(self, graph: InternalGraph) -> None:
        """Add a graph for another structure of arguments."""
        vars(self)["_graphs"].append(graph)
        graph.owner = self

    def attach(self) -> None:
        """Set the graphs' owner and who calls them, after making or copying a module."""
        for graph in vars(self)["_graphs"]:
            graph.owner = self
            for expr in graph._exprs:
                called = expr.graph if isinstance(expr, CallMethod) else None
                if called is not None and called is not graph:
                    called.top_graph = graph

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_watch": probe.RunRecord()}  # copies have nodes of their own

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.attach()
        for graph in vars(self)["_graphs"]:
            if graph._is_read:  # out of a pickle, and not a copy
                graph._is_read = False
                serialization.upgrade(graph)
                order.renumber_doubles(graph)

    @property
    def is_qat(self) -> bool:
        """True if it was traced from a layer for training that knows it will be quantized.

        `flatten()` keeps such layers, so that converters find their quantizers.
        """
        kinds = ("observer", "fake_quant")
        return any(f"{part}_{k}" in vars(self) for part in ("act", "weight") for k in kinds)

    # -- running ---------------------------------------------------------------------------

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the graph for these arguments.

        Raises:
            TraceError: the arguments have another structure than those it was traced with.
            EditError: the graph was edited into one that cannot run.
        """
        args: tuple[Any, ...] = inputs
        if self.argspec is not None:
            args, kwargs = self.argspec.bind(self._label(), inputs, kwargs)
        graph, values = self._select(args, kwargs)
        if not self._watch.nodes and not self._watch.ends:
            return graph.out_def.unflatten(graph.interpret(*values))
        return self._watched_run(graph, values)

    def call_variant(self, variant: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a further graph for a structure of arguments that has several."""
        values, tree = tree_flatten(((self, *args), dict(kwargs)), self._is_value)
        graph = self.find_graph(tree, variant)
        if graph is None:
            raise EditError(self._label(), f"graph {variant} for these arguments is gone")
        return graph.out_def.unflatten(graph.interpret(*values))

    def _is_value(self, leaf: Any) -> bool:
        return isinstance(leaf, Tensor) or leaf is self

    def _select(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[InternalGraph, list[Any]]:
        call = ((self, *args), dict(kwargs))
        for graph in vars(self)["_graphs"]:
            values = graph.arg_def.extract(call, strict=True)
            if values is not None and graph.variant == 0:
                return graph, values
        _, tree = tree_flatten(call, self._is_value)
        known = "; ".join(repr(graph.arg_def) for graph in vars(self)["_graphs"][:4])
        raise TraceError(
            self._label(),
            "called with arguments of another structure than it was traced with",
            saw=f"{tree!r}, traced with {known or 'none'}, * standing for tensors and the module",
            hint="pass tensors where tensors were traced, and the same plain values; or trace anew",
        )

    def _label(self) -> str:
        return f"TracedModule {self._source}".strip()

    # -- watching --------------------------------------------------------------------------

    @property
    def watch_node_value(self) -> dict[Node, Any]:
        """Values of the watched nodes in the last run; None for one that it did not reach."""
        return self._watch.values

    def set_watch_points(self, nodes: Node | Sequence[Node]) -> None:
        """Keep the values of some nodes, of sub-graphs too, in `watch_node_value` at each run.

        Raises:
            EditError: something is not a node of this module's graphs.
        """
        self._watch.nodes, self._watch.values = self._nodes(nodes), {}

    def clear_watch_points(self) -> None:
        """Drop the values that are kept, and keep none from now on."""
        self._watch.nodes, self._watch.values = (), {}

    def set_end_points(self, nodes: Node | Sequence[Node]) -> None:
        """Run until some nodes have values, and return these as a list.

        Raises:
            EditError: something is not a node of this module's graphs.
        """
        self._watch.ends = self._nodes(nodes)

    def clear_end_points(self) -> None:
        """Run to the end again from now on."""
        self._watch.ends = ()

    def _nodes(self, given: Node | Sequence[Node]) -> tuple[Node, ...]:
        nodes = (given,) if isinstance(given, Node) else tuple(given)
        own = {node for graph in vars(self)["_graphs"] for node in graph.nodes()}
        for node in nodes:
            if node not in own:
                raise EditError(self._label(), f"{node!r} is not a node of its graphs")
        return nodes

    def _watched_run(self, graph: InternalGraph, values: list[Any]) -> Any:
        watch = self._watch
        seen = probe.Probe(watch.nodes, watch.ends)
        outputs: list[Any] = []
        try:
            with probe.watching(seen):
                outputs = graph.interpret(*values)
        except probe.EndReached:
            pass
        watch.values = {node: seen.values.get(node) for node in watch.nodes}
        for node, value in watch.values.items():
            vars(node)["_value"] = value
        if not watch.ends:
            return graph.out_def.unflatten(outputs)
        missing = [node.name for node in watch.ends if node not in seen.values]
        if missing:
            raise EditError(self._label(), f"the run does not reach {', '.join(missing)}")
        return [seen.values[node] for node in watch.ends]

    # -- whole module ----------------------------------------------------------------------

    def flatten(self) -> TracedModule:
        """A copy, parameters included, whose graph calls no traced module: all are inlined.

        Built-in modules stay calls, and so do layers for quantization; names of inlined nodes start
        with the sub-module's.
        """
        made: TracedModule = flattening.flatten(self)
        return made

    def _module_info_string(self) -> str:
        return self._source
