"""Adapters merged into files of models: every weight is what it was, plus what was learned."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.llm.files.models import MODELS
from tests.llm.files.test_gguf_checkpoint import TOKENS

from treadle.base.blocks import BlockTensor
from treadle.base.errors import CheckpointError
from treadle.llm.conversion import convert
from treadle.llm.files import ModelCheckpoint, open_checkpoint
from treadle.llm.tuning import Adapter, Lora, adapter_for, merged, write_adapter

ENDINGS = ("q_proj", "k_proj", "down_proj", "qkv_proj", "experts.1.w2")


def values(tensor: Any) -> np.ndarray:
    return tensor.dequantize() if isinstance(tensor, BlockTensor) else tensor.astype(np.float32)


def learned(checkpoint: ModelCheckpoint, folder: Path) -> Path:
    """An adapter of some matrices."""
    rng, pairs = np.random.default_rng(1), {}
    for name in checkpoint.names():
        module = name.removesuffix(".weight")
        if module.endswith(ENDINGS):
            rows, columns = checkpoint.shape(name)
            a, b = (rng.standard_normal(s).astype(np.float32) for s in ((2, columns), (rows, 2)))
            pairs[module] = (a, b)
    write_adapter(folder, Adapter(Lora(2, 1.0), pairs))
    return folder


def change(adapter: Path, checkpoint: ModelCheckpoint) -> ModelCheckpoint:
    return merged(checkpoint, adapter_for(adapter, checkpoint))


@pytest.mark.parametrize("target", ["b.gguf", "model"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "qwen3moe", "gemma2"])
def test_weights_hold_what_was_learned(tmp_path: Path, name: str, target: str) -> None:
    source = MODELS[name]().write(tmp_path / "a.gguf", **TOKENS)
    before = open_checkpoint(source)
    adapter = learned(before, tmp_path / "tuned")
    convert(source, tmp_path / target, change=partial(change, adapter))
    after, pairs = open_checkpoint(tmp_path / target), adapter_for(adapter, before).pairs
    assert len(pairs) >= 4 and set(after.names()) == set(before.names())
    for each in before.names():
        wanted = values(before.tensor(each))
        if (pair := pairs.get(each.removesuffix(".weight"))) is not None:
            wanted = wanted + 0.5 * (pair[1] @ pair[0])
        np.testing.assert_allclose(after.tensor(each), wanted, atol=1e-5)
    assert after.config == before.config


@pytest.mark.parametrize(("form", "becomes"), [("Q4_0", "Q4_0"), ("Q8_0", "Q8_0")])
def test_blocks_become_blocks_again(tmp_path: Path, form: str, becomes: str) -> None:
    source = MODELS["llama"]().write(tmp_path / "a.gguf", form=form, **TOKENS)
    adapter = learned(open_checkpoint(source), tmp_path / "tuned")
    report = convert(source, tmp_path / "b.gguf", change=partial(change, adapter))
    rows = {row.name: row for row in report.tensors}
    assert rows["blk.0.attn_q.weight"].becomes == becomes
    assert 1e-4 < rows["blk.0.attn_q.weight"].error < 0.2
    assert rows["blk.0.attn_v.weight"].error == 0.0
    first, last = open_checkpoint(source), open_checkpoint(tmp_path / "b.gguf")
    for each in first.names():
        was, now = first.tensor(each), last.tensor(each)
        same = np.array_equal(values(was), values(now))
        assert same != each.removesuffix(".weight").endswith(ENDINGS)
        assert isinstance(was, BlockTensor) == isinstance(now, BlockTensor)


def test_experts_beside_each_other(tmp_path: Path) -> None:
    """GGUF stacks experts: those that the adapter leaves as they are stay what they are."""
    source = MODELS["mixtral"]().write(tmp_path / "a.gguf", form="Q8_0", **TOKENS)
    before = open_checkpoint(source)
    adapter = learned(before, tmp_path / "tuned")
    report = convert(source, tmp_path / "b.gguf", change=partial(change, adapter))
    after = open_checkpoint(tmp_path / "b.gguf")
    for expert in range(3):
        name = f"model.layers.0.block_sparse_moe.experts.{expert}.w2.weight"
        off = np.abs(values(after.tensor(name)) - values(before.tensor(name))).max()
        assert (off > 0.5) == (expert == 1)
    changed = {r.name for r in report.tensors if r.error}
    assert "blk.0.ffn_down_exps.weight" in changed and "blk.0.ffn_up_exps.weight" not in changed


@pytest.mark.parametrize("form", ["Q5_0", "IQ4_NL"])
def test_blocks_stay_blocks_of_their_form(tmp_path: Path, form: str) -> None:
    source = MODELS["llama"]().write(tmp_path / "a.gguf", form=form, **TOKENS)
    adapter = learned(open_checkpoint(source), tmp_path / "tuned")
    rows = convert(source, tmp_path / "b.gguf", change=partial(change, adapter)).tensors
    kinds = {(r.becomes, r.error > 0) for r in rows if r.was != "F32" or "attn_q" in r.name}
    assert kinds == {(form, True), (form, False)}


def test_16_bits_stay_16_bits(tmp_path: Path) -> None:
    convert(MODELS["qwen2"]().write(tmp_path / "a.gguf"), tmp_path / "model", "BF16")
    adapter = learned(open_checkpoint(tmp_path / "model"), tmp_path / "tuned")
    convert(tmp_path / "model", tmp_path / "merged", change=partial(change, adapter))
    found = open_checkpoint(tmp_path / "merged").tensor("model.layers.0.self_attn.q_proj.weight")
    assert found.dtype == ml_dtypes.bfloat16


def test_adapters_of_other_models(tmp_path: Path) -> None:
    models = {n: MODELS[n]().write(tmp_path / f"{n}.gguf") for n in ("llama", "phi3")}
    adapter = learned(open_checkpoint(models["phi3"]), tmp_path / "tuned")
    with pytest.raises(CheckpointError, match="belongs to another model"):
        convert(models["llama"], tmp_path / "b.gguf", change=partial(change, adapter))
    assert not (tmp_path / "b.gguf").exists()
