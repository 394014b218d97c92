"""Sequences that join and leave the steps of a model.

Each sequence has a place in the cache. A step reads the next piece of one prompt, or one token of
every sequence that is being continued. Who asks for the next token of a sequence drives the steps
of all of them, so there is no thread of our own; several threads may ask.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from treadle.base.errors import IndexRangeError, ShapeError
from treadle.llm.generation.options import Options
from treadle.llm.generation.sampling import Choice, choose

WIDTHS = (1, 8, 32, 128, 512)
"""Tokens of a prompt that a step reads: each has a program."""

Finish = Literal["", "stop", "length", "cancelled"]


class Stepping(Protocol):
    """What an engine needs of a model."""

    vocabulary: int
    context: int
    piece: int

    def cache(self, sequences: int, length: int, dtype: str | None = None) -> Any:
        """Room for what sequences hold."""

    def step(self, tokens: Any, cache: Any, starts: Any, counts: Any, *, rows: Any = None) -> Any:
        """Logits of the last tokens."""


@dataclass(frozen=True)
class Token:
    """A token that was chosen."""

    id: int
    choice: Choice


@dataclass(eq=False)
class Generation:
    """A prompt that is being continued; iterating gives its tokens as they come.

    Attributes:
        prompt, options: as they were asked for.
        generated: the tokens so far.
        finish: why it ended: "stop" at a token that ends texts, "length", "cancelled"; "" before.
        reused: tokens of the prompt that the cache held already.
        first: seconds from the request to the first token; 0 before.
    """

    engine: Engine
    prompt: tuple[int, ...]
    options: Options
    sequence: int = 0
    generated: list[int] = field(default_factory=list)
    finish: Finish = ""
    reused: int = 0
    first: float = 0.0
    begun: float = field(default_factory=time.perf_counter)
    place: int = -1
    ready: deque[Token] = field(default_factory=deque)

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        return self.engine.next_of(self)

    def cancel(self, finish: Finish = "cancelled") -> None:
        """End it: its place is free for others."""
        self.engine.cancel(self, finish)


@dataclass(eq=False)
class _Place:
    """A row of the cache, and the tokens that it holds."""

    held: list[int] = field(default_factory=list)
    user: Generation | None = None


class Engine:
    """Continues prompts with a model, several at a time.

    Args:
        model: with `step` and `cache`.
        sequences: how many are continued at a time; others wait.
        length: tokens of a sequence at most; the model's context where that is less.
        eos: tokens that end a text.
        cache_dtype: element type of keys and values; None: that which the model computes in.
    """

    def __init__(
        self,
        model: Stepping,
        sequences: int = 1,
        length: int = 4096,
        eos: Sequence[int] = (),
        *,
        cache_dtype: str | None = None,
    ) -> None:
        self.length = min(length, model.context)
        self.eos = frozenset(eos)
        self._model = model
        self._cache = model.cache(sequences, self.length, cache_dtype)
        self._places = [_Place() for _ in range(sequences)]
        self._waiting: deque[Generation] = deque()
        self._lock = threading.Lock()

    def submit(
        self, prompt: Sequence[int], options: Options | None = None, sequence: int = 0
    ) -> Generation:
        """A prompt to be continued, once there is a place for it.

        Raises:
            ShapeError: there are no tokens, or more than fit.
            IndexRangeError: a token is not in the vocabulary.
        """
        tokens = tuple(int(t) for t in prompt)
        if not tokens or len(tokens) >= self.length:
            saw = f"{len(tokens)} tokens, room for {self.length}"
            hint = "shorten the prompt, or make the context longer"
            raise ShapeError("prompt", "has no tokens, or no room for more", saw=saw, hint=hint)
        if min(tokens) < 0 or max(tokens) >= self._model.vocabulary:
            saw = f"tokens {min(tokens)} to {max(tokens)} of {self._model.vocabulary}"
            raise IndexRangeError("prompt", "a token is not in the vocabulary", saw=saw)
        made = Generation(self, tokens, options or Options(), sequence)
        with self._lock:
            self._waiting.append(made)
        return made

    def cancel(self, generation: Generation, finish: Finish) -> None:
        """See `Generation.cancel`."""
        with self._lock:
            self._end(generation, finish)

    def next_of(self, generation: Generation) -> Token:
        """The next token of one, for which all that wait take steps.

        Raises:
            StopIteration: it has ended.
        """
        while True:
            with self._lock:
                if generation.ready:
                    return generation.ready.popleft()
                if generation.finish:
                    raise StopIteration
                self._advance()

    # -- steps -----------------------------------------------------------------------------

    def _advance(self) -> None:
        """One step: of a prompt, else of all that are being continued."""
        self._admit()
        users = [p for p in self._places if p.user is not None]
        reading = [p for p in users if self._left(p)]
        try:
            if reading:
                self._read(min(reading, key=lambda p: self._left(p)))
            else:
                self._continue()
        except BaseException:
            # What the cache holds is not known any more: nobody may build on it.
            for place in users:
                place.held.clear()
                if place.user is not None:
                    self._end(place.user, "cancelled")
            raise

    def _admit(self) -> None:
        """Give free places to those who wait, where most of their prompt is there already."""
        while self._waiting:
            free = [p for p in self._places if p.user is None]
            if not free:
                return
            generation = self._waiting.popleft()
            place = max(free, key=lambda p: (_shared(p.held, generation.prompt), -len(p.held)))
            # The last token is read in any case: its logits are what is wanted.
            generation.reused = min(
                _shared(place.held, generation.prompt), len(generation.prompt) - 1
            )
            del place.held[generation.reused :]
            place.user, generation.place = generation, self._places.index(place)

    def _left(self, place: _Place) -> int:
        """Tokens of the prompt that are not read yet."""
        assert place.user is not None  # noqa: S101  (asked of places in use)
        return max(0, len(place.user.prompt) - len(place.held))

    def _read(self, place: _Place) -> None:
        """The next piece of a prompt."""
        generation = place.user
        assert generation is not None  # noqa: S101  (asked of places in use)
        start = len(place.held)
        piece = generation.prompt[start : start + WIDTHS[-1]]
        # A last token that is read by itself is rounded as it was in a prompt: answers stay equal.
        width = next(w for w in WIDTHS if w >= max(len(piece), self._model.piece))
        tokens = np.zeros((1, width), np.int32)
        tokens[0, : len(piece)] = piece
        rows = None if len(self._places) == 1 else [generation.place]
        logits = self._model.step(tokens, self._cache, [start], [len(piece)], rows=rows)
        place.held.extend(piece)
        if not self._left(place):
            self._take(place, logits.numpy()[0])

    def _continue(self) -> None:
        """A token of every sequence."""
        count = len(self._places)
        tokens = np.zeros((count, 1), np.int32)
        starts, counts = np.zeros(count, np.int32), np.zeros(count, np.int32)
        for i, place in enumerate(self._places):
            starts[i] = len(place.held)
            if place.user is not None:
                tokens[i, 0], counts[i] = place.user.generated[-1], 1
        if not counts.any():
            return
        logits = self._model.step(tokens, self._cache, starts, counts).numpy()
        for i, place in enumerate(self._places):
            if place.user is not None:
                place.held.append(int(tokens[i, 0]))
                self._take(place, logits[i])

    def _take(self, place: _Place, logits: Any) -> None:
        """Choose a token."""
        generation = place.user
        assert generation is not None  # noqa: S101  (asked of places in use)
        options = generation.options
        found = choose(
            logits, options, generation.prompt, generation.generated, generation.sequence
        )
        if not generation.generated:
            generation.first = time.perf_counter() - generation.begun
        if found.token in self.eos and not options.ignore_eos:
            self._end(generation, "stop")
            return
        generation.generated.append(found.token)
        generation.ready.append(Token(found.token, found))
        full = len(generation.prompt) + len(generation.generated) >= self.length
        if full or len(generation.generated) == options.max_tokens:
            self._end(generation, "length")

    def _end(self, generation: Generation, finish: Finish) -> None:
        if generation.finish:
            return
        generation.finish = finish
        if generation in self._waiting:
            self._waiting.remove(generation)
        if generation.place >= 0:
            self._places[generation.place].user = None


def _shared(held: Sequence[int], prompt: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = 0
    for a, b in zip(held, prompt, strict=False):
        if a != b:
            break
        count += 1
    return count
