"""GGUF files as checkpoints: names, order of rows, norms and configs as Hugging Face has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llm.files.models import DIM, EXPERTS, HIDDEN, LAYERS, MODELS, VOCABULARY, WIDTH

from treadle.base.blocks import BlockTensor
from treadle.base.errors import CheckpointError
from treadle.llm.files import TokenizerTables, open_checkpoint
from treadle.llm.files.gguf import read_gguf
from treadle.llm.files.gguf_writer import planned, write_gguf

TOKENS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [f"t{i}" for i in range(VOCABULARY - 2)] + ["<|im_end|>", "<|end|>"],
    "tokenizer.ggml.token_type": np.array([1] * (VOCABULARY - 2) + [3, 3], np.int32),
    "tokenizer.ggml.merges": ["t 0"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": (1 << 32) - 1,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": "{{ messages }}",
}


@pytest.mark.parametrize("name", MODELS)
def test_tensors_come_back_under_their_names(tmp_path: Path, name: str) -> None:
    model = MODELS[name]()
    found = open_checkpoint(model.write(tmp_path / "a.gguf"))
    assert set(found.names()) == set(model.wanted)
    for each, wanted in model.wanted.items():
        tensor = found.tensor(each)
        assert found.shape(each) == tensor.shape == wanted.shape
        # 1 was added to norms of Gemma and is taken off again: one rounding.
        np.testing.assert_allclose(tensor, wanted, atol=3e-7)
        found.release(each)


@pytest.mark.parametrize("name", MODELS)
def test_blocks_stay_blocks(tmp_path: Path, name: str) -> None:
    model = MODELS[name]()
    found = open_checkpoint(model.write(tmp_path / "a.gguf", form="Q8_0"))
    blocks = 0
    for each, wanted in model.wanted.items():
        tensor = found.tensor(each)
        if isinstance(tensor, BlockTensor):
            blocks += 1
            tensor = tensor.dequantize()
        np.testing.assert_allclose(tensor, wanted, atol=0.03)
    assert blocks >= 4 * LAYERS


COMMON = {
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": COMMON
    | {"model_type": "llama", "attention_bias": False, "tie_word_embeddings": False},
    "llama with biases": COMMON | {"model_type": "llama", "attention_bias": True},
    "mixtral": COMMON
    | {"model_type": "mixtral", "num_local_experts": EXPERTS, "num_experts_per_tok": 2},
    "qwen2": COMMON | {"model_type": "qwen2", "num_key_value_heads": 2},
    "qwen3": COMMON | {"model_type": "qwen3"},
    "qwen3moe": COMMON
    | {
        "model_type": "qwen3_moe",
        "num_experts": EXPERTS,
        "moe_intermediate_size": WIDTH,
        "norm_topk_prob": True,
    },
    "gemma2": COMMON
    | {
        "model_type": "gemma2",
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 4096,
        "query_pre_attn_scalar": DIM,
    },
    "gemma3": COMMON
    | {
        "model_type": "gemma3_text",
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": 512,
        "rope_local_base_freq": 10000.0,
    },
    "phi3": COMMON | {"model_type": "phi3", "tie_word_embeddings": False},
    "smollm3": COMMON | {"model_type": "smollm3", "no_rope_layers": [1, 1]},
    "olmoe": COMMON | {"model_type": "olmoe", "norm_topk_prob": False, "clip_qkv": None},
    "gpt-oss": COMMON
    | {
        "model_type": "gpt_oss",
        "layer_types": ["sliding_attention", "full_attention"],
        "attention_bias": True,
        "intermediate_size": WIDTH,
    },
    "bert": {
        "model_type": "bert",
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
        "max_position_embeddings": 32,
    },
    "modern-bert": {"model_type": "modernbert", "local_attention": 128, "norm_eps": 1e-5},
}


@pytest.mark.parametrize("name", MODELS)
def test_configs_have_hugging_faces_keys(tmp_path: Path, name: str) -> None:
    config = open_checkpoint(MODELS[name]().write(tmp_path / "a.gguf")).config
    assert {key: config.get(key, "missing") for key in CONFIGS[name]} == CONFIGS[name]


def test_rotation(tmp_path: Path) -> None:
    def rotation(**keys: Any) -> Any:
        model = MODELS["qwen2"]()
        model.keys |= {f"rope.{key}": value for key, value in keys.items()}
        config = open_checkpoint(model.write(tmp_path / "a.gguf")).config
        return config.get("partial_rotary_factor"), config.get("rope_scaling")

    assert rotation() == (None, None)
    assert rotation(dimension_count=DIM // 2) == (0.5, None)
    yarn = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 32}
    wanted = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    assert rotation(**yarn) == (None, wanted)
    assert rotation(**{"scaling.type": "none"}) == (None, None)


def test_divisors_of_rotation_become_part_of_the_config(tmp_path: Path) -> None:
    divisors = np.linspace(1, 8, DIM // 2).astype(np.float32)
    llama, phi = MODELS["llama"](), MODELS["phi3"]()
    llama.stored["rope_freqs.weight"] = divisors
    phi.stored |= {"rope_factors_long.weight": divisors, "rope_factors_short.weight": divisors / 8}
    phi.keys |= {"rope.scaling.attn_factor": 1.25, "rope.scaling.original_context_length": 64}
    found = open_checkpoint(llama.write(tmp_path / "a.gguf"))
    assert found.config["rope_scaling"] == {"rope_type": "divided", "divisors": divisors.tolist()}
    assert set(found.names()) == set(llama.wanted)
    config = open_checkpoint(phi.write(tmp_path / "a.gguf")).config
    assert config["original_max_position_embeddings"] == 64
    assert config["rope_scaling"] == {
        "rope_type": "longrope",
        "short_factor": (divisors / 8).tolist(),
        "long_factor": divisors.tolist(),
        "attention_factor": 1.25,
    }


def test_tokens_templates_and_ends(tmp_path: Path) -> None:
    found = open_checkpoint(MODELS["qwen2"]().write(tmp_path / "a.gguf", **TOKENS))
    source = found.tokenizer
    assert isinstance(source, TokenizerTables)
    assert (source.model, source.pre, source.merges) == ("gpt2", "smollm", ["t 0"])
    assert source.tokens == TOKENS["tokenizer.ggml.tokens"]
    assert source.ids == {"bos": 1, "eos": 2}
    assert source.flags == {"add_bos_token": False}
    assert found.chat_template == "{{ messages }}"
    ends = [2, VOCABULARY - 2, VOCABULARY - 1]
    assert found.generation == {"bos_token_id": 1, "eos_token_id": ends}
    assert "pad_token_id" not in found.config
    oss = open_checkpoint(MODELS["gpt-oss"]().write(tmp_path / "a.gguf", **TOKENS))
    assert oss.generation["eos_token_id"] == [2, VOCABULARY - 2]


def test_how_encoders_pool(tmp_path: Path) -> None:
    found = open_checkpoint(MODELS["bert"]().write(tmp_path / "a.gguf"))
    assert found.pooling == {"mode": "mean", "normalize": True}
    assert open_checkpoint(MODELS["llama"]().write(tmp_path / "a.gguf")).pooling == {}


def _split(tmp_path: Path, count: int = 3, **changes: Any) -> list[Path]:
    model = MODELS["llama"]()
    paths = [tmp_path / f"m-{i + 1:05}-of-{count:05}.gguf" for i in range(count)]
    names = list(model.stored)
    for i, path in enumerate(paths):
        split = {"split.no": i, "split.count": count, "split.tensors.count": len(names)}
        tensors = [planned(name, model.stored[name]) for name in names[i::count]]
        write_gguf(path, (model.metadata() if i == 0 else {}) | split | changes, tensors)
    return paths


def test_models_in_several_files(tmp_path: Path) -> None:
    paths = _split(tmp_path)
    wanted = open_checkpoint(MODELS["llama"]().write(tmp_path / "a.gguf")).names()
    for path in (paths[0], paths[2]):
        found = open_checkpoint(path)
        assert set(found.names()) == set(wanted)
    assert found.tensor("model.norm.weight").shape == (HIDDEN,)


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    paths = _split(tmp_path)
    with pytest.raises(CheckpointError, match="different models"):
        open_checkpoint(_split(tmp_path, **{"split.tensors.count": 99})[0])
    with pytest.raises(CheckpointError, match="not part 0"):
        open_checkpoint(_split(tmp_path, **{"split.no": 1})[0])
    with pytest.raises(CheckpointError, match="impossible"):
        open_checkpoint(_split(tmp_path, **{"split.count": 0})[0])
    paths = _split(tmp_path)
    paths[0].rename(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match="its name does not say so"):
        open_checkpoint(tmp_path / "b.gguf")
    with pytest.raises(FileNotFoundError):
        open_checkpoint(paths[1])


def _lying(**changes: Any) -> Any:
    return lambda model: model.keys.update({k.replace("__", "."): v for k, v in changes.items()})


def _without(name: str) -> Any:
    return lambda model: model.stored.pop(name)


def _stored(name: str, *shape: int) -> Any:
    return lambda model: model.stored.update({name: np.ones(shape, np.float32)})


LIES = {
    "a layer too few": (_lying(block_count=0), "at least 1"),
    "no heads": (_lying(attention__head_count="4"), "not a number"),
    "heads that differ": (
        _lying(attention__head_count_kv=np.array([1, 2], np.int32)),
        "differs between layers",
    ),
    "a million layers": (_lying(block_count=1_000_000), "beyond 1000"),
    "theta": (_lying(rope__freq_base=float("nan")), "is not from 0"),
    "width": (_lying(embedding_length=32), "token_embd.weight is not"),
    "no embedding": (_without("token_embd.weight"), "no such tensor"),
    "unknown tensor": (_stored("blk.0.attn_magic.weight", 3), "not a tensor of llama"),
    "odd rows": (_stored("blk.0.attn_q.weight", 63, HIDDEN), "no pairs of rows"),
    "divisors": (_stored("rope_freqs.weight", 2, 2), "lacks the list"),
    "negative divisors": (
        lambda model: model.stored.update({"rope_freqs.weight": -np.ones(3, np.float32)}),
        "not positive",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_models_that_contradict_themselves_are_refused(tmp_path: Path, lie: str) -> None:
    change, says = LIES[lie]
    model = MODELS["llama"]()
    change(model)
    with pytest.raises(CheckpointError, match=says):
        open_checkpoint(model.write(tmp_path / "a.gguf"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokenizer.ggml.eos_token_id": VOCABULARY}, "not in the vocabulary"),
        ({"tokenizer.ggml.tokens": ["a"] * (VOCABULARY + 1)}, "more tokens"),
        ({"tokenizer.ggml.tokens": 3}, "no tokens"),
        ({"tokenizer.ggml.token_type": np.ones(3, np.int32)}, "for each of the tokens"),
        ({"tokenizer.chat_template": 3}, "not text"),
        ({"general.architecture": "mamba"}, "known are llama"),
        ({"general.architecture": 3}, "not text"),
    ],
)
def test_metadata_that_lie_are_refused(tmp_path: Path, change: Any, says: str) -> None:
    path = MODELS["llama"]().write(tmp_path / "a.gguf", **(TOKENS | change))
    with pytest.raises(CheckpointError, match=says):
        open_checkpoint(path)


def test_a_tensor_that_is_missing_is_told_of(tmp_path: Path) -> None:
    found = open_checkpoint(MODELS["llama"]().write(tmp_path / "a.gguf"))
    with pytest.raises(CheckpointError, match=r"lacks the tensor 'model\.layers\.9"):
        found.tensor("model.layers.9.mlp.up_proj.weight")


def test_every_tensor_of_a_file_is_somewhere(tmp_path: Path) -> None:
    """Nothing is dropped in silence: what is not part of the config is a tensor."""
    model = MODELS["qwen3moe"]()
    path = model.write(tmp_path / "a.gguf")
    sizes = sum(np.prod(e.shape) for e in read_gguf(path).entries.values())
    found = open_checkpoint(path)
    assert sum(np.prod(found.shape(name)) for name in found.names()) == sizes
