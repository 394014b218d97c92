"""Scores of texts: log-probabilities of their tokens, each after those before it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from treadle.llm.generation.engine import BESIDE, WIDTHS, Engine
from treadle.llm.generation.sampling import SampledToken, rated
from treadle.llm.generation.stepping import Stepping
from treadle.llm.models.model import DecoderModel


def surprises(model: DecoderModel, windows: Iterable[Sequence[int]]) -> Iterator[float]:
    """Read texts of equal length, each for itself; the mean surprise of the second half of each.

    As llama.cpp measures perplexity, which is exp of the mean: every token that is counted follows
    half a window at least. The surprise of a token is minus its log-probability, in nats.

    Args:
        model: what reads.
        windows: tokens of each text, at least 4.
    """
    for window in windows:
        length, half = len(window), len(window) // 2
        cache = model.cache(1, length, widest=length)
        given = np.asarray([window], np.int32)
        logits = model.step(given, cache, [0], [length], all=True).numpy()[0, half : length - 1]
        logits = logits.astype(np.float64)
        largest = logits.max(-1)
        sums = largest + np.log(np.exp(logits - largest[:, None]).sum(-1))
        told = np.take_along_axis(logits, given[0, half + 1 :, None], 1)[:, 0]
        yield float((sums - told).mean())


class Scorer:
    """Reads texts between the steps of an engine, in a cache of its own.

    Args:
        model, engine: what reads, and what else computes with it.
        cache_dtype: element type of keys and values; None: that which the model computes in.
        tokens: that there are; embeddings may have more rows.
    """

    def __init__(
        self, model: Stepping, engine: Engine, cache_dtype: str | None = None, tokens: int = 0
    ) -> None:
        self._model, self._engine, self._dtype = model, engine, cache_dtype
        self._tokens = min(tokens or model.vocabulary, model.vocabulary)
        self._cache: Any = None
        self._turn = threading.Lock()

    def score(
        self, prompt: Sequence[int], *, adapter: int = 0, top: int = 0
    ) -> Iterator[SampledToken]:
        """The tokens of a prompt with their log-probabilities; the first has none.

        Args:
            prompt: tokens.
            adapter: the number of the one that they are read with, from 1; 0 for none.
            top: how many of the likeliest tokens are told in each place.

        Raises:
            ShapeError, IndexRangeError: see `Engine.submit`.
        """
        tokens = self._engine.checked(prompt)
        yield SampledToken(tokens[0])
        with self._turn:
            if self._cache is None:
                self._cache = self._model.cache(1, self._engine.length, self._dtype)
            for start in range(0, len(tokens) - 1, BESIDE):
                piece = tokens[start : start + BESIDE]
                for row, token in zip(
                    self._read(start, piece, adapter), tokens[start + 1 :], strict=False
                ):
                    yield rated(row[: self._tokens], token, top)

    def _read(self, start: int, piece: Sequence[int], adapter: int) -> Any:
        """Logits behind each token of a piece."""
        width = next(w for w in WIDTHS if w >= max(len(piece), self._model.piece))
        given = np.zeros((1, width), np.int32)
        given[0, : len(piece)] = piece
        with self._engine.lock:
            logits = self._model.step(
                *(given, self._cache, [start], [len(piece)]),
                adapters=[adapter] if adapter else None,
                all=True,
            )
            return logits.numpy()[0, : len(piece)]
