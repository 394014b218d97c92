"""Directories of safetensors as checkpoints, and what lies beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from treadle.base.errors import CheckpointError
from treadle.llm.files import TokenizerFile, open_checkpoint

CONFIG = {"model_type": "llama", "hidden_size": 4, "eos_token_id": 7}
TENSORS = {
    "model.embed_tokens.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "model.norm.weight": np.ones(4, np.float16),
}


def _directory(path: Path, config: Any = CONFIG, **files: Any) -> Path:
    """A directory; files are JSON, or texts where they are."""
    save_file(TENSORS, path / "model.safetensors")
    for name, content in {"config.json": config, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name).write_text(text, encoding="utf-8")
    return path


def test_a_directory_is_read(tmp_path: Path) -> None:
    found = open_checkpoint(_directory(tmp_path))
    assert found.config == CONFIG
    assert found.generation == {"eos_token_id": [7]}
    assert (found.tokenizer, found.chat_template, found.pooling) == (None, None, {})
    assert set(found.names()) == set(TENSORS)
    for name, wanted in TENSORS.items():
        tensor = found.tensor(name)
        assert isinstance(tensor, np.ndarray) and tensor.dtype == wanted.dtype
        np.testing.assert_array_equal(tensor, wanted)
        assert found.shape(name) == wanted.shape


def test_bfloat16(tmp_path: Path) -> None:
    _directory(tmp_path)
    values = np.array([1.5, -2], ml_dtypes.bfloat16)
    raw = {"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    head = json.dumps(raw).encode()
    size = len(head).to_bytes(8, "little")
    (tmp_path / "model.safetensors").write_bytes(size + head + values.tobytes())
    np.testing.assert_array_equal(open_checkpoint(tmp_path).tensor("a"), values)


def test_what_lies_beside(tmp_path: Path) -> None:
    # So many tokens does a text have at most, says many a tokenizer_config.json.
    tokens = {"model_max_length": int(1e30), "chat_template": "old"}
    path = _directory(
        tmp_path,
        **{
            "tokenizer.json": {},
            "tokenizer_config.json": tokens,
            "generation_config.json": {"eos_token_id": [1, 2], "top_p": 0.8},
        },
    )
    found = open_checkpoint(path)
    assert found.tokenizer == TokenizerFile(str(path / "tokenizer.json"), tokens)
    assert found.generation == {"eos_token_id": [1, 2], "top_p": 0.8}
    assert found.chat_template == "old"
    (path / "chat_template.jinja").write_text("new", encoding="utf-8")
    assert open_checkpoint(path).chat_template == "new"


def test_templates_by_name(tmp_path: Path) -> None:
    named = [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]
    path = _directory(tmp_path, **{"tokenizer_config.json": {"chat_template": named}})
    assert open_checkpoint(path).chat_template == "b"


def test_how_sentences_are_pooled(tmp_path: Path) -> None:
    kinds = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {"idx": i, "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    path = _directory(tmp_path, **{"modules.json": modules})
    assert open_checkpoint(path).pooling == {"mode": "cls", "normalize": True}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no config": ({"config.json": "{}"}, "no config.json"),
    "no kind": ({"config.json": {"hidden_size": 4}}, "no model_type"),
    "damaged": ({"config.json": "{"}, "damaged"),
    "no object": ({"config.json": "[]"}, "not a JSON object"),
    "ends": ({"generation_config.json": {"eos_token_id": ["a"]}}, "not a token"),
    "template": ({"tokenizer_config.json": {"chat_template": 3}}, "not text"),
    "large template": ({"chat_template.jinja": "a" * (1 << 20) + "b"}, "too large"),
    "modules": ({"modules.json": {}}, "not a list of modules"),
    "module": ({"modules.json": [3]}, "no type"),
    "module outside": (
        {"modules.json": [{"type": "a.Pooling", "path": "../other"}]},
        "outside of the directory",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_directories_that_lie_are_refused(tmp_path: Path, what: str) -> None:
    files, says = BAD[what]
    with pytest.raises(CheckpointError, match=says):
        open_checkpoint(_directory(tmp_path, **files))


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    path = _directory(tmp_path / "model")
    (path / "chat_template.jinja").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="symbolic link"):
        open_checkpoint(path)
