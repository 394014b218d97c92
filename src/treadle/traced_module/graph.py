"""`InternalGraph`: the steps of one module's `forward`, to look through, edit and run."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from treadle.base.errors import EditError
from treadle.traced_module import order, probe
from treadle.traced_module.expr import CallMethod, Expr, Input, check_replacement, is_node
from treadle.traced_module.filters import ExprFilter, NodeFilter
from treadle.traced_module.node import Node, TensorNode
from treadle.traced_module.pytree import NODE_LEAF, TreeDef, tree_flatten
from treadle.traced_module.recording import OPENER


class InternalGraph:
    """A module's computation as a list of expressions.

    Made by `trace_module`. A traced module has one for each structure of arguments it was called
    with. Expressions stand in the order they run; inputs are the module itself, then the
    arguments, one node for each tensor in them.

    Attributes:
        qualname: the dotted path of the module from the traced one.
        owner: the traced module whose graph this is.
        top_graph: the graph that calls this one; None for the outermost.
    """

    _is_read = False

    def __init__(self, name: str = "", qualname: str = "") -> None:
        self._name = name
        self.qualname = qualname
        self.owner: Any = None
        self.top_graph: InternalGraph | None = None
        self.arg_def = TreeDef(tuple)
        self.out_def = TreeDef(tuple)
        self.variant = 0
        self._inputs: list[Node] = []
        self._outputs: list[Node] = []
        self._exprs: list[Expr] = []

    # -- what it is ------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Name of the graph, which stands before those of its nodes in searches."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    @property
    def inputs(self) -> list[Node]:
        """The module's own node, then one for each tensor among the arguments."""
        return self._inputs

    @property
    def outputs(self) -> list[Node]:
        """One node for each tensor in what the module returns."""
        return self._outputs

    @property
    def _total_ids(self) -> tuple[int, int]:
        """One more than the largest number of a node and of an expression, sub-graphs included."""
        nodes = [node._id for node in self.nodes()]
        exprs = [expr._id for expr in self.exprs()]
        return max(nodes, default=-1) + 1, max(exprs, default=-1) + 1

    @property
    def _namespace(self) -> SimpleNamespace:
        """Names that are taken, as MegEngine's programs ask for them."""
        return SimpleNamespace(used_names={node.name for node in self._all_nodes()})

    def _reset_ids(self) -> None:
        """Number nodes and expressions anew from 0, sub-graphs included."""
        for number, node in enumerate(self.nodes()):
            node._id = number
        for number, expr in enumerate(self.exprs()):
            expr._id = number

    def exprs(self, recursive: bool = True) -> ExprFilter:
        """The expressions, inputs first, in order; after a call those of the module called.

        Without `recursive` those of this graph alone.
        """
        return ExprFilter(lambda: self._walk(recursive, set()), "expressions")

    def nodes(self, recursive: bool = True) -> NodeFilter:
        """The nodes that expressions make, in the same order."""
        return NodeFilter(
            lambda: (node for expr in self._walk(recursive, set()) for node in expr.outputs),
            "nodes",
        )

    def _walk(self, recursive: bool, seen: set[int]) -> Iterator[Expr]:
        seen.add(id(self))
        for expr in list(self._all_exprs()):
            yield expr
            called = expr.graph if recursive and isinstance(expr, CallMethod) else None
            if called is not None and id(called) not in seen:
                yield from called._walk(recursive, seen)

    def _graphs(self) -> Iterator[InternalGraph]:
        """Iterate over this graph and those below it, each once."""
        return iter(dict.fromkeys([self, *(expr.top_graph for expr in self.exprs())]))

    def _all_exprs(self) -> Iterator[Expr]:
        yield from (node.expr for node in self._inputs)
        yield from self._exprs

    def _all_nodes(self) -> Iterator[Node]:
        for expr in self._all_exprs():
            yield from expr.outputs

    def _fresh(self, name: str) -> str:
        """A name that no node of the graph has, made of this one."""
        return fresh_name(name, self._namespace.used_names)

    # -- searching -------------------------------------------------------------------------

    def get_function_by_type(self, func: Any = None, recursive: bool = True) -> ExprFilter:
        """Calls of a function, such as `F.relu`; of any function for None."""
        return self.exprs(recursive).call_function(func)

    def get_method_by_type(self, method: str | None = None, recursive: bool = True) -> ExprFilter:
        """Calls of a method, such as `"__add__"`; of any method for None."""
        return self.exprs(recursive).call_method(method)

    def get_module_by_type(self, module_cls: type, recursive: bool = True) -> NodeFilter:
        """Nodes of modules of a class, such as `M.Conv2d`."""
        return self.nodes(recursive).type(module_cls)

    def get_expr_by_id(self, expr_id: int | Sequence[int], recursive: bool = True) -> ExprFilter:
        """Expressions by number."""
        return self.exprs(recursive).expr_id(*_ids(expr_id))

    def get_node_by_id(self, node_id: int | Sequence[int], recursive: bool = True) -> NodeFilter:
        """Nodes by number."""
        return self.nodes(recursive).node_id(*_ids(node_id))

    def get_node_by_name(
        self, name: str, ignorecase: bool = True, recursive: bool = True
    ) -> NodeFilter:
        """Nodes by name, with or without the graph's name and `_` before it; takes wildcards."""
        return self.nodes(recursive).name(name, ignorecase)

    def get_dep_exprs(self, nodes: Node | Iterable[Node]) -> list[Expr]:
        """The expressions of this graph that some nodes depend on, in order."""
        wanted = [nodes] if isinstance(nodes, Node) else list(nodes)
        needed = order.needed_for(wanted)
        return [expr for expr in self._exprs if id(expr) in needed]

    # -- editing ---------------------------------------------------------------------------

    def insert_exprs(self, expr: Expr | None = None) -> Any:
        """A context in which calls on nodes are recorded and inserted.

        Inside, functions of `treadle.functional`, operators and methods take nodes and return
        nodes, sub-modules are attributes of the module's node `graph.inputs[0]`, and tensors are
        constants.

        Args:
            expr: the expression to insert behind; as early as possible if left out.

        Raises:
            EditError: `expr` is in another graph, or a node is used before it is made.
        """
        if OPENER.open is None:
            raise EditError("insert_exprs", "nothing can record", hint="import traced_module")
        return OPENER.open(self, expr)

    def replace_node(self, repl_dict: Mapping[Node, Node]) -> None:
        """Replace nodes by others for all of their users; expressions move where that is needed.

        What the new node itself is made of goes on using the old one.

        Raises:
            EditError: a tensor is to be replaced by a module or the other way round, or a node is
                of another graph.
        """
        for old, new in dict(repl_dict).items():
            self._require_own(new)
            if old.top_graph is not self:  # It may have been an input until reset_inputs().
                self._require_own(old)
            check_replacement(old, new, self)
            needed = order.needed_for([new])
            for user in list(dict.fromkeys(old.users)):
                if id(user) not in needed:
                    user._take([new if node is old else node for node in user.inputs])
            self._outputs[:] = [new if node is old else node for node in self._outputs]
        self._exprs[:] = order.sorted_exprs(self)

    def _require_own(self, node: Node) -> None:
        if node not in self._inputs and node.expr not in self._exprs:
            raise EditError(
                f"node {node.name}",
                f"it is not in graph {self.name}",
                hint="ask node.top_graph for the graph to edit",
            )

    def compile(self) -> None:
        """Check the graph and delete the expressions that no output depends on.

        What changes tensors or attributes in place stays.

        Raises:
            EditError: a node is used that nothing makes, or that is made of its own user.
        """
        self._exprs[:] = order.sorted_exprs(self)
        keep = [expr for expr in self._exprs if expr._disable_remove]
        wanted = [*self._outputs, *(node for expr in keep for node in expr.inputs)]
        needed = order.needed_for(wanted) | {id(expr) for expr in keep}
        for expr in self._exprs:
            if id(expr) not in needed:
                expr._take([])
        self._exprs[:] = [expr for expr in self._exprs if id(expr) in needed]

    def reset_inputs(self, *args: Any, **kwargs: Any) -> list[Node]:
        """Give the graph other inputs, shaped like example arguments.

        Returns the new nodes; let `replace_node` put them in the places of the old ones.

        Raises:
            EditError: this is the graph of a sub-module, which others call.
        """
        self._require_top("reset_inputs")
        owner_node = self._inputs[0]
        leaves, self.arg_def = tree_flatten(((None, *args), kwargs))
        self.arg_def = with_owner(self.arg_def)
        self._inputs[:] = [owner_node]
        for name, leaf in zip(self.arg_def.paths(), (None, *leaves), strict=True):
            if leaf is not None:
                node = Input.make(self, self._fresh(f"arg{name}"), TensorNode)
                node.describe(leaf)
                self._inputs.append(node)
        self.owner.argspec = None
        return self._inputs[1:]

    def add_input_node(
        self, shape: Sequence[int], dtype: Any = "float32", name: str = "args"
    ) -> TensorNode:
        """Add a positional argument at the end, and return its node.

        Raises:
            EditError: this is the graph of a sub-module, which others call.
        """
        self._require_top("add_input_node")
        node: TensorNode = Input.make(self, self._fresh(name))
        node.shape, node.dtype = tuple(shape), dtype
        args, kwargs = self.arg_def.children
        more = TreeDef(tuple, None, (*args.children, NODE_LEAF))
        self.arg_def = TreeDef(tuple, None, (more, kwargs))
        # Positional arguments come before those by keyword.
        self._inputs.insert(args.num_leaves, node)
        if self.owner.argspec is not None:
            self.owner.argspec = self.owner.argspec.with_positional(node.name)
        return node

    def reset_outputs(self, outputs: Any) -> None:
        """Return other nodes, in the structure given: nodes, or lists, tuples, dicts of them.

        Raises:
            EditError: this is the graph of a sub-module, or a node is not in it.
        """
        self._require_top("reset_outputs")
        nodes, tree = tree_flatten(outputs, is_node)
        for node in nodes:
            self._require_own(node)
        self._outputs[:], self.out_def = nodes, tree

    def add_output_node(self, node: TensorNode) -> None:
        """Return one more node: a single result becomes a pair, a tuple gets one more item.

        Raises:
            EditError: this is the graph of a sub-module, or the node is not in it.
        """
        now = self.out_def.unflatten(self._outputs)
        self.reset_outputs((*now, node) if type(now) is tuple else (now, node))

    def _require_top(self, what: str) -> None:
        if self.top_graph is not None:
            raise EditError(
                what,
                f"graph {self.name} is called by graph {self.top_graph.name}",
                hint="edit the outermost graph, or call flatten() first",
            )

    # -- running ---------------------------------------------------------------------------

    def interpret(self, *inputs: Any) -> list[Any]:
        """Run the expressions.

        Args:
            inputs: the module, then a value for each further input node.

        Returns:
            A value for each output node.

        Raises:
            EditError: the graph was edited into one that cannot run.
        """
        if len(inputs) != len(self._inputs):
            raise EditError(
                f"graph {self.name}",
                f"takes {len(self._inputs) - 1} tensors, got {len(inputs) - 1}",
                hint="pass what input nodes stand for; see graph.inputs",
            )
        watch = probe.active()
        values = dict(zip(self._inputs, inputs, strict=True))
        if watch is not None:
            watch.see(values)
        last = order.last_uses(self)
        for expr in self._exprs:
            taken = [self._value(values, node, expr) for node in expr.inputs]
            made = dict(zip(expr.outputs, expr.interpret(*taken), strict=True))
            del taken
            values.update(made)
            if watch is not None:
                watch.see(made)
            for node in last.get(id(expr), ()):
                values.pop(node, None)
        return [self._value(values, node, None) for node in self._outputs]

    def _value(self, values: Mapping[Node, Any], node: Node, user: Expr | None) -> Any:
        if node in values:
            return values[node]
        order.check(self)
        raise EditError(
            f"graph {self.name}",
            f"node {node.name} has no value where {user or 'an output'} needs it",
            hint="call graph.compile() after editing",
        )

    def eval(self, *inputs: Any) -> list[Any]:
        """Run the expressions on a value for each input node but the module's own."""
        return self.interpret(self.owner, *inputs)

    # -- printing --------------------------------------------------------------------------

    def __repr__(self) -> str:
        inputs = ", ".join(map(repr, self._inputs))
        result = self.out_def.unflatten(self._outputs)
        lines = "".join(f"    {expr!r}\n" for expr in self._exprs)
        return f"{self.name}.Graph ({inputs}) {{\n{lines}    return {result!r}\n}}"

    def _adopt(self, expr: Expr) -> None:
        """Make an expression and its outputs part of this graph; not yet of its list."""
        expr.top_graph = self
        for node in expr.outputs:
            node._graph = self

    def __reduce__(self) -> Any:
        return _read, (self.__class__, order.flat(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> InternalGraph:
        return _restore(self.__class__, copy.deepcopy(order.flat(self), memo))


def _restore(cls: type[InternalGraph], state: dict[str, Any]) -> InternalGraph:
    graph = cls()
    order.unflatten_into(graph, state)
    return graph


def _read(cls: type[InternalGraph], state: dict[str, Any]) -> InternalGraph:
    graph = _restore(cls, state)
    graph._is_read = True
    return graph


def with_owner(tree: TreeDef) -> TreeDef:
    """The tree of ((module, arguments...), keywords) where it was made with None for module."""
    args, kwargs = tree.children
    return TreeDef(tuple, None, (TreeDef(tuple, None, (NODE_LEAF, *args.children[1:])), kwargs))


def fresh_name(name: str, taken: Iterable[str]) -> str:
    """A name that is not taken: this one, or with a number behind it."""
    known = taken if isinstance(taken, (set, dict)) else set(taken)
    if name not in known:
        return name
    count = 1
    while f"{name}_{count}" in known:
        count += 1
    return f"{name}_{count}"


def _ids(given: int | Sequence[int]) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)
