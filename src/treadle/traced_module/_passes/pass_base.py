"""Passes: what they are, and how they are found and run."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, overload

import numpy as np

from treadle.tensor import Tensor
from treadle.traced_module.expr import CallMethod, Constant, Expr
from treadle.traced_module.graph import InternalGraph
from treadle.traced_module.node import Node, TensorNode
from treadle.traced_module.pytree import tree_map

P = TypeVar("P", bound="type[Pass]")

_MOST_ROUNDS = 1000


class Pass(abc.ABC):
    """A change of graphs.

    Attributes:
        name: what `optimize` calls it.
        required_pass: passes that run before it.
    """

    name: ClassVar[str]
    required_pass: ClassVar[Sequence[str]] = ()

    @abc.abstractmethod
    def run(self, graph: InternalGraph) -> bool:
        """Change one graph; returns whether anything changed, in which case it runs again."""


class ExprPass(Pass):
    """A pass that looks at one expression at a time."""

    def run(self, graph: InternalGraph) -> bool:
        """Offer each expression to `transform`, until one is changed."""
        changed = False
        for expr in list(graph._exprs):
            # One that an earlier change deleted has no users any more.
            if is_used(graph, expr) and self.transform(graph, expr):
                changed = True
        if changed:
            graph.compile()
        return changed

    @abc.abstractmethod
    def transform(self, graph: InternalGraph, expr: Expr) -> bool:
        """Rewrite an expression; returns whether it did."""


PASSES: dict[str, type[Pass]] = {}


@overload
def register_pass(cls: P) -> P: ...
@overload
def register_pass(cls: str | Iterable[str]) -> Callable[[P], P]: ...
def register_pass(cls: Any) -> Any:
    """Make a pass known to `optimize` by its name, or by others: a decorator of classes.

    `@register_pass` takes the class's `name`; `@register_pass("Fold")` is MegEngine's form.
    """
    if isinstance(cls, type):
        PASSES[cls.name] = cls  # type: ignore[attr-defined]
        return cls

    def register(found: P) -> P:
        PASSES.update(dict.fromkeys([cls] if isinstance(cls, str) else cls, found))
        return found

    return register


def with_required(names: Iterable[str]) -> list[str]:
    """Passes in the order they run: what one requires comes before it, each once.

    Raises:
        ValueError: a name is unknown.
    """
    found: dict[str, None] = {}

    def add(name: str) -> None:
        if name not in PASSES:
            raise ValueError(
                f"optimize: there is no pass {name!r}; there are {', '.join(sorted(PASSES))}"
            )
        for before in PASSES[name].required_pass:
            add(before)
        found[name] = None

    for name in names:
        add(name)
    return list(found)


def run_pass(name: str, graph: InternalGraph) -> None:
    """Run a pass on a graph until it changes nothing any more."""
    _most_rounds(PASSES[name](), graph)


def _most_rounds(made: Pass, graph: InternalGraph) -> None:
    """Run a pass again and again while it asks for it."""
    for _ in range(_MOST_ROUNDS):
        if not made.run(graph):
            return


def is_used(graph: InternalGraph, expr: Expr) -> bool:
    """Return whether anything takes what an expression makes, or it changes something in place."""
    used = any(node.users or node in graph._outputs for node in expr.outputs)
    return used or expr._disable_remove


class PassContext:
    """Passes that are not to run.

    Args:
        disabled_pass: a name, or several.
        pass_config: settings by name, for passes that read them.
    """

    def __init__(
        self,
        disabled_pass: Iterable[str] | None = None,
        pass_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.pass_config = dict(pass_config or {})
        self._disabled: set[str] = set()
        self.add_disabled_pass(disabled_pass or ())

    def add_disabled_pass(self, passes: Iterable[str]) -> None:
        """Disable a pass, or several."""
        self._disabled |= {passes} if isinstance(passes, str) else set(passes)

    add_diabled_pass = add_disabled_pass
    """MegEngine's spelling."""

    def pass_enabled(self, pas: Pass | str) -> bool:
        """Return whether a pass may run."""
        return (pas if isinstance(pas, str) else pas.name) not in self._disabled


_DEFAULT = PassContext()


def get_default_pass_context() -> PassContext:
    """The context of passes that are called without one."""
    return _DEFAULT


def get_registered_pass(pass_name: str) -> type[Pass]:
    """The class of a pass.

    Raises:
        AssertionError: the name is unknown.
    """
    if pass_name not in PASSES:
        raise AssertionError(f"there is no pass {pass_name!r}; register_pass makes one known")
    return PASSES[pass_name]


