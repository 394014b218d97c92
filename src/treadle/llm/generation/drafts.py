"""Tokens that are proposed, so that one step may choose several.

A step that reads a proposal gives the logits behind each of its tokens. Whoever proposes changes
nothing about what is chosen: a token is chosen from its logits as it always is, and the next one
counts only if the proposal had that very token. Proposals decide how many steps a text takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from treadle.llm.generation.held import HeldTokens
from treadle.llm.generation.options import Options
from treadle.llm.generation.sampling import choose
from treadle.llm.generation.stepping import Stepping

MOST = 7
"""Tokens of a proposal: with the one before, a step reads eight."""
STEPS = (1, 4, MOST + 1)
"""Tokens of a sequence that a step which continues texts reads: each has a program."""
_LONGEST, _SHORTEST = 4, 2
"""Tokens at the end of a text that are looked for in it."""
_CAUGHT_UP = 8
"""Tokens that a draft model reads together with those of other sequences."""
_WIDTHS = (32, 128, 512)


@dataclass(eq=False)
class Lookup:
    """Finds where the end of a text stood in it before (Saxena 2023, prompt lookup decoding)."""

    _seen: dict[tuple[int, ...], int] = field(default_factory=dict)
    _known: int = 0

    def propose(self, text: Sequence[int], most: int) -> list[int]:
        """Return at most `most` tokens: what followed where the end of the text stood last.

        The text is that of the call before, and more behind it.
        """
        if most <= 0:
            return []
        # The last token has nothing behind it yet.
        for end in range(self._known + 1, len(text)):
            for count in range(_SHORTEST, min(_LONGEST, end) + 1):
                self._seen[tuple(text[end - count : end])] = end
        self._known = max(self._known, len(text) - 1)
        for count in range(min(_LONGEST, len(text)), _SHORTEST - 1, -1):
            at = self._seen.get(tuple(text[len(text) - count :]))
            if at is not None:
                return list(text[at : at + most])
        return []


class Continued(Protocol):
    """A sequence, see `Generation`."""

    place: int
    prompt: tuple[int, ...]
    options: Options
    sequence: int
    generated: list[int]
    text: list[int]
    reach: int
    lookup: Lookup


@dataclass(frozen=True)
class DraftRequest:
    """A sequence, and how many of its next tokens are wanted at most."""

    generation: Continued
    most: int

    @property
    def place(self) -> int:
        """Place of the sequence."""
        return self.generation.place


class Proposer:
    """Proposes tokens for sequences, by what their options ask for.

    Args:
        length: tokens that a sequence has room for.
        drafter: the smaller model, if there is one.
    """

    def __init__(self, length: int, drafter: Drafter | None) -> None:
        self._length = length
        self._drafter = drafter

    def propose(self, generations: Sequence[Continued]) -> list[list[int]]:
        """Tokens that may follow, for every sequence."""
        found: dict[int, list[int]] = {}
        drafted = []
        for g in generations:
            # The token that is chosen behind them needs room, too.
            left = (g.options.max_tokens or self._length) - len(g.generated) - 1
            room = min(self._length - len(g.text) - 1, left, g.reach)
            found[g.place] = g.lookup.propose(g.text, min(g.options.lookup, room))
            most = min(g.options.draft, room)
            if not found[g.place] and most > 0:
                drafted.append(DraftRequest(g, most))
        if self._drafter is not None and drafted:
            proposed = self._drafter.propose(drafted)
            found.update((a.place, p) for a, p in zip(drafted, proposed, strict=True))
        return [found[g.place] for g in generations]

    def forget(self) -> None:
        """Forget what a step that failed left."""
        if self._drafter is not None:
            self._drafter.forget()


class Drafter:
    """A smaller model that continues what the larger one does.

    It draws with the random numbers of the positions, as the larger one will: where both models
    agree about what is likely, they choose the same tokens at any temperature.

    Args:
        model: with the tokens of the larger one.
        sequences, length: as the larger one's cache.
        tokens: that the larger one knows.
    """

    def __init__(self, model: Stepping, sequences: int, length: int, tokens: int) -> None:
        self._model = model
        self._length = min(length, model.context)
        self._cache = model.cache(sequences, self._length)
        self._held = HeldTokens.rows(self._cache, sequences)
        self._tokens = min(tokens, model.vocabulary)

    def propose(self, asked: Sequence[DraftRequest]) -> list[list[int]]:
        """Tokens for each sequence."""
        ready = [a for a in asked if self._catches_up(a)]
        found: dict[int, list[int]] = {a.place: [] for a in asked}
        while True:
            given = {a.place: self._lacking(a, found[a.place]) for a in ready}
            ready = [a for a in ready if len(found[a.place]) < a.most]
            ready = [a for a in ready if len(self._held[a.place]) + 1 < self._length]
            if not ready:
                return [found[a.place] for a in asked]
            rows = [(a.place, given[a.place]) for a in ready]
            logits = self._step(rows, max(len(new) for _, new in rows))
            for a, (place, _), row in zip(ready, rows, logits, strict=False):
                g, more = a.generation, found[place]
                generated = [*g.generated, *more]
                more.append(choose(row, g.options, g.prompt, generated, g.sequence).token)

    def forget(self) -> None:
        """Forget what a step that failed left."""
        for held in self._held:
            held.cut(0)

    def _lacking(self, a: DraftRequest, proposed: Sequence[int]) -> list[int]:
        """Return the tokens of a text and its proposal that were not read."""
        text, held = a.generation.text, len(self._held[a.place])
        return [*text[held:], *proposed[max(0, held - len(text)) :]]

    def _catches_up(self, a: DraftRequest) -> bool:
        """Read a text but for its last few tokens; False if it is longer than the model reads."""
        text, held = a.generation.text, self._held[a.place]
        if len(text) >= self._length or max(text) >= self._model.vocabulary:
            return False
        held.cut(held.shared(text[:-1]))
        while len(text) - len(held) > _CAUGHT_UP:
            piece = text[len(held) : min(len(held) + _WIDTHS[-1], len(text) - 1)]
            self._step([(a.place, piece)], next(w for w in _WIDTHS if w >= len(piece)))
        return True

    def _step(self, rows: Sequence[tuple[int, Sequence[int]]], width: int) -> Any:
        """Logits behind new tokens of some sequences."""
        width = width if width in (1, *_WIDTHS) else _CAUGHT_UP
        places = filled([place for place, _ in rows], len(self._held))
        tokens = np.zeros((len(places), width), np.int32)
        starts, counts = np.zeros((2, len(places)), np.int32)
        for i, (place, new) in enumerate(rows):
            tokens[i, : len(new)], starts[i], counts[i] = new, len(self._held[place]), len(new)
            self._held[place].add(new)
        which = None if len(self._held) == 1 else places
        logits = self._model.step(tokens, self._cache, starts, counts, rows=which).numpy()
        return logits[: len(rows), : self._tokens]


def filled(places: Sequence[int], count: int) -> list[int]:
    """Places, and idle ones behind them, up to a number that has a program: powers of two."""
    size = min(count, 1 << (len(places) - 1).bit_length())
    used = set(places)
    idle = (i for i in range(count) if i not in used)
    return [*places, *(next(idle) for _ in range(size - len(places)))]
