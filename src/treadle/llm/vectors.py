"""`load_embedder`: texts to vectors, and to scores for a question."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from treadle.base.errors import CheckpointError, EngineError, IndexRangeError, ShapeError
from treadle.llm.files import ModelCheckpoint, open_checkpoint
from treadle.llm.models import Embedder, build_embedder
from treadle.llm.models.families import DECODERS
from treadle.llm.text import Tokenizer

Floats: TypeAlias = npt.NDArray[np.float32]
Encoded: TypeAlias = "tuple[list[int], list[int]]"
"""Tokens of a text, and what kinds they are: those of a second text are 1."""

_ROWS, _TOKENS = 32, 8192
"""Texts, and tokens with padding, that are computed at a time."""
_SINGLE = 2
"""Texts of about the same length that are read one by one."""


class TextEmbedder:
    """A model that turns texts into vectors, which are near each other where meanings are.

    Attributes:
        checkpoint: the file or directory.
        model: what computes vectors of tokens.
        tokenizer: between text and tokens.
        hidden: numbers of a vector.
        context: tokens that a text may have.
    """

    def __init__(self, checkpoint: ModelCheckpoint, model: Embedder) -> None:
        if checkpoint.tokenizer is None:
            raise checkpoint.no_tokenizer()
        self.checkpoint = checkpoint
        self.model = model
        self.tokenizer = Tokenizer.of(checkpoint.tokenizer)
        self.hidden, self.context = model.hidden, model.context
        self._lock = threading.Lock()

    @classmethod
    def of(cls, checkpoint: ModelCheckpoint, dtype: str = "stored") -> TextEmbedder:
        """The model in a checkpoint; see `load_embedder`."""
        if checkpoint.config.get("model_type") in DECODERS:
            problem = "the model continues text, and makes no vectors of it"
            raise CheckpointError(checkpoint.path, problem, hint="use llm.load")
        if checkpoint.tokenizer is None:
            raise checkpoint.no_tokenizer()  # before weights are read
        return cls(checkpoint, build_embedder(checkpoint, dtype))

    def embed(self, texts: str | Sequence[str]) -> Floats:
        """Vectors of texts, float32 (texts, hidden); of one text (hidden,).

        Products of vectors tell how near texts are: they have length 1 where the model's do.

        Raises:
            ShapeError: a text has more tokens than the model was made for.
        """
        if isinstance(texts, str):
            (vector,) = self.embed([texts])
            return np.asarray(vector)
        return self.vectors([self.tokenizer.encode_pair(text) for text in texts])

    def rank(self, query: str, texts: Sequence[str]) -> Floats:
        """Score how well texts answer a question, float32 (texts,): 0 to 1.

        Raises:
            EngineError: the model does not score pairs of texts.
            ShapeError: the question and a text have more tokens than the model was made for.
        """
        return self.scores([self.tokenizer.encode_pair(query, text) for text in texts])

    def vectors(self, texts: Sequence[Encoded]) -> Floats:
        """Vectors of tokens, as `encode_pair` of the tokenizer has them; see `embed`."""
        return self._computed(texts, ranked=False)

    def scores(self, pairs: Sequence[Encoded]) -> Floats:
        """Scores of tokens, as `encode_pair` of the tokenizer has them; see `rank`."""
        if self.model.labels != 1:
            hint = "models that rerank have one label; `embed` and products compare texts, too"
            raise EngineError("rank", "the model does not score pairs of texts", hint=hint)
        found = self._computed(pairs, ranked=True)[:, 0]
        return np.asarray(1 / (1 + np.exp(-found)), np.float32)

    def check(self, texts: Sequence[Encoded]) -> None:
        """Refuse what the model cannot read.

        Raises:
            ShapeError: a text has no tokens, or more than the model was made for.
            IndexRangeError: a token is not in the vocabulary.
        """
        for i, (tokens, _) in enumerate(texts):
            if not 1 <= len(tokens) <= self.context:
                saw = f"{len(tokens)} tokens in text {i}, the model reads {self.context}"
                hint = "cut texts into passages"
                raise ShapeError("embed", "a text is empty or too long", saw=saw, hint=hint)
            if min(tokens) < 0 or max(tokens) >= self.model.vocabulary:
                saw = f"{min(tokens)} to {max(tokens)} of {self.model.vocabulary} in text {i}"
                raise IndexRangeError("embed", "a token is not in the vocabulary", saw=saw)

    def _computed(self, texts: Sequence[Encoded], *, ranked: bool) -> Floats:
        self.check(texts)
        width = self.model.labels if ranked else self.hidden
        found = np.zeros((len(texts), width), np.float32)
        for rows, height in _batches([len(tokens) for tokens, _ in texts]):
            # Rows behind the last text are of one token, and nobody looks at them.
            counts = [len(texts[i][0]) for i in rows] + [1] * (height - len(rows))
            tokens, kinds = np.zeros((2, height, max(counts)), np.int32)
            for at, i in enumerate(rows):
                tokens[at, : counts[at]] = texts[i][0]
                if self.model.kinds > 1:
                    kinds[at, : counts[at]] = texts[i][1]
            run = self.model.rank if ranked else self.model.embed
            with self._lock:
                found[rows] = run(tokens, counts, kinds).numpy()[: len(rows)]
        return found


def _batches(lengths: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """Texts of about the same length, and the rows that they are filled up to.

    There are two programs for each width: of one row, and of as many as fill a step.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        width = 1 << (lengths[order[0]] - 1).bit_length()
        full = max(1, min(_ROWS, _TOKENS // width))
        # Those that are less than half as long are read by a narrower program.
        alike = sum(2 * lengths[i] > width for i in order[:full])
        count = alike if alike > _SINGLE else 1
        yield order[:count], full if count > 1 else 1
        del order[:count]


def load_embedder(path: str | os.PathLike[str], dtype: str = "stored") -> TextEmbedder:
    """A model that turns texts into vectors, from a directory as Hugging Face has them or GGUF.

    Args:
        path: of the file or directory.
        dtype: "stored": quantized weights and floats of 16 bits stay what they are; "float32" or
            "bfloat16" is what all are widened or rounded to.

    Raises:
        CheckpointError: a file is damaged, or a family of models that is not known.
        OSError: a file cannot be read.

    Example:
        model = llm.load_embedder("all-MiniLM-L6-v2")
        near = model.embed(["a kitten sleeps", "stocks fell"]) @ model.embed("cats")
    """
    return TextEmbedder.of(open_checkpoint(path), dtype)
