"""`DecoderModel`: a decoder with programs for its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import treadle.functional as F
from treadle.base.errors import IndexRangeError, ShapeError
from treadle.inspect import Inspected
from treadle.jit import Compiled
from treadle.llm.models.attention import (
    NOBODYS,
    Cache,
    Kept,
    copy_page,
    copy_rings,
    empty_cache,
    places,
)
from treadle.llm.models.decoder import DecoderStack
from treadle.llm.models.programs import compiled
from treadle.llm.models.stacked import Stacked
from treadle.tensor import Tensor


class DecoderModel:
    """A model that continues text.

    Attributes:
        config: the values of config.json.
        vocabulary: logits of a step; at least as many as the tokenizer knows.
        context: tokens that a sequence may have.
        adapters: that steps may apply; set them before the first step.
        piece: steps of fewer tokens round activations otherwise; 1 if all are rounded alike.
    """

    def __init__(
        self, stack: DecoderStack, config: Mapping[str, Any], dtype: str, piece: int
    ) -> None:
        self.config = dict(config)
        self.vocabulary = stack.declared.vocabulary
        self.context = stack.declared.context
        self.piece = piece
        self.stack = stack
        self.adapters: Stacked | None = None
        self._dtype = dtype
        self._programs: dict[tuple[int, ...], Compiled[..., Tensor]] = {}
        self._copy_page, self._copy_rings = compiled(copy_page), compiled(copy_rings)

    def cache(
        self,
        sequences: int,
        length: int,
        dtype: str | None = None,
        widest: int = 512,
        tokens: int | None = None,
    ) -> Cache:
        """Room for keys and values, which takes memory as it is filled.

        Layers with a window have room for that and a step, not for the whole length. Others have
        pages, of which `Cache.table` says whose they are.

        Args:
            sequences: how many there is room for.
            length: tokens of each.
            dtype: the element type they are kept in; None: that which the model computes in.
            widest: tokens of a step at most, where there are such layers.
            tokens: that pages have room for together; None: for those of all sequences.

        Raises:
            ShapeError: more tokens than the model was made for.
            DTypeError: there are no caches of this element type.
        """
        if length > self.context:
            raise ShapeError(
                "cache",
                "the model was made for fewer tokens",
                saw=f"{length} tokens, the model has {self.context}",
            )
        layers = tuple(layer.attention for layer in self.stack.declared.layers)
        return empty_cache(layers, sequences, length, dtype or self._dtype, widest, tokens)

    def step(
        self,
        tokens: npt.ArrayLike,
        cache: Cache,
        starts: npt.ArrayLike,
        counts: npt.ArrayLike,
        *,
        rows: npt.ArrayLike | None = None,
        adapters: npt.ArrayLike | None = None,
        all: bool = False,
    ) -> Tensor:
        """Read tokens, and give the logits of those that may come next.

        There is one program for each shape of `tokens`: use few widths, and pad.

        Args:
            tokens: int32 (batch, time).
            cache: what the sequences hold; keys and values of the tokens are added.
            starts: int32 (batch,), how many tokens each sequence holds.
            counts: int32 (batch,), how many of the tokens are meant; the others are padding. A
                sequence with 0 stays as it is, and its logits mean nothing.
            rows: int32 (batch,), which sequences of the cache these are; all, in order.
            adapters: int32 (batch,), which adapter each row has; 0, and None for all: none.
            all: logits of all tokens.

        Returns:
            float32 (batch, vocabulary), of the last token that is meant; (batch, time, vocabulary)
            with `all`.

        Raises:
            ShapeError: arguments do not fit each other, or the cache is full.
            IndexRangeError: a token is not in the vocabulary, a row not in the cache.
        """
        program, arguments = self._program(tokens, cache, starts, counts, rows, adapters, all)
        return program(*arguments)

    def inspected(
        self, tokens: int = 1, behind: int = 0, cache_dtype: str | None = None, repeats: int = 0
    ) -> Inspected:
        """The program of a step of one sequence: its stages, groups, kernels and memory.

        Args:
            tokens: of the step; those of answers have 1.
            behind: tokens that the sequence holds before, which attention reads.
            cache_dtype: what keys and values are kept in; see `cache`.
            repeats: how many runs are measured, after one that is not; 0: times are predicted.

        Raises:
            ShapeError: the model was made for fewer tokens.
        """
        cache = self.cache(1, behind + tokens, cache_dtype, tokens)
        given = np.zeros((1, tokens), np.int32)
        program, arguments = self._program(given, cache, [behind], [tokens], None, None, False)
        if repeats:
            program.profile(*arguments, repeats=repeats)
        return program.compile(*arguments)

    def _program(
        self,
        tokens: npt.ArrayLike,
        cache: Cache,
        starts: npt.ArrayLike,
        counts: npt.ArrayLike,
        rows: npt.ArrayLike | None,
        adapters: npt.ArrayLike | None,
        all: bool,
    ) -> tuple[Compiled[..., Tensor], tuple[Any, ...]]:
        """The program of a step, and its arguments; see `step`."""
        given = np.ascontiguousarray(tokens, np.int32)
        first, meant = (np.ascontiguousarray(x, np.int32) for x in (starts, counts))
        which = None if rows is None else np.ascontiguousarray(rows, np.int32)
        _check(given, first, meant, which, cache, self.vocabulary)
        table = cache.table if which is None else cache.table[which]
        _check_pages(table, np.where(meant > 0, first + meant, 0), cache)
        adapted = self._adapted(adapters, len(given))
        # One function for each shape: none of them is a mistake that jit should warn of.
        program = self._programs.get(given.shape)
        if program is None:
            program = self._programs.setdefault(given.shape, compiled(self._step))
        return program, (
            self.stack.embedding.given(given),
            Tensor(first),
            Tensor(meant),
            None if which is None else Tensor(which),
            Tensor(np.maximum(table, 0)),
            cache.layers,
            cache.rings,
            cache.page,
            adapted,
            all,
        )

    def _adapted(self, adapters: npt.ArrayLike | None, batch: int) -> Tensor | None:
        """Numbers of adapters that there are."""
        if adapters is None:
            return None
        found = np.ascontiguousarray(adapters, np.int32)
        count = 1 if self.adapters is None else self.adapters.count
        if found.shape != (batch,) or _outside(found, count):
            saw = f"{found.tolist()} for {batch} rows, {count - 1} adapters"
            raise IndexRangeError("step", "adapters are one number for each row", saw=saw)
        return Tensor(found)

    def copy(
        self, cache: Cache, source: int, target: int, count: int | None = None, *, rings: bool
    ) -> None:
        """Copy a page to another one, or a sequence's rings to those of another one.

        Args:
            cache: of this model.
            source, target: numbers of pages, or of sequences.
            count: tokens of the page; all of it or of the rings where left out.
            rings: what is copied.

        Raises:
            IndexRangeError: these are not two of the cache.
        """
        size = cache.sequences if rings else cache.pages
        if source == target or _outside(np.array([source, target], np.int32), size):
            what = "sequences" if rings else "pages"
            saw = f"{source} to {target} of {size} {what}"
            raise IndexRangeError("copy", f"these are not two {what} of the cache", saw=saw)
        one, other = (Tensor(np.array([i], np.int32)) for i in (source, target))
        layers = [k for k, r in zip(cache.layers, cache.rings, strict=True) if r == rings]
        if layers and rings:
            self._copy_rings(layers, one, other)
        elif layers:
            end = Tensor(np.array([cache.page if count is None else count], np.int32))
            self._copy_page(layers, one, other, end, cache.page)

    def _step(
        self,
        tokens: Tensor,
        starts: Tensor,
        counts: Tensor,
        rows: Tensor | None,
        pages: Tensor,
        kept: list[Kept],
        rings: tuple[bool, ...],
        page: int,
        adapters: Tensor | None,
        all: bool,
    ) -> Tensor:
        batch, time = tokens.shape[:2]
        at = places(starts, counts, rows, pages, page, time)
        adapt = None
        if adapters is not None and self.adapters is not None:
            adapt = self.adapters.chosen(adapters)
        x = self.stack.hidden(tokens, kept, rings, at, adapt)
        if not all:
            last = F.maximum(counts - 1, 0)
            x = x[Tensor(np.arange(batch, dtype=np.int32)), last]
        return self.stack.logits(x)


Ints = npt.NDArray[np.int32]


def _check_pages(table: Ints, ends: Ints, cache: Cache) -> None:
    """Check that rows have pages for all of their positions."""
    for i in np.flatnonzero((table == NOBODYS).any(axis=1)).tolist():
        used = -(-int(ends[i]) // cache.page)
        if (table[i, :used] == NOBODYS).any():
            raise ShapeError(
                "step",
                "a sequence has no pages for its tokens",
                saw=f"row {i}: {ends[i]} tokens, pages {table[i].tolist()}",
                hint="make the cache with more tokens, or write into cache.table whose pages are",
            )


def _check(
    tokens: Ints, starts: Ints, counts: Ints, rows: Ints | None, cache: Cache, vocabulary: int
) -> None:
    """Check what a program would not notice."""
    if tokens.ndim != 2 or not tokens.size:
        raise ShapeError("step", "tokens are (batch, time)", saw=f"shape {tokens.shape}")
    batch, time = tokens.shape
    if cache.widest is not None and time > cache.widest:
        hint = "read them in pieces, or make the cache with widest=..."
        saw = f"{time} tokens, room for {cache.widest}"
        raise ShapeError("step", "layers with windows keep fewer", saw=saw, hint=hint)
    for name, x in (("starts", starts), ("counts", counts), ("rows", rows)):
        if x is not None and x.shape != (batch,):
            raise ShapeError(
                "step", f"{name} has one number for each of {batch} rows", saw=f"{x.shape}"
            )
    if rows is None and batch != cache.sequences:
        raise ShapeError(
            "step",
            "without rows, a call goes on with all sequences",
            saw=f"{batch} rows, {cache.sequences} sequences",
            hint="rows=[...] says which sequences these are",
        )
    if rows is not None and (len(set(rows.tolist())) < batch or _outside(rows, cache.sequences)):
        saw = f"{rows.tolist()} of {cache.sequences} sequences"
        raise IndexRangeError("step", "rows are different sequences of the cache", saw=saw)
    if (starts < 0).any() or (counts < 0).any() or (counts > time).any():
        saw = f"starts {starts.tolist()}, counts {counts.tolist()}, {time} tokens"
        raise ShapeError(
            "step", "counts are 0 to the number of tokens, starts not negative", saw=saw
        )
    if (starts + counts > cache.length).any():
        raise ShapeError(
            "step",
            "the cache is full",
            saw=f"{int((starts + counts).max())} tokens, room for {cache.length}",
            hint="make a longer cache, or drop tokens",
        )
    if _outside(tokens, vocabulary):
        saw = f"tokens {int(tokens.min())} to {int(tokens.max())}, a vocabulary of {vocabulary}"
        raise IndexRangeError("step", "a token is not in the vocabulary", saw=saw)


def _outside(x: Ints, end: int) -> bool:
    return bool(((x < 0) | (x >= end)).any())
