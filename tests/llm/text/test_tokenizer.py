"""Tokenizers from tables and files."""

import json

import numpy as np
import pytest
from tests.llm.saved import bytes_tokenizer

from treadle.base.errors import CheckpointError, DTypeError, IndexRangeError
from treadle.llm.files import TokenizerFile, TokenizerTables
from treadle.llm.text import Tokenizer
from treadle.llm.text.splitting import PATTERNS

TEXTS = (
    "Hello world! 12345 it's  a\n\ntest",
    "żółć 日本語 🎉 <|end|>",
    "def f(x):\n    return x + 1",
    "",
    " leading and trailing ",
)


def symbols():
    """The characters that stand for bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in shown]
    return [chr(b) if b in shown else chr(256 + rest.index(b)) for b in range(256)]


def bytes_tables(pre="qwen2", **flags):
    tokens = [*symbols(), "he", "ll", "hell", "Ġw", "<|end|>", "<|begin|>"]
    types = np.array([1] * 260 + [3, 3], np.int32)
    ids = {"eos": 260, "bos": 261}
    merges = ["h e", "l l", "he ll", "Ġ w"]
    return TokenizerTables("gpt2", pre, tokens, None, types, merges, ids, flags)


def pieces_tables(**flags):
    letters = ["▁", *"abcdelorhw"]
    words = {"▁h": -1.0, "el": -2.0, "▁hel": -0.5, "lo": -3.0, "▁hello": -0.1}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *letters, *words]
    types = np.array([2, 3, 3] + [6] * 256 + [1] * (len(letters) + len(words)), np.int32)
    scores = np.array([0.0] * 259 + [-10.0] * len(letters) + list(words.values()), np.float32)
    ids = {"unknown": 0, "bos": 1, "eos": 2}
    return TokenizerTables("llama", "", tokens, scores, types, [], ids, flags)


def pushed(tokenizer, tokens):
    stream = tokenizer.stream()
    pieces = [stream.push(t) for t in tokens]
    assert not any("�" in p for p in pieces)
    return "".join(pieces) + stream.flush()


@pytest.mark.parametrize("pre", PATTERNS)
@pytest.mark.parametrize("text", TEXTS)
def test_bytes_come_back(pre, text):
    """Whatever the expression, no byte is lost, and special tokens people type are text."""
    tokenizer = Tokenizer.of(bytes_tables(pre))
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text == pushed(tokenizer, tokens)
    assert 260 not in tokens


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", "It|'s| 1234| x|!|  | y|\n|\n|日本語"),
        ("llama-bpe", "It|'s| |123|4| x|!|  | y|\n\n|日本語"),
        ("qwen2", "It|'s| |1|2|3|4| x|!|  | y|\n\n|日本語"),
        ("smollm", "It|'s| |1|2|3|4| x|!|  | y|\n|\n|日本語"),
        ("deepseek-coder", "It|'|s| |1|2|3|4| x|!|  | y|\n|\n|日本語"),
        ("deepseek-v3", "It|'s| |123|4| x|!|  | y|\n\n|日本語"),
        ("deepseek-llm", "It|'|s| |1234| x|!|  | y|\n|\n|日本語"),
        ("deepseek-llm", "Ü|nder|_|score| Ω|mega|\uff01| |ⱥ|աꞑ «|x"),
        ("falcon", "It|'|s| |123|4| x|!|  | y|\n|\n|日本語"),
        ("falcon", "a| |`$+|b| 12| |+|c"),
        ("default", "It|'|s| |123|4| x|!|  | y|\n|\n|日本語"),
        ("default", "a| `|$+|b| |12| |+|c"),
    ],
)
def test_where_text_is_split(pre, pieces):
    before = Tokenizer.of(bytes_tables(pre))._library.pre_tokenizer
    text = pieces.replace("|", "")
    found = before.pre_tokenize_str(text)
    assert "|".join(text[begin:end] for _, (begin, end) in found) == pieces


def test_pairs_are_joined_inside_of_pieces():
    tokenizer = Tokenizer.of(bytes_tables())
    assert tokenizer.encode("hello w") == [258, ord("o"), 259]
    assert tokenizer.vocabulary == 262 and tokenizer.eos == {260} and tokenizer.bos == 261


def test_special_tokens_count_where_templates_write_them():
    tokenizer = Tokenizer.of(bytes_tables(add_bos_token=True))
    assert tokenizer.encode("he<|end|>", special=True) == [256, 260]
    assert tokenizer.encode("he")[:2] == [261, 256]
    assert tokenizer.decode([256, 260]) == "he"
    assert tokenizer.token(260) == "<|end|>" and tokenizer.id_of("<|end|>") == 260
    with pytest.raises(IndexRangeError):
        tokenizer.token(9999)


def test_pieces_by_score():
    tokenizer = Tokenizer.of(pieces_tables())
    tokens = tokenizer.encode("hello world")
    assert tokens[0] == tokenizer.bos
    assert tokenizer.token(tokens[1]) == "▁hello"
    assert tokenizer.decode(tokens) == "hello world" == pushed(tokenizer, tokens[1:])
    strange = tokenizer.encode("hé 🎉")
    assert tokenizer.decode(strange) == "hé 🎉" == pushed(tokenizer, strange[1:])
    plain = Tokenizer.of(pieces_tables(add_bos_token=False, add_space_prefix=False))
    assert plain.token(plain.encode("hel")[0]) == "h"


def test_words_of_bert():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁run", "ning", "▁fast", "▁!"]
    types = np.array([3, 3, 3, 3, 1, 1, 1, 1], np.int32)
    ids = {"unknown": 1, "padding": 0}
    tokenizer = Tokenizer.of(TokenizerTables("bert", "", tokens, None, types, [], ids, {}))
    assert tokenizer.encode_pair("Running fast!") == ([2, 4, 5, 6, 7, 3], [0] * 6)
    assert tokenizer.encode_pair("fast", "run") == ([2, 6, 3, 4, 3], [0, 0, 0, 1, 1])


def test_files(tmp_path):
    source = Tokenizer.of(bytes_tables())
    path = tmp_path / "tokenizer.json"
    path.write_text(source._library.to_str(), encoding="utf-8")
    config = {"bos_token": {"content": "<|begin|>"}, "eos_token": "<|end|>"}
    tokenizer = Tokenizer.of(TokenizerFile(str(path), config))
    assert (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) == (261, {260}, False)
    for text in TEXTS:
        assert tokenizer.encode(text) == source.encode(text)
    path.write_text(json.dumps({"version": "1.0"}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="is not a tokenizer"):
        Tokenizer.of(TokenizerFile(str(path), {}))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: bytes_tables("unheard-of"), "splits text in a way"),
        (lambda: TokenizerTables("t5", "", [], None, None, [], {}, {}), "kind that is not known"),
        (
            lambda: TokenizerTables("gpt2", "gpt-2", ["a"], None, None, ["ab"], {}, {}),
            "a merge is not a pair",
        ),
        (
            lambda: TokenizerTables("gpt2", "gpt-2", ["a"], None, None, ["a b"], {}, {}),
            "pairs and tokens disagree",
        ),
    ],
)
def test_tables_that_cannot_be(wrong, told):
    with pytest.raises(CheckpointError, match=told):
        Tokenizer.of(wrong())


def test_tokenizers_that_are_alike():
    mine, same = (Tokenizer.of(bytes_tables()) for _ in range(2))
    assert mine.is_like(same) and mine.end == 262
    assert not mine.is_like(Tokenizer.of(pieces_tables()))


def test_what_is_no_character():
    """Python's reading of bytes that are no UTF-8, and the halves that JSON may spell."""
    tokenizer = Tokenizer(bytes_tokenizer("<end>"), None, frozenset(), adds_bos=False)
    for call in (
        lambda: tokenizer.encode("ab\ud83d"),
        lambda: tokenizer.encode_pair("ab\udcff"),
        lambda: tokenizer.encode_pair("ab", "ab\udcff"),
    ):
        with pytest.raises(DTypeError, match="character 2"):
            call()
