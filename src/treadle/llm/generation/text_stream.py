"""Text of a sequence, piece by piece."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from treadle.llm.generation.sequence import Generation, Token


class Decoding(Protocol):
    """Tokens to text, without splitting a character."""

    def push(self, token: int, /) -> str:
        """The text that is complete with a token."""

    def flush(self) -> str:
        """Return the text that is left."""


@dataclass(frozen=True)
class Timing:
    """Times of an answer.

    Attributes:
        prompt: tokens that were read, without those that the cache held already.
        generated: tokens that were chosen.
        first: seconds to the first token.
        rest: seconds from there to the last.
        proposed, accepted: tokens that were proposed, and those of them that were right.
    """

    prompt: int
    generated: int
    first: float
    rest: float
    proposed: int = 0
    accepted: int = 0

    def __str__(self) -> str:
        behind = self.generated - 1  # An answer may end with its first token, or before it.
        rate = f", {behind / self.rest:.1f} tokens/s" if behind > 0 and self.rest > 0 else ""
        first = f", the first after {self.first:.2f} s" if self.generated else ""
        right = f", {self.accepted} of {self.proposed} proposed" if self.proposed else ""
        read = f"{self.prompt} + {self.generated} tokens"
        return f"{read}{first}{rate}{right}"


class TextStream(Iterator[str]):
    """Iterates over pieces of an answer.

    A piece is held back while it may be the beginning of a stop text. `text` is what was given so
    far, `finish` why it ended, `tokens` the tokens with their log-probabilities.

    Args:
        generation: the sequence.
        decoding: of its tokens.
    """

    def __init__(self, generation: Generation, decoding: Decoding) -> None:
        self.generation = generation
        self.tokens: list[Token] = []
        self.text = ""
        self._decoding = decoding
        self._stop = generation.options.stop
        self._held = ""
        self._ended = 0.0

    @property
    def finish(self) -> str:
        """ "stop", "length" or "cancelled"; "" before."""
        return self.generation.finish if self._ended else ""

    @property
    def timing(self) -> Timing:
        """Timing so far, or of the whole text once it has ended."""
        g = self.generation
        end = self._ended or time.perf_counter()
        rest = max(0.0, end - g.begun - g.first) if g.first else 0.0
        read = len(g.prompt) - g.reused
        return Timing(read, len(g.generated), g.first, rest, g.proposed, g.accepted)

    def __next__(self) -> str:
        while not self._ended:
            try:
                token = next(self.generation)
            except StopIteration:
                piece = self._cut(self._decoding.flush(), last=True)
            else:
                self.tokens.append(token)
                piece = self._cut(self._decoding.push(token.id), last=False)
            if piece:
                self.text += piece
                return piece
        raise StopIteration

    def close(self) -> None:
        """End it before its end."""
        self.generation.cancel()
        self._ended = self._ended or time.perf_counter()

    def _cut(self, piece: str, *, last: bool) -> str:
        """Return the part of the text so far that may be given away."""
        given = self._held + piece
        at = min((i for t in self._stop if (i := given.find(t)) >= 0), default=-1)
        if at >= 0:
            self.generation.cancel("stop")
            self._held, self._ended = "", time.perf_counter()
            return given[:at]
        if last:
            self._held, self._ended = "", time.perf_counter()
            return given
        kept = begun(given, self._stop)
        self._held = given[len(given) - kept :]
        return given[: len(given) - kept]


def begun(text: str, stops: Sequence[str]) -> int:
    """Characters at the end of a text with which one of the stop texts may begin."""
    most = max(map(len, stops), default=0) - 1
    for count in range(min(most, len(text)), 0, -1):
        if any(stop.startswith(text[-count:]) for stop in stops):
            return count
    return 0
