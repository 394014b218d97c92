"""Passes out of text, `expand,simplify{fuel=50},dce`; `passes.pass_text` is the way back."""

from __future__ import annotations

from treadle.base.errors import GraphError
from treadle.graph import cleanup, simplify  # noqa: F401  # Their passes are known by name.
from treadle.graph.lexer import Cursor
from treadle.graph.literals import ValueParser
from treadle.graph.passes import PASSES, Pass, options_of


def parse_passes(text: str) -> tuple[Pass, ...]:
    """Passes from text: names with options, between commas.

    Raises:
        GraphError: a name or option is unknown, or the text is malformed.
    """
    cursor = Cursor(text)
    passes = [] if cursor.next.kind == "end" else [_parse_pass(cursor)]
    while cursor.take(","):
        passes.append(_parse_pass(cursor))
    cursor.expect("end", what="',' or the end of the text")
    return tuple(passes)


def _parse_pass(cursor: Cursor) -> Pass:
    name = cursor.expect("word", what="the name of a pass").text
    if name not in PASSES:
        raise GraphError("passes", f"no pass is named {name}", hint=f"known: {', '.join(PASSES)}")
    cls = PASSES[name]
    options: dict[str, object] = {}
    if cursor.take("{"):
        values = ValueParser(cursor, {}, _no_region, _no_region)
        for key, value in cursor.listed("}", lambda: _option(cursor, values)):
            options[key] = value
    known = {f.name for f in options_of(cls)}
    if set(options) - known:
        wrong = sorted(set(options) - known)[0]
        raise GraphError(f"pass {name}", f"has no option {wrong}", hint=f"it has {sorted(known)}")
    return cls(**options)


def _option(cursor: Cursor, values: ValueParser) -> tuple[str, object]:
    key = cursor.expect("word", what="the name of an option").text
    cursor.sign("=")
    return key, values.value()


def _no_region() -> object:
    raise GraphError("passes", "an option is neither a graph nor an op")
