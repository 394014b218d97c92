"""Rounding with gradients, against the same formulas in NumPy."""

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.base.errors import ShapeError
from treadle.quantization import (
    LSQ,
    TQT,
    FakeQuantize,
    LSQParams,
    QParams,
    QParamsModuleMixin,
    QuantMode,
    Round,
    create_qparams,
    fake_quant_bias,
    fake_quant_tensor,
    lsq_forward,
    register_method_to_class,
    tqt_forward,
)
from treadle.quantization.dtype import QuantDtypeMeta, get_scale

WIDE = QuantDtypeMeta("wide", None, "int8", -126, 129)


def numbers(*shape):
    return np.random.default_rng(0).uniform(-512, 512, shape).astype(np.float32)


def gradients(function, *tensors):
    with GradManager().attach(tensors) as gm:
        y = function(*tensors)
        gm.backward(y, F.ones_like(y))
    return y.numpy(), *(t.grad for t in tensors)


@pytest.mark.parametrize("shape", [(), (1,), (1, 8, 1, 1)])
def test_fake_quantization(shape):
    scale, zero = mge.tensor(np.full(shape, 4.0, "f4")), mge.tensor(np.full(shape, 1.0, "f4"))
    params = create_qparams(QuantMode.ASYMMERTIC, WIDE, scale, zero)
    x = mge.tensor(numbers(1, 8, 6, 6))

    def by_hand(x):
        level = F.minimum(F.maximum(Round()(x / scale) + zero, -126), 129)
        return (level - zero) * scale

    found, slope = gradients(lambda x: fake_quant_tensor(x, params), x)
    x.grad = None
    wanted, expected = gradients(by_hand, x)
    np.testing.assert_allclose(found, wanted)
    np.testing.assert_allclose(slope.numpy(), expected.numpy())
    assert found.shape == x.shape


def test_scales_differ_by_channel():
    scale = np.array([1.0, 2.0, 4.0], np.float32).reshape(1, 3, 1)
    x = numbers(2, 3, 50) / 10
    params = create_qparams(QuantMode.SYMMERTIC, "qint8", scale)
    found = fake_quant_tensor(mge.tensor(x), params).numpy()
    each = np.clip(np.trunc(np.abs(x / scale) + 0.5) * np.sign(x), -128, 127) * scale
    np.testing.assert_allclose(found, each)
    with pytest.raises(ShapeError, match="do not fit the tensor"):
        fake_quant_tensor(mge.tensor(x[:, :2]), params)


def test_nan_stays_nan():
    params = create_qparams(QuantMode.SYMMERTIC, "qint8", 0.5)
    assert np.isnan(fake_quant_tensor(mge.tensor([np.nan]), params).numpy()).all()


def test_parameters_must_be_complete():
    with pytest.raises(AssertionError, match="needs a dtype_meta and a scale"):
        fake_quant_tensor(mge.tensor([1.0]), create_qparams(scale=1.0))
    with pytest.raises(AssertionError, match="needs a dtype_meta and a scale"):
        fake_quant_tensor(mge.tensor([1.0]), create_qparams(dtype_meta="qint8"))


def test_half_precision_stays():
    params = create_qparams(QuantMode.SYMMERTIC, "qint8", mge.tensor(0.5))
    x = mge.tensor([0.3, 200.0], dtype="float16")
    assert fake_quant_tensor(x, params).dtype == np.float16


def test_trained_thresholds():
    x = np.random.default_rng(1).integers(-128, 128, (1, 2, 3, 4)).astype(np.float32)
    s = np.array([-0.37], np.float32)
    y, dx, ds = gradients(lambda x, s: tqt_forward(-127, 127, x, s), mge.tensor(x), mge.tensor(s))
    step = 2**s
    level = x / step
    nearest = np.round(np.clip(level, -127, 127))
    inside = (level >= -127.5) & (level <= 127.5)
    pull = np.where(inside, nearest - level, nearest).sum()
    np.testing.assert_allclose(y, nearest * step, rtol=1e-5)
    np.testing.assert_allclose(dx.numpy(), inside, rtol=1e-5)
    np.testing.assert_allclose(ds.numpy(), pull * step * np.log(2), rtol=5e-5)
    assert ds.shape == (1,)


def test_learned_steps():
    x = np.random.default_rng(1).integers(-128, 128, (1, 2, 3, 4)).astype(np.float32)
    step, zero, factor = (np.array([v], np.float32) for v in (0.63, 1.0, 2.0))
    tensors = mge.tensor(x), mge.tensor(step)
    y, dx, ds = gradients(
        lambda x, s: lsq_forward(-127, 127, x, s, mge.tensor(zero), mge.tensor(factor)), *tensors
    )
    level = x / step + zero
    nearest = np.floor(np.clip(level, -127, 127) + 0.5)
    inside = (level >= -127) & (level <= 127)
    pull = np.where(level < -127, -127, np.where(level > 127, 127, nearest - level))
    np.testing.assert_allclose(y, (nearest - zero) * step, rtol=1e-5)
    np.testing.assert_allclose(dx.numpy(), inside)
    np.testing.assert_allclose(ds.numpy(), [(pull * factor).sum()], rtol=5e-5)
    plain = lsq_forward(-127, 127, mge.tensor([1.2]), mge.tensor(0.5))
    assert plain.tolist() == [1.0]


