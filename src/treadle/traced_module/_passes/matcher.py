"""Matching patterns against expressions."""

from __future__ import annotations

from typing import Any

from treadle.traced_module._passes.pattern import (
    Alternatives,
    CallPattern,
    Exactly,
    ExprPattern,
)
from treadle.traced_module.expr import CallMethod, Expr
from treadle.traced_module.node import ModuleNode, Node


class PatternMatcher:
    """Checks whether an expression, and those that make its arguments, match a pattern.

    Attributes:
        matched: what each pattern stood for in the last match: a node or a constant.
    """

    def __init__(self) -> None:
        self.matched: dict[ExprPattern, Any] = {}

    def match(self, pattern: ExprPattern, expr: Expr) -> bool:
        """Return whether the result of an expression matches; `matched` says what stood where.

        A pattern that occurs twice must stand for the same node both times.
        """
        self.matched = {}
        if len(expr.outputs) != 1:
            return False
        return self._match(pattern, expr.outputs[0], outermost=True)

    def __getitem__(self, pattern: ExprPattern) -> Any:
        return self.matched[pattern]

    @property
    def matched_exprs(self) -> dict[ExprPattern, Expr]:
        """Expressions that made the nodes that patterns stood for; plain numbers have none."""
        return {p: v.expr for p, v in self.matched.items() if isinstance(v, Node)}

    def expr(self, pattern: ExprPattern) -> Expr:
        """The expression that makes what a pattern stood for."""
        found: Expr = self.matched[pattern].expr
        return found

    def _match(self, pattern: ExprPattern, value: Any, outermost: bool = False) -> bool:
        if pattern in self.matched:
            return bool(self.matched[pattern] is value)
        before = dict(self.matched)
        if self._fits(pattern, value, outermost):
            self.matched[pattern] = value
            return True
        self.matched = before
        return False

    def _fits(self, pattern: ExprPattern, value: Any, outermost: bool) -> bool:
        if isinstance(pattern, Alternatives):
            return any(self._match(choice, value, outermost) for choice in pattern.choices)
        if not pattern.accepts(value):
            return False
        if isinstance(pattern, Exactly):
            return True
        if isinstance(value, Node) and pattern.checks_users and not outermost:
            graph = value.top_graph
            if len(value.users) != 1 or (graph is not None and value in graph.outputs):
                return False
        if not isinstance(pattern, CallPattern):
            return True
        args = call_args(value.expr)
        if isinstance(pattern.op, Alternatives):
            self.matched[pattern.op] = value
        if len(args) < len(pattern.args):
            return False
        pairs = zip(pattern.args, args, strict=False)
        return all(self._match(wanted, given) for wanted, given in pairs)


def call_args(expr: Expr) -> tuple[Any, ...]:
    """The arguments of a call, the module itself left out where a module is called."""
    args = expr.args
    is_layer = isinstance(expr, CallMethod) and isinstance(args[0], ModuleNode)
    return args[1:] if is_layer else args
