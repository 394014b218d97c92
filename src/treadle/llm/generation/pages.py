"""Pages of a cache: which text has which, and what they hold when nobody uses them any more.

Pages form a tree: each continues the one before it in a text, and texts that begin alike share
what they have in common. A page that is full does not change. The last page of a text belongs to
that text alone, and what another one has in common with a part of it is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from treadle.llm.generation.held import shared

COPIED = 8
"""Tokens of a page from which on it is worth to copy them."""


@dataclass(eq=False)
class Page:
    """A page, and the tokens whose keys and values it holds.

    Attributes:
        number: which one of the cache this is; -1 for the beginning of all texts.
        before: the page that this one continues.
        tokens: that it holds.
        users: how many texts go on with it.
        behind: pages that continue it, by their first tokens.
    """

    number: int
    before: Page | None = None
    tokens: list[int] = field(default_factory=list)
    users: int = 0
    behind: dict[int, list[Page]] = field(default_factory=dict)

    def next(self, text: Sequence[int]) -> tuple[Page | None, int]:
        """The page behind this one that holds most of a text, and how many tokens that is."""
        found, most = None, 0
        for page in self.behind.get(text[0], ()) if text else ():
            count = shared(page.tokens, text)
            if count > most:
                found, most = page, count
        return found, most


@dataclass(frozen=True)
class Copy:
    """Tokens that a text takes from a page which it cannot share: from, to, how many."""

    source: int
    target: int
    count: int


class PageStore:
    """The pages of a cache, and the texts that they hold.

    Pages that nobody uses keep what they hold, until others need them: the ones that were used
    longest ago go first.

    Args:
        table: of the cache: int32 (sequences, pages of one), which this writes.
        pages: how many there are; enough for one text of any length.
        size: tokens of a page.
    """

    def __init__(self, table: npt.NDArray[np.int32], pages: int, size: int) -> None:
        self.size = size
        self._count = pages
        # Where a text begins, so that its pages lie beside each other.
        homes = [i * pages // len(table) for i in range(len(table))]
        self.texts = [TextPages(self, *pair) for pair in zip(table, homes, strict=True)]
        self.forget()

    @property
    def available(self) -> int:
        """Pages that nobody uses."""
        return len(self._free) + len(self._kept)

    def forget(self) -> None:
        """Forget all texts: what pages hold is not known any more."""
        self._free = set(range(self._count))
        self._kept: dict[Page, None] = {}
        self._roots: dict[int, Page] = {}
        for text in self.texts:
            text.clear()

    def root(self, adapter: int) -> Page:
        """Return the beginning of all texts that are read with an adapter."""
        return self._roots.setdefault(adapter, Page(-1))

    def find(self, text: Sequence[int], adapter: int) -> Iterator[tuple[Page, int]]:
        """Pages that hold the beginning of a text, and how many tokens of each: all but the last
        are whole.
        """
        page, at = self.root(adapter), 0
        while True:
            found, count = page.next(text[at : at + self.size])
            if found is None:
                return
            yield found, count
            if count < self.size:
                return
            page, at = found, at + count

    def held(self, text: Sequence[int], adapter: int) -> int:
        """Count the tokens of a text that a sequence would find."""
        return sum(n for _, n in self.find(text, adapter) if n >= min(COPIED, self.size))

    def has_room(self, text: Sequence[int], adapter: int, end: int) -> bool:
        """Return True if a text of `end` tokens finds pages, with those that hold its beginning."""
        whole = [page for page, n in self.find(text, adapter) if n == self.size]
        waiting = sum(not page.users for page in whole)
        return -(-end // self.size) - len(whole) <= self.available - waiting

    def take(self, *wanted: int) -> int | None:
        """A page that nobody uses, the first of those that are wanted; None if there is none."""
        if self._free:
            number = next((n for n in wanted if n in self._free), None)
            if number is None:
                number = self._in_the_middle()
            self._free.remove(number)
            return number
        page = next(iter(self._kept), None)
        if page is None:
            return None
        # Texts leave their last page first, so what continues this one has gone before.
        assert page.before is not None and not page.behind  # noqa: S101
        del self._kept[page]
        page.before.behind[page.tokens[0]].remove(page)
        if not page.before.behind[page.tokens[0]]:
            del page.before.behind[page.tokens[0]]
        return page.number

    def _in_the_middle(self) -> int:
        """The middle of the most neighboring pages that are free: texts on both sides may grow."""
        first = best = most = 0
        for number in sorted(self._free):
            if number - 1 not in self._free:
                first = number
            if number - first >= most:
                best, most = first, number - first + 1
        return best + most // 2

    def use(self, page: Page) -> None:
        """One more text goes on with a page."""
        page.users += 1
        self._kept.pop(page, None)

    def leave(self, page: Page) -> None:
        """One text less uses a page."""
        page.users -= 1
        if page.users:
            return
        if page.tokens:
            self._kept[page] = None
        else:
            self._free.add(page.number)


class TextPages:
    """The pages of the text in a place of the cache.

    Args:
        store: of all.
        row: of the table.
        home: the page that it begins with, if it is free.
    """

    def __init__(self, store: PageStore, row: npt.NDArray[np.int32], home: int) -> None:
        self._store, self._row, self._home = store, row, home
        self._pages: list[Page] = []
        self._count = 0
        self._root = Page(-1)

    def __len__(self) -> int:
        """Tokens that were read."""
        return self._count

    def clear(self) -> None:
        """Drop all pages, as if there had been none."""
        self._pages, self._count = [], 0

    def begin(self, text: Sequence[int], adapter: int) -> Copy | None:
        """Leave the text that was there, and begin with what the store has of another one.

        Returns:
            what has to be copied before it is read.
        """
        self.leave()
        store, copied = self._store, None
        self._root = store.root(adapter)
        for page, count in list(store.find(text, adapter)):
            if count == len(page.tokens) and (count == store.size or not page.users):
                store.use(page)
                self._append(page)
            elif count >= COPIED:
                store.use(page)  # so that it is not the one that is taken
                number = self._take([])
                store.leave(page)
                if number is None:
                    break
                self._append(Page(number, users=1))
                copied = Copy(page.number, number, count)
                self.add(page.tokens[:count])
                break
            else:
                break
            self._count += count
        return copied

    def reserve(self, end: int) -> bool:
        """Get pages for so many tokens; False if there are not enough, and some may be had."""
        wanted = -(-end // self._store.size) - len(self._pages)
        numbers: list[int] = []
        while len(numbers) < wanted:
            number = self._take(numbers)
            if number is None:
                break
            numbers.append(number)
        # Pages that another text has left come from its end to its beginning.
        for number in sorted(numbers):
            self._append(Page(number, users=1))
        return len(numbers) >= wanted

    def add(self, tokens: Sequence[int]) -> None:
        """A step has read these."""
        size = self._store.size
        while tokens:
            index, there = divmod(self._count, size)
            page, new = self._pages[index], tokens[: size - there]
            if not page.tokens:
                page.before = self._pages[index - 1] if index else self._root
                page.before.behind.setdefault(new[0], []).append(page)
            page.tokens.extend(new)
            self._count += len(new)
            tokens = tokens[len(new) :]

    def leave(self) -> None:
        """Give all pages back: they keep what they hold."""
        for page in reversed(self._pages):
            self._store.leave(page)
        self.clear()

    def _take(self, numbers: list[int]) -> int | None:
        """A page behind the last one, if that is free: caches are read faster in order."""
        before = [*(page.number for page in self._pages[-1:]), *numbers]
        near = [before[-1] + 1] if before else []
        return self._store.take(*near, self._home + len(self._pages) + len(numbers))

    def _append(self, page: Page) -> None:
        self._row[len(self._pages)] = page.number
        self._pages.append(page)
