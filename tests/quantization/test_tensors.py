"""Quantized tensors: plain integers inside, a scale at the surface."""

import copy
import pickle

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.base.errors import DTypeError, ShapeError
from treadle.jit import compile, trace
from treadle.quantization.dtype import (
    convert_to_qint8,
    get_scale,
    is_dtype_equal,
    is_quantize,
    qint4,
    qint8,
    qint32,
    quint8,
)

TENTH = qint8(0.1)


def quantized(values, dtype=TENTH):
    return mge.tensor(values, dtype="float32").astype(dtype)


def test_astype_rounds_halves_away_and_clamps():
    q = mge.tensor([0.25, -0.25, 0.74, 100.0, -100.0]).astype(qint8(0.5))
    assert q.tolist() == [1, -1, 1, 127, -128]
    assert q.astype("float32").tolist() == [0.5, -0.5, 0.5, 63.5, -64.0]
    u = mge.tensor([-5.0, 0.0, 0.3]).astype(quint8(0.1, 10))
    assert u.tolist() == [0, 10, 13]
    np.testing.assert_allclose(u.astype("float32").numpy(), [-1.0, 0.0, 0.3], rtol=1e-6)


def test_astype_agrees_with_the_conversion_of_arrays():
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32) * 10
    dtype = qint8(0.0731)
    np.testing.assert_array_equal(mge.tensor(x).astype(dtype).numpy(), convert_to_qint8(x, dtype))


def test_dtype_and_numpy_carry_the_scale():
    q = quantized([1.0])
    assert q.dtype == np.int8
    assert is_dtype_equal(q.dtype, TENTH)
    assert is_dtype_equal(q.numpy().dtype, TENTH)
    assert not q.numpy().flags.writeable
    assert not is_quantize(q.astype("float32").dtype)


def test_it_prints_its_type():
    assert repr(quantized([1.0, 2.0])) == "Tensor([10 20], dtype=qint8(0.1), device=xpux:0)"


@pytest.mark.parametrize("start", ["float16", "bfloat16", "float64", "int32"])
def test_other_types_are_converted_by_value(start):
    q = mge.tensor([1, 2], dtype=start).astype(qint8(0.5))
    assert q.tolist() == [2, 4]
    assert q.astype(start).tolist() == [1, 2]


def test_from_one_scale_to_another():
    q = quantized([1.0, -0.25])
    assert q.astype(qint8(0.5)).tolist() == [2, -1]
    assert q.astype(qint32(0.01)).tolist() == [100, -30]
    same = q.astype(TENTH)
    assert same is not q
    assert same.tolist() == q.tolist()


def test_construction_takes_integers_as_stored_and_rounds_numbers():
    assert mge.tensor([1, 2], dtype=TENTH).tolist() == [1, 2]
    assert mge.tensor([1.0, 2.0], dtype=TENTH).tolist() == [10, 20]
    stored = convert_to_qint8(np.array([1.0, 2.0]), TENTH)
    assert is_dtype_equal(mge.Parameter(stored).dtype, TENTH)
    assert mge.tensor(stored, dtype=TENTH).tolist() == [10, 20]
    assert mge.tensor(quantized([1.0]), dtype="float32").tolist() == pytest.approx([1.0])
    assert mge.tensor([], dtype=TENTH).shape == (0,)


@pytest.mark.parametrize("values", [[300], [-129], ["a"]])
def test_construction_refuses_what_is_not_stored(values):
    with pytest.raises(DTypeError, match=r"lie within|cannot make numbers"):
        mge.tensor(values, dtype=TENTH)


def test_four_bits_have_their_own_range():
    assert quantized([9.0, -9.0], qint4(1.0)).tolist() == [7, -8]
    with pytest.raises(DTypeError, match=r"\[-8, 7\]"):
        mge.tensor([8], dtype=qint4(1.0))


def test_filled_tensors_are_filled_by_value():
    assert F.ones((2,), dtype=TENTH).tolist() == [10, 10]
    assert F.zeros((2,), dtype=quint8(0.1, 7)).tolist() == [7, 7]
    like = F.full_like(quantized([1.0, 2.0]), 0.5)
    assert is_dtype_equal(like.dtype, TENTH)
    assert like.tolist() == [5, 5]


