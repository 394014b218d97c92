"""Tokenizers from one kind of file to the other and back."""

import json

import numpy as np
import pytest
from tests.llm.text.test_tokenizer import TEXTS, bytes_tables, pieces_tables

from treadle.base.errors import CheckpointError
from treadle.llm.files import TokenizerFile
from treadle.llm.text import Tokenizer
from treadle.llm.text.exchange import PROBES, as_file, as_tables
from treadle.llm.text.splitting import PATTERNS, WHOLE_WORDS


def written(folder, tables):
    text, named = as_file(tables)
    (folder / "tokenizer.json").write_text(text)
    return TokenizerFile(str(folder / "tokenizer.json"), named)


@pytest.mark.parametrize("pre", PATTERNS)
def test_bytes_there_and_back(tmp_path, pre):
    tables = bytes_tables(pre, add_bos_token=pre == "qwen2")
    file = written(tmp_path, tables)
    first, middle = Tokenizer.of(tables), Tokenizer.of(file)
    assert (middle.bos, middle.eos, middle.adds_bos) == (first.bos, first.eos, first.adds_bos)
    back = as_tables(file, len(tables.tokens) + 2)
    assert back.tokens == [*tables.tokens, "[PAD262]", "[PAD263]"] and back.merges == tables.merges
    np.testing.assert_array_equal(back.types, [*tables.types, 5, 5])
    assert PATTERNS[back.pre] == PATTERNS[pre]
    assert (back.pre in WHOLE_WORDS) == (pre in WHOLE_WORDS)
    last = Tokenizer.of(back)
    for text in (*TEXTS, *PROBES):
        assert first.encode(text) == middle.encode(text) == last.encode(text)
    special = "<|begin|>hell<|end|>"
    assert first.encode(special, special=True) == last.encode(special, special=True)


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_there_and_back(tmp_path, prefix):
    tables = pieces_tables(add_space_prefix=prefix, add_bos_token=not prefix)
    file = written(tmp_path, tables)
    back = as_tables(file, len(tables.tokens))
    assert back.tokens == tables.tokens and dict(back.ids) == {"unknown": 0, "bos": 1}
    assert dict(back.flags) == {"add_space_prefix": prefix, "add_bos_token": not prefix}
    np.testing.assert_array_equal(back.types, tables.types)
    first, middle, last = (Tokenizer.of(t) for t in (tables, file, back))
    for text in ("hello world", " hello  hello", "żółć", "held low", *PROBES):
        assert first.encode(text) == middle.encode(text) == last.encode(text)
        assert first.decode(first.encode(text)) == last.decode(last.encode(text))


@pytest.mark.llm
def test_transformers_reads_what_is_written(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    for i, tables in enumerate((bytes_tables("llama-bpe", add_bos_token=True), pieces_tables())):
        folder = tmp_path / str(i)
        folder.mkdir()
        file = written(folder, tables)
        (folder / "tokenizer_config.json").write_text(json.dumps(file.config))
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        ours = Tokenizer.of(file)
        for text in ("hello hell world", " two  spaces", "żółć\n\n\tx"):
            assert theirs(text).input_ids == ours.encode(text)
            assert theirs.decode(ours.encode(text), skip_special_tokens=True) == text


SPLIT = {"type": "Split", "behavior": "Removed", "invert": False, "pattern": {"Regex": "x"}}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": {"type": "WordPiece", "vocab": {}}}, "is not pairs"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "an expression of its own"),
        ({"pre_tokenizer": SPLIT}, "an expression of its own"),
        ({"normalizer": {"type": "Lowercase"}}, "makes other tokens"),
    ],
)
def test_what_tables_cannot_say_is_told(tmp_path, change, told):
    file = written(tmp_path, bytes_tables())
    content = json.loads((tmp_path / "tokenizer.json").read_text()) | change
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=told):
        as_tables(file, 262)


def test_more_tokens_than_rows_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="more tokens than the 261 rows"):
        as_tables(written(tmp_path, bytes_tables()), 261)