class BasePass(Pass):
    """A pass that `optimize` runs, and that can be called with a traced module.

    Attributes:
        run_once: False looks at a graph again until nothing changes.
    """

    run_once: ClassVar[bool] = True

    def __call__(self, mod: Any, pass_ctx: PassContext | None = None) -> Any:
        """Run on every graph of a module, after the passes that are required; returns it.

        Nothing happens where this pass, or one it requires, is disabled.
        """
        context = _DEFAULT if pass_ctx is None else pass_ctx
        every = [get_registered_pass(name)() for name in self.required_pass]
        if not all(context.pass_enabled(p) for p in (*every, self)):
            return mod
        for one in (*every, self):
            for graph in (g for top in mod.argdef_graph_map.values() for g in top._graphs()):
                _most_rounds(one, graph)
        return mod

    def run(self, graph: InternalGraph) -> bool:
        """Change one graph; returns whether to run again."""
        changed = self.visit_graph(graph)
        if changed:
            graph.compile()
        return changed and not self.run_once

    @abc.abstractmethod
    def visit_graph(self, graph: InternalGraph) -> bool:
        """Change one graph; returns whether anything changed."""

    def before_visit_graph(self, graph: InternalGraph) -> None:
        """Prepare for a graph; nothing here."""

    def run_transform(self, expr: Expr) -> Expr:
        """Return an expression that has taken the place of this one, or this one."""
        return expr

    def __repr__(self) -> str:
        return self.name


class ForwardPass(BasePass):
    """A pass that sees what makes a value before what takes it."""

    def visit_graph(self, graph: InternalGraph) -> bool:
        """Offer expressions to `run_transform`, first ones first; replacements, too."""
        return self._visit(graph, list(graph._exprs))

    def _visit(self, graph: InternalGraph, exprs: list[Expr]) -> bool:
        self.before_visit_graph(graph)
        changed = False
        waiting = exprs[::-1]
        while waiting:
            expr = waiting.pop()
            # One that an earlier change deleted has no users any more.
            if expr not in graph._exprs or not is_used(graph, expr):
                continue
            made = self.run_transform(expr)
            if made is not expr:
                changed = True
                waiting.append(made)
        return changed


class BackwardPass(ForwardPass):
    """A pass that sees what takes a value before what makes it."""

    def visit_graph(self, graph: InternalGraph) -> bool:
        """Offer expressions to `run_transform`, last ones first; replacements, too."""
        return self._visit(graph, list(graph._exprs)[::-1])


def replace(graph: InternalGraph, old: Node, new: Node) -> None:
    """Replace a node, for all of its users, by one that is made no later.

    Like `graph.replace_node` without sorting; what nothing needs any more is deleted at once.
    """
    for user in list(dict.fromkeys(old.users)):
        user._take([new if node is old else node for node in user.inputs])
    graph._outputs[:] = [new if node is old else node for node in graph._outputs]
    waiting = [old.expr]
    while waiting:
        expr = waiting.pop()
        if expr in graph._exprs and not is_used(graph, expr):
            makers = [node.expr for node in expr.inputs]
            expr._take([])
            graph._exprs.remove(expr)
            waiting += makers


# -- building blocks -----------------------------------------------------------------------------


def constant_value(arg: Any) -> Any:
    """The number or array of a constant argument; None for anything else."""
    if isinstance(arg, bool):
        return None
    if isinstance(arg, (int, float)):
        return arg
    if isinstance(arg, Tensor):
        return arg.numpy()
    if isinstance(arg, Node) and isinstance(arg.expr, Constant):
        value = arg.expr.value
        return value.numpy() if isinstance(value, Tensor) else None
    return None


def is_float(node: Any) -> bool:
    """Return whether a node is a tensor of real numbers."""
    return isinstance(node, TensorNode) and node.dtype is not None and _kind(node.dtype) == "f"


def _kind(dtype: Any) -> str:
    try:
        found = np.dtype(dtype)
    except TypeError:
        return ""
    return "f" if found.name == "bfloat16" else found.kind


def as_argument(graph: InternalGraph, before: Expr, value: Any, like: TensorNode) -> Any:
    """A constant as an argument: a number, or the node of a new constant tensor."""
    array = np.asarray(value)
    if array.ndim == 0:
        return float(array)
    dtype = like.dtype if is_float(like) else None
    return add_expr(graph, before, Constant(Tensor(array, dtype=dtype)), "const")


def add_method(
    graph: InternalGraph, before: Expr, method: str, args: Sequence[Any], like: TensorNode
) -> TensorNode:
    """A new call of a method, with a result like a node, before an expression."""
    expr = CallMethod(args[0], method)
    expr.set_args_kwargs(*args)
    expr.return_val = TensorNode(
        expr, None, like.qualname, like.shape, like.dtype, like.qparams, like.device
    )
    made: TensorNode = add_expr(graph, before, expr, method.strip("_") + "_out")
    return made


def add_expr(graph: InternalGraph, before: Expr, expr: Expr, name: str) -> Any:
    """Put an expression into a graph before another one; returns its node."""
    node = expr.outputs[0]
    node._name = graph._fresh(name)
    graph._adopt(expr)
    graph._exprs.insert(graph._exprs.index(before), expr)
    return node


def substitute(graph: InternalGraph, node: Node, value: Any) -> None:
    """Replace a node by a constant for all of its users; outputs of the graph stay."""
    for user in list(dict.fromkeys(node.users)):
        arguments = (user.args, user.kwargs)
        user._set(
            tree_map(arguments, lambda n: value if n is node else n, lambda n: isinstance(n, Node))
        )
