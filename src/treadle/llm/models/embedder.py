"""`Embedder`: an encoder with programs for its calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import treadle.functional as F
from treadle.base.errors import CheckpointError, EngineError, IndexRangeError, ShapeError
from treadle.llm.models.encoder import EncoderStack, pooled
from treadle.llm.models.programs import compiled
from treadle.tensor import Tensor

MODES = ("mean", "cls", "last")
_WIDTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_Step = Callable[[Tensor, Tensor, Tensor], Tensor]


def _by_width(step: _Step) -> _Step:
    """Compile a step anew for each width.

    A width has two programs. All widths together have more than one compiled function may have
    before it warns.
    """
    made = functools.cache(lambda width: compiled(step))
    return lambda tokens, types, counts: made(tokens.shape[1])(tokens, types, counts)


class Embedder:
    """A model that turns texts into vectors, or into scores.

    Attributes:
        config: the values of config.json.
        vocabulary: of its tokens.
        context: tokens that a text may have.
        hidden: numbers of a vector.
        kinds: of tokens, by the text that they belong to; 1 where they are not told apart.
        labels: scores of a text; 0 where the model has no classifier.
        mode, normalize: how the rows of a text become its vector.
    """

    def __init__(
        self, stack: EncoderStack, config: Mapping[str, Any], pooling: Mapping[str, Any]
    ) -> None:
        self.config = dict(config)
        self.vocabulary = stack.declared.vocabulary
        self.context = stack.declared.context
        self.hidden = stack.declared.hidden
        self.kinds = max(stack.declared.types, 1)
        self.labels = stack.labels
        self.mode = str(pooling.get("mode", "mean"))
        self.normalize = bool(pooling.get("normalize", True))
        if self.mode not in MODES:
            problem = f"pooling {self.mode!r} is unknown"
            raise CheckpointError("pooling", problem, hint=f"Treadle knows {', '.join(MODES)}")
        self._stack = stack
        self._embed = _by_width(self._embedded)
        self._rows = _by_width(stack.hidden)
        self._rank = _by_width(self._ranked)

    def embed(
        self, tokens: npt.ArrayLike, counts: npt.ArrayLike, types: npt.ArrayLike | None = None
    ) -> Tensor:
        """Vectors of texts.

        Args:
            tokens: int32 (batch, time), with the special tokens that the model was trained with.
            counts: int32 (batch,), how many of them are meant; the others are padding.
            types: int32 (batch, time), kinds of tokens; 0 all.

        Returns:
            float32 (batch, hidden), of length 1 where the model's vectors are.

        Raises:
            ShapeError: arguments do not fit each other, a text is empty or too long.
            IndexRangeError: a token or a kind is not in the vocabulary.
        """
        return self._embed(*self._given(tokens, counts, types))

    def rows(
        self, tokens: npt.ArrayLike, counts: npt.ArrayLike, types: npt.ArrayLike | None = None
    ) -> Tensor:
        """Return the last layer's output, float32 (batch, time, hidden); see `embed`."""
        given = self._given(tokens, counts, types)
        return self._rows(*given)[:, : np.shape(tokens)[1]]

    def rank(
        self, tokens: npt.ArrayLike, counts: npt.ArrayLike, types: npt.ArrayLike | None = None
    ) -> Tensor:
        """Scores of texts, float32 (batch, labels); a reranker has one; see `embed`.

        Raises:
            EngineError: the model has no classifier.
        """
        if not self.labels:
            hint = "models that rerank or classify have the tensor classifier.weight"
            raise EngineError("rank", "the model has no classifier", hint=hint)
        return self._rank(*self._given(tokens, counts, types))

    def _embedded(self, tokens: Tensor, types: Tensor, counts: Tensor) -> Tensor:
        y = pooled(self._stack.hidden(tokens, types, counts), counts, self.mode).astype("float32")
        if not self.normalize:
            return y
        return y / F.maximum(F.sqrt((y * y).sum(-1, keepdims=True)), 1e-12)

    def _ranked(self, tokens: Tensor, types: Tensor, counts: Tensor) -> Tensor:
        return self._stack.classified(self._stack.hidden(tokens, types, counts), counts)

    def _given(
        self, tokens: npt.ArrayLike, counts: npt.ArrayLike, types: npt.ArrayLike | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The arguments, checked and padded to one of few widths."""
        given = np.asarray(tokens, np.int32)
        meant = np.ascontiguousarray(counts, np.int32)
        kinds = np.zeros_like(given) if types is None else np.asarray(types, np.int32)
        if given.ndim != 2 or not given.size or kinds.shape != given.shape:
            saw = f"tokens {given.shape}, types {kinds.shape}"
            raise ShapeError("embed", "tokens and types are (batch, time)", saw=saw)
        batch, time = given.shape
        if time > self.context:
            saw = f"{time} tokens, the model has {self.context}"
            raise ShapeError("embed", "a text is longer than the model was made for", saw=saw)
        if meant.shape != (batch,) or (meant < 1).any() or (meant > time).any():
            saw = f"counts {meant.tolist()} for {batch} texts of {time} tokens"
            raise ShapeError("embed", "counts are 1 to the number of tokens", saw=saw)
        for name, x, end in (("token", given, self.vocabulary), ("kind", kinds, self.kinds)):
            if ((x < 0) | (x >= end)).any():
                saw = f"{int(x.min())} to {int(x.max())}, not below {end}"
                raise IndexRangeError("embed", f"a {name} is not in the vocabulary", saw=saw)
        width = next((w for w in _WIDTHS if time <= w <= self.context), time)
        more = ((0, 0), (0, width - time))
        return Tensor(np.pad(given, more)), Tensor(np.pad(kinds, more)), Tensor(meant)
