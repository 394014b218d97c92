"""Calls of functions in what a model says.

Families write them in their own ways: `<tool_call>` with JSON in it (Hermes, Qwen), a JSON object
as the whole answer (Llama 3), a list of them behind `[TOOL_CALLS]` (Mistral).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from treadle.base.files.strict_json import parse
from treadle.llm.generation.text_stream import begun

_OPENING = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
_BEGUN = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"arguments"\s*:\s*(.*)', re.DOTALL)
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """A function that the model wants to be called; its arguments are JSON."""

    name: str
    arguments: str


class CallReader:
    """Parts an answer into text and calls.

    Args:
        names: of functions that there are: what calls others is text.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._spoken = False
        """True if text was given away."""

    def push(self, piece: str) -> str:
        """Return the part of the answer so far that is text for certain."""
        self._held += piece
        start = self._held.lstrip()
        if not self._spoken and (not start or start[0] in "{["):
            return ""  # it may be JSON as a whole
        found = [at for mark in _OPENING if (at := self._held.find(mark)) >= 0]
        end = min(found) if found else len(self._held) - begun(self._held, _OPENING)
        given, self._held = self._held[:end], self._held[end:]
        self._spoken = self._spoken or bool(given)
        return given

    def finish(self, *, cut: bool = False) -> tuple[str, list[ToolCall]]:
        """Return what is left: text, or calls.

        Args:
            cut: it was to be a call, and has no end; its arguments are as far as they go.
        """
        held, self._held = self._held, ""
        calls = self._calls(held)
        if cut and not calls and (match := _BEGUN.match(held)) and match[1] in self._names:
            calls = [ToolCall(match[1], match[2])]
        return ("", calls) if calls else (held, [])

    def _calls(self, text: str) -> list[ToolCall]:
        """The calls in a text; none where one of them is not right."""
        tagged = _TAGGED.findall(text)
        found: list[ToolCall] = []
        for source in tagged or [text.strip()]:
            for mark in _OPENING[1:]:
                source = source.removeprefix(mark)
            try:
                value = parse(source.strip().encode())
            except (ValueError, UnicodeEncodeError):
                return []
            for each in value if isinstance(value, list) else [value]:
                call = self._call(each)
                if call is None:
                    return []
                found.append(call)
        return found

    def _call(self, value: Any) -> ToolCall | None:
        if not isinstance(value, dict) or value.get("name") not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):
            return ToolCall(value["name"], arguments)
        return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))
