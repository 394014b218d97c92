"""Expressions: the steps of a graph. Each takes nodes, and constants, and makes nodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from treadle.base.errors import EditError, TraceError
from treadle.base.version import VERSION
from treadle.module.module import Module
from treadle.module.path import get_at, set_at
from treadle.ops.op import Op
from treadle.tensor import Tensor, wrap
from treadle.traced_module.node import ModuleNode, Node, TensorNode
from treadle.traced_module.pytree import TreeDef, tree_flatten

__version__ = VERSION
"""Version that new expressions say wrote them."""


def is_node(value: Any) -> bool:
    """Return whether a leaf of an expression's arguments is a node."""
    return isinstance(value, Node)


def is_value(value: Any) -> bool:
    """Return whether a leaf of a call's arguments is a value that nodes can stand for."""
    return isinstance(value, (Tensor, Module))


_VALUES = "graphs hold tensors, their methods, and modules, which are called"


class Expr:
    """A step of a graph.

    Attributes:
        inputs: the nodes it takes, in order.
        outputs: the nodes it makes.
        arg_def: the tree that inputs and constants hang on.
        out_def: the tree that its outputs hang on; None if it makes nothing.
        top_graph: the graph it is in.
        version: the version of Treadle that wrote it, on expressions read from a file.
    """

    _next: ClassVar[list[int]] = [0]

    def __init__(self) -> None:
        self.inputs: list[Node] = []
        self.outputs: list[Node] = []
        self.arg_def: TreeDef = TreeDef(tuple)
        self.out_def: TreeDef | None = None
        self.top_graph: Any = None
        self.version: str | None = __version__
        self._disable_remove = False
        self._id = self._next[0]
        self._next[0] += 1

    @classmethod
    def _get_next_id(cls) -> int:
        """The number the next expression gets."""
        return cls._next[0]

    @classmethod
    def _set_next_id(cls, id: int = 0) -> None:
        """Set the number the next expression gets."""
        cls._next[0] = id

    # -- arguments -------------------------------------------------------------------------

    def set_args_kwargs(self, *args: Any, **kwargs: Any) -> None:
        """Replace all arguments; nodes inside become the inputs.

        Raises:
            TraceError: an argument is of an unsupported type.
        """
        self._set((args, kwargs))

    def _set(self, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        leaves, self.arg_def = tree_flatten(arguments, is_node)
        self._take(leaves)

    def _take(self, nodes: Iterable[Node]) -> None:
        """Use other nodes, in the places of the ones before."""
        for node in self.inputs:
            if self in node.users:
                node.users.remove(self)
        self.inputs = list(nodes)
        for node in self.inputs:
            node.users.append(self)

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments, nodes and constants, in the structure they were given."""
        found: tuple[Any, ...] = self._arguments()[0]
        return found

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments, in the structure they were given."""
        found: dict[str, Any] = self._arguments()[1]
        return found

    def _arguments(self, values: Sequence[Any] | None = None) -> Any:
        """(args, kwargs) with nodes, or with values in place of them."""
        return self.arg_def.unflatten(self.inputs if values is None else values)

    def unflatten_args(self, inputs: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with other nodes, or values, in the places of the inputs."""
        found: tuple[tuple[Any, ...], dict[str, Any]] = self._arguments(list(inputs))
        return found

    def disable_remove(self) -> None:
        """Keep the expression in the graph, even if nothing uses what it makes."""
        self._disable_remove = True

    def enable_remove(self) -> None:
        """Drop the expression with the next `compile()` if nothing uses what it makes."""
        self._disable_remove = False

    def _signature(self) -> inspect.Signature | None:
        """Return the callee's signature, where that is known."""
        return None

    @property
    def named_args(self) -> dict[str, Any]:
        """Arguments by the names that the callee gives them, defaults included.

        Raises:
            EditError: the callee's names are not known.
        """
        bound = self._bound()
        bound.apply_defaults()
        return dict(bound.arguments)

    def _bound(self) -> inspect.BoundArguments:
        signature = self._signature()
        if signature is None:
            raise EditError(
                str(self), "its arguments have no names", hint="use args and set_args_kwargs"
            )
        return signature.bind(*self.args, **self.kwargs)

    def set_arg(self, name: str, val: Any) -> None:
        """Replace one argument, named as in `named_args`.

        Raises:
            EditError: the callee has no argument of that name.
        """
        bound = self._bound()
        signature = bound.signature
        if name not in signature.parameters:
            known = ", ".join(signature.parameters)
            raise EditError(str(self), f"there is no argument {name!r}", hint=f"there are {known}")
        bound.arguments[name] = val
        self._set((bound.args, bound.kwargs))

    def replace_inputs(self, repl_dict: Mapping[Node, Node]) -> None:
        """Use other nodes in place of some inputs.

        Raises:
            EditError: a node is replaced by one of another kind, or of another graph.
        """
        for old, new in repl_dict.items():
            check_replacement(old, new, self.top_graph)
        self._take([repl_dict.get(node, node) for node in self.inputs])

    # -- results ---------------------------------------------------------------------------

    @property
    def return_val(self) -> Any:
        """The outputs in the structure that the call returns; None if it returns nothing."""
        return None if self.out_def is None else self.out_def.unflatten(self.outputs)

    @return_val.setter
    def return_val(self, value: Any) -> None:
        self.outputs, self.out_def = tree_flatten(value, is_node)
        for node in self.outputs:
            node.expr = self

    def interpret(self, *inputs: Any) -> list[Any]:
        """Compute the values of `outputs` from those of `inputs`."""
        raise NotImplementedError

    def value_of(self, node: Node) -> Any:
        """Return the value of an output, where that is known without running; else None."""
        return None

    def _results(self, returned: Any) -> list[Any]:
        """The values of outputs in what a callee returned."""
        if self.out_def is None:
            return []
        if self.out_def.is_node:
            return [returned]
        found = self.out_def.extract(returned)
        if found is None:
            found, _ = tree_flatten(returned)
        if len(found) != len(self.outputs):
            raise TraceError(
                str(self),
                f"returned {len(found)} tensors where {len(self.outputs)} were traced",
                hint="the module takes another path for these inputs; trace it with them",
            )
        return found

    # -- printing --------------------------------------------------------------------------

    def _call_text(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())])

    def _right(self) -> str:
        """Return the text behind the equals sign."""
        raise NotImplementedError

    def __repr__(self) -> str:
        made = "" if self.out_def is None else f"{self.return_val!r} = "
        return f"%{self._id}: {made}{self._right()}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise EditError(str(self), "an expression cannot be copied alone", hint="copy its module")


