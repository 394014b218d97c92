"""Reads the text form of graphs back; `printer` writes it and describes it.

Recursive descent; every error is a `GraphError` with line, column and what was expected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from treadle.base.errors import TreadleError
from treadle.base.guards import recording_guards
from treadle.base.loc import Loc
from treadle.base.symbol import Expr, Relation, equal, symbol
from treadle.graph.ir import Graph, Node, Value, with_types
from treadle.graph.lexer import Cursor, Token, error
from treadle.graph.literals import RESERVED, ValueParser, literal
from treadle.ops import REGISTRY
from treadle.ops.constant import ArrayData
from treadle.ops.op import Op


def parse(text: str, constants: Mapping[str, ArrayData] | None = None) -> Graph:
    """The graph a text describes.

    Args:
        text: what `printer.to_text` wrote, or the like.
        constants: data of the constants that the text names by digest. One that is missing
            becomes a constant of known type without data.

    Raises:
        GraphError: the text is not a graph, or its types are not those the ops infer.
    """
    cursor = Cursor(text)
    try:
        graph = _Parser(cursor, constants or {}).graph({})
    except RecursionError:
        raise error(cursor.next, "the text is nested too deeply") from None
    cursor.expect("end")
    return graph


@dataclass(slots=True)
class _Scope:
    """Meanings of names inside one graph."""

    symbols: dict[str, Expr]
    values: dict[str, Value] = field(default_factory=dict)
    guards: tuple[Relation, ...] = ()


class _Parser:
    """Reads graphs, nodes and ops at a cursor."""

    def __init__(self, cursor: Cursor, constants: Mapping[str, ArrayData]) -> None:
        self._cursor = cursor
        self._values = ValueParser(
            cursor, constants, lambda: self.graph(self._scope.symbols), self._op
        )
        self._scope = _Scope({})

    # -- graphs ----------------------------------------------------------------------------

    def graph(self, symbols: Mapping[str, Expr]) -> Graph:
        """A graph; `symbols` are those an enclosing graph has declared."""
        self._cursor.expect("word", "graph")
        before, self._scope = self._scope, _Scope(dict(symbols))
        self._values.symbols = self._scope.symbols
        name = self._name() if self._cursor.next.kind in ("word", "string") else ""
        if self._cursor.take("["):
            self._cursor.listed("]", self._symbol)
        self._cursor.sign("(")
        inputs = tuple(self._cursor.listed(")", self._input))
        if self._cursor.take("where"):
            guards = [self._relation()]
            while self._cursor.take(","):
                guards.append(self._relation())
            self._scope.guards = tuple(guards)
        self._cursor.sign("{")
        nodes: list[Node] = []
        while not self._cursor.take("return"):
            nodes.append(self._node())
        outputs = [] if self._cursor.next.text == "}" else [self._operand()]
        while self._cursor.take(","):
            outputs.append(self._operand())
        self._cursor.sign("}")
        relations, self._scope = self._scope.guards, before
        self._values.symbols = before.symbols
        return Graph(name, inputs, tuple(nodes), tuple(outputs), relations)

    def _name(self) -> str:
        token = self._cursor.advance()
        if token.kind == "word":
            return token.text
        return str(literal(token))

    def _symbol(self) -> None:
        token = self._cursor.expect("word", what="the name of an extent")
        if token.text in self._scope.symbols or token.text in RESERVED:
            raise error(token, f"the extent {token.text} is declared twice or reserved")
        self._cursor.sign(":")
        low = self._int()
        self._cursor.sign("..")
        high = self._int() if self._cursor.next.kind == "int" else None
        step = self._int() if self._cursor.take("step") else 1
        edges = []
        if self._cursor.take("edges"):
            edges = [self._int()]
            while self._cursor.next.kind == "int":
                edges.append(self._int())
        hint = self._int() if self._cursor.take("hint") else None
        made = symbol(token.text, low, high, step, tuple(edges), hint)
        self._scope.symbols[token.text] = made

    def _int(self) -> int:
        return int(literal(self._cursor.expect("int")))

    def _relation(self) -> Relation:
        expr = self._values.extent()
        token = self._cursor.expect("sign", what="'==', '>=' or '!='")
        if token.text not in ("==", ">=", "!="):
            raise error(token, f"expected '==', '>=' or '!=', found {token}")
        self._cursor.expect("int", "0")
        # `equal` gives one form to an equation and its negative, which text may spell either way.
        if token.text == ">=":
            return Relation(">=0", expr)
        return equal(expr, 0) if token.text == "==" else equal(expr, 0).opposite

    def _input(self) -> Value:
        token = self._cursor.expect("value")
        self._cursor.sign(":")
        index = len(self._scope.values)
        value = Value(self._values.type(), None, index, _given_name(token))
        self._define(token, value)
        return value

    def _define(self, token: Token, value: Value) -> None:
        if token.text in self._scope.values:
            raise error(token, f"{token.text} is defined twice")
        self._scope.values[token.text] = value

    def _operand(self) -> Value:
        token = self._cursor.expect("value")
        if token.text not in self._scope.values:
            raise error(token, f"{token.text} is used before it is defined")
        return self._scope.values[token.text]

    # -- nodes -----------------------------------------------------------------------------

    def _node(self) -> Node:
        first = self._cursor.expect("value", what="a value such as %0, or 'return'")
        results = [first]
        while self._cursor.take(","):
            results.append(self._cursor.expect("value"))
        self._cursor.sign("=")
        start = self._cursor.next
        op = self._op()
        self._cursor.sign("(")
        inputs = tuple(self._cursor.listed(")", self._operand))
        self._cursor.sign(":")
        place = self._cursor.next
        types = [self._values.type()]
        while self._cursor.take(","):
            types.append(self._values.type())
        group = str(literal(self._cursor.expect("string"))) if self._cursor.take("in") else ""
        loc = self._cursor.loc()
        names = tuple(_given_name(t) for t in results)
        node = self._make(start, op, inputs, names, (loc, group))
        inferred = tuple(v.type for v in with_types(node, tuple(types)).outputs)
        if inferred != tuple(types):
            declared = ", ".join(map(str, types))
            found = ", ".join(map(str, inferred))
            raise error(place, f"declared {declared}, but {op.name} gives {found}")
        for token, value in zip(results, node.outputs, strict=True):
            self._define(token, value)
        return node

    def _make(
        self,
        start: Token,
        op: Op,
        inputs: tuple[Value, ...],
        names: tuple[str, ...],
        where: tuple[Loc, str],
    ) -> Node:
        loc, group = where
        try:
            with recording_guards() as guards:
                # Results are counted before they are named, so that a wrong count has a message.
                node = Node(op, inputs, loc, (), group)
                if any(names) and len(names) == len(node.outputs):
                    node = Node(op, inputs, loc, names, group)
        except TreadleError as problem:
            what = f"{problem.where}: {problem.problem}"
            raise error(start, what, problem.hint) from problem
        except TypeError as problem:
            raise error(start, f"{op.name}: {len(inputs)} inputs do not fit") from problem
        if len(names) != len(node.outputs):
            count = len(node.outputs)
            raise error(start, f"{op.name} has {count} results, but {len(names)} are named")
        missing = [g for g in guards if g not in self._scope.guards]
        if missing:
            raise error(start, f"{op.name} needs {missing[0]}", "state it behind 'where'")
        return node

    def _op(self) -> Op:
        token = self._cursor.next
        name = self._name() if token.kind in ("word", "string") else ""
        if name not in REGISTRY:
            raise error(token, f"expected the name of an op, found {token}")
        attributes: dict[str, Any] = {}
        if self._cursor.take("{"):
            self._cursor.listed("}", lambda: self._attribute(attributes))
        return self._construct(token, REGISTRY[name], attributes)

    def _construct(self, token: Token, cls: type[Op], attributes: dict[str, Any]) -> Op:
        later = {name for name in cls._fields if hasattr(cls, name)}
        wrong = (set(attributes) ^ set(cls._fields)) - (later - set(attributes))
        if wrong:  # What has a default may be missing: files are older than some attributes.
            missing = sorted(wrong - set(attributes))
            problem = "lacks attribute" if missing else "has no attribute"
            raise error(token, f"{cls.name} {problem} {(missing or sorted(wrong))[0]}")
        return cls(**attributes)

    def _attribute(self, attributes: dict[str, Any]) -> None:
        token = self._cursor.expect("word", what="the name of an attribute")
        if token.text in attributes:
            raise error(token, f"attribute {token.text} is given twice")
        self._cursor.sign("=")
        attributes[token.text] = self._values.value()


def _given_name(token: Token) -> str:
    """The name in a value token; `""` for one that is only numbered."""
    text = token.text[1:]
    if text.startswith('"'):
        return str(json.loads(text))
    return "" if text.isdigit() else text
