"""Traced modules as plain containers and tensors, which `treadle.save` writes, and back.

What comes back is made of closed tables: expressions and nodes of this package, functions and ops
of Treadle, layers of Treadle, and what the program itself has registered. A file names things in
these tables and nothing else, so reading one runs no code of its author.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treadle.base.errors import CheckpointError
from treadle.base.version import VERSION
from treadle.module.module import Module
from treadle.serialization.forms import register_form
from treadle.traced_module import catalog, expr, node, order, serialization
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.plain import PlainReader, PlainWriter
from treadle.traced_module.traced_module import TracedModule

KIND = "traced_module"
_FORMAT = 1
_NODES: dict[str, type[node.Node]] = {
    cls.__name__: cls for cls in (node.ModuleNode, node.TensorNode)
}
_EXPRS: dict[str, type[expr.Expr]] = {
    cls.__name__: cls
    for cls in (
        expr.Input,
        expr.GetAttr,
        expr.SetAttr,
        expr.Constant,
        expr.CallMethod,
        expr.CallFunction,
        expr.Apply,
    )
}
_NODE_FIELDS = frozenset({"_id", "_name", "qualname", "shape", "dtype", "qparams", "device"})
_EXPR_FIELDS = frozenset(
    {
        *("arg_def", "out_def", "version", "_disable_remove", "_id"),
        *("name", "value", "fresh", "method", "variant", "func", "opdef"),
    }
)
_KEPT = ("name", "training", "quantize_disabled", "argspec", "_source")
_DROPPED = frozenset({"_graphs", "_watch", "_modules", "_forward_hooks", "_forward_pre_hooks"})


class _Saver:
    """Writes a tree of modules as a table; modules refer to those before them by number."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self._index: dict[int, int] = {}
        self._writer = PlainWriter(self._module)

    def _module(self, module: Module) -> int:
        found = self._index.get(id(module))
        if found is None:
            if isinstance(module, TracedModule):
                record = self._traced(module)
            else:
                record = self._builtin(module)
            found = self._index[id(module)] = len(self.records)
            self.records.append(record)
        return found

    def _builtin(self, module: Module) -> Any:
        name = catalog.class_name(type(module))
        if catalog.class_named(name) is not type(module):
            raise TypeError(
                f"save: a traced module holds a {name}, which cannot be named in a file\n"
                "  hint: register the class with register_as_builtin, or trace through it"
            )
        return ["builtin", name, self._attributes(module)]

    def _traced(self, module: TracedModule) -> Any:
        own = {key: self._writer.value(vars(module)[key]) for key in _KEPT}
        graphs = [self._graph(graph) for graph in vars(module)["_graphs"]]
        return ["traced", own, self._attributes(module), graphs]

    def _attributes(self, module: Module) -> Any:
        skipped = _DROPPED if not isinstance(module, TracedModule) else {*_DROPPED, *_KEPT}
        held = {key: value for key, value in vars(module).items() if key not in skipped}
        return {key: self._writer.value(value) for key, value in held.items()}

    def _graph(self, graph: InternalGraph) -> Any:
        flat = order.flat(graph)
        write = self._writer.value
        return {
            "fields": {key: write(value) for key, value in flat["fields"].items()},
            "nodes": [
                [cls.__name__, {k: write(v) for k, v in fields.items() if k in _NODE_FIELDS}]
                for cls, fields in flat["nodes"]
            ],
            "exprs": [
                [cls.__name__, {k: write(v) for k, v in fields.items()}, inputs, outputs]
                for cls, fields, inputs, outputs in flat["exprs"]
            ],
            "inputs": flat["inputs"],
            "outputs": flat["outputs"],
        }


def to_plain(module: TracedModule) -> dict[str, Any]:
    """A traced module as dicts, lists, plain values and tensors.

    Raises:
        TypeError: it holds a value, function or class that cannot be named in a file.
        EditError: one of its graphs was edited into one that cannot run.
    """
    saver = _Saver()
    root = saver._module(module)
    return {
        "format": _FORMAT,
        "producer": VERSION,
        # First, so that other readers of the file find tensors under the names they have.
        "state": dict(module.named_tensors()),
        "root": root,
        "modules": saver.records,
    }


