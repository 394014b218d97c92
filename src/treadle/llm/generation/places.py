"""Places of a cache: who has each, and what it holds of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treadle.llm.generation.held import HeldTokens
from treadle.llm.generation.pages import PageStore, TextPages
from treadle.llm.generation.sequence import Generation
from treadle.llm.generation.stepping import Stepping


@dataclass(eq=False)
class Place:
    """A row of the cache.

    Attributes:
        number: which one.
        held: the pages of its text.
        rings: the tokens that were read here, also when its user has gone: what rings hold, and
            what a draft model has read.
        user: who has it.
        adapter: what the tokens were read with.
    """

    number: int
    held: TextPages
    rings: HeldTokens
    user: Generation | None = None
    adapter: int = 0

    @property
    def asked(self) -> Generation:
        """The generation that uses it."""
        assert self.user is not None  # noqa: S101  (asked of places in use)
        return self.user

    @property
    def is_reading(self) -> bool:
        """True as long as there is more of its user's prompt."""
        return len(self.held) < self.asked.read

    def holds(self, tokens: Sequence[int], adapter: int) -> int:
        """Return how many tokens of a text its rings have."""
        return self.rings.shared(tokens) if self.adapter == adapter else 0

    def add(self, tokens: Sequence[int], more: int = 0) -> None:
        """A step wrote these, and so many `more` positions that do not count."""
        self.held.add(tokens)
        self.rings.add(tokens, more)

    def leave(self) -> None:
        """Take it from its user; pages keep what they hold."""
        self.asked.place, self.user = -1, None
        self.held.leave()


class Places:
    """All places of a cache.

    Args:
        model, cache: whose cache it is.
        sequences: how many places there are.

    Attributes:
        store: what pages hold.
    """

    def __init__(self, model: Stepping, cache: Any, sequences: int) -> None:
        self._model, self._cache = model, cache
        self.store = PageStore(cache.table, cache.pages, cache.page)
        texts = zip(self.store.texts, HeldTokens.rows(cache, sequences), strict=True)
        self._all = [Place(i, *pair) for i, pair in enumerate(texts)]

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, number: int) -> Place:
        return self._all[number]

    @property
    def used(self) -> list[Place]:
        """Places that somebody has."""
        return [p for p in self._all if p.user is not None]

    def forget(self) -> None:
        """Forget all texts: what the cache holds is not known any more."""
        self.store.forget()
        for place in self._all:
            place.rings.cut(0)

    def admits(self, generation: Generation) -> bool:
        """Give a place to who waits, if there is one, and pages for all of the text."""
        free = [p for p in self._all if p.user is None]
        # The last token is read in any case: its logits are what is wanted.
        text, adapter = generation.text[:-1], generation.options.adapter
        end, alone = len(text) + 2, len(free) == len(self._all)
        if not free or not (alone or self.store.has_room(text, adapter, end)):
            return False
        place = max(free, key=lambda p: (p.holds(text, adapter), -len(p.rings)))
        self.begin(place, text, adapter)
        place.held.reserve(end)
        if not generation.generated:
            generation.reused = len(place.held)
        place.user, generation.place = generation, place.number
        return True

    def there(self, place: Place, text: Sequence[int], adapter: int) -> int:
        """Return how many tokens of a text need not be read again."""
        return self._source(place, text, adapter)[1]

    def _source(self, place: Place, text: Sequence[int], adapter: int) -> tuple[Place, int]:
        """Return whose rings have most of what pages hold of a text, and how much."""
        there = self.store.held(text, adapter)
        if place.rings.back is None:
            return place, there
        source = max(self._all, key=lambda p: (p.holds(text[:there], adapter), p is place))
        return source, source.holds(text[:there], adapter)

    def begin(self, place: Place, text: Sequence[int], adapter: int) -> None:
        """Take what is there of a text into a place."""
        source, there = self._source(place, text, adapter)
        if place.rings.back is None:
            there = len(text)
        copied = place.held.begin(text[:there], adapter)
        if copied is not None:
            numbers = copied.source, copied.target, copied.count
            self._model.copy(self._cache, *numbers, rings=False)
        if source.rings.kept(len(place.held)) < len(place.held):
            place.held.begin((), adapter)
        count = len(place.held)
        if source is not place and count:
            self._model.copy(self._cache, source.number, place.number, rings=True)
        written = source.rings.written if count else 0
        place.rings = HeldTokens(place.rings.back, list(text[:count]), written)
        place.adapter = adapter

    def reserve(self, place: Place, end: int) -> list[Generation]:
        """Get pages for a text: whoever came last gives up its place, perhaps this one.

        Returns:
            those who have to be read again.
        """
        gave_up = []
        while place.user is not None and not place.held.reserve(end):
            last = max(self.used, key=lambda p: p.asked.number)
            gave_up.append(last.asked)
            last.leave()
        return gave_up
