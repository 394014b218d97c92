"""Quantized weights of safetensors, packed here element by element as their schemes say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from treadle.base.blocks import BlockTensor
from treadle.base.errors import CheckpointError
from treadle.llm.files import open_checkpoint

N, K, GROUP = 16, 128, 32
NAME = "model.layers.0.mlp.up_proj"


def _open(path: Path, given: Any, tensors: dict[str, np.ndarray]) -> Any:
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, path / "model.safetensors")
    config = {"model_type": "llama", "quantization_config": given}
    (path / "config.json").write_text(json.dumps(config))
    return open_checkpoint(path)


def _weight(found: Any, blocks: str = "") -> np.ndarray:
    """The one weight; `blocks`: the format that it must be in."""
    assert "quantization_config" not in found.config
    assert found.names() == (f"{NAME}.weight",)
    tensor = found.tensor(f"{NAME}.weight")
    assert tensor.shape == found.shape(f"{NAME}.weight")
    assert (tensor.format.name if isinstance(tensor, BlockTensor) else "") == blocks
    return tensor.dequantize() if isinstance(tensor, BlockTensor) else tensor


def _words(levels: np.ndarray, bits: int, axis: int, order: Any = range(8)) -> np.ndarray:
    """Levels along an axis in words of 32 bits; element order[i] of each eight is i-th."""
    levels = np.moveaxis(levels, axis, -1)
    per = 32 // bits
    words = np.zeros((*levels.shape[:-1], levels.shape[-1] // per), np.int64)
    for i in range(per):
        source = order[i] if per == 8 else i
        words |= levels[..., source::per].astype(np.int64) << (bits * i)
    return np.moveaxis(words.astype(np.uint32).view(np.int32), -1, axis)


def _case(bits: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Levels [N, K], zeros and scales [N, groups]."""
    rng = np.random.default_rng(seed)
    levels = rng.integers(0, 1 << bits, (N, K))
    zeros = rng.integers(0, 1 << bits, (N, K // GROUP))
    scales = rng.uniform(0.01, 0.1, (N, K // GROUP)).astype(np.float16)
    return levels, zeros, scales


def _values(levels: np.ndarray, zeros: Any, scales: np.ndarray, order: Any = None) -> np.ndarray:
    order = np.arange(K) // GROUP if order is None else order
    zeros = np.broadcast_to(zeros, scales.shape)
    wide = levels.astype(np.float32) - zeros[:, order].astype(np.float32)
    return wide * scales.astype(np.float32)[:, order]


def _gptq(levels: Any, stored: Any, scales: Any, bits: int) -> dict[str, np.ndarray]:
    return {
        f"{NAME}.qweight": _words(levels.T, bits, 0),
        f"{NAME}.qzeros": _words(stored.T, bits, 1),
        f"{NAME}.scales": scales.T,
    }


@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gptq(tmp_path: Path, bits: int, form: str) -> None:
    levels, zeros, scales = _case(bits)
    stored = zeros if form == "gptq_v2" else (zeros - 1) % (1 << bits)
    given = {"quant_method": "gptq", "bits": bits, "checkpoint_format": form, "sym": False}
    found = _open(tmp_path, given, _gptq(levels, stored, scales, bits))
    np.testing.assert_array_equal(_weight(found), _values(levels, zeros, scales))


@pytest.mark.parametrize(("bits", "blocks"), [(4, "Q4_0"), (8, "Q8_0")])
@pytest.mark.parametrize("less", [0, 1])
def test_symmetric_gptq_is_blocks(tmp_path: Path, bits: int, blocks: str, less: int) -> None:
    """Also where zeros are as they are, though the file says that they are less 1."""
    levels, _, scales = _case(bits)
    middle = 1 << (bits - 1)
    stored = np.full(scales.shape, middle - less)
    given = {"quant_method": "gptq", "bits": bits, "checkpoint_format": "gptq", "sym": True}
    tensors = _gptq(levels, stored, scales, bits)
    tensors[f"{NAME}.g_idx"] = (np.arange(K) // GROUP).astype(np.int32)
    wanted = _values(levels, middle, scales)
    np.testing.assert_array_equal(_weight(_open(tmp_path, given, tensors), blocks), wanted)


def test_gptq_ordered_by_activations(tmp_path: Path) -> None:
    levels, zeros, scales = _case(4)
    order = np.random.default_rng(1).permutation(np.arange(K) // GROUP).astype(np.int32)
    given = {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}
    tensors = _gptq(levels, zeros, scales, 4) | {f"{NAME}.g_idx": order}
    wanted = _values(levels, zeros, scales, order)
    np.testing.assert_array_equal(_weight(_open(tmp_path, given, tensors)), wanted)
    tensors[f"{NAME}.g_idx"] = order + 1
    with pytest.raises(CheckpointError, match="is not below 4"):
        _weight(_open(tmp_path, given, tensors))


@pytest.mark.parametrize("symmetric", [False, True])
def test_awq(tmp_path: Path, symmetric: bool) -> None:
    levels, zeros, scales = _case(4)
    zeros = np.full_like(zeros, 8) if symmetric else zeros
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    tensors = {
        f"{NAME}.qweight": _words(levels.T, 4, 1, order),
        f"{NAME}.qzeros": _words(zeros.T, 4, 1, order),
        f"{NAME}.scales": scales.T,
    }
    found = _open(tmp_path, {"quant_method": "awq", "bits": 4, "version": "gemm"}, tensors)
    wanted = _values(levels, zeros, scales)
    np.testing.assert_array_equal(_weight(found, "Q4_0" if symmetric else ""), wanted)


def _compressed(bits: int, form: str = "pack-quantized") -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": True}
    groups = {"group_0": {"weights": weights, "targets": ["Linear"]}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


@pytest.mark.parametrize("scale", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("bits", "name"), [(4, "Q4_0"), (8, "Q8_0")])
def test_compressed_tensors(tmp_path: Path, bits: int, name: str, scale: str) -> None:
    levels, _, scales = _case(bits)
    kept = scales.astype(np.float32) * (1.001 if scale == "float32" else 1)
    kept = kept.astype(ml_dtypes.bfloat16 if scale == "bfloat16" else scale)
    stored = kept.astype(np.float32) if scale == "bfloat16" else kept
    tensors = {
        f"{NAME}.weight_packed": _words(levels, bits, 1),
        f"{NAME}.weight_scale": stored,
        f"{NAME}.weight_shape": np.array([N, K], np.int64),
    }
    found = _weight(_open(tmp_path, _compressed(bits), tensors), "" if scale == "float32" else name)
    np.testing.assert_array_equal(found, _values(levels, 1 << (bits - 1), kept))


def test_compressed_tensors_with_zero_points(tmp_path: Path) -> None:
    levels, zeros, scales = _case(4)
    tensors = {
        f"{NAME}.weight_packed": _words(levels, 4, 1),
        f"{NAME}.weight_scale": scales,
        f"{NAME}.weight_shape": np.array([N, K], np.int64),
        f"{NAME}.weight_zero_point": _words(zeros, 4, 0),
    }
    found = _weight(_open(tmp_path, _compressed(4), tensors))
    np.testing.assert_array_equal(found, _values(levels, zeros, scales))


def test_weights_and_activations_of_8_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = rng.integers(-128, 128, (N, K), dtype=np.int8)
    scales = rng.uniform(0.01, 0.1, (N, 1)).astype(np.float16)
    tensors = {f"{NAME}.weight": weight, f"{NAME}.weight_scale": scales}
    found = _weight(_open(tmp_path, _compressed(8, "int-quantized"), tensors), "Q8_0")
    np.testing.assert_array_equal(found, weight.astype(np.float32) * scales.astype(np.float32))


def test_bitsandbytes_of_8_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (N, K), dtype=np.int8)
    largest = rng.uniform(0.1, 1, N).astype(np.float32)
    tensors = {f"{NAME}.weight": weight, f"{NAME}.SCB": largest}
    found = _weight(
        _open(tmp_path, {"quant_method": "bitsandbytes", "load_in_8bit": True}, tensors)
    )
    np.testing.assert_allclose(found, weight * largest[:, None] / 127, rtol=1e-6)


@pytest.mark.parametrize("nested", [False, True])
def test_bitsandbytes_of_4_bits(tmp_path: Path, nested: bool) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, N * K).astype(np.uint8)
    table = np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
    blocks = N * K // 64
    state = {"quant_type": "nf4", "blocksize": 64, "shape": [N, K], "dtype": "float16"}
    tensors = {
        f"{NAME}.weight": (codes[::2] << 4 | codes[1::2])[:, None],
        f"{NAME}.weight.quant_map": table,
    }
    if nested:
        state |= {"nested_blocksize": 16, "nested_offset": 0.5}
        again = rng.integers(0, 256, blocks).astype(np.uint8)
        inner = rng.uniform(-0.3, 0.3, 256).astype(np.float32)
        most = rng.uniform(0.5, 1, blocks // 16).astype(np.float32)
        largest = np.array([inner[again[i]] * most[i // 16] + 0.5 for i in range(blocks)])
        tensors |= {f"{NAME}.weight.nested_quant_map": inner, f"{NAME}.weight.absmax": again}
        tensors |= {f"{NAME}.weight.nested_absmax": most}
    else:
        largest = rng.uniform(0.1, 1, blocks).astype(np.float32)
        tensors[f"{NAME}.weight.absmax"] = largest
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    tensors[f"{NAME}.weight.quant_state.bitsandbytes__nf4"] = text
    found = _weight(
        _open(tmp_path, {"quant_method": "bitsandbytes", "load_in_4bit": True}, tensors)
    )
    wanted = [table[codes[i]] * largest[i // 64] for i in range(N * K)]
    np.testing.assert_allclose(found.reshape(-1), wanted, rtol=1e-6)


def test_blocks_of_gpt_oss(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (2, 6, 3, 16), dtype=np.uint8)
    scales = rng.integers(100, 140, (2, 6, 3), dtype=np.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {f"{name}_blocks": raw, f"{name}_scales": scales, f"{name}_bias": np.ones((2, 6))}
    found = _open(tmp_path, {"quant_method": "mxfp4"}, tensors)
    assert set(found.names()) == {f"{name}_blocks", f"{name}_bias"}
    blocks = found.tensor(f"{name}_blocks")
    assert isinstance(blocks, BlockTensor) and blocks.format.name == "MXFP4"
    assert blocks.shape == found.shape(f"{name}_blocks") == (2, 6, 96)
    e2m1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = np.array(e2m1 + [-each for each in e2m1])
    wanted = np.empty((2, 6, 96), np.float32)
    for k in range(96):
        byte = raw[:, :, k // 32, k % 32 // 2]
        code = byte >> 4 if k % 2 else byte & 15
        wanted[:, :, k] = values[code] * 2.0 ** (scales[:, :, k // 32].astype(int) - 127)
    np.testing.assert_array_equal(blocks.dequantize(), wanted)


def _broken(change: Any) -> dict[str, np.ndarray]:
    levels, zeros, scales = _case(4)
    tensors = _gptq(levels, zeros, scales, 4)
    change(tensors)
    return tensors


BAD: dict[str, tuple[Any, Any, str]] = {
    "scheme": ({"quant_method": "hqq"}, lambda t: None, "read are gptq"),
    "no scheme": ({"bits": 4}, lambda t: None, "read are gptq"),
    "list": ([1], lambda t: None, "read are gptq"),
    "bits": ({"quant_method": "gptq", "bits": 3}, lambda t: None, "none of 2, 4, 8"),
    "no zeros": (
        {"quant_method": "gptq", "bits": 4},
        lambda t: t.pop(f"{NAME}.qzeros"),
        "is missing",
    ),
    "scales": (
        {"quant_method": "gptq", "bits": 4},
        lambda t: t.update({f"{NAME}.scales": np.ones((4, N + 1), np.float16)}),
        "for each group",
    ),
    "zeros": (
        {"quant_method": "gptq", "bits": 4},
        lambda t: t.update({f"{NAME}.qzeros": np.ones((4, 7), np.int32)}),
        r"is not \(4, 2\)",
    ),
    "floats": (
        {"quant_method": "gptq", "bits": 4},
        lambda t: t.update({f"{NAME}.qweight": np.ones((16, 16), np.float32)}),
        "is not",
    ),
    "both": (
        {"quant_method": "gptq", "bits": 4},
        lambda t: t.update({f"{NAME}.weight": np.ones((16, 128), np.float32)}),
        "quantized and not quantized",
    ),
    "text": ("gptq", lambda t: None, "read are gptq"),
    "bytes": (
        {"quant_method": "gptq", "bits": 4},
        lambda t: t.update({f"{NAME}.qweight": np.ones((16, 16), np.int8)}),
        "is not",
    ),
    "nothing": (
        {"quant_method": "gptq", "bits": 4},
        lambda t: t.update({f"{NAME}.qweight": np.ones((0, 16), np.int32)}),
        "with elements",
    ),
    "groups": (_compressed(4) | {"config_groups": {"a": 1}}, lambda t: None, "speak of integers"),
    "float8": (_compressed(8, "float-quantized"), lambda t: None, "does not speak of integers"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_fit_is_refused(tmp_path: Path, what: str) -> None:
    given, change, says = BAD[what]
    with pytest.raises(CheckpointError, match=says):
        found = _open(tmp_path, given, _broken(change))
        found.tensor(f"{NAME}.weight")
