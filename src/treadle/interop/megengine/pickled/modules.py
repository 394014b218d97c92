"""Traced modules and layers out of records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.base.errors import CheckpointError
from treadle.base.files.source import SizedStream
from treadle.interop.megengine.pickled import layers
from treadle.interop.megengine.pickled.graphs import Graphs
from treadle.interop.megengine.pickled.values import Values
from treadle.module.module import Module
from treadle.serialization.pickle_machine import Malformed, Record, kind
from treadle.serialization.pickled_tensors import Tensors
from treadle.tensor import Tensor
from treadle.traced_module import order, serialization
from treadle.traced_module.argspec import ArgSpec, Parameter
from treadle.traced_module.traced_module import TracedModule

_OWN = frozenset(
    {
        *("_modules", "_forward_hooks", "_forward_pre_hooks", "name", "_name", "_short_name"),
        *("argdef_graph_map", "argdef_outdef_map", "argspec", "dump_info", "is_qat", "_is_top"),
        *("watch_points", "watch_node_value", "end_points", "_m_dump_modulestate"),
    }
)
_DEPTH = 60


class Modules:
    """Makes the modules of one file, each once.

    Args:
        source: the file, for messages.
        tensors: makes its tensors and arrays.
    """

    def __init__(self, source: SizedStream, tensors: Tensors) -> None:
        self._source = source
        self._tensors = tensors
        self._made: dict[int, Module | None] = {}
        self._depth = 0
        self._values = Values(tensors, self.module)
        self._graphs = Graphs(self._values, self._refused)
        self._traced_ones: list[TracedModule] = []

    def root(self, record: Record) -> Module:
        """The module of a record that stands in no other; loaders have seen its expressions."""
        first = len(self._traced_ones)
        made = self.module(record, record.label)
        for traced in self._traced_ones[first:]:
            traced.attach()
        for traced in self._traced_ones[first:]:
            for graph in vars(traced)["_graphs"]:
                serialization.upgrade(graph)
                order.check(graph)
        for graph in vars(made)["_graphs"] if isinstance(made, TracedModule) else ():
            graph._reset_ids()
        return made

    def module(self, record: Record, where: str) -> Module:
        """The module of a record.

        Raises:
            CheckpointError: it is of a class that this program does not know.
            Malformed: it contains itself, or lacks what such a module has.
        """
        if id(record) in self._made:
            found = self._made[id(record)]
            if found is None:
                raise Malformed(f"{where} contains itself")
            return found
        if type(record.state) is not dict:
            raise Malformed(f"{where} is a {record.label}, which is no module")
        self._made[id(record)] = None
        self._depth += 1
        if self._depth > _DEPTH:
            raise Malformed(f"{where} nests deeper than {_DEPTH} modules")
        made = self._made[id(record)] = self._module(record, where)
        self._depth -= 1
        return made

    def _module(self, record: Record, where: str) -> Module:
        state = record.state
        if record.label == "TracedModule":
            return self._traced(state, where)
        if record.label == "_ModuleState":
            home, name = state["module"]
            return self._layer(str(home), str(name), state["state"], where)
        return self._layer(record.home, record.label, state, where)

    def _layer(self, home: str, name: str, state: Mapping[str, Any], where: str) -> Module:
        cls = layers.class_of(home, name)
        if cls is None or not issubclass(cls, Module):
            raise self._refused(
                f"{where} is a {home}.{name}",
                "import the code that calls register_as_builtin for it, then load",
            )
        _check_hooks(state, where)
        made: Module = cls.__new__(cls)
        Module.__init__(made)
        attributes = layers.adapted(home, name, dict(state))
        if not layers.is_recurrent(cls):
            self._set(made, attributes, where)
            return made
        weights = self._values.plain(attributes.pop("_flatten_weights"), where)
        self._set(made, attributes, where)
        self._tensors.meter.copy(getattr(weights, "nbytes", 0))
        layers.fill_cells(made, weights, where)
        return made

    def _set(self, made: Module, attributes: Mapping[str, Any], where: str) -> None:
        for key, value in attributes.items():
            if type(key) is not str:
                raise Malformed(f"an attribute of {where} is named by a {kind(key)}")
            held = vars(made)[key] = self._values.plain(value, f"{where}.{key}")
            made._note(key, held)

    def _traced(self, state: Mapping[str, Any], where: str) -> TracedModule:
        _check_hooks(state, where)
        made = TracedModule()
        self._traced_ones.append(made)
        vars(made)["argspec"] = self._argspec(state.get("argspec"), where)
        self._set(made, {k: v for k, v in state.items() if k not in _OWN}, where)
        results = list((state["argdef_outdef_map"] or {}).items())
        for number, (tree, graph) in enumerate((state["argdef_graph_map"] or {}).items()):
            if graph is None:
                continue
            found = [result for key, result in results if key is tree] or [results[number][1]]
            made.add_graph(self._graphs.graph(graph, tree, found[0], where))
        for graph in vars(made)["_graphs"][:1]:
            vars(made)["_source"] = graph.qualname
        return made

    def _argspec(self, record: Any, where: str) -> ArgSpec | None:
        """The arguments of `forward` as `inspect.getfullargspec` gave them, with `self` first."""
        if record is None:
            return None
        if not isinstance(record, Record) or record.label != "FullArgSpec":
            raise Malformed(f"the arguments of {where} are a {kind(record)}")
        args, rest, named, defaults, only, only_defaults, _ = record.arguments
        plain = self._values.plain(tuple(defaults or ()), f"the defaults of {where}")
        first = len(args) - len(plain)
        found = [
            Parameter(name, 1, i >= first, plain[i - first] if i >= first else None)
            for i, name in enumerate(args)
        ][1:]
        found += [] if rest is None else [Parameter(rest, 2)]
        given = self._values.plain(dict(only_defaults or {}), f"the defaults of {where}")
        found += [Parameter(name, 3, name in given, given.get(name)) for name in only]
        found += [] if named is None else [Parameter(named, 4)]
        made = ArgSpec(tuple(found))
        if not all(type(p.name) is str and p.name.isidentifier() for p in found):
            raise Malformed(f"the arguments of {where} have no names")
        _ = made.signature
        return made

    def _refused(self, what: str, hint: str) -> CheckpointError:
        problem = f"the traced module holds what this program does not know: {what}"
        return self._source.error(problem, hint=hint)


def _check_hooks(state: Mapping[str, Any], where: str) -> None:
    if state.get("_forward_hooks") or state.get("_forward_pre_hooks"):
        raise Malformed(f"{where} has hooks, which are code")


__all__ = ["Modules", "Tensor"]