def test_moving_elements_keeps_the_type():
    q = quantized([[1.0, 2.0], [3.0, 4.0]])
    moved = [
        q.reshape(4),
        q.T,
        q[0],
        q[:, ::-1],
        q[mge.tensor([1, 0])],
        F.concat([q, q]),
        F.expand_dims(q, 0),
        q.flatten(),
        q.max(axis=0),
        F.where(q > 15, q, q),
        q.detach(),
        q.to("cpu0"),
        +q,
        F.stack([q, q]),
        F.repeat(q, 2),
        F.max_pool2d(q.reshape(1, 1, 2, 2), 2),
        copy.deepcopy(q),
        pickle.loads(pickle.dumps(q)),
        mge.tensor(q),
    ]
    assert all(is_dtype_equal(m.dtype, TENTH) for m in moved)
    assert moved[3].tolist() == [[20, 10], [40, 30]]


def test_functions_of_real_numbers_compute_with_what_it_stands_for():
    q = quantized([1.0, 4.0])
    np.testing.assert_allclose(F.sqrt(q).numpy(), [1.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose((q * 0.5).numpy(), [0.5, 2.0], rtol=1e-6)
    np.testing.assert_allclose((q + mge.tensor([1.0, 1.0])).numpy(), [2.0, 5.0], rtol=1e-6)
    np.testing.assert_allclose(q.mean().numpy(), 2.5, rtol=1e-6)
    assert q.astype("int32").tolist() == [1, 4]
    assert q.astype("bool").tolist() == [True, True]


def test_addition_is_that_of_stored_integers_and_wraps():
    q = quantized([1.0, 12.0])
    total = q + q
    assert total.tolist() == [20, -16]
    assert is_dtype_equal(total.dtype, TENTH)
    assert (q + q).tolist() == total.tolist()  # the second call takes the known launch
    assert is_dtype_equal((q + q).dtype, TENTH)
    assert not is_quantize((q * q).dtype)


def test_operators_on_other_scales_compute_with_what_the_integers_stand_for():
    """`q + 1` added a tenth; sums over two scales, or with a zero point, were bare integers."""
    q, other = quantized([1.0, 12.0]), quantized([1.0, 1.0], qint8(0.2))
    u = quantized([1.0, 2.0], quint8(0.1, 3))
    q + q  # A launch for the type is known, and is not for numbers.
    for result, wanted in (
        (q + 1, [2, 13]),
        (1 - q, [0, -11]),
        (q + other, [2, 13]),
        (q - u, [0, 10]),
        (u + u, [2, 4]),
        (q + mge.tensor([1, 1]), [2, 13]),
        (q + mge.tensor([1, 1], dtype="int8"), [2, 13]),
        (mge.tensor([1.0, 1.0]) + q, [2, 13]),
        (compile(lambda a, b: a + b + 1)(q, other), [3, 14]),
    ):
        assert result.dtype == np.float32
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-6)


def test_sums_are_rounded_to_the_type_and_clamped():
    """As in MegEngine, which adds up in 32 bits; they wrapped around in eight."""
    x = [[12.0, 12.0], [5.0, -12.0]]
    for dtype, wanted, columns in (
        (TENTH, 127, [127, 0]),
        (quint8(0.5, 100), 134, [134, 100]),
        (qint32(0.001), 17000, [17000, 0]),
    ):
        q = quantized(x, dtype)
        for f in (F.sum, compile(F.sum), trace(F.sum)):
            total = f(q)
            assert is_dtype_equal(total.dtype, dtype)
            assert total.item() == wanted
        assert q.sum(0).tolist() == columns
        assert q.sum((0, 1), keepdims=True).shape == (1, 1)
        assert F.mean(q).dtype == np.float32


def test_products_of_matrices_are_sums_with_both_scales():
    x = mge.tensor(np.arange(6.0).reshape(2, 3)).astype(qint8(0.1))
    y = mge.tensor(np.arange(6.0).reshape(3, 2)).astype(qint8(0.5))
    real = x.astype("float32").numpy() @ y.astype("float32").numpy()
    for product in (F.matmul(x, y), compile(F.matmul)(x, y)):
        assert is_dtype_equal(product.dtype, qint32(get_scale(product.dtype)))
        np.testing.assert_allclose(get_scale(product.dtype), 0.05, rtol=1e-6)
        np.testing.assert_allclose(product.astype("float32").numpy(), real, rtol=1e-6)
    np.testing.assert_allclose(F.matmul(x, y[:, 0]).astype("float32").numpy(), real[:, 0], 1e-6)
    shifted = y.astype(quint8(0.5, 3))
    np.testing.assert_allclose(F.matmul(x, shifted).numpy(), real, rtol=1e-6)
    np.testing.assert_allclose((x @ y).numpy(), real, rtol=1e-6)
    np.testing.assert_allclose((x * x).numpy(), np.square(np.arange(6.0).reshape(2, 3)), rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        F.prod,
        lambda x: F.cumsum(x, 0),
        lambda x: F.mul(x, x),
        lambda x: F.clip(x, -1, 1),
        lambda x: F.concat([x, x.astype(qint8(0.2))]),
        lambda x: F.concat([x, F.zeros((1, 3), dtype="int8")]),
        lambda x: F.concat([x.astype(quint8(0.1, 3)), x.astype(quint8(0.2, 3))]),
        lambda x: x % 3,
        lambda x: x << 1,
    ],
)
def test_what_would_lose_the_scale_is_refused(function):
    """The results were products of stored integers, in eight bits, that stood for nothing."""
    x = mge.tensor(np.arange(6.0).reshape(2, 3)).astype(qint8(0.1))
    with pytest.raises(DTypeError, match="cast with astype"):
        function(x)


