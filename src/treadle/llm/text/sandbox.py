"""Jinja's sandbox with bounds: what a template makes is counted.

The clock is looked at between lines only, so that what runs in between must be small: no operator,
filter or method makes something large, and containers do not hold themselves many times over.
"""

from __future__ import annotations

import re
import string
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from treadle.llm.text.packages import needed

MOST_TEXT = 1 << 22
"""Characters of a conversation, and of any text that a template makes."""
MOST_MADE = 1 << 27
"""Characters and elements that a rendering makes on its way."""
MOST_ELEMENTS = 1 << 18
"""Of a container, those of its elements counted as often as they stand there."""
_MOST_NUMBER = 1 << 20
"""Largest number that a template may multiply or pad by."""
_MOST_BITS = 4096
_CONTAINERS = (Mapping, list, tuple, set, frozenset)

_FILTERS = """abs capitalize count d default dictsort e escape first float groupby int items last
length list lower map max min reject rejectattr reverse round safe select selectattr sort string
title trim truncate unique upper wordcount"""
_TEXT_METHODS = """capitalize casefold count endswith find format index isalnum isalpha isdecimal
isdigit islower isnumeric isspace istitle isupper join lower lstrip partition removeprefix
removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip
swapcase title upper"""


class _Count(threading.local):
    made = 0


_COUNT = _Count()


@contextmanager
def counted() -> Iterator[None]:
    """Count what is made inside as one rendering's."""
    before, _COUNT.made = _COUNT.made, 0
    try:
        yield
    finally:
        _COUNT.made = before


def _charge(size: int) -> None:
    if size > MOST_TEXT:
        raise OverflowError(f"it makes something of {size:,} characters or elements")
    _COUNT.made += size
    if _COUNT.made > MOST_MADE:
        raise OverflowError(f"it makes more than {MOST_MADE:,} characters and elements")


