"""Models from one kind of file to another, and what the report says that it cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.llm.files.models import DIM, MODELS
from tests.llm.files.test_gguf_checkpoint import TOKENS
from tests.llm.saved import saved

from treadle.base.blocks import BlockTensor
from treadle.base.errors import CheckpointError, DTypeError
from treadle.llm.conversion import convert, quantize
from treadle.llm.files import TokenizerFile, TokenizerTables, open_checkpoint
from treadle.llm.files.gguf import read_gguf
from treadle.llm.text import Tokenizer

WRITTEN = [n for n in MODELS if n not in ("gpt-oss", "bert", "modern-bert")]


def _numbers(tensor: Any) -> np.ndarray:
    return (
        tensor.dequantize() if isinstance(tensor, BlockTensor) else np.asarray(tensor, np.float32)
    )


@pytest.mark.parametrize("name", WRITTEN)
def test_a_directory_and_back(tmp_path: Path, name: str) -> None:
    """GGUF, directory, GGUF: the same tensors, keys and config."""
    source = MODELS[name]().write(tmp_path / "a.gguf")
    first = open_checkpoint(source)
    report = convert(source, tmp_path / "model")
    assert {t.error for t in report.tensors} == {0.0}
    middle = open_checkpoint(tmp_path / "model")
    assert middle.config == first.config
    convert(tmp_path / "model", tmp_path / "b.gguf")
    last = open_checkpoint(tmp_path / "b.gguf")
    assert last.config == first.config | {
        k: last.config[k] for k in ("head_dim",) if k in last.config
    }
    assert set(first.names()) == set(middle.names()) == set(last.names())
    for each in first.names():
        wanted = _numbers(first.tensor(each))
        np.testing.assert_array_equal(middle.tensor(each), wanted)
        np.testing.assert_allclose(last.tensor(each), wanted, atol=3e-7)
    before, after = (read_gguf(tmp_path / f"{n}.gguf") for n in "ab")
    assert set(before.entries) == set(after.entries)


def test_llama_3s_rotation_becomes_divisors(tmp_path: Path) -> None:
    convert(MODELS["llama"]().write(tmp_path / "a.gguf"), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"rope_type": "llama3", "original_max_position_embeddings": 64}
    path.write_text(json.dumps(config | {"rope_scaling": scaling}))
    convert(tmp_path / "model", tmp_path / "b.gguf")
    found = open_checkpoint(tmp_path / "b.gguf").config["rope_scaling"]
    # The definition, pair by pair.
    wanted = []
    for i in range(DIM // 2):
        f = 10000.0 ** (-2 * i / DIM)
        length = 2 * np.pi / f
        if length < 64 / 4:
            wanted.append(1.0)
        elif length > 64 / 1:
            wanted.append(8.0)
        else:
            t = (64 / length - 1) / (4 - 1)
            wanted.append(1 / ((1 - t) / 8 + t))
    assert len({round(each, 3) for each in wanted}) > 2
    np.testing.assert_allclose(found["divisors"], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("format", "most"), [("Q8_0", 0.01), ("Q5_1", 0.05), ("Q4_0", 0.1), ("IQ4_NL", 0.08)]
)
def test_quantizing_tells_what_it_costs(tmp_path: Path, format: str, most: float) -> None:
    source = MODELS["llama"]().write(tmp_path / "a.gguf", **TOKENS)
    report = quantize(source, tmp_path / "b.gguf", format)
    first, last = open_checkpoint(source), open_checkpoint(tmp_path / "b.gguf")
    for tokens in ("model", "pre", "tokens", "merges", "ids", "flags"):
        assert getattr(last.tokenizer, tokens) == getattr(first.tokenizer, tokens)
    assert last.chat_template == first.chat_template
    rows = {each.name: each for each in report.tensors}
    assert set(rows) == set(read_gguf(source).entries)
    for each in first.names():
        wanted, found = _numbers(first.tensor(each)), last.tensor(each)
        if wanted.ndim == 1:
            np.testing.assert_array_equal(found, wanted)
            continue
        edge = each in ("model.embed_tokens.weight", "lm_head.weight")
        assert isinstance(found, BlockTensor) and found.format.name == ("Q8_0" if edge else format)
        off = _numbers(found) - wanted
        assert np.sqrt(np.mean(off**2) / np.mean(wanted**2)) < most
    row = rows["blk.0.ffn_up.weight"]
    up = first.tensor("model.layers.0.mlp.up_proj.weight")
    off = _numbers(last.tensor("model.layers.0.mlp.up_proj.weight")) - up
    assert row.error == pytest.approx(np.sqrt(np.mean(off**2) / np.mean(up**2)), rel=1e-4)
    assert row.worst == pytest.approx(np.abs(off).max())
    assert (row.was, row.becomes, row.before) == ("F32", format, up.nbytes)
    assert f"-> {format}" in str(report)


SMALLER = {"Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
SMALLER |= {"IQ4_XS": "IQ4_NL"}


@pytest.mark.parametrize("format", SMALLER)
def test_rows_that_are_no_super_blocks_become_smaller_ones(tmp_path: Path, format: str) -> None:
    source = MODELS["llama"]().write(tmp_path / "a.gguf", **TOKENS)
    report = quantize(source, tmp_path / "b.gguf", format)
    forms = {row.name: row.becomes for row in report.tensors}
    assert forms["blk.0.attn_norm.weight"] == "F32"
    found = open_checkpoint(tmp_path / "b.gguf")
    for name in found.names():
        tensor = found.tensor(name)
        if isinstance(tensor, BlockTensor) and "layers" in name:
            wanted = format if tensor.shape[-1] % 256 == 0 else SMALLER[format]
            assert tensor.format.name == wanted
    assert set(forms.values()) & {format, SMALLER[format]}


@pytest.mark.parametrize(("format", "dtype"), [("F16", np.float16), ("BF16", ml_dtypes.bfloat16)])
def test_blocks_become_plain_numbers(tmp_path: Path, format: str, dtype: Any) -> None:
    made = {"tokenizer.ggml.merges": ["t 0"], "tokenizer.ggml.add_bos_token": True}
    made["tokenizer.ggml.tokens"] = ["t", "0", *TOKENS["tokenizer.ggml.tokens"][2:-3], "t0"]
    made["tokenizer.ggml.tokens"] += TOKENS["tokenizer.ggml.tokens"][-2:]
    source = MODELS["qwen3"]().write(tmp_path / "a.gguf", form="Q8_0", **{**TOKENS, **made})
    convert(source, tmp_path / "model", format)
    first, last = open_checkpoint(source), open_checkpoint(tmp_path / "model")
    for each in first.names():
        found, wanted = last.tensor(each), _numbers(first.tensor(each))
        assert isinstance(found, np.ndarray)
        assert found.dtype == (dtype if wanted.ndim > 1 else np.float32)
        np.testing.assert_array_equal(found, wanted.astype(found.dtype))
    assert last.generation == first.generation
    assert last.chat_template == first.chat_template
    assert isinstance(last.tokenizer, TokenizerFile) and first.tokenizer is not None
    found, wanted = (Tokenizer.of(t) for t in (last.tokenizer, first.tokenizer))
    assert found.numbers() == wanted.numbers()
    assert (found.bos, found.adds_bos) == (wanted.bos, wanted.adds_bos)
    # And back: the file needs nothing beside it.
    (tmp_path / "made").mkdir()
    report = convert(tmp_path / "model", tmp_path / "made" / "b.gguf", "Q8_0")
    assert [p.name for p in (tmp_path / "made").iterdir()] == ["b.gguf"]
    assert not any("tokenizer" in note for note in report.notes)
    back = open_checkpoint(tmp_path / "made" / "b.gguf").tokenizer
    assert isinstance(back, TokenizerTables) and Tokenizer.of(back).numbers() == wanted.numbers()


def test_a_tokenizer_lies_beside_the_file(tmp_path: Path) -> None:
    convert(MODELS["qwen2"]().write(tmp_path / "a.gguf"), tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    (tmp_path / "made").mkdir()
    report = convert(tmp_path / "model", tmp_path / "made" / "b.gguf", "Q8_0")
    place = str(tmp_path / "made" / "tokenizer.json")
    assert any(place in note for note in report.notes)
    assert open_checkpoint(tmp_path / "made" / "b.gguf").tokenizer == TokenizerFile(place)


def test_tokens_that_begin_and_end_texts(tmp_path: Path) -> None:
    """Llama 3 ends its answers by others than the config names; templates name what begins them."""
    folder = saved(tmp_path / "model", eos_token_id=5, bos_token_id=9)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7, 6]}))
    names = {"bos_token": "<|start|>", "eos_token": {"content": "<|end|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    before = open_checkpoint(folder)
    for target in ("made/b.gguf", "made/c", "made/d.gguf"):
        (tmp_path / "made").mkdir(exist_ok=True)
        convert(folder, tmp_path / target)
        folder, after = tmp_path / target, open_checkpoint(tmp_path / target)
        assert sorted(after.generation["eos_token_id"]) == [5, 6, 7]
        assert isinstance(after.tokenizer, TokenizerFile) and before.tokenizer is not None
        found, wanted = (Tokenizer.of(t) for t in (after.tokenizer, before.tokenizer))
        assert (found.bos, found.eos) == (wanted.bos, wanted.eos) == (256, {257})


def test_what_gguf_cannot_say_is_told(tmp_path: Path) -> None:
    convert(MODELS["qwen2"]().write(tmp_path / "a.gguf"), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"use_sliding_window": True, "sliding_window": 8}))
    notes = convert(tmp_path / "model", tmp_path / "b.gguf").notes
    assert any(note.startswith("use_sliding_window was True and is False") for note in notes)


def test_mistral_keeps_its_window(tmp_path: Path) -> None:
    convert(MODELS["llama"]().write(tmp_path / "a.gguf"), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text()) | {"model_type": "mistral", "sliding_window": 8}
    path.write_text(json.dumps(config))
    report = convert(tmp_path / "model", tmp_path / "b.gguf")
    assert report.notes == ["the model has no tokenizer.json"]
    assert open_checkpoint(tmp_path / "b.gguf").config == config


def test_what_tables_lack_is_told(tmp_path: Path) -> None:
    path = MODELS["llama"]().write(tmp_path / "a.gguf", form="Q8_0", **TOKENS)
    report = convert(path, tmp_path / "model")
    assert any("tokenizer.json is not written" in note for note in report.notes)  # "t" is missing


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = MODELS["llama"]().write(tmp_path / "a.gguf")
    with pytest.raises(DTypeError, match="Q9"):
        convert(path, tmp_path / "b.gguf", "Q9")
    with pytest.raises(DTypeError, match=r"name a target that ends in \.gguf"):
        convert(path, tmp_path / "model", "Q8_0")
    with pytest.raises(DTypeError, match="blocks cannot be written so"):
        quantize(path, tmp_path / "b.gguf", "F16")
    convert(MODELS["bert"]().write(tmp_path / "b.gguf"), tmp_path / "bert")
    with pytest.raises(CheckpointError, match="not written as GGUF"):
        convert(tmp_path / "bert", tmp_path / "c.gguf")
    large = MODELS["qwen2"]()
    large.stored["blk.0.ffn_up.weight"][3, 3] = 1e6
    with pytest.raises(CheckpointError, match="beyond F16"):
        convert(large.write(tmp_path / "d.gguf"), tmp_path / "e.gguf", "F16")
    assert not (tmp_path / "e.gguf").exists()


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
BAD_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "no heads": ({"num_attention_heads": None}, "num_attention_heads is not a number"),
    "none of them": ({"num_attention_heads": 0}, "num_attention_heads is not between"),
    "heads of others": ({"num_key_value_heads": 7}, "does not suit 32 rows"),
    "huge heads": ({"head_dim": 10**12}, "beyond what heads have"),
    "text": ({"rms_norm_eps": "x"}, "rms_norm_eps is not a number"),
    "rotation": ({"rope_scaling": "x"}, "not an object"),
    "unknown rotation": ({"rope_scaling": {"rope_type": "x"}}, "GGUF does not know"),
    "factor": ({"rope_scaling": {"rope_type": "yarn", "factor": "x"}}, "factor is not a number"),
    "factors": ({"rope_scaling": {"rope_type": "longrope", "long_factor": [1]}}, "is not a list"),
    "trained": ({"rope_scaling": LLAMA3}, "original_max_position_embeddings is not a number"),
    "order": (
        {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 9, "low_freq_factor": 5}},
        "is not below high_freq_factor",
    ),
}


@pytest.mark.parametrize("what", BAD_CONFIGS)
def test_configs_that_lie_are_not_written(tmp_path: Path, what: str) -> None:
    changes, says = BAD_CONFIGS[what]
    convert(MODELS["llama"]().write(tmp_path / "a.gguf"), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match=says):
        convert(tmp_path / "model", tmp_path / "b.gguf")
    assert not (tmp_path / "b.gguf").exists()