def test_padding_stands_for_its_value():
    for dtype in (TENTH, quint8(0.1, 7)):
        q = quantized([1.0, 2.0], dtype)
        padded = F.pad(q, [(1, 1)], constant_value=0.5)
        assert is_dtype_equal(padded.dtype, dtype)
        np.testing.assert_allclose(padded.astype("float32").numpy(), [0.5, 1, 2, 0.5], rtol=1e-6)
        real = F.pad(q, [(1, 0)], mode="edge").astype("float32")
        np.testing.assert_allclose(real.numpy(), [1, 1, 2], rtol=1e-6)


@pytest.mark.parametrize("function", [F.relu, F.abs, F.neg])
def test_signs_of_integers_with_a_zero_point_say_nothing(function):
    assert is_dtype_equal(function(quantized([1.0])).dtype, TENTH)
    for run in (function, compile(function)):
        with pytest.raises(DTypeError, match="have a zero point"):
            run(quantized([1.0], quint8(0.1, 7)))


def test_averages_are_rounded_to_the_type_of_the_input():
    q = quantized((np.arange(16.0) * 4).reshape(1, 1, 4, 4) / 10)
    for found in (
        F.avg_pool2d(q, 2),
        F.adaptive_avg_pool2d(q, 2),
        F.vision.interpolate(q, (2, 2)),
    ):
        assert is_dtype_equal(found.dtype, TENTH)
        assert found.tolist() == [[[[10, 18], [42, 50]]]]


def test_items_are_assigned_by_value():
    q = quantized([1.0, 2.0, 3.0])
    q[0] = 0.5
    q[1:] = mge.tensor([1.5, 2.5]).astype(qint8(0.5))
    assert q.tolist() == [5, 15, 25]
    assert is_dtype_equal(q.dtype, TENTH)
    q[...] = mge.tensor([1.0])
    assert q.dtype == np.float32


def test_scales_per_channel():
    x = np.array([[1.0, 2.0], [1.0, 2.0]], np.float32)
    q = mge.tensor(x).astype(qint8(np.array([[0.1], [0.5]])))
    assert q.tolist() == [[10, 20], [2, 4]]
    np.testing.assert_allclose(q.astype("float32").numpy(), x, rtol=1e-6)
    assert is_quantize(q.T.dtype)
    assert is_quantize(q.detach().dtype)
    grouped = mge.tensor(np.ones((2, 2, 3), "f4")).astype(qint8(np.full((2, 2, 1), 0.1)))
    np.testing.assert_allclose(grouped.astype("float32").numpy(), 1.0, rtol=1e-6)
    with pytest.raises(ShapeError, match="scales per channel"):
        mge.tensor(x).astype(qint8(np.ones((3, 1))))


MOVES = {
    "transpose": lambda q: q.transpose(2, 0, 1),
    "reshape": lambda q: q.reshape(3, 8),
    "split": lambda q: q.reshape(3, 2, 2, 2),
    "across channels": lambda q: q.reshape(-1),
    "new axis": lambda q: F.expand_dims(q, 0),
    "broadcast": lambda q: F.broadcast_to(q, (2, 3, 2, 4)),
    "flip": lambda q: q[::-1],
    "roll": lambda q: F.roll(q, 1, 0),
    "rows": lambda q: q[1:],
    "channels backwards": lambda q: q[::-2],
    "one channel": lambda q: q[2],
    "columns": lambda q: q[:, 0],
}