class _Loader:
    """Makes the modules of a table."""

    def __init__(self, producer: str) -> None:
        self._modules: list[Module] = []
        self._producer = producer
        self._reader = PlainReader(self._modules)
        self._methods = {"__call__", *catalog.methods()}

    def load(self, records: list[Any], root: int) -> Module:
        for record in records:
            makers: dict[str, Callable[..., Module]] = {
                "builtin": self._builtin,
                "traced": self._traced,
            }
            make = makers[record[0]]
            self._modules.append(make(*record[1:]))
        return self._modules[root]

    def _builtin(self, name: str, attributes: Mapping[str, Any]) -> Module:
        cls = catalog.class_named(name)
        if cls is None or not issubclass(cls, Module):
            raise CheckpointError(
                "load",
                f"the traced module holds a {name}, which this program does not know",
                hint="import the code that calls register_as_builtin for it, then load",
            )
        made: Module = cls.__new__(cls)
        Module.__init__(made)
        self._set(made, attributes)
        return made

    def _set(self, made: Module, attributes: Mapping[str, Any]) -> None:
        for key, value in attributes.items():
            if key in _DROPPED:
                raise ValueError(f"attribute {key!r} is not one a file may set")
            held = vars(made)[key] = self._reader.value(value)
            made._note(key, held)

    def _traced(
        self, own: Mapping[str, Any], attributes: Mapping[str, Any], graphs: list[Any]
    ) -> Module:
        made = TracedModule()
        for key in _KEPT:
            vars(made)[key] = self._reader.value(own[key])
        self._set(made, attributes)
        for state in graphs:
            made.add_graph(self._graph(state))
        made.attach()
        for graph in vars(made)["_graphs"]:
            serialization.upgrade(graph)
            order.renumber_doubles(graph)
            order.check(graph)
        return made

    def _graph(self, state: Mapping[str, Any]) -> InternalGraph:
        read = self._reader.value
        fields = {key: read(value) for key, value in state["fields"].items()}
        if fields.keys() != set(order.GRAPH_FIELDS):
            raise ValueError("a graph lacks a field")
        graph = InternalGraph()
        order.unflatten_into(
            graph,
            {
                "fields": fields,
                "nodes": [(_NODES[cls], self._node(values)) for cls, values in state["nodes"]],
                "exprs": [self._expr(*each) for each in state["exprs"]],
                "inputs": state["inputs"],
                "outputs": state["outputs"],
            },
        )
        return graph

    def _node(self, values: Mapping[str, Any]) -> dict[str, Any]:
        if not values.keys() <= _NODE_FIELDS:
            raise ValueError("a node has an unknown field")
        return {"_value": None, **{key: self._reader.value(v) for key, v in values.items()}}

    def _expr(
        self, cls: str, values: Mapping[str, Any], inputs: list[int], outputs: list[int]
    ) -> tuple[Any, ...]:
        if not values.keys() <= _EXPR_FIELDS:
            raise ValueError("an expression has an unknown field")
        fields = {key: self._reader.value(value) for key, value in values.items()}
        fields["version"] = self._producer
        method = fields.get("method", "__call__")
        if method not in self._methods and method.startswith("_"):
            raise ValueError(f"method {method!r} is not one a file may call")
        if min([0, *inputs, *outputs]) < 0:
            raise ValueError("a node has a negative number")
        return _EXPRS[cls], fields, inputs, outputs


def from_plain(plain: Any) -> TracedModule:
    """The traced module that `to_plain` wrote.

    Raises:
        CheckpointError: it uses functions or classes this program does not know, or is of a newer
            format.
        KeyError, ValueError, TypeError, IndexError: it was not written by `to_plain`.
    """
    try:
        return _from_plain(plain)
    except AttributeError as error:
        raise ValueError(f"a traced module is malformed: {error}") from None


def _from_plain(plain: Any) -> TracedModule:
    if plain["format"] != _FORMAT:
        raise CheckpointError(
            "load",
            f"traced modules of format {plain['format']} are not known",
            hint=f"upgrade Treadle; this one reads format {_FORMAT}",
        )
    made = _Loader(str(plain["producer"])).load(plain["modules"], plain["root"])
    if not isinstance(made, TracedModule):
        raise ValueError("the outermost module is not traced")
    return made


register_form(TracedModule, KIND, to_plain)

__all__ = ["KIND", "from_plain", "to_plain"]
