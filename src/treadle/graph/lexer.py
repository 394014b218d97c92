"""Tokens of the text form of graphs, with their places for error messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from treadle.base.errors import GraphError
from treadle.base.loc import UNKNOWN, Loc

T = TypeVar("T")
_TOKEN = re.compile(
    r"""
    [ \t\r]*
    (?: (?P<newline>\n)
      | (?P<comment>\#[^\n]*)
      | (?P<value>%(?:\d+|[A-Za-z_][\w.]*|"(?:[^"\\\n]|\\.)*"))
      | (?P<device>@\w+(?::\w+)*)
      | (?P<string>b?'(?:[^'\\\n]|\\.)*'|b?"(?:[^"\\\n]|\\.)*")
      | (?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (?P<int>\d+)
      | (?P<word>[A-Za-z_][\w.]*)
      | (?P<sign>\.\.|//|==|>=|!=|[()\[\]{}=,:+\-*%])
      | (?P<end>\Z)
      | (?P<wrong>.)
    )
    """,
    re.VERBOSE,
)
_AT = re.compile(r"#\s*at (?P<file>.+?):(?P<line>\d+)(?: in (?P<function>.+?))?\s*")


class Token(NamedTuple):
    """A word of the text; `kind` "end" stands behind the last one."""

    kind: str
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        return "the end of the text" if self.kind == "end" else repr(self.text)


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens of a text, and the source lines its comments name, by line of the text."""

    tokens: list[Token]
    locs: dict[int, Loc]


def error(token: Token, problem: str, hint: str = "") -> GraphError:
    """A parse error at a token."""
    return GraphError(f"line {token.line}, column {token.column}", problem, hint=hint)


def tokenize(text: str) -> Tokens:
    """Split the text; raises `GraphError` at a character that begins no token."""
    locs: dict[int, Loc] = {}
    return Tokens(list(_scan(text, locs)), locs)


def _scan(text: str, locs: dict[int, Loc]) -> Iterator[Token]:
    line, start = 1, 0
    for found in _TOKEN.finditer(text):
        kind = str(found.lastgroup)
        word, position = found.group(kind), found.start(kind)
        if kind == "newline":
            line, start = line + 1, found.end()
        elif kind == "comment":
            named = _AT.fullmatch(word)
            if named:
                locs[line] = Loc(named["file"], int(named["line"]), named["function"] or "")
        else:
            token = Token(kind, word, line, position - start + 1)
            if kind == "wrong":
                raise error(token, f"{token} begins no word of a graph")
            yield token


class Cursor:
    """A position in the tokens of a text."""

    def __init__(self, text: str) -> None:
        scanned = tokenize(text)
        self._tokens = scanned.tokens
        self._locs = scanned.locs
        self._position = 0

    @property
    def next(self) -> Token:
        """The token that follows."""
        return self._tokens[self._position]

    @property
    def second(self) -> Token:
        """The token after the next one."""
        return self._tokens[min(self._position + 1, len(self._tokens) - 1)]

    def loc(self) -> Loc:
        """The source line that the comment behind the last token taken names."""
        return self._locs.get(self._tokens[self._position - 1].line, UNKNOWN)

    def advance(self) -> Token:
        """Take the next token."""
        token = self.next
        self._position += token.kind != "end"
        return token

    def take(self, text: str) -> bool:
        """Return whether the next token is the sign or word `text`; takes it if so."""
        found = self.next.text == text and self.next.kind in ("sign", "word")
        if found:
            self.advance()
        return found

    def expect(self, kind: str, text: str = "", what: str = "") -> Token:
        """Take a token of this kind (and text), or raise saying what was expected."""
        token = self.next
        if token.kind != kind or (text and token.text != text):
            wanted = what or (repr(text) if text else _SPOKEN[kind])
            raise error(token, f"expected {wanted}, found {token}")
        return self.advance()

    def sign(self, text: str) -> Token:
        """Take the sign `text`."""
        return self.expect("sign", text)

    def listed(self, end: str, item: Callable[[], T]) -> list[T]:
        """Items between commas up to the sign `end`, which is taken."""
        items: list[T] = []
        while not self.take(end):
            if items:
                self.expect("sign", ",", f"',' or {end!r}")
            items.append(item())
        return items


_SPOKEN = {
    "value": "a value such as %0",
    "word": "a word",
    "int": "an integer",
    "string": "a string",
    "sign": "a sign",
    "end": "the end of the text",
}
