"""Attention in several heads against NumPy: packing, masks, further keys, weights."""

from typing import Any

import numpy as np
import pytest

import treadle.functional as F
import treadle.jit as jit
import treadle.module as M
from treadle.base.errors import DTypeError, ShapeError
from treadle.tensor import Tensor

N, L, S, E, H = 2, 3, 4, 6, 2


def _array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def _inputs(layer: M.MultiHeadAttention) -> tuple[np.ndarray, ...]:
    return _array(N, L, E), _array(N, S, layer.kdim, seed=1), _array(N, S, layer.vdim, seed=2)


def _heads(x: np.ndarray) -> np.ndarray:
    return x.reshape(*x.shape[:2], H, -1).transpose(0, 2, 1, 3)


def _wanted(layer: M.MultiHeadAttention, inputs: Any, added: Any = 0.0) -> Any:
    """The result and the weights, with numbers added to the scores."""
    packed = layer.io_weight_bias.numpy().reshape(-1)
    shapes = [(E, E), (layer.kdim, E), (layer.vdim, E), (E, E)]
    weights, at = [], 0
    for rows, columns in shapes:
        weights.append(packed[at : at + rows * columns].reshape(rows, columns))
        at += rows * columns
    biases = packed[at:].reshape(4, E) if layer.bias else np.zeros((4, E))
    q, k, v = (x @ w + b for x, w, b in zip(inputs, weights, biases, strict=False))
    q, k, v = (_heads(x) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(E // H) + added
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    joined = (shares @ v).transpose(0, 2, 1, 3).reshape(N, L, E)
    return joined @ weights[3] + biases[3], shares


@pytest.fixture(params=[{}, {"bias": False}, {"kdim": 3, "vdim": 5}])
def layer(request: pytest.FixtureRequest) -> M.MultiHeadAttention:
    made = M.MultiHeadAttention(E, H, **request.param)
    if made.bias:
        made.io_weight_bias[0, -4 * E :] = Tensor(_array(4 * E, seed=3))
    return made


def test_result_and_weights(layer: M.MultiHeadAttention) -> None:
    inputs = _inputs(layer)
    wanted, shares = _wanted(layer, inputs)
    out, none = layer(*map(Tensor, inputs))
    assert none is None
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-4, atol=1e-5)
    out, weights = layer(*map(Tensor, inputs), need_weights=True)
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(weights.numpy(), shares.reshape(N * H, L, S), rtol=1e-4, atol=1e-6)
    _, mean = layer(*map(Tensor, inputs), need_weights=True, average_attn_weights=True)
    np.testing.assert_allclose(mean.numpy(), shares.mean(1), rtol=1e-4, atol=1e-6)


def test_compiled(layer: M.MultiHeadAttention) -> None:
    inputs = _inputs(layer)
    out = jit.compile(lambda q, k, v: layer(q, k, v)[0])(*map(Tensor, inputs))
    np.testing.assert_allclose(out.numpy(), _wanted(layer, inputs)[0], rtol=1e-4, atol=1e-5)


PADDING = np.array([[False, False, False, True], [False, True, False, False]])
HIDDEN = np.array([[False, True, False, False]] * L)
ADDED = _array(N * H, L, S, seed=5)
CAUSAL = np.arange(S)[None] > np.arange(L)[:, None]
MASKS: dict[str, tuple[dict[str, Any], Any]] = {
    "padding": ({"key_padding_mask": PADDING}, np.where(PADDING, -np.inf, 0)[:, None, None]),
    "hidden": ({"attn_mask": HIDDEN}, np.where(HIDDEN, -np.inf, 0)),
    "added": ({"attn_mask": ADDED}, ADDED.reshape(N, H, L, S)),
    "added for samples": ({"attn_mask": ADDED[:N]}, ADDED[:N, None]),
    "causal": ({"is_causal": True}, np.where(CAUSAL, -np.inf, 0)),
    "both": (
        {"attn_mask": ADDED, "key_padding_mask": PADDING},
        ADDED.reshape(N, H, L, S) + np.where(PADDING, -np.inf, 0)[:, None, None],
    ),
    "ranges": (
        {
            "attn_mask": np.array([[0, 1, 0], [2, 4, 4]], np.int32),
            "key_padding_mask": np.array([[3, 3], [4, 3]], np.int32),
            "maybe_cudnn_style_mask": True,
        },
        np.where(
            np.stack([np.array([[0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]])] * 2).astype(bool)
            | np.array([[[0, 0, 0, 0]], [[0, 0, 0, 1]]]).astype(bool),
            -np.inf,
            0,
        )[:, None],
    ),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("need_weights", [True, False])
def test_masks(name: str, need_weights: bool) -> None:
    given, added = MASKS[name]
    plain = M.MultiHeadAttention(E, H)
    inputs = _inputs(plain)
    masks = {k: Tensor(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}
    out, _ = plain(*map(Tensor, inputs), need_weights=need_weights, **masks)
    np.testing.assert_allclose(out.numpy(), _wanted(plain, inputs, added)[0], rtol=1e-4, atol=1e-5)


def test_further_keys_take_part() -> None:
    plain = M.MultiHeadAttention(E, H, add_bias_kv=True, add_zero_attn=True)
    assert plain.bias_k.shape == plain.bias_v.shape == (1, 1, E)
    out, weights = plain(*map(Tensor, _inputs(plain)), need_weights=True)
    assert out.shape == (N, L, E)
    assert weights.shape == (N * H, L, S + 2)
    hidden = Tensor(np.ones((N, S), bool))
    _, weights = plain(*map(Tensor, _inputs(plain)), key_padding_mask=hidden, need_weights=True)
    assert not weights.numpy()[..., :S].any()


def test_without_a_batch() -> None:
    plain = M.MultiHeadAttention(E, H)
    q, k, v = (Tensor(x[0]) for x in _inputs(plain))
    whole, _ = plain(*map(Tensor, _inputs(plain)))
    out, weights = plain(q, k, v, need_weights=True, average_attn_weights=True)
    assert weights.shape == (L, S)
    np.testing.assert_allclose(out.numpy(), whole.numpy()[0], rtol=1e-5, atol=1e-6)


def test_projections_can_be_left_out_and_the_query_added() -> None:
    x = Tensor(_array(1, 3, 4))
    out, _ = F.multi_head_attention(
        *(x, x, x, 4, 1, 0.0, 0.0, None),
        qproj_size=0,
        kproj_size=0,
        vproj_size=0,
        oproj_size=0,
        reslink=True,
    )
    wanted = F.scaled_dot_product_attention(x, x, x) + x
    np.testing.assert_allclose(out.numpy(), wanted.numpy(), rtol=1e-5)


def test_dropout_in_training_only() -> None:
    layer = M.MultiHeadAttention(E, H, attn_dropout=0.5, out_dropout=0.2)
    inputs = list(map(Tensor, _inputs(layer)))
    assert not np.array_equal(layer(*inputs)[0].numpy(), layer(*inputs)[0].numpy())
    layer.eval()
    np.testing.assert_allclose(
        layer(*inputs)[0].numpy(), _wanted(layer, _inputs(layer))[0], rtol=1e-4, atol=1e-5
    )


def test_first_values_and_repr() -> None:
    layer = M.MultiHeadAttention(E, H)
    packed = layer.io_weight_bias.numpy()
    assert packed.shape == (1, 4 * E * E + 4 * E)
    assert np.abs(packed).max() <= np.sqrt(6 / (2 * E))
    assert not packed[0, -4 * E :].any()
    assert repr(layer) == (
        "MultiHeadAttention(embed_dim=6, num_heads=2, dropout=0.0, bias=True, kdim=6, vdim=6)"
    )


def test_bad_input() -> None:
    with pytest.raises(ShapeError, match="divisible by num_heads"):
        M.MultiHeadAttention(5, 2)
    with pytest.raises(ValueError, match="attn_dropout must be in"):
        M.MultiHeadAttention(4, 2, attn_dropout=1.0)
    layer = M.MultiHeadAttention(E, H)
    q, k, v = map(Tensor, _inputs(layer))
    with pytest.raises(ShapeError, match="numbers of keys and values, differ"):
        layer(q, k, v[:, :2])
    with pytest.raises(ShapeError, match="the query has 5 features"):
        layer(q[..., :5], k, v)
    with pytest.raises(DTypeError, match="a mask is bool"):
        layer(q, k, v, attn_mask=Tensor(np.zeros((L, S), np.int32)))
    with pytest.raises(ShapeError, match="attn_mask is neither"):
        layer(q, k, v, attn_mask=Tensor(np.zeros((5, L, S), np.float32)))
    with pytest.raises(ShapeError, match="io_weight_bias holds 3 numbers"):
        F.multi_head_attention(q, k, v, E, H, 0.0, 0.0, F.ones(3))
    with pytest.raises(ValueError, match="needs attn_mask and key_padding_mask"):
        layer(q, k, v, maybe_cudnn_style_mask=True)
