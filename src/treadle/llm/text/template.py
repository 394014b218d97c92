"""Conversations to text, by templates that come with models.

A template is a program of whoever made the file. It runs in Jinja's sandbox, sees copies of what it
is given and nothing else, and may neither run nor write without bounds.
"""

from __future__ import annotations

import copy
import datetime
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from treadle.base.errors import CheckpointError
from treadle.llm.text.packages import needed
from treadle.llm.text.sandbox import MOST_TEXT, counted, environment
from treadle.llm.text.tokenizer import Tokenizer

MOST_SECONDS = 5.0
"""Of a rendering, which takes a thousandth."""
MOST_SOURCE = 1 << 20
"""Characters of a template."""


_NO_CONTENT = re.compile(r"content['\"\])]*\s*(is\s+(not\s+)?|[!=]=\s*)none\b", re.IGNORECASE)


class Template:
    """Template by which a model wants conversations to be written.

    Args:
        source: the template.
        tokenizer: whose `bos` and `eos` it may name.

    Attributes:
        asks_for_none: whether it asks if a content is None.

    Raises:
        CheckpointError: it is not a template.
        LoadError: the extra `llm` is not installed.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        def written(numbers: Sequence[int]) -> str:
            return tokenizer.token(min(numbers)) if numbers else ""

        bos = [] if tokenizer.bos is None else [tokenizer.bos]
        self._known = {"bos_token": written(bos), "eos_token": written(sorted(tokenizer.eos))}
        self.asks_for_none = _NO_CONTENT.search(source) is not None
        if len(source) > MOST_SOURCE:
            raise CheckpointError("chat template", f"has more than {MOST_SOURCE:,} characters")
        with _explain_errors(), _bounded():
            self._template = _environment().from_string(source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
    ) -> str:
        """The text of a conversation.

        Args:
            messages: objects with `role` and `content`.
            tools: functions that the model may ask for.
            add_generation_prompt: end where the answer of the model begins.
            enable_thinking: for models that think aloud, if asked to.

        Raises:
            CheckpointError: the template refuses the conversation, fails, or does not end.
        """
        given: dict[str, Any] = {
            "messages": copy.deepcopy([dict(m) for m in messages]),
            "add_generation_prompt": add_generation_prompt,
            **self._known,
        }
        if tools:
            given["tools"] = copy.deepcopy(list(tools))
        if enable_thinking is not None:
            given["enable_thinking"] = enable_thinking
        pieces, size = [], 0
        with _explain_errors(), _bounded():
            for piece in self._template.generate(given):
                size += len(piece)
                if size > MOST_TEXT:
                    raise OverflowError(f"it writes more than {MOST_TEXT:,} characters")
                pieces.append(piece)
        return "".join(pieces)


def _environment() -> Any:
    return environment(
        ["jinja2.ext.loopcontrols", _generation_tag()],
        {
            "raise_exception": _refuse(needed("jinja2")),
            "strftime_now": _now,
            "tojson": _to_json,
        },
    )


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """Return a value as JSON, like Hugging Face's library: nothing is escaped for pages."""
    width = None if indent is None else min(int(indent), 64)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=width)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _refuse(jinja: Any) -> Any:
    def raise_exception(message: str) -> None:
        raise jinja.exceptions.TemplateError(message)

    return raise_exception


def _generation_tag() -> Any:
    """`{% generation %}` marks what the model wrote, for training: its body is written."""
    base: Any = needed("jinja2.ext").Extension
    nodes = needed("jinja2.nodes")

    class Generation(base):  # type: ignore[misc]
        """The tag."""

        tags = frozenset(("generation",))

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    return Generation


@contextmanager
def _explain_errors() -> Iterator[None]:
    """Errors of a template as ours."""
    jinja = needed("jinja2")
    try:
        yield
    except CheckpointError:
        raise
    except jinja.exceptions.TemplateSyntaxError as error:
        where = f"line {error.lineno}"
        raise CheckpointError(
            "chat template", f"is not a template: {error.message}", saw=where
        ) from None
    except (jinja.exceptions.TemplateError, OverflowError, TimeoutError) as error:
        raise CheckpointError("chat template", f"refuses this: {error}") from None
    except Exception as error:  # Whatever a stranger's program does.
        problem = f"fails: {type(error).__name__}: {error}"
        hint = "look at what it expects of messages"
        raise CheckpointError("chat template", problem, hint=hint) from None


@contextmanager
def _bounded() -> Iterator[None]:
    """End what takes too long in the block: every line of a template looks at the clock."""
    end = time.monotonic() + MOST_SECONDS
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > end:
            raise TimeoutError(f"it takes more than {MOST_SECONDS:g} seconds")
        return trace if frame.f_code.co_filename == "<template>" else None

    sys.settrace(trace)
    try:
        with counted():
            yield
    finally:
        sys.settrace(before)
