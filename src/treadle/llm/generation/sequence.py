"""A prompt that an engine continues, and its tokens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from treadle.base.errors import TreadleError
from treadle.llm.generation.drafts import Lookup
from treadle.llm.generation.forms import AnswerForm
from treadle.llm.generation.options import Options
from treadle.llm.generation.sampling import SampledToken

Finish = Literal["", "stop", "length", "cancelled"]


class Continues(Protocol):
    """The interface of an engine for what it continues."""

    def next_of(self, generation: Generation) -> Token:
        """The next token of one."""

    def cancel(self, generation: Generation, finish: Finish) -> None:
        """End one."""


@dataclass(frozen=True)
class Token:
    """A token that was chosen."""

    id: int
    choice: SampledToken


@dataclass(eq=False)
class Generation:
    """A prompt that is being continued; iterating gives its tokens as they come.

    Attributes:
        prompt, options: as they were asked for.
        generated: the tokens so far.
        finish: why it ended: "stop" at a token that ends texts, "length", "cancelled"; "" before.
        reused: tokens of the prompt that the cache held already.
        first: seconds from the request to the first token; 0 before.
        text: the tokens that the next one follows: the prompt and what was generated, without what
            was dropped where the context was full.
        proposed, accepted: tokens that were proposed, and those that were chosen, too.
        reach: tokens of the next proposal at most.
        prompted: tokens of the text that are read as a prompt, not one by one.
        lookup: what finds proposals in the text.
        form: which tokens may come; any without one.
        failure: why it could not go on.
        number: of those that the engine was asked for, in order.
        interrupted: how often others took its pages, so that it has to be read again.
    """

    engine: Continues
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
    text: list[int] = field(default_factory=list)
    proposed: int = 0
    accepted: int = 0
    reach: int = 3
    prompted: int = 0
    lookup: Lookup = field(default_factory=Lookup)
    form: AnswerForm | None = None
    failure: TreadleError | None = None
    number: int = 0
    interrupted: int = 0

    @property
    def read(self) -> int:
        """Tokens that are read before the next one is chosen from a step of all sequences."""
        return max(self.prompted, len(self.text) - 1)

    def __post_init__(self) -> None:
        self.text = list(self.prompt)
        self.prompted = len(self.text)

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        return self.engine.next_of(self)

    def cancel(self, finish: Finish = "cancelled") -> None:
        """End it: its place is free for others."""
        self.engine.cancel(self, finish)
