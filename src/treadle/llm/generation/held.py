"""Content of a row of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class HeldTokens:
    """The tokens that a row of a cache holds.

    A layer with a window may keep the last positions only. Then a row may go back by a few tokens,
    counted from the furthest that was ever written, or be read from its beginning.

    Attributes:
        back: how many; None: any number.
        tokens: that the next ones follow.
        written: where the furthest position ends.
    """

    back: int | None = None
    tokens: list[int] = field(default_factory=list)
    written: int = 0

    @classmethod
    def rows(cls, cache: Any, count: int) -> list[HeldTokens]:
        """Empty ones, of a cache that says how far its sequences may go back."""
        return [cls(getattr(cache, "back", None)) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.tokens)

    def kept(self, count: int) -> int:
        """Return how many of its first `count` tokens it may keep: all of these or none."""
        return 0 if self.back is not None and self.written - count > self.back else count

    def shared(self, text: Sequence[int]) -> int:
        """Return how many of the tokens that a text also begins with it may keep."""
        return self.kept(shared(self.tokens, text))

    def cut(self, count: int) -> None:
        """Go back to its first tokens; not by more than `kept` says."""
        del self.tokens[count:]
        if not count:
            self.written = 0

    def add(self, tokens: Sequence[int], more: int = 0) -> None:
        """A step wrote these, and so many `more` positions that do not count."""
        self.tokens.extend(tokens)
        self.written = max(self.written, len(self.tokens) + more)


def shared(held: Sequence[int], prompt: Sequence[int]) -> int:
    """Return how many tokens both begin with."""
    most = min(len(held), len(prompt))
    if list(held[:most]) == list(prompt[:most]):
        return most
    return next(i for i in range(most) if held[i] != prompt[i])
