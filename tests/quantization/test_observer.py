"""Observers: what they keep of what they see, and the scales they choose."""

import numpy as np
import pytest

import treadle as mge
import treadle.module as M
from treadle.jit import compile
from treadle.quantization import (
    ChannelMinMaxObserver,
    ExponentialMovingAverageObserver,
    HistogramObserver,
    KLObserver,
    MinMaxObserver,
    Observer,
    PassiveObserver,
    QuantMode,
    SyncExponentialMovingAverageObserver,
    SyncMinMaxObserver,
    bounds,
    create_qparams,
)
from treadle.quantization.dtype import get_scale, get_zero_point

EVERY = [
    MinMaxObserver,
    SyncMinMaxObserver,
    ExponentialMovingAverageObserver,
    SyncExponentialMovingAverageObserver,
    HistogramObserver,
    KLObserver,
    ChannelMinMaxObserver,
]


def normal(seed=0, *shape):
    return np.random.default_rng(seed).normal(size=shape or 4000).astype(np.float32)


@pytest.mark.parametrize("cls", EVERY)
def test_the_range_is_kept_and_the_tensor_returned(cls):
    x = mge.tensor(normal(0, 3, 3, 3, 3))
    observer = cls()
    if isinstance(observer, ChannelMinMaxObserver):
        observer.channel_axes = ()
    assert observer(x) is x
    np.testing.assert_allclose(observer.min_val.numpy(), x.numpy().min(), rtol=1e-6)
    np.testing.assert_allclose(observer.max_val.numpy(), x.numpy().max(), rtol=1e-6)
    assert observer.min_val.shape == ()


def test_symmetric_scale():
    observer = MinMaxObserver()
    observer(mge.tensor([-1.0, 2.0]))
    params = observer.get_qparams()
    np.testing.assert_allclose(params.scale.numpy(), 4 / 255, rtol=1e-6)
    assert params.zero_point is None
    assert params.dtype_meta.name == "qint8"
    assert get_scale(observer.get_quantized_dtype()) == pytest.approx(4 / 255)


def test_asymmetric_scale_and_zero_point():
    observer = MinMaxObserver(QuantMode.ASYMMERTIC, dtype="quint8")
    observer(mge.tensor([-1.0, 2.0]))
    params = observer.get_qparams()
    np.testing.assert_allclose(params.scale.numpy(), 3 / 255, rtol=1e-6)
    assert params.zero_point.item() == 85
    assert get_zero_point(observer.get_quantized_dtype()) == 85


def test_zero_is_always_in_range_and_scales_have_a_floor():
    observer = MinMaxObserver(QuantMode.ASYMMERTIC, dtype="quint8")
    observer(mge.tensor([5.0, 10.0]))
    assert observer.get_qparams().zero_point.item() == 0
    flat = MinMaxObserver(eps=1e-3)
    flat(mge.tensor([0.0]))
    np.testing.assert_allclose(flat.get_qparams().scale.numpy(), 1e-3)


def test_ranges_grow():
    observer = MinMaxObserver()
    for values in ([-1.0, 1.0], [0.0, 3.0], [-2.0, 0.0]):
        observer(mge.tensor(values))
    assert (observer.min_val.item(), observer.max_val.item()) == (-2.0, 3.0)


def test_moving_averages_keep_the_share_of_the_old():
    observer = ExponentialMovingAverageObserver(momentum=0.7)
    observer(mge.tensor([-1.0, 1.0]))
    assert (observer.min_val.item(), observer.max_val.item()) == (-1.0, 1.0)
    observer(mge.tensor([-2.0, 4.0]))
    np.testing.assert_allclose(observer.min_val.numpy(), -1.3, rtol=1e-6)
    np.testing.assert_allclose(observer.max_val.numpy(), 1.9, rtol=1e-6)
    observer.set_momentum(0.0)
    observer(mge.tensor([-5.0, 5.0]))
    observer(mge.tensor([-6.0, 6.0]))
    assert observer.max_val.item() == 6.0
    assert sorted(n for n, _ in observer.named_buffers()) == [
        "max_val",
        "min_val",
        "momentum",
        "runtime_momentum",
    ]


@pytest.mark.parametrize("cls", [SyncMinMaxObserver, SyncExponentialMovingAverageObserver])
def test_ranges_of_all_ranks(cls, monkeypatch):
    monkeypatch.setattr(bounds, "is_distributed", lambda: True)
    monkeypatch.setattr(bounds.collectives, "all_reduce_min", lambda x: x - 1)
    monkeypatch.setattr(bounds.collectives, "all_reduce_max", lambda x: x + 2)
    observer = cls()
    observer(mge.tensor([-1.0, 1.0]))
    assert (observer.min_val.item(), observer.max_val.item()) == (-2.0, 3.0)


def test_observers_look_while_enabled_and_training_decides():
    observer = MinMaxObserver()
    observer.disable()
    observer(mge.tensor([9.0]))
    assert get_scale(observer.get_quantized_dtype()) == pytest.approx(1e-5)
    observer.enable()
    observer(mge.tensor([1.0]))
    observer.eval()
    assert not observer.enabled
    observer(mge.tensor([9.0]))
    assert observer.max_val.item() == 1.0
    net = M.Sequential(M.Identity())
    net.observer = observer
    net.train()
    assert observer.enabled
    net.eval()
    assert not observer.enabled


