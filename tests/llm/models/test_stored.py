"""Models whose weights stay in quantized blocks."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.llm.cases import some
from tests.llm.models.small import FAMILIES, Given, random_weights

from treadle.base.blocks import FORMATS, BlockTensor
from treadle.base.errors import DTypeError
from treadle.llm.models import build

CONFIG = {
    "model_type": "qwen2",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
}


def checkpoint(format, **changes):
    """Random weights, the matrices in blocks of a format."""
    config, rng = CONFIG | changes, np.random.default_rng(0)
    made = {}

    def matrix(name, *shape):
        x = (rng.standard_normal(shape) * 0.15).astype(np.float32)
        given = FORMATS[format]
        made[name] = BlockTensor(given, shape, given.quantize(x))

    def vector(name, size, mean=1.0):
        made[name] = (mean + 0.1 * rng.standard_normal(size)).astype(np.float32)

    hidden, inner = config["hidden_size"], config["intermediate_size"]
    matrix("model.embed_tokens.weight", config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        vector(f"{layer}.input_layernorm.weight", hidden)
        vector(f"{layer}.post_attention_layernorm.weight", hidden)
        for which, rows in (("q", 64), ("k", 32), ("v", 32)):
            matrix(f"{layer}.self_attn.{which}_proj.weight", rows, hidden)
            vector(f"{layer}.self_attn.{which}_proj.bias", rows, 0.0)
        matrix(f"{layer}.self_attn.o_proj.weight", hidden, 64)
        matrix(f"{layer}.mlp.gate_proj.weight", inner, hidden)
        matrix(f"{layer}.mlp.up_proj.weight", inner, hidden)
        matrix(f"{layer}.mlp.down_proj.weight", hidden, inner)
    vector("model.norm.weight", hidden)
    if not config["tie_word_embeddings"]:
        matrix("lm_head.weight", config["vocab_size"], hidden)
    return Given(config, made)


def logits(model, tokens):
    """Of all tokens at once, and of the last ones one by one."""
    cache, length = model.cache(1, 32), len(tokens)
    whole = model.step([tokens], cache, [0], [length], all=True).numpy()[0]
    again = model.cache(1, 32)
    model.step([tokens[:4]], again, [0], [4])
    single = [model.step([[t]], again, [4 + i], [1]).numpy()[0] for i, t in enumerate(tokens[4:])]
    return whole, np.stack(single)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("format", ["Q8_0", "Q4_0", "Q5_1", "MXFP4"])
def test_logits_are_near_those_of_widened_weights(format, tied):
    given = checkpoint(format, tie_word_embeddings=tied)
    tokens = [3, 90, 17, 55, 2, 81, 40, 9, 66, 30]
    exact, _ = logits(build(given), tokens)
    whole, single = logits(build(given, "stored"), tokens)
    np.testing.assert_allclose(single, whole[4:], rtol=0, atol=1e-4)
    spread = exact.max() - exact.min()
    assert np.abs(whole - exact).max() < 1e-3 * spread


def experts_in_blocks(case, formats):
    """A model of `families.json` with some matrices in blocks; formats by a part of their names."""
    kept = json.loads(FAMILIES.read_text(encoding="utf-8"))[case]
    # Blocks are 32 numbers wide: so are the rows of all experts.
    shapes = {
        k: [{20: 64, 48: 64, 96: 128}.get(n, n) for n in v] for k, v in kept["shapes"].items()
    }
    widths = {"intermediate_size": 64, "moe_intermediate_size": 64}
    config = {**kept["config"], **{k: v for k, v in widths.items() if k in kept["config"]}}
    made = dict(random_weights(shapes))
    for name in list(made):
        format = next((f for part, f in formats.items() if part in name), None)
        if format is None or made[name].ndim < 2:
            continue
        x = made.pop(name)
        if x.ndim == 3:  # gpt-oss: of numbers as columns, in blocks as rows
            x, name = np.swapaxes(x, 1, 2), f"{name}_blocks"
        given = FORMATS[format]
        made[name] = BlockTensor(given, x.shape, given.quantize(np.ascontiguousarray(x)))
    return Given(config, made), kept["text"]


MIXED: list[Any] = [
    ("gpt_oss", {"mlp.experts.gate_up_proj": "MXFP4", "mlp.experts.down_proj": "MXFP4"}),
    ("mixtral", {".experts.": "Q8_0"}),
    ("mixtral", {".w2.": "Q8_0"}),
    ("olmoe, many experts", {".experts.": "Q4_0"}),
    ("olmoe, many experts", {".gate_proj": "Q8_0", ".experts.0.down_proj": "Q5_1"}),
    ("phi3", {"qkv_proj": "Q8_0", "gate_up_proj": "Q8_0"}),
]


@pytest.mark.parametrize(
    ("case", "formats"),
    some(MIXED, MIXED[:2]),
)
def test_experts_and_pieces_in_blocks(case, formats):
    given, text = experts_in_blocks(case, formats)
    exact, _ = logits(build(given), text)
    whole, single = logits(build(given, "stored"), text)
    np.testing.assert_allclose(single, whole[4:], rtol=0, atol=5e-4)
    spread = exact.max() - exact.min()
    # Where two experts are liked alike, the other one may be chosen: most logits are near.
    far = np.abs(whole - exact).max(-1)
    assert far.max() > 0
    assert np.median(far) < 1e-3 * spread


def in_16_bits(case, dtype):
    """A model of `families.json` in floats of 16 bits, and the same in float32."""
    kept = json.loads(FAMILIES.read_text(encoding="utf-8"))[case]
    narrow = {k: v.astype(dtype) for k, v in random_weights(kept["shapes"]).items()}
    wide = {k: v.astype(np.float32) for k, v in narrow.items()}
    return Given(kept["config"], narrow), Given(kept["config"], wide)


CASES = ["llama", "gemma2", "phi3, longrope, short", "mixtral, window", "gpt_oss", "olmoe"]
NARROW = [(case, dtype) for case in CASES for dtype in (ml_dtypes.bfloat16, np.float16)]


@pytest.mark.parametrize(("case", "dtype"), some(NARROW, [*NARROW[:2], *NARROW[7:9]]))
def test_floats_of_16_bits_stay_and_are_widened_exactly(case, dtype):
    narrow, wide = in_16_bits(case, dtype)
    model, exact = build(narrow, "stored", "int16"), build(wide)
    tokens = np.random.default_rng(3).integers(0, model.vocabulary, (1, 24))
    for count in (1, 5, 24):
        found, want = (
            m.step(tokens[:, :count], m.cache(1, 32), [0], [count], all=True).numpy()
            for m in (model, exact)
        )
        np.testing.assert_allclose(found, want, rtol=0, atol=2e-5 * np.ptp(want))
    matrices = sum(v.nbytes for v in narrow.tensors.values() if v.ndim > 1)
    vectors = sum(v.nbytes for v in wide.tensors.values() if v.ndim == 1)
    assert model.stack.nbytes <= matrices + vectors + exact.stack.nbytes // 20
    assert build(narrow, "bfloat16").stack.head.weight.dtype == ml_dtypes.bfloat16
    assert build(narrow).stack.head.weight.dtype == np.float32
    assert model.stack.head.weight.dtype == dtype


@pytest.mark.parametrize("prompts", ["int16", "bfloat16", "int8"])
def test_pieces_of_prompts_change_no_bit(prompts):
    """A prompt that is read again, or in other pieces, gives the same logits."""
    model = build(checkpoint("Q4_0"), "stored", prompts)
    assert model.piece == (1 if prompts == "int16" else 32)
    tokens = np.random.default_rng(1).integers(0, 96, 40)

    def read(*pieces):
        cache, start = model.cache(1, 64), 0
        for count, width in pieces:
            given = np.zeros((1, width), np.int32)
            given[0, :count] = tokens[start : start + count]
            found = model.step(given, cache, [start], [count]).numpy()
            start += count
        return found

    want = read((40, 48))
    for pieces in ([(20, 32), (20, 32)], [(39, 40), (1, 32)]):
        np.testing.assert_array_equal(read(*pieces), want)


def test_prompts_in_bfloat16_are_near_those_of_16_bits():
    given, tokens = checkpoint("Q8_0"), np.random.default_rng(2).integers(0, 96, (1, 40))
    found = {}
    for prompts in ("int16", "bfloat16"):
        model = build(given, "stored", prompts)
        found[prompts] = model.step(tokens, model.cache(1, 64), [0], [40], all=True).numpy()
    exact, rounded = found.values()
    apart = np.abs(exact - rounded).max() / np.ptp(exact)
    assert 0 < apart < 2e-2


def test_unknown_roundings_are_refused():
    with pytest.raises(DTypeError, match="int16, bfloat16"):
        build(checkpoint("Q8_0"), "stored", "int4")
