"""Tokenizers from one kind of file to the other: tokenizer.json, and tables as GGUF has them.

Both ways are tried before they are trusted: what the result makes of some texts has to be what the
original makes of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from treadle.base.errors import CheckpointError
from treadle.base.files.strict_json import shorten
from treadle.llm.files import TokenizerFile, TokenizerTables
from treadle.llm.text.packages import needed
from treadle.llm.text.splitting import GPT2, PATTERNS, WHOLE_WORDS
from treadle.llm.text.tokenizer import Tokenizer
from treadle.serialization.directories import read_object

MAX_TOKENIZER = 64 << 20
"""Bytes of a tokenizer.json at most; the largest of published models has 33 MB."""
PROBES = (
    "The quick brown fox doesn't jump over 12,345 lazy dogs; it's 7:30 PM!",
    "  def f(x):\n\treturn x**2 + 1  # done\r\n\r\n\n",
    "Zażółć gęślą jaźń, Straße, naïve café, ΑΒΓ αβγ, Привет мир, שלום, مرحبا",
    "日本語のテキスト、中文文本。한국어 텍스트 🙂👩‍👩‍👧 ½ ² \u00a0x\u3000y",
    'https://example.org/a_b?c=d&e=%20 <|x|> {"k": [1, 2.5e-3, null]}',
)
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
_LEAST = -1e9
"""The score of pieces that no merge makes."""


def as_file(source: TokenizerTables) -> tuple[str, dict[str, Any]]:
    """The content of tokenizer.json and of tokenizer_config.json.

    Raises:
        CheckpointError: the tokenizer is of a kind that is not known.
    """
    made = Tokenizer.of(source)
    named: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for key, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if name in source.ids:
            named[f"{key}_token"] = source.tokens[source.ids[name]]
    named["clean_up_tokenization_spaces"] = False
    library = needed("tokenizers").Tokenizer.from_str(made.as_json())
    if made.adds_bos and made.bos is not None:
        begin = source.tokens[made.bos]
        template = needed("tokenizers").processors.TemplateProcessing
        library.post_processor = template(
            single=[begin, "$A"], pair=[begin, "$A", "$B:1"], special_tokens=[(begin, made.bos)]
        )
        named["add_bos_token"] = True
    return str(library.to_str(pretty=True)), named


def as_tables(source: TokenizerFile, size: int) -> TokenizerTables:
    """A tokenizer.json as the tables that GGUF has.

    Args:
        source: the file.
        size: rows of the embedding. Numbers without a token are unused ones.

    Raises:
        CheckpointError: GGUF has no word for how it splits or joins text.
    """
    folder, name = os.path.split(source.path)
    content = read_object(folder, name, MAX_TOKENIZER)
    model = content.get("model")
    if not isinstance(model, Mapping) or model.get("type") != "BPE":
        raise _unsaid("is not pairs of bytes or characters", content.get("model"))
    reference = Tokenizer.of(source)
    tokens = _tokens(reference, size)
    types = _types(content, tokens, reference)
    make = _pieces if model.get("byte_fallback") else _bytes
    tables = make(content, model, tokens, types)
    found = Tokenizer.of(tables)
    for text in PROBES:
        if found.encode(text) != reference.encode(text)[reference.adds_bos :]:
            raise _unsaid("makes other tokens of some texts than its tables would", text)
    ids = {"bos": reference.bos, **tables.ids}
    flags = {**tables.flags, "add_bos_token": reference.adds_bos}
    known = {key: value for key, value in ids.items() if value is not None}
    return TokenizerTables(
        tables.model, tables.pre, tokens, tables.scores, types, tables.merges, known, flags
    )


def _unsaid(problem: str, saw: Any) -> CheckpointError:
    return CheckpointError("tokenizer.json", f"{problem}: GGUF cannot say it", saw=shorten(saw))


def _tokens(tokenizer: Tokenizer, size: int) -> list[str]:
    """Tokens by number."""
    if tokenizer.end > size:
        raise _unsaid(f"has more tokens than the {size} rows of the model", tokenizer.end)
    there = tokenizer.numbers()
    found = [f"[PAD{i}]" for i in range(size)]
    for token, number in there.items():
        found[number] = token
    return found


def _types(content: Mapping[str, Any], tokens: Sequence[str], tokenizer: Tokenizer) -> Any:
    there = tokenizer.numbers()
    found = np.array([_NORMAL if there.get(t) == i else _UNUSED for i, t in enumerate(tokens)])
    unknown = content["model"].get("unk_token")
    if content["model"].get("byte_fallback"):
        bytes_ = [there.get(f"<0x{b:02X}>") for b in range(256)]
        found[[i for i in bytes_ if i is not None]] = _BYTE
    for each in content.get("added_tokens") or ():
        number = there.get(str(each.get("content"))) if isinstance(each, Mapping) else None
        if number is not None:
            found[number] = _CONTROL if each.get("special") else _USER
    if isinstance(unknown, str) and unknown in there:
        found[there[unknown]] = _UNKNOWN
    return found.astype(np.int32)


def _merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs, the first to be joined first; texts with a space between, or lists of two."""
    found = []
    for each in model.get("merges") or ():
        pair = each.split(" ") if isinstance(each, str) else each
        if not isinstance(pair, list) or [type(part) for part in pair] != [str, str]:
            raise _unsaid("has a merge that is not a pair", each)
        found.append((pair[0], pair[1]))
    return found