def test_biases_are_rounded_to_the_scale_of_products():
    bias, x, w = (mge.tensor(np.full(s, 0.1234, "f4")) for s in ((1, 3, 1, 1), (1,), (1,)))
    assert fake_quant_bias(None, x, w) is None
    assert fake_quant_bias(bias, x, w) is bias
    x.qparams.update(create_qparams(QuantMode.SYMMERTIC, "qint8", 0.1))
    w.qparams.update(create_qparams(QuantMode.SYMMERTIC, "qint8_narrow", mge.tensor(0.2)))
    found = fake_quant_bias(bias, x, w)
    np.testing.assert_allclose(found.numpy(), 0.12, rtol=1e-6)
    assert found.qparams.dtype_meta.name == "qint32"
    each = np.array([0.1, 0.2, 0.3], np.float32).reshape(3, 1, 1, 1)
    w.qparams.scale = mge.tensor(each)
    np.testing.assert_allclose(
        fake_quant_bias(bias, x, w).numpy().ravel(), [0.12, 0.12, 0.12], rtol=1e-6
    )
    x.qparams.update(create_qparams(QuantMode.ASYMMERTIC, "quint8", 0.1, 3))
    assert fake_quant_bias(bias, x, w) is bias


def test_round_passes_gradients():
    y, dx = gradients(Round(), mge.tensor([0.5, -0.5, 1.4]))
    assert y.tolist() == [1.0, -1.0, 1.0]
    assert dx.tolist() == [1.0, 1.0, 1.0]


# -- as modules --------------------------------------------------------------------------------


def test_the_quantizer_takes_parameters_of_its_family():
    module = FakeQuantize("qint8")
    x, params = mge.tensor([0.3]), create_qparams(QuantMode.SYMMERTIC, "qint8", 0.5)
    assert module(x, params).tolist() == [0.5]
    module.disable()
    assert module(x, params) is x
    module.enable()
    with pytest.raises(AssertionError, match="rounds for qint8, got parameters"):
        module(x, create_qparams(QuantMode.SYMMERTIC, "qint4", 0.5))
    with pytest.raises(AssertionError, match="got parameters None"):
        module(x)
    with pytest.raises(ValueError, match="unknown dtype: int8"):
        FakeQuantize("int8")
    with pytest.raises(TypeError, match="takes no argument bits"):
        FakeQuantize("qint8", bits=3)


def test_threshold_module_starts_from_a_scale():
    module = TQT("qint8")
    module.set_qparams(create_qparams(QuantMode.SYMMERTIC, "qint8", mge.tensor(0.25)))
    assert module.scale.item() == -2.0
    assert module.get_qparams().scale.item() == 0.25
    assert get_scale(module.get_quantized_dtype()) == 0.25
    assert module(mge.tensor([0.3])).tolist() == [0.25]
    assert [n for n, _ in module.named_parameters()] == ["scale"]
    with pytest.raises(AssertionError, match="only symmetric"):
        module.set_qparams(create_qparams(QuantMode.ASYMMERTIC, "quint8", 0.25, 3))
    with pytest.raises(AssertionError, match="initialized scale"):
        module.set_qparams(create_qparams())


def test_step_module_starts_from_a_scale():
    module = LSQ("quint8")
    with pytest.raises(AssertionError, match="initialized scale"):
        module.set_qparams(create_qparams())
    params = LSQParams(QuantMode.ASYMMERTIC, module.dtype, mge.tensor(0.25), mge.tensor(3.0), 0.5)
    module.set_qparams(params)
    found = module.get_qparams()
    np.testing.assert_allclose(found.scale.numpy(), 0.25, rtol=1e-6)
    assert (found.zero_point.item(), found.grad_scale.item()) == (3.0, 0.5)
    assert module(mge.tensor([0.3, -5.0])).tolist() == pytest.approx([0.25, -0.75])
    assert module.get_quantized_dtype().metadata["mgb_dtype"]["zero_point"] == 3
    module.set_qparams(create_qparams(QuantMode.SYMMERTIC, "quint8", 1e-7))
    assert module.step_size.item() == 0.0


def test_parameters_with_a_factor():
    first = LSQParams(QuantMode.SYMMERTIC, None, 1.0, None, 2.0)
    second = LSQParams(None, None, None, None, None)
    assert first != second
    second.update(first)
    assert first == second
    assert first != QParams(QuantMode.SYMMERTIC, None, 1.0, None)
    second.update(QParams(QuantMode.SYMMERTIC, None, 3.0, None))
    assert (second.scale, second.grad_scale) == (3.0, 2.0)


def test_methods_are_registered_by_name():
    class Thing:
        pass

    @register_method_to_class(Thing)
    def twice(self, x):
        return 2 * x

    assert Thing().twice(3) == twice(None, 3) == 6


def test_whoever_knows_parameters_knows_the_dtype():
    class Told(QParamsModuleMixin):
        params = None

        def get_qparams(self):
            return self.params

    told = Told()
    with pytest.raises(ValueError, match="Told has no scale yet"):
        told.get_quantized_dtype()
    told.params = create_qparams(
        QuantMode.ASYMMERTIC, "quint8", mge.tensor([0.5]), mge.tensor([3.0])
    )
    assert told.get_quantized_dtype().metadata["mgb_dtype"]["zero_point"] == 3
    told.params = create_qparams(QuantMode.ASYMMERTIC, "qint8", 0.5, 3.0)
    with pytest.raises(ValueError, match="qint8 has no zero point"):
        told.get_quantized_dtype()
