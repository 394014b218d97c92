"""Rotation: the frequencies of every variant, how they change with length, what is refused."""

import math
from typing import Any

import numpy as np
import pytest

import treadle as mge
from treadle.base.errors import CheckpointError
from treadle.llm.models.config import Config
from treadle.llm.models.rope import Rotary, rotary, rotate

HALF = 16
SHORT = [1 + i / 16 for i in range(HALF)]
LONG = [1 + i / 4 for i in range(HALF)]
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {
        **{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 32,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    "longrope": {
        **{"short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 32},
    },
}
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 64}


def of(kind: str, **more: Any) -> Rotary:
    given = {"rope_type": kind, "rope_theta": 1e4, **VARIANTS.get(kind, {}), **more}
    return rotary(Config({**SIZES, "rope_parameters": given}), 32)


def reach(turning: Rotary, length: int) -> np.ndarray:
    """The frequencies that a sequence of this length is turned by, read off its cosines."""
    at = mge.tensor(np.array([[1]], np.int32))
    cos, sin = turning.angles(at, mge.tensor(np.array([length], np.int32)))
    return np.arctan2(sin.numpy(), cos.numpy())[0, 0]


# By transformers 5.23: the first four of 16, and the amplitude.
GOLDEN = {
    ("linear", 20): ([0.25, 0.1405853, 0.0790569, 0.044457], 1.0),
    ("dynamic", 64): ([1.0, 0.5623414, 0.3162278, 0.1778279], 1.0),
    ("dynamic", 100): ([1.0, 0.5347812, 0.2859908, 0.1529425], 1.0),
    ("llama3", 20): ([1.0, 0.3760158, 0.09584, 0.0222285], 1.0),
    ("yarn", 20): ([1.0, 0.421756, 0.1581139, 0.044457], 1.1386294),
    ("longrope", 32): ([1.0, 0.5292624, 0.2810914, 0.1497498], 1.0954451),
    ("longrope", 33): ([1.0, 0.449873, 0.2108185, 0.101616], 1.0954451),
}


@pytest.mark.parametrize(("kind", "length"), GOLDEN)
def test_frequencies(kind: str, length: int) -> None:
    expected, amplitude = GOLDEN[kind, length]
    turning = of(kind)
    np.testing.assert_allclose(reach(turning, length)[:4], expected, rtol=2e-6)
    np.testing.assert_allclose(turning.amplitude, amplitude, rtol=1e-6)


def test_rows_of_a_batch_are_turned_by_their_own_length() -> None:
    turning = of("longrope")
    at = mge.tensor(np.array([[1], [1]], np.int32))
    cos, _ = turning.angles(at, mge.tensor(np.array([32, 33], np.int32)))
    assert np.allclose(cos.numpy()[0, 0], np.cos(reach(turning, 32)) * turning.amplitude)
    assert np.allclose(cos.numpy()[1, 0], np.cos(reach(turning, 33)) * turning.amplitude)


def test_divisors_of_a_file_are_those_of_llama3() -> None:
    wanted = of("llama3").frequencies
    divisors = (of("default").frequencies / wanted).tolist()
    got = of("divided", divisors=divisors).frequencies
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_turn_as_complex_numbers(interleaved: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 2, 3, 10)).astype(np.float32)
    angle = rng.standard_normal((1, 3, 4)).astype(np.float32)
    turned = rotate(
        mge.tensor(x), (mge.tensor(np.cos(angle)), mge.tensor(np.sin(angle))), interleaved
    )
    got = turned.numpy()
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + 4) for i in range(4)]
    for i, (a, b) in enumerate(pairs):
        z = (x[..., a] + 1j * x[..., b]) * np.exp(1j * angle[:, None, :, i])
        np.testing.assert_allclose(got[..., a] + 1j * got[..., b], z, atol=1e-6)
    np.testing.assert_array_equal(got[..., 8:], x[..., 8:])  # beyond the angles


def test_older_names() -> None:
    old = {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}}
    got = rotary(Config({**SIZES, **old}), 32).frequencies
    np.testing.assert_array_equal(got, of("linear").frequencies)


def test_part_of_a_head() -> None:
    assert len(of("default", partial_rotary_factor=0.75).frequencies) == 12


def test_yarn_amplitude_as_a_ratio() -> None:
    got = of("yarn", mscale=1.0, mscale_all_dim=0.5).amplitude
    assert got == pytest.approx((0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1))


@pytest.mark.parametrize(
    ("kind", "more", "told"),
    [
        ("spiral", {}, "rope_type 'spiral' is unknown"),
        ("linear", {"factor": 0.0}, "factor is not a positive number"),
        ("linear", {"factor": "four"}, "factor is not a number"),
        ("linear", {"factor": None}, "factor is missing"),
        ("llama3", {"low_freq_factor": 4.0}, "is not below high_freq_factor"),
        ("longrope", {"long_factor": LONG[:3]}, "long_factor is not a list of 16"),
        ("longrope", {"long_factor": [float("nan")] * 16}, "long_factor is not a positive"),
        ("default", {"partial_rotary_factor": 0.1}, "turns 3 of 32"),
        ("default", {"rope_theta": -1.0}, "rope_theta is not a positive"),
        ("yarn", {"rope_theta": 1.0}, "is not above 1"),
    ],
)
def test_what_cannot_be_is_refused(kind: str, more: dict[str, Any], told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        of(kind, **more)


@pytest.mark.llm
@pytest.mark.parametrize("length", [20, 64, 100, 1000])
@pytest.mark.parametrize("kind", [k for k in VARIANTS if k != "default"])
def test_as_transformers(kind: str, length: int) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    given = {"rope_theta": 1e4, "rope_type": kind, **VARIANTS[kind]}
    config = transformers.LlamaConfig(**SIZES, rope_parameters=given)
    expected, amplitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
    turning = of(kind)
    np.testing.assert_allclose(reach(turning, length), expected.numpy(), rtol=2e-5)
    assert turning.amplitude == pytest.approx(amplitude)