def check_replacement(old: Node, new: Node, graph: Any) -> None:
    """Raise `EditError` where a node cannot stand in the place of another."""
    if isinstance(old, ModuleNode) != isinstance(new, ModuleNode):
        raise EditError(
            f"node {old.name}",
            "a tensor cannot replace a module, nor a module a tensor",
            saw=f"{type(old).__name__} {old.name}, {type(new).__name__} {new.name}",
        )
    there = new.top_graph
    if graph is not None and there is not None and there is not graph:
        raise EditError(
            f"node {old.name}",
            "its replacement is in another graph",
            saw=f"{new.name} of graph {there.name}, expected one of {graph.name}",
            hint="edit each graph on its own, or call flatten() first",
        )


class Input(Expr):
    """A value that the graph is given: the module itself, or an argument."""

    def __init__(self, node: Node | None = None) -> None:
        super().__init__()
        if node is not None:
            self.return_val = node

    @classmethod
    def make(
        cls, graph: Any, name: str, kind: type[Node] = TensorNode, qualname: str | None = None
    ) -> Any:
        """A new input node of a graph."""
        expr = cls()
        node = kind(expr, name, qualname)
        expr.return_val = node
        expr.top_graph = node._graph = graph
        return node

    def interpret(self, *inputs: Any) -> list[Any]:
        """Return the given values."""
        return list(inputs)

    def value_of(self, node: Node) -> Any:
        """Return the value of the output, where that is known."""
        graph = self.top_graph
        return graph.owner if graph is not None and graph.inputs[:1] == [node] else None

    def _right(self) -> str:
        return "input"


