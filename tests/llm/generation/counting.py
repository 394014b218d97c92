"""A model that counts: any mistake in what it is given shows in what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Pages:
    """Tokens in pages; 999 where nothing was written."""

    table: Any
    tokens: Any
    back = None

    @classmethod
    def of(cls, sequences: int, length: int, size: int, tokens: int | None) -> Pages:
        """As a model's, of pages of `size` tokens."""
        size = min(size, length)
        each = -(-length // size)
        pages = sequences * each if tokens is None else max(-(-tokens // size), each)
        own = np.arange(sequences * each, dtype=np.int32).reshape(sequences, each)
        return cls(own % pages, np.full((pages, size), 999))

    @property
    def page(self) -> int:
        return self.tokens.shape[1]

    @property
    def pages(self) -> int:
        return len(self.tokens)

    def text(self, row: int) -> Any:
        """All tokens of a row, those behind its end as well."""
        return self.tokens[self.table[row]].ravel()

    def copy(self, source: int, target: int, count: int) -> None:
        self.tokens[target, :count] = self.tokens[source, :count]

    def write(self, row: int, start: int, tokens: Any) -> None:
        for i, token in enumerate(tokens, start):
            self.tokens[self.table[row, i // self.page], i % self.page] = token


class Counting:
    """The next token is the sum of all before, modulo the vocabulary.

    `spread` gives the tokens beside it weights, for sampling.
    """

    vocabulary, context, piece = 101, 4000, 1

    def __init__(self, spread: float = 0.0, page: int = 16) -> None:
        self.calls: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
        self.copied = 0
        self._spread = spread
        self._page = page

    def cache(
        self, sequences: int, length: int, dtype: str | None = None, *, tokens: int | None = None
    ) -> Any:
        self.kept = Pages.of(sequences, length, self._page, tokens)
        return self.kept

    def step(
        self,
        tokens: Any,
        cache: Any,
        starts: Any,
        counts: Any,
        *,
        rows: Any = None,
        adapters: None = None,
        all: Any = False,
    ) -> Any:
        rows = range(len(cache.table)) if rows is None else rows
        assert len(set(rows)) == len(rows) == len(tokens)
        self.calls.append((np.shape(tokens), tuple(rows), sum(np.asarray(counts))))
        logits = np.zeros((*np.shape(tokens), self.vocabulary), np.float32)
        for i, (row, start, count) in enumerate(zip(rows, starts, counts, strict=True)):
            cache.write(row, start, tokens[i][:count])
            text = cache.text(row)
            for t in range(count):
                likely = text[: start + t + 1].sum() % self.vocabulary
                logits[i, t, likely] = 5.0
                for near in (1, 2, 3):
                    logits[i, t, (likely + near) % self.vocabulary] = self._spread - near
        if not all:
            logits = logits[np.arange(len(logits)), np.maximum(np.asarray(counts) - 1, 0)]

        class Result:
            numpy = staticmethod(lambda: logits)

        return Result

    def copy(
        self, cache: Any, source: int, target: int, count: int | None = None, *, rings: bool
    ) -> None:
        assert not rings and count is not None
        self.copied += count
        cache.copy(source, target, count)


def expected(prompt: Any, count: int) -> list[int]:
    """What it continues a prompt with."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(sum(tokens) % Counting.vocabulary)
    return tokens[len(prompt) :]


def answer(generation: Any) -> list[int]:
    """All tokens of a sequence."""
    return [t.id for t in generation]