def _bytes(
    content: Mapping[str, Any], model: Mapping[str, Any], tokens: list[str], types: Any
) -> TokenizerTables:
    """Pairs of bytes."""
    patterns = _patterns(content.get("pre_tokenizer"))
    whole = bool(model.get("ignore_merges"))
    names = [n for n, p in PATTERNS.items() if p == patterns and (n in WHOLE_WORDS) == whole]
    if not names:
        raise _unsaid("splits text by an expression of its own", content.get("pre_tokenizer"))
    merges = [f"{left} {right}" for left, right in _merges(model)]
    return TokenizerTables("gpt2", names[0], tokens, None, types, merges, {}, {})


def _patterns(given: Any) -> tuple[str, ...] | None:
    """The expressions that split text, None where something else does."""
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "Sequence":
        parts = [_patterns(each) for each in given.get("pretokenizers") or ()]
        found = [p for part in parts if part is not None for p in part]
        return None if None in parts else tuple(found)
    if kind == "ByteLevel" and not given.get("add_prefix_space"):
        return (GPT2,) if given.get("use_regex", True) else ()
    if kind == "Digits" and given.get("individual_digits"):
        return (r"\p{N}",)
    if kind == "Split" and given.get("behavior") == "Isolated" and not given.get("invert"):
        pattern = given.get("pattern") or {}
        expression = pattern.get("Regex") if isinstance(pattern, Mapping) else None
        return (expression,) if isinstance(expression, str) else None
    return None


def _pieces(
    content: Mapping[str, Any], model: Mapping[str, Any], tokens: list[str], types: Any
) -> TokenizerTables:
    """SentencePiece's pieces: the score of one is the place of the first merge that makes it."""
    scores = np.full(len(tokens), _LEAST, np.float32)
    numbers = {token: i for i, token in reversed(list(enumerate(tokens)))}
    for rank, (left, right) in reversed(list(enumerate(_merges(model)))):
        if (number := numbers.get(left + right)) is not None:
            scores[number] = -float(rank)
    given = str(content.get("normalizer")) + str(content.get("pre_tokenizer"))
    prefix = "'Prepend'" in given or "'first'" in given or "'always'" in given
    unknown = model.get("unk_token")
    ids = {"unknown": numbers[unknown]} if unknown in numbers else {}
    flags = {"add_space_prefix": prefix}
    return TokenizerTables("llama", "", tokens, scores, types, [], ids, flags)
