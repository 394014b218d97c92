"""Text to tokens and back, by the library tokenizers."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.base.errors import CheckpointError, DTypeError, IndexRangeError
from treadle.llm.files import TokenizerFile, TokenizerSource, TokenizerTables
from treadle.llm.text.packages import needed
from treadle.llm.text.splitting import PATTERNS, WHOLE_WORDS

_CONTROL, _USER = 3, 4
_SPACE = "▁"
_BROKEN = "�"
_HELD = 16
"""Tokens from which broken text is given as it is: no character has so many."""


class Tokenizer:
    """Tokens of a model.

    Attributes:
        vocabulary: tokens that it knows.
        bos: the token that begins texts; None where there is none.
        eos: tokens that end texts.
        adds_bos: whether `encode` puts `bos` before.
    """

    def __init__(
        self, library: Any, bos: int | None, eos: frozenset[int], *, adds_bos: bool
    ) -> None:
        self._library = library
        self._lock = threading.Lock()
        self.vocabulary = int(library.get_vocab_size())
        self.end = 1 + max(library.get_vocab(True).values(), default=-1)
        self.bos, self.eos, self.adds_bos = bos, eos, adds_bos

    @classmethod
    def of(cls, source: TokenizerSource) -> Tokenizer:
        """The tokenizer of a checkpoint.

        Raises:
            CheckpointError: it is of a kind that is not known, or damaged.
            LoadError: the extra `llm` is not installed.
        """
        if isinstance(source, TokenizerFile):
            return _of_file(source)
        build = _KINDS.get(source.model)
        if build is None:
            raise CheckpointError(
                "tokenizer", "is of a kind that is not known", saw=repr(source.model),
                hint=f"known are {', '.join(_KINDS)}",
            )  # fmt: skip
        _mark_special(library := build(source), source)
        ends = (source.ids.get(name) for name in ("eos", "eot", "eom"))
        default = source.model == "llama"
        return cls(
            library,
            source.ids.get("bos"),
            frozenset(i for i in ends if i is not None),
            adds_bos=source.flags.get("add_bos_token", default) and "bos" in source.ids,
        )

    def encode(self, text: str, special: bool = False) -> list[int]:
        """The tokens of a text.

        Args:
            text: any.
            special: special tokens in the text are those tokens, as templates write them, and none
                are added. Otherwise they are plain text, as people may type it, and `bos` comes
                first where the model wants it.

        Raises:
            DTypeError: the text holds what is not a character.
        """
        _check(text)
        with self._lock:
            self._library.encode_special_tokens = not special
            found = self._library.encode(text, add_special_tokens=False).ids
        if not special and self.adds_bos and self.bos is not None:
            return [self.bos, *found]
        return list(found)

    def encode_pair(self, text: str, other: str | None = None) -> tuple[list[int], list[int]]:
        """A text, or two beside each other, as encoders want them: with [CLS] and [SEP].

        Returns:
            Tokens, and for each whether it is of the first text (0) or of the other one (1).

        Raises:
            DTypeError: a text holds what is not a character.
        """
        _check(text)
        _check(other or "")
        with self._lock:
            self._library.encode_special_tokens = True
            found = self._library.encode(text, other, add_special_tokens=True)
        return list(found.ids), list(found.type_ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; special ones are left out."""
        return str(self._library.decode(list(tokens), skip_special_tokens=True))

    def token(self, number: int) -> str:
        """Return the text of a token.

        Raises:
            IndexRangeError: there is no such token.
        """
        found = self._library.id_to_token(number)
        if found is None:
            raise IndexRangeError("token", f"there is no token {number} of {self.vocabulary}")
        return str(found)

    def is_like(self, other: Tokenizer) -> bool:
        """Return whether both have the same tokens under the same numbers."""
        mine, others = (t._library.get_vocab(True) for t in (self, other))
        return bool(mine == others)

    def id_of(self, token: str) -> int | None:
        """The number of a token; None where there is none."""
        found: int | None = self._library.token_to_id(token)
        return found

    def numbers(self) -> dict[str, int]:
        """Numbers of all tokens by their texts."""
        return dict(self._library.get_vocab(True))

    def as_json(self) -> str:
        """Return the content of tokenizer.json."""
        return str(self._library.to_str())

    def stream(self) -> Pieces:
        """Text token by token."""
        return Pieces(self)


def _check(text: str) -> None:
    """Refuse halves of surrogate pairs: bytes that are not UTF-8 become such in Python's hands."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        saw = f"{text[error.start]!r} at character {error.start}"
        hint = "read texts with errors='replace'"
        raise DTypeError("text", "holds half of a surrogate pair", saw=saw, hint=hint) from None


class Pieces:
    """Text token by token; characters of several tokens come when they are complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._given = 0

    def push(self, token: int, /) -> str:
        """The text that is complete with a token."""
        self._ids.append(token)
        return self._next(last=False)

    def flush(self) -> str:
        """Return what is left, complete or not."""
        return self._next(last=True)

    def _next(self, *, last: bool) -> str:
        decode = self._tokenizer.decode
        before = decode(self._ids[: self._given])
        text = decode(self._ids)
        waits = text.endswith(_BROKEN) and len(self._ids) - self._given < _HELD
        if (waits and not last) or len(text) <= len(before):
            return ""
        # Spaces between words depend on the token before, so that one stays.
        self._ids = self._ids[self._given :]
        self._given = len(self._ids)
        return text[len(before) :]