def _weigh(value: Any) -> Any:
    """A value that was counted, texts and elements inside of it as often as they stand there."""
    if isinstance(value, str):
        _charge(len(value))
    elif isinstance(value, _CONTAINERS):
        waiting: list[Iterator[Any]] = [_elements(value)]
        elements = size = 0
        while waiting:
            x = next(waiting[-1], waiting)
            if x is waiting:
                waiting.pop()
                continue
            elements += 1
            if elements > MOST_ELEMENTS or len(waiting) > 200:
                raise OverflowError(f"it makes something of more than {MOST_ELEMENTS:,} elements")
            if isinstance(x, str):
                size += len(x)
            elif isinstance(x, _CONTAINERS):
                waiting.append(_elements(x))
        _charge(size // 4 + elements)
    return value


def _elements(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        return (x for pair in value.items() for x in pair)
    return iter(value)


def _shown(value: Any) -> Any:
    """A value that is about to be written as text."""
    if isinstance(value, needed("jinja2.utils").Namespace):
        raise OverflowError("it writes a namespace")
    if isinstance(value, Collection) and not isinstance(value, str):
        value = _weigh(value if isinstance(value, _CONTAINERS) else list(value))
        if _holds_namespace(value):
            raise OverflowError("it writes a namespace")
        return value
    return _weigh(value)


def _holds_namespace(value: Any) -> bool:
    kind = needed("jinja2.utils").Namespace
    if isinstance(value, _CONTAINERS):
        return any(map(_holds_namespace, _elements(value)))
    return isinstance(value, kind)


def _join(texts: Iterable[Any], between: Any = "") -> str:
    made, gap = [], str(_shown(between))
    for x in texts:
        made.append(str(_shown(x)))
        _charge(len(gap))
    _charge(sum(map(len, made)) + len(gap) * len(made))
    return gap.join(made)


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = (str(_shown(x)) for x in (text, old, new))
    times = text.count(old) if count is None or count < 0 else min(count, text.count(old))
    _charge(len(text) + times * len(new))
    return str(text.replace(old, new, times))


_METHODS: dict[str, Callable[..., str]] = {
    "join": lambda between, texts: _join(texts, between),
    "replace": _replace,
}


def _indent(text: str, width: int = 4, first: bool = False, blank: bool = False) -> str:
    pad = " " * min(int(width), 64)
    lines = str(_shown(text)).split("\n")
    _charge(len(pad) * len(lines))
    made = [pad + x if (i or first) and (x or blank) else x for i, x in enumerate(lines)]
    return "\n".join(made)


def environment(extensions: list[Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    """A sandbox for templates of conversations.

    Args:
        extensions: of Jinja.
        functions: what templates may call beside filters; those named `tojson` are filters.
    """
    made = _sandbox()(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_shown)
    names = _FILTERS.split()
    kept = {name: _watched(found) for name, found in made.filters.items() if name in names}
    jinja = needed("jinja2")

    def weighed(_context: Any, value: Any) -> Any:  # A context: it is not run while compiling.
        return _weigh(value)

    def join(env: Any, texts: Any, d: Any = "", attribute: Any = None) -> str:
        if attribute is not None:
            texts = map(needed("jinja2.filters").make_attrgetter(env, attribute), texts)
        return _join(texts, d)

    given = dict(functions)
    to_json = given.pop("tojson")
    made.filters = {
        **kept, "join": jinja.pass_environment(join), "replace": _replace, "indent": _indent,
        _WEIGHED: jinja.pass_context(weighed),
        "tojson": lambda value, *given, **named: _weigh(to_json(_shown(value), *given, **named)),
    }  # fmt: skip
    for name in ("lipsum", "cycler", "joiner"):
        made.globals.pop(name, None)
    made.globals |= given
    return made


_WEIGHED = "what is made"  # No template can name it.


def _watched(filter_: Callable[..., Any]) -> Callable[..., Any]:
    name = getattr(filter_, "__name__", "")

    @wraps(filter_)
    def watched(*args: Any, **names: Any) -> Any:
        for x in (*args, *names.values()):
            if name in ("soft_str", "do_title", "do_trim", "do_truncate", "do_wordcount"):
                _shown(x)
            _check_number(x)
        return _weigh(filter_(*args, **names))

    return watched


def _check_number(value: Any) -> None:
    if isinstance(value, int) and abs(value) > _MOST_NUMBER:
        raise OverflowError("it calls with a large number")


def _check_widths(form: str) -> None:
    for _, _, width, _ in string.Formatter().parse(form):
        _check_width(width or "")


def _check_width(text: str) -> None:
    if re.search(r"[0-9]{3}|[{*]", text):
        raise OverflowError("it pads text")


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Raise where an operator would make something large of something small."""
    numbers = [abs(x) for x in (left, right) if isinstance(x, int)]
    lengths = [len(x) for x in (left, right) if hasattr(x, "__len__")]
    if operator == "**" and max(numbers, default=0) > 64:
        raise OverflowError("it raises numbers to large powers")
    if operator == "*":
        if sum(x.bit_length() for x in numbers) > _MOST_BITS:
            raise OverflowError("it multiplies large numbers")
        if lengths and max(numbers, default=0) * max(lengths) > _MOST_NUMBER:
            raise OverflowError("it repeats something without bounds")
    if operator == "+":
        _charge(sum(lengths))
    if operator == "%" and isinstance(left, str):
        for found in re.findall(r"%[^a-zA-Z]*", left):
            _check_width(found)
        _shown(right)


def _sandbox() -> Any:
    base: Any = needed("jinja2.sandbox").ImmutableSandboxedEnvironment
    weigher, methods = _weigher(), frozenset(_TEXT_METHODS.split())

    class Bounded(base):  # type: ignore[misc]
        """A sandbox whose numbers, texts and containers stay small."""

        intercepted_binops = frozenset(("*", "**", "%", "+"))

        def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
            return weigher.visit(super()._parse(source, name, filename))

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            if isinstance(obj, str) and attr not in methods:
                return False
            return bool(super().is_safe_attribute(obj, attr, value))

        def wrap_str_format(self, value: Any) -> Any:
            made = super().wrap_str_format(value)
            if made is not None:
                _check_widths(value.__self__)
            return made

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operands(operator, left, right)
            return _weigh(super().call_binop(context, operator, left, right))

        def call(self, context: Any, called: Any, /, *args: Any, **names: Any) -> Any:
            for x in (*args, *names.values()):
                _check_number(_weigh(x))
            text, method = getattr(called, "__self__", None), getattr(called, "__name__", "")
            ours = _METHODS.get(method) if isinstance(text, str) else None
            if ours is not None:
                return ours(text, *args, **names)
            return _weigh(super().call(context, called, *args, **names))

    return Bounded


def _weigher() -> Any:
    """Puts the count behind what no operator or call makes: literals, `~` and long plain text."""
    nodes = needed("jinja2.nodes")
    base: Any = needed("jinja2.visitor").NodeTransformer

    def weighed(node: Any) -> Any:
        return nodes.Filter(node, _WEIGHED, [], [], None, None, lineno=node.lineno)

    class Weigher(base):  # type: ignore[misc]
        """Rewrites a template's tree."""

        def visit_List(self, node: Any) -> Any:
            return weighed(self.generic_visit(node))

        visit_Dict = visit_List

        def visit_Tuple(self, node: Any) -> Any:
            found = self.generic_visit(node)
            return weighed(found) if node.ctx == "load" else found

        def visit_Concat(self, node: Any) -> Any:
            parts = nodes.List(self.generic_visit(node).nodes, lineno=node.lineno)
            return nodes.Filter(parts, "join", [], [], None, None, lineno=node.lineno)

        def visit_TemplateData(self, node: Any) -> Any:
            if len(node.data) < 64:
                return node
            return weighed(nodes.Const(node.data, lineno=node.lineno))

    return Weigher()
