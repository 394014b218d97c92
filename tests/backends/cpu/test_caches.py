"""Caches of decoders in compiled programs: written in place, and read as far as sequences go."""

from __future__ import annotations

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.base.errors import IndexRangeError

SHAPE = (3, 2, 2048, 16)


def at(*values: int) -> mge.Tensor:
    return mge.Tensor(np.array(values, np.int32))


def test_a_step_writes_its_cache_in_place() -> None:
    """Rows with starts of their own; no launch copies the cache, and no memory holds a second."""
    rng = np.random.default_rng(0)
    keys, values = (mge.Tensor(np.zeros(SHAPE, np.float32)) for _ in range(2))
    want_keys, want_values = (np.zeros(SHAPE, np.float32) for _ in range(2))

    @mge.jit.compile
    def step(
        q: mge.Tensor, k: mge.Tensor, v: mge.Tensor, starts: mge.Tensor, ends: mge.Tensor
    ) -> mge.Tensor:
        rows = at(2, 0)
        keys[...] = F.cache_update(keys, k, starts, ends, rows)
        values[...] = F.cache_update(values, v, starts, ends, rows)
        return F.cached_attention(q, keys, values, starts, ends, rows)

    addresses = [t._data.__array_interface__["data"][0] for t in (keys, values)]
    for turn in range(3):
        q = rng.normal(size=(2, 6, 4, 16)).astype(np.float32)
        k, v = (rng.normal(size=(2, 2, 4, 16)).astype(np.float32) for _ in range(2))
        starts, ends = (4 * turn, 100 + 3 * turn), (4 * turn + 4, 103 + 3 * turn)
        y = step(*map(mge.Tensor, (q, k, v)), at(*starts), at(*ends)).numpy()
        for b, row in enumerate((2, 0)):
            first, end = starts[b], ends[b]
            want_keys[row, :, first:end] = k[b, :, : end - first]
            want_values[row, :, first:end] = v[b, :, : end - first]
            scores = q[b].reshape(2, 12, 16) @ want_keys[row].transpose(0, 2, 1) / 4
            scores = scores.reshape(6, 4, -1)
            scores[:, np.arange(SHAPE[2]) > first + np.arange(4)[:, None]] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            want = (weights.reshape(2, 12, -1) @ want_values[row]).reshape(6, 4, 16)
            count = end - first
            np.testing.assert_allclose(y[b, :, :count], want[:, :count], 1e-5, 1e-5)
            assert not y[b, :, count:].any()
    np.testing.assert_array_equal(keys.numpy(), want_keys)
    np.testing.assert_array_equal(values.numpy(), want_values)
    assert addresses == [t._data.__array_interface__["data"][0] for t in (keys, values)]
    text = str(step.explain())
    assert "cache_update" in text and "copy" not in text


def test_positions_beyond_the_cache_are_refused_and_nothing_is_written() -> None:
    kept = mge.Tensor(np.zeros((1, 1, 4, 2), np.float32))

    @mge.jit.compile
    def step(x: mge.Tensor, starts: mge.Tensor, ends: mge.Tensor) -> None:
        kept[...] = F.cache_update(kept, x, starts, ends)

    x = mge.Tensor(np.ones((1, 1, 2, 2), np.float32))
    step(x, at(2), at(4))
    with pytest.raises(IndexRangeError, match="index 5 is out of range"):
        step(x, at(3), at(5))
    assert kept.numpy().sum() == 4


def test_rope_in_a_program() -> None:
    """Both layouts, partly rotated, and the gradient, which turns back."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 3, 5, 10)).astype(np.float32)
    angles = np.arange(20)[:, None] * 100.0 ** (-np.arange(4) / 4)
    cos, sin = (mge.Tensor(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
    for interleaved in (False, True):
        turn = mge.jit.compile(lambda v, s, i=interleaved: F.rope(v, cos, sin, s, interleaved=i))
        got = turn(mge.Tensor(x), at(3, 15)).numpy()
        order = np.arange(8).reshape(4, 2).T if interleaved else np.arange(8).reshape(2, 4)
        pairs = x[..., order[0]] + 1j * x[..., order[1]]
        places = np.array([3, 15])[:, None] + np.arange(5)
        pairs = pairs * np.exp(1j * angles[places])[:, None]
        np.testing.assert_allclose(got[..., order[0]], pairs.real, 1e-5, 1e-5)
        np.testing.assert_allclose(got[..., order[1]], pairs.imag, 1e-5, 1e-5)
        np.testing.assert_array_equal(got[..., 8:], x[..., 8:])
