"""Graphs out of records: nodes, and the expressions that make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.base.errors import CheckpointError
from treadle.interop.megengine.pickled import calls
from treadle.interop.megengine.pickled.values import Values
from treadle.module.module import Module
from treadle.serialization.pickle_machine import Malformed, Record, kind
from treadle.tensor import Tensor
from treadle.traced_module import expr as exprs
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.node import ModuleNode, Node, TensorNode
from treadle.traced_module.pytree import tree_flatten

Refuse = Callable[[str, str], CheckpointError]


class Graphs:
    """Makes the graphs of one file.

    Args:
        values: makes constants of calls.
        refuse: makes the error for what a graph holds and the program does not know.
    """

    def __init__(self, values: Values, refuse: Refuse) -> None:
        self._values = values
        self._refuse = refuse

    def graph(self, record: Any, arguments: Any, results: Any, where: str) -> InternalGraph:
        """The graph of a record.

        Args:
            record: the graph.
            arguments: the tree of its module's arguments.
            results: the tree of what it returns.
            where: the module's path, for messages.

        Raises:
            CheckpointError: it holds an op, function or layer that this program does not know.
            Malformed: it is no graph, or uses nodes that nothing made before.
        """
        state = _state(record, "InternalGraph", where)
        qualname = state.get("_qualname", state.get("_module_name"))
        graph = InternalGraph(_text(state["_name"] or "", where), _text(qualname or "", where))
        made = _Nodes(graph, self._values, where)
        for node in state["_inputs"]:
            graph._adopt(made.of_input(node).expr)
        inputs = [made.used(node, "an input") for node in state["_inputs"]]
        for each in state["_exprs"]:
            for found in _Step(each, made, self._values, self._refuse).made():
                graph._adopt(found)
                graph._exprs.append(found)
        outputs = [made.used(node, "what it returns") for node in state["_outputs"]]
        graph._inputs, graph.arg_def = self._tree(arguments, inputs, where)
        graph._outputs, graph.out_def = self._tree(results, outputs, where)
        return graph

    def _tree(self, tree: Any, nodes: list[Node], where: str) -> tuple[list[Node], Any]:
        given = iter(nodes)
        leaves = []
        for leaf in self._values.leaves(tree):
            is_constant, value = self._values.constant(leaf, where)
            leaves.append(value if is_constant else next(given, None))
        if next(given, None) is not None:
            raise Malformed(f"the graph of {where} has more nodes than its arguments")
        return tree_flatten(self._values.nested(tree, leaves, where), exprs.is_node)


class _Nodes:
    """The nodes of one graph by their records."""

    def __init__(self, graph: InternalGraph, values: Values, where: str) -> None:
        self.graph = graph
        self.where = where
        self._values = values
        self._made: dict[int, Node] = {}

    def of_input(self, record: Any) -> Node:
        """Make the node of an input."""
        node = self.new(record, None)
        maker = record.state["expr"]
        exprs.Input(node)
        node.expr._id = _state(maker, "Input", self.where)["_id"]
        node.expr.top_graph = self.graph
        return node

    def new(self, record: Any, maker: Any) -> Node:
        """Make a node that an expression makes."""
        state = _state(record, "", self.where)
        if record.label not in ("TensorNode", "ModuleNode"):
            raise Malformed(f"a node of {self.where} is a {record.label}")
        if id(record) in self._made:
            raise Malformed(f"node {state['_name']} of {self.where} is made twice")
        name, number = state["_name"], state["_id"]
        if not isinstance(name, str | None) or type(number) is not int:
            raise Malformed(f"a node of {self.where} has no name")
        qualname = self._qualname(state, maker)
        if record.label == "ModuleNode":
            node: Node = ModuleNode(maker, name, qualname)
        else:
            value: Callable[[str], Any] = lambda key: self._values.plain(  # noqa: E731
                state.get(key), f"node {name}"
            )
            device = self._values.device(state.get("_device"))
            node = TensorNode(maker, name, qualname, value("_shape"), value("_dtype"))
            vars(node)["qparams"] = value("_qparams")
            vars(node)["device"] = None if device is None else device.logical_name
        node._id, node._graph = number, self.graph
        self._made[id(record)] = node
        return node

    def _qualname(self, state: dict[str, Any], maker: Any) -> str:
        """The path of a node; until 1.7 the last part of most is the name."""
        if "_qualname" in state:
            return _text(state["_qualname"] or "", self.where)
        path, dot, last = _text(state.get("_orig_name") or "", self.where).rpartition(".")
        plain = maker is None or isinstance(maker, exprs.GetAttr)
        return f"{path}{dot}{last}" if plain or not last else f"{path}{dot}[{last}]"

    def used(self, record: Any, user: str) -> Node:
        """The node of a record that something uses."""
        found = self._made.get(id(record))
        if found is None:
            name = record.state["_name"] if isinstance(record, Record) else kind(record)
            raise Malformed(
                f"in the graph of {self.where}, {user} uses node {name}, which nothing makes before"
            )
        return found


class _Step:
    """One expression being made."""

    def __init__(self, record: Any, nodes: _Nodes, values: Values, refuse: Refuse) -> None:
        self._state = _state(record, "", nodes.where)
        self._kind = record.label
        self._nodes = nodes
        self._values = values
        self._refuse = refuse
        outputs = self._state["outputs"] or ()
        names = [str(_state(node, "", nodes.where)["_name"]) for node in outputs]
        target = f" for node {', '.join(names)}" if names else ""
        self._where = f"{self._kind} {self._what()}{target} of {nodes.where}"

    def _what(self) -> str:
        state = self._state
        if self._kind == "Apply":
            return str(self._definition()[0])
        found = state.get("func", state.get("method", state.get("name")))
        return ".".join(map(str, found)) if isinstance(found, tuple) else str(found)

    def made(self) -> list[exprs.Expr]:
        """The expression, with the nodes it makes; two where one does not do what it did."""
        makers = {
            "Apply": self._apply,
            "CallFunction": self._function,
            "CallMethod": self._method,
            "Constant": self._constant,
            "GetAttr": self._attribute,
        }
        if self._kind not in makers:
            raise Malformed(f"{self._where} is no expression")
        inputs = [self._nodes.used(node, self._where) for node in self._state["inputs"]]
        made = makers[self._kind](inputs)
        made._id = self._state["_id"]
        made._disable_remove |= self._state.get("_disable_remove") is True
        if "version" in self._state:
            made.version = _text(self._state["version"], self._where)
        else:
            del made.version  # as in MegEngine, whose loaders ask for it
        return self._cast(made)

    def _cast(self, made: exprs.Expr) -> list[exprs.Expr]:
        """Cast the squares of earlier versions."""
        node = made.inputs[0] if made.inputs else None
        name = self._what().rpartition(".")[2]
        if not isinstance(made, exprs.CallFunction) or not isinstance(node, TensorNode):
            return [made]
        if not calls.casts_squares(name, self._version()) or node.dtype in (None, "float32"):
            return [made]
        (result,) = made.outputs
        square = TensorNode(made, f"{result.name}_square", result.qualname, node.shape, node.dtype)
        made.return_val = square
        cast = exprs.CallMethod(square, "astype")
        cast.set_args_kwargs(square, "float32")
        cast.return_val = result
        return [made, cast]

    def _outputs(self, made: exprs.Expr) -> list[Node]:
        return [self._nodes.new(node, made) for node in self._state["outputs"] or ()]

    def _returns(self, made: exprs.Expr) -> exprs.Expr:
        """Hang the outputs of a call on the tree of what it returns."""
        nodes, tree = self._outputs(made), self._state.get("out_def")
        if nodes or tree is not None:
            if not isinstance(tree, Record):
                raise Malformed(f"what {self._where} returns is a {kind(tree)}")
            made.return_val = self._values.nested(tree, nodes, self._where)
        return made

    def _arguments(self, inputs: list[Node]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves: list[Any] = list(inputs)
        for index, value in self._state["const_val"]:
            leaves.insert(index, self._values.plain(value, self._where))
        found = self._values.nested(self._state["arg_def"], leaves, self._where)
        match found:
            case (tuple(args), dict(kwargs)) if all(type(key) is str for key in kwargs):
                return args, kwargs
        raise Malformed(f"the arguments of {self._where} are malformed")

    def _version(self) -> str | None:
        return self._state.get("version")

    # -- kinds -----------------------------------------------------------------------------

    def _attribute(self, inputs: list[Node]) -> exprs.Expr:
        (module,) = inputs
        name = _text(self._state["name"], self._where)
        if not isinstance(module, ModuleNode) or not all(
            part and not part.startswith("__") for part in name.split(".")
        ):
            raise Malformed(f"{self._where} is not the attribute of a module")
        made = exprs.GetAttr(module, name)
        (made.return_val,) = self._outputs(made)
        return made

    def _constant(self, inputs: list[Node]) -> exprs.Expr:
        value = self._state["value"]
        if isinstance(value, Record):
            value = self._values.plain(value, self._where)
        if not isinstance(value, Tensor | Module):
            raise Malformed(f"{self._where} is a {kind(value)}")
        made = exprs.Constant(value)
        (made.return_val,) = self._outputs(made)
        # As there: what a run changes in place is not what the next one begins with.
        made.fresh = isinstance(value, Tensor)
        return made

    def _method(self, inputs: list[Node]) -> exprs.Expr:
        args, kwargs = self._arguments(inputs)
        method = _text(self._state["method"], self._where)
        if args[:1] and isinstance(args[0], type):
            if method != "__new__" or not issubclass(args[0], Tensor):
                raise self._refuse(self._where, "methods of tensors and modules are called")
            made: exprs.Expr = exprs.CallFunction(Tensor)
            made.set_args_kwargs(*args[1:], **kwargs)
            return self._returns(made)
        if not args or not isinstance(args[0], Node):
            raise Malformed(f"{self._where} has nothing that it is called on")
        if isinstance(args[0], TensorNode) and not calls.is_method(method):
            raise self._refuse(self._where, "tensors have no such method; edit the file's graph")
        if isinstance(args[0], ModuleNode) and method != "__call__":
            raise self._refuse(self._where, "modules are called, and nothing else of them")
        made = exprs.CallMethod(args[0], method)
        made.set_args_kwargs(*args, **kwargs)
        return self._returns(made)

    def _function(self, inputs: list[Node]) -> exprs.Expr:
        named = self._state["func"]
        home, name = named if isinstance(named, tuple) else named.name.rsplit(".", 1)
        func = calls.function(str(home), str(name))
        if func is None:
            raise self._refuse(self._where, "import the code that calls wrap for it, then load")
        given = self._arguments(inputs)
        args, kwargs = calls.adapted(func, str(name), given, self._version(), self._where)
        made = exprs.CallFunction(func)
        made.set_args_kwargs(*args, **kwargs)
        return self._returns(made)

    def _definition(self) -> tuple[str, dict[str, Any]]:
        """The name of an op, and its parameters; 1.6 wrote them otherwise."""
        state = self._state.get("opdef_state", self._state.get("opdef"))
        if type(state) is not dict:
            raise Malformed(f"an op of {self._nodes.where} is malformed")
        found = dict(state)
        named = found.pop("opdef_type", None) or found.pop("type", None)
        return str(getattr(named, "name", named)).rpartition(".")[2], found

    def _apply(self, inputs: list[Node]) -> exprs.Expr:
        name, state = self._definition()
        cls = calls.definition(name)
        if cls is None:
            raise self._refuse(self._where, "call a function of megengine.functional instead")
        plain = {key: self._values.plain(value, self._where) for key, value in state.items()}
        made = exprs.Apply(calls.made(cls, plain, self._where))
        made.set_args_kwargs(*inputs)
        made.return_val = tuple(self._outputs(made))
        return made


def _state(record: Any, label: str, where: str) -> dict[str, Any]:
    """The state of a record; of a class, where one is given."""
    if not isinstance(record, Record) or (label and record.label != label):
        raise Malformed(f"in {where}, a {kind(record)} stands where a {label or 'node'} belongs")
    if type(record.state) is not dict:
        raise Malformed(f"a {record.label} of {where} has no state")
    return record.state


def _text(value: Any, where: str) -> str:
    if type(value) is not str:
        raise Malformed(f"a name in {where} is a {kind(value)}")
    return value