def test_gradients_and_programs_pass_through():
    observer = ExponentialMovingAverageObserver()
    step = compile(lambda x: observer(x) * 2)
    for top in (1.0, 2.0):
        step(mge.tensor([-1.0, top]))
    np.testing.assert_allclose(observer.max_val.numpy(), 1.1, rtol=1e-6)
    observer.disable()
    step(mge.tensor([-1.0, 100.0]))
    np.testing.assert_allclose(observer.max_val.numpy(), 1.1, rtol=1e-6)


def test_channels_have_ranges_of_their_own():
    observer = ChannelMinMaxObserver()
    observer(mge.tensor([[-1.0, 0.5], [2.0, -4.0]]))
    observer(mge.tensor([[-3.0, 0.5], [2.0, -1.0]]))
    assert observer.min_val.tolist() == [[-3.0], [-4.0]]
    scale = observer.get_qparams().scale
    np.testing.assert_allclose(scale.numpy(), [[3 / 127], [4 / 127]], rtol=1e-6)
    dtype = observer.get_quantized_dtype()
    np.testing.assert_allclose(get_scale(dtype), [[3 / 127], [4 / 127]], rtol=1e-6)


def squared_error(x, scale, levels=127):
    return ((x - np.clip(np.round(x / scale), -levels - 1, levels) * scale) ** 2).mean()


def test_rare_values_are_cut_off():
    x = normal()
    x[0] = 50.0
    observer = KLObserver()
    for part in np.split(x, 4):
        observer(mge.tensor(part))
    scale = observer.get_qparams().scale.item()
    assert scale < 0.5 * 50 / 127
    assert squared_error(x[1:], scale) < 0.2 * squared_error(x[1:], 50 / 127)


def test_few_levels_are_spent_on_the_middle():
    x = normal()
    observer = HistogramObserver(dtype="qint4")
    observer(mge.tensor(x))
    scale, wide = observer.get_qparams().scale.item(), abs(x).max() / 7.5
    assert scale < 0.9 * wide
    assert squared_error(x, scale, 7) < squared_error(x, wide, 7)


def test_the_histogram_finds_nearly_the_best_scale():
    x = np.random.default_rng(0).laplace(size=20000).astype(np.float32)
    observer = HistogramObserver()
    observer(mge.tensor(x))
    most = abs(x).max()
    best = min(squared_error(x, most * f / 127) for f in np.linspace(0.1, 1, 200))
    assert squared_error(x, observer.get_qparams().scale.item()) < 1.02 * best


def test_histograms_of_batches_add_up():
    x = normal()
    whole, parts = HistogramObserver(), HistogramObserver()
    whole(mge.tensor(x))
    for part in np.split(np.sort(abs(x)) * np.sign(x[np.argsort(abs(x))]), 5):
        parts(mge.tensor(part))
    counts = whole.histogram.numpy(), parts.histogram.numpy()
    assert counts[0].sum() == pytest.approx(x.size)
    assert counts[1].sum() == pytest.approx(x.size)
    a, b = (o.get_qparams().scale.item() for o in (whole, parts))
    assert a == pytest.approx(b, rel=0.05)


@pytest.mark.parametrize("value", [3.0, -1e9, 3e20])
def test_histograms_of_constant_data(value):
    constant = HistogramObserver()
    for _ in range(2):
        constant(mge.tensor([value, value]))
    assert constant.get_qparams().scale.item() == pytest.approx(2 * abs(value) / 255, rel=0.02)


def test_histograms_of_one_sided_data_and_of_nothing():
    observer = HistogramObserver(mode=QuantMode.ASYMMERTIC, dtype="quint8")
    observer(mge.tensor(abs(normal())))
    assert observer.get_qparams().zero_point.item() == 0
    nothing = HistogramObserver()
    nothing(mge.tensor([]))
    nothing(mge.tensor([np.nan, np.inf]))
    assert get_scale(nothing.get_quantized_dtype()) == pytest.approx(1e-5)


def test_histograms_are_state(tmp_path):
    observer, other = HistogramObserver(), HistogramObserver()
    observer(mge.tensor(normal()))
    first = observer.get_qparams().scale.item()
    assert other.get_qparams().scale.item() != first
    other.load_state_dict(observer.state_dict())
    assert other.get_qparams().scale.item() == first


def test_passive_observers_are_told():
    params = create_qparams(QuantMode.SYMMERTIC, "qint8", mge.tensor(1.0))
    observer = PassiveObserver("qint8")
    assert observer.get_qparams() is None
    with pytest.raises(AssertionError, match="call set_qparams first"):
        _ = observer.scale
    with pytest.raises(AssertionError, match="initialized scale"):
        observer.set_qparams(create_qparams())
    observer.set_qparams(params)
    assert observer.orig_scale == 1.0
    assert observer.scale.numpy() == 1.0
    assert observer.get_qparams() == params
    x = mge.tensor([3.0])
    assert observer(x) is x
    observer.scale = 0.5
    assert observer.scale.item() == 0.5
    assert observer.orig_scale == 1.0
    assert params.scale.item() == 1.0
    with pytest.raises(AssertionError, match="a scale is positive"):
        observer.scale = -1.0


def test_arguments_are_checked(caplog):
    with pytest.raises(ValueError, match="unknown dtype: float8"):
        MinMaxObserver(dtype="float8")
    with pytest.raises(TypeError, match="takes no argument momentum"):
        MinMaxObserver(momentum=0.9)
    with pytest.raises(TypeError, match="abstract"):
        Observer("qint8")
    MinMaxObserver(narrow_range=True)
    assert MinMaxObserver(name="w").name == "w"


def test_values_that_are_not_finite_give_no_dtype():
    observer = MinMaxObserver()
    observer(mge.tensor([np.nan]))
    with pytest.raises(ValueError, match="positive and finite"):
        observer.get_quantized_dtype()
