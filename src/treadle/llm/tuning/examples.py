"""Examples to learn from: rows of a JSONL file as tokens, and several of them in one row."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base.errors import CheckpointError
from treadle.base.files import strict_json
from treadle.base.files.strict_json import shorten
from treadle.llm.text import Template, Tokenizer
from treadle.llm.tuning.tuner import Rows

MOST_LINE = 1 << 24
"""Bytes of a row of a file."""
_HINT = 'rows are {"messages": [...]}, {"prompt": "...", "completion": "..."} or {"text": "..."}'


@dataclass(frozen=True)
class Example:
    """Tokens, and which of them the model is to say."""

    tokens: tuple[int, ...]
    learned: tuple[bool, ...]

    def cut(self, length: int) -> Example:
        """Return the first `length` tokens of the example."""
        return Example(self.tokens[:length], self.learned[:length])


class Reader:
    """Turns rows into examples.

    Args:
        tokenizer: of the model.
        template: of conversations, None where the model has none.
        eos: the token that ends texts and completions; None: nothing does.
    """

    def __init__(self, tokenizer: Tokenizer, template: Template | None, eos: int | None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._end = [] if eos is None else [eos]

    def read(self, path: str | os.PathLike[str]) -> list[Example]:
        """The examples of a file.

        Raises:
            CheckpointError: a row is damaged, or not what it should be; its line is told.
            OSError: the file cannot be read.
        """
        found, name = [], os.fspath(path)
        with open(name, "rb") as file:
            number = 0
            while line := file.readline(MOST_LINE + 1):
                number += 1
                where = f"{name}, line {number}"
                if len(line) > MOST_LINE:
                    raise CheckpointError(where, f"the row has more than {MOST_LINE:,} bytes")
                if line.strip():
                    found.append(self._row(where, line))
        if not found:
            raise CheckpointError(name, "the file has no rows", hint=_HINT)
        return found

    def _row(self, where: str, line: bytes) -> Example:
        try:
            row = strict_json.parse(line)
        except ValueError as error:
            raise CheckpointError(where, f"the row is damaged: {error}") from None
        if not isinstance(row, dict):
            raise CheckpointError(where, "the row is not an object", saw=shorten(row), hint=_HINT)
        if "messages" in row:
            made = self._conversation(where, row["messages"], row.get("tools"))
        elif "prompt" in row and "completion" in row:
            made = self._completion(_text(where, row, "prompt"), _text(where, row, "completion"))
        elif "text" in row:
            made = self._completion(None, _text(where, row, "text"))
        else:
            known = ", ".join(map(shorten, list(row)[:8]))
            raise CheckpointError(where, "the row holds nothing to learn", saw=known, hint=_HINT)
        if not any(made.learned[1:]):
            raise CheckpointError(where, "the row has no token to learn")
        return made

    def _completion(self, prompt: str | None, text: str) -> Example:
        if prompt is None:
            tokens = [*self._tokenizer.encode(text), *self._end]
            return Example(tuple(tokens), (True,) * len(tokens))
        before = self._tokenizer.encode(prompt)
        # Encoded by itself, as it will be generated behind the prompt; no token begins it.
        after = [*self._plain(text), *self._end]
        return Example((*before, *after), (False,) * len(before) + (True,) * len(after))

    def _plain(self, text: str) -> list[int]:
        found = self._tokenizer.encode(text)
        return found[len(self._tokenizer.encode("")) :]

    def _conversation(self, where: str, messages: Any, tools: Any) -> Example:
        """Return a conversation whose answers, with what ends them, are to be learned."""
        if self._template is None:
            hint = 'use rows with "prompt" and "completion", or "text"'
            raise CheckpointError(where, "the model has no template of conversations", hint=hint)
        checked = _messages(where, messages)
        if tools is not None and not isinstance(tools, list):
            raise CheckpointError(where, "tools is not a list", saw=shorten(tools))
        tokens: list[int] = []
        learned: list[bool] = []
        done = ""
        for i, message in enumerate(checked):
            if message["role"] != "assistant":
                continue
            try:
                asked = self._template.render(checked[:i], tools)
                whole = self._template.render(checked[: i + 1], tools, add_generation_prompt=False)
            except CheckpointError as error:
                raise CheckpointError(where, str(error)) from None
            if not (asked.startswith(done) and whole.startswith(asked)):
                problem = "the template writes an answer otherwise than where it is asked for"
                hint = 'write the rows as "prompt" and "completion"'
                raise CheckpointError(where, problem, hint=hint)
            for text, wanted in ((asked[len(done) :], False), (whole[len(asked) :], True)):
                part = self._tokenizer.encode(text, special=True)
                tokens += part
                learned += [wanted] * len(part)
            done = whole
        return Example(tuple(tokens), tuple(learned))


def _text(where: str, row: Mapping[str, Any], name: str) -> str:
    found = row[name]
    if not isinstance(found, str):
        raise CheckpointError(where, f"`{name}` is not a string", saw=shorten(found))
    return found


def _messages(where: str, given: Any) -> list[dict[str, Any]]:
    """Messages with what a template may rely on."""
    if not isinstance(given, list) or not given:
        raise CheckpointError(where, "messages is not a list of messages", saw=shorten(given))
    for message in given:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise CheckpointError(where, "a message has no role", saw=shorten(message))
        if not isinstance(message.get("content"), str) and "tool_calls" not in message:
            raise CheckpointError(where, "a message has no text as content", saw=shorten(message))
    if not any(m["role"] == "assistant" for m in given):
        raise CheckpointError(where, "no message is an assistant's: there is nothing to learn")
    return given


def packed(examples: Sequence[Example], length: int) -> list[Rows]:
    """Rows of `length` tokens, each with as many examples as fit; the order is about kept.

    Examples that are longer are cut.
    """
    bins: list[list[Example]] = []
    room: list[int] = []
    for example in examples:
        part = example.cut(length)
        size = len(part.tokens)
        # The latest rows only: how full they become hardly changes, and time stays linear.
        recent = range(max(0, len(bins) - 64), len(bins))
        place = next((i for i in recent if room[i] >= size), None)
        if place is None:
            bins.append([])
            room.append(length)
            place = len(bins) - 1
        bins[place].append(part)
        room[place] -= size
    return [_row_of(each, length) for each in bins]


def _row_of(examples: Sequence[Example], length: int) -> Rows:
    tokens, segments, positions, targets = (np.zeros((1, length), np.int32) for _ in range(4))
    weights = np.zeros((1, length), np.float32)
    at = 0
    for number, example in enumerate(examples):
        size = len(example.tokens)
        here = slice(at, at + size)
        tokens[0, here], segments[0, here] = example.tokens, number + 1
        positions[0, here] = np.arange(size)
        targets[0, at : at + size - 1] = example.tokens[1:]
        weights[0, at : at + size - 1] = example.learned[1:]
        at += size
    return Rows(tokens, segments, positions, targets, weights)
