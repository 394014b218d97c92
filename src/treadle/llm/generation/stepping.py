"""The interface of models for generation."""

from __future__ import annotations

from typing import Any, Protocol


class Stepping(Protocol):
    """The interface of a model for an engine."""

    vocabulary: int
    context: int
    piece: int

    def cache(
        self, sequences: int, length: int, dtype: str | None = None, *, tokens: int | None = None
    ) -> Any:
        """Room for what sequences hold: of so many tokens, where that is less than all of it."""

    def step(
        self,
        tokens: Any,
        cache: Any,
        starts: Any,
        counts: Any,
        *,
        rows: Any = None,
        adapters: Any = None,
        all: bool = False,
    ) -> Any:
        """Logits of the last tokens, or of all."""

    def copy(
        self, cache: Any, source: int, target: int, count: int | None = None, *, rings: bool
    ) -> None:
        """Copy a page, or so many of its tokens, to another; or a sequence's rings."""