class GetAttr(Expr):
    """An attribute of a module: a sub-module, a parameter or a buffer.

    Attributes:
        name: a dotted path, which goes through lists and dicts, too: `blocks.0.conv`.
    """

    def __init__(self, module: ModuleNode, name: str) -> None:
        super().__init__()
        self.name = name
        self._set(((module,), {}))

    def interpret(self, *inputs: Any) -> list[Any]:
        """The attribute of the module given."""
        try:
            found = get_at(inputs[0], self.name)
        except AttributeError as error:
            raise EditError(
                str(self),
                f"the module has no {self.name!r}: {error}",
                hint="set the attribute on the traced module before running",
            ) from None
        if not is_value(found):
            raise EditError(str(self), f"{self.name!r} is a {type(found).__name__}", hint=_VALUES)
        return [found]

    def value_of(self, node: Node) -> Any:
        """Return the value of the output, where that is known."""
        module = self.inputs[0]
        owner = module.owner if isinstance(module, ModuleNode) else None
        try:
            found = None if owner is None else get_at(owner, self.name)
        except AttributeError:
            return None
        return found if is_value(found) else None

    def _right(self) -> str:
        node = self.outputs[0]
        kind = node.module_type if isinstance(node, ModuleNode) else None
        name = "Tensor" if kind is None else kind.__name__
        return f'getattr({self.inputs[0]!r}, "{self.name}") -> ({name})'


class SetAttr(Expr):
    """An assignment to an attribute of the module, as stateful modules make in `forward`."""

    def __init__(self, module: Node, name: str, value: Node) -> None:
        super().__init__()
        self.name = name
        self._disable_remove = True
        self._set(((module, value), {}))

    def interpret(self, *inputs: Any) -> list[Any]:
        """Assign; nothing is returned."""
        module, value = inputs
        set_at(module, self.name, value)
        return []

    def _right(self) -> str:
        return f'setattr({self.inputs[0]!r}, "{self.name}", {self.inputs[1]!r})'


class Constant(Expr):
    """A value that the trace met without seeing where it came from.

    Args:
        value: a tensor, a module, or a number.
        name: the name of its node.
    """

    def __init__(self, value: Any, name: str = "const") -> None:
        super().__init__()
        self.value = value
        self.fresh = False
        kind = ModuleNode if isinstance(value, Module) else TensorNode
        node = kind(self, name)
        if isinstance(node, TensorNode):
            node.describe(value)
        self.return_val = node

    def interpret(self, *inputs: Any) -> list[Any]:
        """The value; a handle of its own for each run if later expressions change it."""
        if self.fresh and isinstance(self.value, Tensor):
            return [wrap(self.value._data, self.value._kind)]
        return [self.value]

    def value_of(self, node: Node) -> Any:
        """Return the value of the output, where that is known."""
        return self.value

    def _right(self) -> str:
        shape = tuple(self.value.shape) if isinstance(self.value, Tensor) else ()
        return f"Constant({self.value!r})" if shape in ((), (1,)) else f"Constant(shape={shape})"


class CallMethod(Expr):
    """A call of a method of a tensor or a module; of the module itself for `__call__`.

    Args:
        node: whose method it is; the first of `args` afterwards.
        method: the method's name.
    """

    def __init__(self, node: Node, method: str = "__call__") -> None:
        super().__init__()
        self.method = method
        self.variant = 0
        self._disable_remove = is_mutating(method)
        self._set(((node,), {}))

    @property
    def graph(self) -> Any:
        """The graph of the traced module that is called; None for tensors and built-in modules."""
        node = self.inputs[0] if self.inputs else None
        owner = node.owner if isinstance(node, ModuleNode) and self.method == "__call__" else None
        find = getattr(owner, "find_graph", None)
        return None if find is None else find(self.arg_def, self.variant)

    def _signature(self) -> inspect.Signature | None:
        node = self.inputs[0]
        if isinstance(node, ModuleNode):
            owner = node.owner
            name = "forward" if self.method == "__call__" else self.method
            target = None if owner is None else getattr(type(owner), name, None)
            spec = getattr(owner, "argspec", None)
            if self.method == "__call__" and spec is not None:
                signature: inspect.Signature = spec.signature
                return signature
        else:
            target = getattr(Tensor, self.method, None)
        return None if target is None else inspect.signature(target)

    def interpret(self, *inputs: Any) -> list[Any]:
        """Call the method on the values given."""
        args, kwargs = self._arguments(inputs)
        target = args[0]
        if not is_value(target) or (isinstance(target, Module) and self.method != "__call__"):
            saw = f"{self.method} of a {type(target).__name__}"
            raise EditError(str(self), "this cannot be called", saw=saw, hint=_VALUES)
        if self.variant:
            returned = target.call_variant(self.variant, args[1:], kwargs)
        else:
            returned = getattr(target, self.method)(*args[1:], **kwargs)
        # An assignment to elements returns nothing and changes the tensor it was given.
        return self._results(target if is_mutating(self.method) else returned)

    def _right(self) -> str:
        args, kwargs = self.args, self.kwargs
        method = "" if self.method == "__call__" else f".{self.method}"
        return f"{args[0]!r}{method}({self._call_text(args[1:], kwargs)})"