def _of_file(source: TokenizerFile) -> Tokenizer:
    try:
        library = needed("tokenizers").Tokenizer.from_file(source.path)
    except CheckpointError:
        raise
    except Exception as error:  # The library raises plain Exceptions.
        where = os.path.basename(source.path)
        raise CheckpointError(where, f"is not a tokenizer: {error}") from None
    library.no_truncation()
    library.no_padding()

    def named(key: str) -> int | None:
        given = source.config.get(key)
        text = given.get("content") if isinstance(given, Mapping) else given
        found: int | None = library.token_to_id(text) if isinstance(text, str) else None
        return found

    bos, eos = named("bos_token"), named("eos_token")
    added = library.encode("", add_special_tokens=True).ids
    adds = bool(bos is not None and added[:1] == [bos])
    return Tokenizer(library, bos, frozenset([eos] if eos is not None else []), adds_bos=adds)


def _mark_special(library: Any, source: TokenizerTables) -> None:
    """Control tokens, which are never parts of words."""
    if source.types is None:
        return
    added = needed("tokenizers").AddedToken
    for kind, special in ((_CONTROL, True), (_USER, False)):
        tokens = [source.tokens[i] for i in (source.types == kind).nonzero()[0]]
        made = [added(t, special=special, normalized=False) for t in tokens if t]
        (library.add_special_tokens if special else library.add_tokens)(made)


def _numbers(source: TokenizerTables) -> dict[str, int]:
    """Tokens by text; of equal ones the first."""
    return {token: i for i, token in reversed(list(enumerate(source.tokens)))}


def _pairs_of_bytes(source: TokenizerTables) -> Any:
    lib = needed("tokenizers")
    patterns = PATTERNS.get(source.pre)
    if patterns is None:
        raise CheckpointError(
            "tokenizer", "splits text in a way that is not known", saw=repr(source.pre),
            hint=f"known are {', '.join(sorted(PATTERNS))}; tokenizer.json holds the expression",
        )  # fmt: skip
    merges = [_pair(m) for m in source.merges]
    try:
        model = lib.models.BPE(_numbers(source), merges, ignore_merges=source.pre in WHOLE_WORDS)
    except Exception as error:  # The library raises plain Exceptions.
        raise CheckpointError("tokenizer", f"pairs and tokens disagree: {error}") from None
    library = lib.Tokenizer(model)
    before = lib.pre_tokenizers
    splits = [before.Split(lib.Regex(p), "isolated") for p in patterns]
    library.pre_tokenizer = before.Sequence(
        [*splits, before.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    library.decoder = lib.decoders.ByteLevel()
    return library


def _pair(merge: str) -> tuple[str, str]:
    left, between, right = merge.partition(" ")
    if not (left and between and right):
        raise CheckpointError("tokenizer", "a merge is not a pair", saw=repr(merge[:40]))
    return left, right


def _pieces_by_score(source: TokenizerTables) -> Any:
    """SentencePiece's pairs: those are joined first whose whole has the best score."""
    lib = needed("tokenizers")
    numbers = _numbers(source)
    scores = source.scores
    if scores is None:
        raise CheckpointError("tokenizer", "pieces have no scores")
    found = []
    for piece, i in numbers.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in numbers and right in numbers:
                order = (-float(scores[i]), numbers[left], numbers[right])
                found.append((order, left, right))
    found.sort()
    model = lib.models.BPE(
        numbers,
        [(left, right) for _, left, right in found],
        unk_token=source.tokens[source.ids.get("unknown", 0)],
        fuse_unk=True,
        byte_fallback=True,
    )
    library = lib.Tokenizer(model)
    prefix = source.flags.get("add_space_prefix", True)
    replace = lib.normalizers.Replace(" ", _SPACE)
    before = [lib.normalizers.Prepend(_SPACE)] if prefix else []
    library.normalizer = lib.normalizers.Sequence([*before, replace])
    after = [lib.decoders.Strip(" ", 1, 0)] if prefix else []
    library.decoder = lib.decoders.Sequence(
        [
            lib.decoders.Replace(_SPACE, " "),
            lib.decoders.ByteFallback(),
            lib.decoders.Fuse(),
            *after,
        ]
    )
    return library


def _word_pieces(source: TokenizerTables) -> Any:
    """BERT's: GGUF marks beginnings of words where vocab.txt marks what goes on."""
    lib = needed("tokenizers")

    def written(i: int, token: str) -> str:
        if source.types is not None and source.types[i] != 1:
            return token
        return token[1:] if token.startswith(_SPACE) else f"##{token}"

    tokens = [written(i, t) for i, t in enumerate(source.tokens)]
    numbers = {token: i for i, token in reversed(list(enumerate(tokens)))}
    library = lib.Tokenizer(lib.models.WordPiece(numbers, unk_token="[UNK]"))
    cased = any(t.lower() != t for t in tokens if not t.startswith("["))
    library.normalizer = lib.normalizers.BertNormalizer(lowercase=not cased)
    library.pre_tokenizer = lib.pre_tokenizers.BertPreTokenizer()
    library.decoder = lib.decoders.WordPiece()
    ends = [(t, numbers[t]) for t in ("[SEP]", "[CLS]") if t in numbers]
    if len(ends) == 2:
        library.post_processor = lib.processors.BertProcessing(*ends)
    return library


_KINDS = {"gpt2": _pairs_of_bytes, "llama": _pieces_by_score, "bert": _word_pieces}
