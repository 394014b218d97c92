"""Operators of language models against ONNX Runtime, eager and compiled."""

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

pytest.importorskip("onnx", reason="needs the onnx extra")
pytest.importorskip("onnxruntime", reason="needs ONNX Runtime")

from onnx import helper  # noqa: E402
from tests.interop.onnx.fuzz.growing import by_runtime, single  # noqa: E402
from tests.interop.onnx.fuzz.judging import by_treadle  # noqa: E402
from tests.interop.onnx.test_operators import RUNTIME, check, numbers  # noqa: E402

import treadle as mge  # noqa: E402


@pytest.fixture(autouse=True)
def _on_the_cpu() -> None:
    mge.set_default_device("cpux")


@pytest.mark.parametrize("zeros", ["none", "packed", "floats"])
@pytest.mark.parametrize(
    ("bits", "size", "k"), [(4, 16, 48), (4, 32, 96), (4, 32, 80), (8, 32, 64)]
)
def test_products_with_packed_weights(bits: int, size: int, k: int, zeros: str) -> None:
    rng = np.random.default_rng(0)
    n, blocks = 5, -(-k // size)
    packed = rng.integers(0, 256, (n, blocks, size * bits // 8), dtype=np.uint8)
    scales = rng.uniform(0.01, 0.1, n * blocks).astype(np.float32)
    given: list[Any] = [numbers(2, 3, k), packed, scales]
    if zeros == "packed":
        given.append(rng.integers(0, 256, n * -(-blocks * bits // 8), dtype=np.uint8))
    if zeros == "floats":
        if bits == 8:
            pytest.skip("ONNX Runtime has no such zero points for 8 bits")
        given.append(rng.uniform(0, 15, n * blocks).astype(np.float32))
    sizes = {"K": k, "N": n, "bits": bits, "block_size": size}
    known = tuple(range(1, len(given)))
    check("MatMulNBits", *given, domain=RUNTIME, known=known, atol=2e-5, **sizes)


def _angles(most: int, half: int) -> list[np.ndarray]:
    angles = np.arange(most)[:, None] * 100.0 ** -(np.arange(half) / half)
    return [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("form", ["heads", "rows", "offset", "part"])
def test_rotation(form: str, interleaved: int) -> None:
    places = np.array([[0, 1, 2], [5, 6, 7]])
    more: dict[str, Any] = {"interleaved": interleaved}
    given = numbers(2, 3, 16)
    if form == "heads":
        given = numbers(2, 2, 3, 8)
    if form == "offset":
        places = np.array([4])
    half = 4
    if form == "part":
        half = 2
        more |= {"num_heads": 2, "rotary_embedding_dim": 4}
    check("RotaryEmbedding", given, places, *_angles(10, half), domain=RUNTIME, **more)


ATTENTION: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 2}


@pytest.mark.parametrize(
    "more",
    [{}, {"scale": 0.2}, {"softcap": 2.0}, {"local_window_size": 2}, {"do_rotary": 1},
     {"do_rotary": 1, "rotary_interleaved": 1}],
)  # fmt: skip
@pytest.mark.parametrize("past", [0, 3])
def test_grouped_attention(past: int, more: dict[str, Any]) -> None:
    batch, length, size = 2, (4 if past == 0 else 1), 16
    rows = [numbers(batch, length, heads * size, seed=heads) for heads in (4, 2, 2)]
    rows[2] = rows[2] * 0.5 + 1
    caches = [numbers(batch, 2, past, size, seed=i) for i in (3, 4)]
    ends = np.full(batch, past + length - 1, np.int32)
    total = np.array(past + length, np.int32)
    angles = _angles(16, size // 2) if "do_rotary" in more else []
    check(
        *("GroupQueryAttention", *rows, *caches, ends, total, *angles),
        **{"outputs": 3, "domain": RUNTIME, "known": (5, 6), "atol": 1e-5},
        **ATTENTION,
        **more,
    )


@pytest.mark.parametrize(
    "more", [{}, {"softcap": 2.0, "scale": 0.2}, {"local_window_size": 3}, {"do_rotary": 1}]
)
def test_grouped_attention_whose_lengths_are_data(more: dict[str, Any]) -> None:
    """One program for every length: caches have room, lengths are inputs."""
    angles = _angles(16, 8) if "do_rotary" in more else []
    models: dict[int, Any] = {}
    for length, ends in ((4, (3, 3)), (4, (3, 1)), (1, (4, 7)), (1, (0, 0))):
        rows = [numbers(2, length, heads * 16, seed=heads) for heads in (4, 2, 2)]
        caches = [numbers(2, 2, 9, 16, seed=i) for i in (3, 4)]
        total = np.array(max(ends) + 1, np.int32)
        given = (*rows, *caches, np.array(ends, np.int32), total, *angles)
        inputs = {f"x{i}": each for i, each in enumerate(given)}
        names = ["y0", "y1", "y2"]
        node = helper.make_node(
            "GroupQueryAttention", list(inputs), names, domain=RUNTIME, **ATTENTION, **more
        )
        expected = by_runtime(single(node, inputs, 21), inputs)
        results = dict(zip(names, expected, strict=True))
        run = models.setdefault(length, single(node, inputs, 21, results, frozenset()))
        found = by_treadle(run, inputs, "compiled")
        for text, end in enumerate(ends):
            count = length if max(ends) >= length else end + 1
            count = min(count, end + 1)
            np.testing.assert_allclose(found[0][text, :count], expected[0][text, :count], atol=1e-5)
            for mine, other in zip(found[1:], expected[1:], strict=True):
                seen = slice(0, end + 1)
                np.testing.assert_allclose(mine[text, :, seen], other[text, :, seen], atol=1e-6)


def test_grouped_attention_to_packed_rows() -> None:
    rows = numbers(1, 3, (4 + 2 + 2) * 16)
    empty = np.zeros((1, 2, 0, 16), np.float32)
    ends, total = np.array([2], np.int32), np.array(3, np.int32)
    check(
        *("GroupQueryAttention", rows, None, None, empty, empty, ends, total),
        **{"outputs": 3, "domain": RUNTIME, "known": (5, 6), "atol": 1e-5},
        **ATTENTION,
    )


def test_grouped_attention_of_texts_that_differ_in_length() -> None:
    """Behind the end of a text ONNX Runtime leaves its cache to chance."""
    rows = [numbers(2, 1, heads * 16, seed=heads) for heads in (4, 2, 2)]
    caches = [numbers(2, 2, 6, 16, seed=i) for i in (3, 4)]
    ends, total = np.array([5, 3], np.int32), np.array(6, np.int32)
    inputs = {f"x{i}": each for i, each in enumerate((*rows, *caches, ends, total))}
    names = ["y0", "y1", "y2"]
    node = helper.make_node("GroupQueryAttention", list(inputs), names, domain=RUNTIME, **ATTENTION)
    expected = by_runtime(single(node, inputs, 21), inputs)
    results = dict(zip(names, expected, strict=True))
    model = single(node, inputs, 21, results, frozenset({"x5", "x6"}))
    given = {name: inputs[name] for name in list(inputs)[:5]}
    for how in ("eager", "compiled"):
        found = by_treadle(model, given, how)
        np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
        for mine, other in zip(found[1:], expected[1:], strict=True):
            for text, end in enumerate(ends.tolist()):
                seen = slice(0, end + 1)
                np.testing.assert_array_equal(mine[text, :, seen], other[text, :, seen])
