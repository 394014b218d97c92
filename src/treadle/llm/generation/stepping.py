"""The interface of models for generation."""

from __future__ import annotations

from typing import Any, Protocol


class Stepping(Protocol):
    """The interface of a model for an engine."""

    vocabulary: int
    context: int
    piece: int

    def cache(self, sequences: int, length: int, dtype: str | None = None) -> Any:
        """Room for what sequences hold."""

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

    def share(self, cache: Any, source: int, target: int, begin: int, end: int) -> None:
        """Copy positions of one sequence to another."""
