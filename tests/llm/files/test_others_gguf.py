"""GGUF files between Treadle, the package gguf and transformers, in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llm.files.models import MODELS
from tests.llm.files.test_gguf import METADATA, _write

from treadle.base.blocks import FORMATS, BlockTensor
from treadle.llm.files import open_checkpoint
from treadle.llm.files.gguf import read_gguf

pytestmark = pytest.mark.llm


def test_the_package_reads_what_we_write(tmp_path: Path) -> None:
    import gguf

    path = _write(tmp_path / "a.gguf")
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    for key, wanted in METADATA.items():
        found = theirs.fields[key].contents()
        if isinstance(wanted, np.ndarray):
            wanted = wanted.tolist()
        assert found == (np.float32(wanted) if isinstance(wanted, float) else wanted)
    assert [t.name for t in theirs.tensors] == list(ours.entries)
    for tensor in theirs.tensors:
        entry, mine = ours.entries[tensor.name], ours.tensor(tensor.name)
        assert (tensor.data_offset, tensor.n_bytes) == (entry.begin, entry.nbytes)
        assert tuple(tensor.shape[::-1]) == entry.shape
        raw = mine.data if isinstance(mine, BlockTensor) else mine
        assert np.ascontiguousarray(tensor.data).tobytes() == raw.tobytes()


def test_we_read_what_the_package_writes(tmp_path: Path) -> None:
    import gguf

    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_rope_freq_base(1e5)
    writer.add_token_list(["a", "ü"])
    writer.add_token_scores([0.5, -1.0])
    writer.add_array("mixed", [True, False])
    writer.add_uint64("large", 1 << 50)
    x = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q5_1
    writer.add_tensor("x", x)
    writer.add_tensor("q", gguf.quants.quantize(x, kind), raw_dtype=kind)
    writer.add_tensor("h", x.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_gguf(path)
    assert found.metadata["llama.block_count"] == 3
    assert found.metadata["tokenizer.ggml.tokens"] == ["a", "ü"]
    assert found.metadata["tokenizer.ggml.scores"].tolist() == [0.5, -1]
    assert (found.metadata["mixed"].tolist(), found.metadata["large"]) == ([True, False], 1 << 50)
    np.testing.assert_array_equal(found.tensor("x"), x)
    np.testing.assert_array_equal(found.tensor("h"), x.astype(np.float16))
    blocks = found.tensor("q")
    assert isinstance(blocks, BlockTensor) and blocks.format is FORMATS["Q5_1"]
    np.testing.assert_array_equal(blocks.data, FORMATS["Q5_1"].quantize(x))


KNOWN_TO_BOTH = ["llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3"]
# What transformers leaves to its classes' defaults, or names for itself.
DIFFERENT = {"layer_types", "model_type", "rope_local_base_freq", "query_pre_attn_scalar"}


@pytest.mark.parametrize("name", KNOWN_TO_BOTH)
def test_transformers_has_the_same_config(tmp_path: Path, name: str) -> None:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = MODELS[name]().write(tmp_path / "a.gguf")
    ours, theirs = open_checkpoint(path).config, load_gguf_checkpoint(str(path))["config"]
    shared = ours.keys() & theirs.keys() - DIFFERENT
    assert len(shared) >= 9
    for key in shared:
        assert ours[key] == pytest.approx(theirs[key]), key


@pytest.mark.parametrize("name", ["llama", "llama with biases", "qwen2", "qwen3", "gemma2"])
def test_transformers_has_the_same_tensors(tmp_path: Path, name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = MODELS[name]().write(tmp_path / "a.gguf")
    found = open_checkpoint(path)
    config = {k: v for k, v in found.config.items() if v is not None}
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    theirs: Any = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=empty)
    theirs = theirs["tensors"]
    for each in found.names():
        np.testing.assert_array_equal(found.tensor(each), theirs[each].numpy())