_MUTATING = frozenset({"__setitem__", "set_value", "reset_zero"})


def is_mutating(method: str) -> bool:
    """Return whether a method of tensors changes the tensor it is called on."""
    inplace = method.startswith("__i") and method not in ("__invert__", "__index__", "__int__")
    return method in _MUTATING or inplace


class CallFunction(Expr):
    """A call of a function, of `treadle.functional` or made known by `wrap`.

    Args:
        func: the function.
    """

    def __init__(self, func: Callable[..., Any]) -> None:
        super().__init__()
        self.func = func

    def _signature(self) -> inspect.Signature | None:
        try:
            return inspect.signature(self.func)
        except (TypeError, ValueError):
            return None

    def interpret(self, *inputs: Any) -> list[Any]:
        """Call the function on the values given."""
        args, kwargs = self._arguments(inputs)
        return self._results(self.func(*args, **kwargs))

    def _right(self) -> str:
        home = self.func.__module__.rpartition(".")[2].lstrip("_")
        if self.func.__module__.startswith("treadle."):
            home = "F" if self.func.__module__.startswith("treadle.functional") else ""
        name = f"{home}.{self.func.__name__}" if home else self.func.__name__
        return f"{name}({self._call_text(self.args, self.kwargs)})"


class Apply(Expr):
    """A low-level op applied to tensors: what is left of functions the trace does not know.

    Args:
        opdef: the op, or a definition of one: an object with parameters that is called with
            tensors and returns a list of them, such as MegEngine's `Elemwise("ADD")`.

    Attributes:
        opdef_state: parameters of the op by name; loaders of older files may change them.
    """

    opdef_state: dict[str, Any]

    def __init__(self, opdef: Any) -> None:
        super().__init__()
        self.opdef = opdef

    def interpret(self, *inputs: Any) -> list[Any]:
        """Apply the op to the values given."""
        args, _ = self._arguments(inputs)
        if isinstance(self.opdef, Op):
            return list(args[0].apply(self.opdef, args))
        return list(self.opdef(*args))

    def _right(self) -> str:
        return f"{self.opdef}({self._call_text(self.args, {})})"


# -- questions, as MegEngine's programs ask them --------------------------------------------------


def is_call_module(expr: Any, module_cls: type | tuple[type, ...] | None = None) -> bool:
    """Return whether an expression calls a module; of a class, where one is given."""
    called = isinstance(expr, CallMethod) and expr.method == "__call__"
    if not called or not isinstance(expr.inputs[0], ModuleNode):
        return False
    return module_cls is None or isinstance(expr.inputs[0].owner, module_cls)


def is_call_tensor_method(expr: Any, method: str | Iterable[str] | None = None) -> bool:
    """Return whether an expression calls a method; one of these, where they are given."""
    if not isinstance(expr, CallMethod) or is_call_module(expr):
        return False
    wanted = (method,) if isinstance(method, str) else method
    return wanted is None or expr.method in tuple(wanted)


def is_call_function(expr: Any, func: Any = None) -> bool:
    """Return whether an expression calls a function; this one or one of these, where given."""
    if not isinstance(expr, CallFunction):
        return False
    wanted = func if isinstance(func, Iterable) else (func,)
    return func is None or any(expr.func == f for f in wanted)


def is_constant(expr: Any) -> bool:
    """Return whether an expression makes a constant."""
    return isinstance(expr, Constant)


def is_getattr(expr: Any) -> bool:
    """Return whether an expression fetches an attribute of a module."""
    return isinstance(expr, GetAttr)


def is_apply_def(expr: Any, opdef: type | tuple[type, ...] | None = None) -> bool:
    """Return whether an expression applies a low-level op; of a class, where one is given."""
    return isinstance(expr, Apply) and (opdef is None or isinstance(expr.opdef, opdef))


def is_input(expr: Any) -> bool:
    """Return whether an expression is an input of the graph."""
    return isinstance(expr, Input)


def get_suffix_name(prefix: str, name: str) -> str | None:
    """Return what follows a prefix in a dotted name: "" where it is all, None where it is none."""
    if name == prefix:
        return ""
    return name[len(prefix) + 1 :] if name.startswith(f"{prefix}.") else None


def rstrip(s: str, chars: str) -> str:
    """Return a text without a repeated ending, which is taken as a whole, unlike `str.rstrip`."""
    while chars and s.endswith(chars):
        s = s[: -len(chars)]
    return s