@pytest.mark.parametrize("move", MOVES)
def test_scales_per_channel_move_with_their_axes(move):
    x = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    steps = np.array([0.5, 1.0, 2.0], np.float32).reshape(3, 1, 1)
    q = mge.tensor(x).astype(qint8(steps))
    wanted = MOVES[move](q.astype("float32")).numpy()
    made = MOVES[move](q)
    assert is_quantize(made.dtype)
    np.testing.assert_array_equal(made.astype("float32").numpy(), wanted)
    assert (np.ndim(made.dtype.metadata["mgb_dtype"]["scale"]) == 0) == (move == "one channel")
    assert is_dtype_equal(q.transpose(1, 0, 2).transpose(1, 0, 2).dtype, q.dtype)


def test_other_shapes_of_the_same_type_have_their_own_scales():
    steps = np.array([[0.5, 1.0]], np.float32)
    for rows in (2, 3):
        q = mge.tensor(np.ones((rows, 2), np.float32)).astype(qint8(steps))
        flat = q.reshape(-1).astype("float32")
        assert flat.tolist() == [1.0] * 2 * rows


def test_scales_per_channel_are_not_lost_without_a_word():
    q = mge.tensor(np.ones((2, 4), "f4")).astype(qint8(np.array([[0.5], [0.25]])))
    assert is_dtype_equal((q + q).dtype, q.dtype)
    assert (q + q).astype("float32").numpy().tolist() == [[2.0] * 4] * 2
    for lose in (
        lambda: F.concat([q, q], 0),
        lambda: F.pad(q, ((0, 0), (1, 1))),
        lambda: q[mge.tensor([1, 0])],
    ):
        with pytest.raises(DTypeError, match="scale"):
            lose()


def test_programs_know_scales():
    @compile
    def twice(x):
        return x.reshape(-1), (x.astype("float32") * 2).astype(qint8(0.3))

    q = quantized([1.0, 2.0])
    same, doubled = twice(q)
    assert is_dtype_equal(same.dtype, TENTH)
    assert (same.tolist(), doubled.tolist()) == ([10, 20], [7, 13])
    assert twice(quantized([1.0, 2.0], qint8(1.0)))[1].tolist() == [7, 13]
    assert len(twice.variants) == 2


def test_programs_notice_state_with_another_scale():
    state = mge.Parameter([1.0, 2.0])
    state._reset(state.astype(qint8(0.5)))
    read = compile(lambda x: state.astype("float32") + x)
    zero = mge.tensor(0.0)
    assert read(zero).tolist() == [1.0, 2.0]
    state._reset(mge.tensor([1.0, 2.0]).astype(qint8(0.25)))
    assert read(zero).tolist() == [1.0, 2.0]


def test_traces_check_scales():
    flat = trace(lambda x: x.flatten())
    assert is_dtype_equal(flat(quantized([[1.0]])).dtype, TENTH)
    with pytest.raises(mge.TreadleError, match="element types"):
        flat(quantized([[1.0]], qint8(0.2)))


def test_saved_and_loaded(tmp_path):
    q = mge.Parameter(quantized([1.0, 2.0]).numpy())
    w = mge.tensor(np.ones((2, 3), "f4")).astype(qint8(np.array([[0.1], [0.2]])))
    path = tmp_path / "x.tm"
    mge.save({"q": q, "w": w, "array": q.numpy(), "dtype": quint8(0.3, 7)}, path)
    found = mge.load(path)
    assert type(found["q"]) is mge.Parameter
    for name, kept in (("q", q), ("w", w), ("array", q)):
        assert is_dtype_equal(found[name].dtype, kept.dtype)
        assert found[name].tolist() == kept.tolist()
    assert is_dtype_equal(found["dtype"], quint8(0.3, 7))


def test_qparams_belong_to_a_handle():
    x = mge.tensor([1.0])
    assert x.qparams.scale is None
    x.qparams.scale = 0.5
    assert x.qparams.scale == 0.5
    assert copy.deepcopy(x).qparams.scale == 0.5
    assert pickle.loads(pickle.dumps(x)).qparams.scale == 0.5
    assert (x + 1).qparams.scale is None


def test_numpy_functions_still_run():
    q = quantized([1.0, 4.0])
    np.testing.assert_allclose(np.sqrt(q).numpy(), [1.0, 2.0], rtol=1e-6)
    assert np.add([1.0, 2.0], mge.tensor([1.0, 1.0])).tolist() == [2.0, 3.0]
    assert get_scale(q.dtype) == 0.1
