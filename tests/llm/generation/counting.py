"""A model that counts: any mistake in what it is given shows in what it answers."""

from __future__ import annotations

from typing import Any

import numpy as np


class Counting:
    """The next token is the sum of all before, modulo the vocabulary.

    `spread` gives the tokens beside it weights, for sampling.
    """

    vocabulary, context, piece = 101, 4000, 1

    def __init__(self, spread: float = 0.0) -> None:
        self.calls: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
        self.copied = 0
        self._spread = spread

    def cache(self, sequences: int, length: int, dtype: str | None = None) -> Any:
        return np.full((sequences, length + 1), 999, np.int64)

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
        rows = range(len(cache)) if rows is None else rows
        assert len(set(rows)) == len(rows) == len(tokens)
        self.calls.append((np.shape(tokens), tuple(rows), sum(np.asarray(counts))))
        logits = np.zeros((*np.shape(tokens), self.vocabulary), np.float32)
        for i, (row, start, count) in enumerate(zip(rows, starts, counts, strict=True)):
            assert start + count < cache.shape[1]
            cache[row, start : start + count] = tokens[i][:count]
            for t in range(count):
                likely = cache[row, : start + t + 1].sum() % self.vocabulary
                logits[i, t, likely] = 5.0
                for near in (1, 2, 3):
                    logits[i, t, (likely + near) % self.vocabulary] = self._spread - near
        if not all:
            logits = logits[np.arange(len(logits)), np.maximum(np.asarray(counts) - 1, 0)]

        class Result:
            numpy = staticmethod(lambda: logits)

        return Result

    def share(self, cache: Any, source: int, target: int, begin: int, end: int) -> None:
        self.copied += end - begin
        cache[target, begin:end] = cache[source, begin:end]


def expected(prompt: Any, count: int) -> list[int]:
    """What it continues a prompt with."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(sum(tokens) % Counting.vocabulary)
    return tokens[len(prompt) :]


def answer(generation: Any) -> list[int]:
    """All tokens of a sequence."""
    return [t.id for t in generation]
