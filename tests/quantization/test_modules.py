"""Every layer three times: float, rounding in training, on integers."""

import copy

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as Float
from treadle.autodiff import GradManager
from treadle.base.errors import DTypeError
from treadle.jit import compile
from treadle.module import qat, quantized
from treadle.quantization import (
    FakeQuantize,
    MinMaxObserver,
    QuantMode,
    create_qparams,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    min_max_fakequant_qconfig,
    per_channel_fakequant_qconfig,
    propagate_qconfig,
    quantize,
    quantize_qat,
)
from treadle.quantization.dtype import get_scale, is_quantize, qint8

STEP = np.float32(0.03)

CONV = {"in_channels": 4, "out_channels": 6, "kernel_size": 3, "stride": 2, "padding": 1}
AFFINE = {"in_features": 5, "out_features": 6}
LAYERS = {
    "BatchMatMulActivation": ({"batch": 2, **AFFINE, "nonlinear_mode": "relu"}, [(2, 5, 3)]),
    "Concat": ({}, None),
    "Conv2d": (CONV, [(2, 4, 6, 7)]),
    "ConvBn2d": (CONV, [(2, 4, 6, 7)]),
    "ConvBnRelu2d": (CONV, [(2, 4, 6, 7)]),
    "ConvRelu2d": (CONV, [(2, 4, 6, 7)]),
    "ConvTranspose2d": (CONV, [(2, 4, 4, 5)]),
    "ConvTransposeBn2d": (CONV, [(2, 4, 4, 5)]),
    "ConvTransposeBnRelu2d": (CONV, [(2, 4, 4, 5)]),
    "ConvTransposeRelu2d": (CONV, [(2, 4, 4, 5)]),
    "DequantStub": ({}, [(3, 4)]),
    "Elemwise": ({"method": "ADD"}, [(3, 4), (3, 4)]),
    "Linear": (AFFINE, [(3, 5)]),
    "LinearBn1d": (AFFINE, [(3, 5)]),
    "LinearBnRelu1d": (AFFINE, [(3, 5)]),
    "LinearRelu": (AFFINE, [(3, 5)]),
    "QuantStub": ({}, [(3, 4)]),
}
CASES = [(name, {}) for name in LAYERS] + [
    *[(n, {"groups": 2}) for n in LAYERS if n.startswith("Conv")],
    *[(n, {"bias": False}) for n in LAYERS if n.startswith(("Conv", "Linear", "Batch"))],
    ("Conv2d", {"padding_mode": "reflect"}),
    ("ConvRelu2d", {"padding_mode": "replicate", "dilation": 2}),
    ("ConvTranspose2d", {"output_padding": 1}),
    *[("Elemwise", {"method": m}) for m in ("sub", "mul", "fuse_add_tanh", "FUSE_ADD_RELU")],
]
CASES = [(n, o) for n, o in CASES if not (n == "Concat" and o)]


@pytest.mark.parametrize("name", ["Conv2d", "ConvTranspose2d"])
def test_integer_layers_have_the_arguments_of_float_ones(name):
    sizes = {"stride": (2, 3), "padding": (1, 2), "dilation": (3, 1), "groups": 2}
    sizes |= {"output_padding": (1, 0)} if "Transpose" in name else {"padding_mode": "reflect"}
    layer = getattr(Float, name)(4, 6, (3, 2), **sizes, compute_mode="float32")
    like = getattr(quantized, name)._like(layer, qint8(0.5))
    for key in (*sizes, "in_channels", "out_channels", "kernel_size", "conv_mode", "compute_mode"):
        assert getattr(like, key) == getattr(layer, key), key
    assert like.output_dtype == qint8(0.5) and like.bias is not None


def made(name, options):
    """A float layer with weights, and statistics, worth folding."""
    layer = getattr(Float, name)(**LAYERS[name][0] | options)
    rng = np.random.default_rng(0)
    for key, tensor in layer.named_tensors():
        values = rng.normal(size=tensor.shape).astype(np.float32)
        tensor._reset(mge.tensor(abs(values) + 0.5 if key.endswith("running_var") else values))
    layer.eval()
    return layer


def inputs(name):
    """Numbers that are multiples of the step already, which they say."""
    rng = np.random.default_rng(1)
    shapes = LAYERS[name][1]
    if shapes is None:
        shapes = [(2, 3), (2, 4)]
    found = []
    for shape in shapes:
        x = mge.tensor(rng.integers(-100, 100, shape).astype(np.float32) * STEP)
        x.qparams.update(create_qparams(QuantMode.SYMMERTIC, "qint8", STEP))
        found.append(x)
    return (found, 1) if LAYERS[name][1] is None else tuple(found)


def stored(given):
    if isinstance(given, (list, tuple)):
        return type(given)(map(stored, given))
    return given.astype(qint8(float(STEP))) if isinstance(given, mge.Tensor) else given


def observed(name, options, qconfig=min_max_fakequant_qconfig):
    """The layer that rounds, after it has seen its input."""
    layer = getattr(qat, name).from_float_module(made(name, options))
    propagate_qconfig(layer, qconfig)
    layer.eval()
    enable_observer(layer)
    layer(*inputs(name))
    disable_observer(layer)
    return layer


@pytest.mark.parametrize(("name", "options"), CASES)
def test_without_rounding_it_computes_what_the_float_layer_does(name, options):
    layer = observed(name, options)
    disable_fake_quant(layer)
    wanted = made(name, options)(*inputs(name))
    found = layer(*inputs(name))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-4)
    enable_fake_quant(layer)
    if name != "DequantStub":
        assert abs(layer(*inputs(name)).numpy() - wanted.numpy()).max() > 0


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("qconfig", ["per tensor", "per channel"])
def test_on_integers_it_computes_what_was_rounded(name, options, qconfig):
    per_channel = qconfig == "per channel"
    config = per_channel_fakequant_qconfig if per_channel else min_max_fakequant_qconfig
    layer = observed(name, options, config)
    wanted = layer(*inputs(name)).numpy()
    integers = getattr(quantized, name).from_qat_module(layer)
    found = integers(*stored(inputs(name)))
    if name == "DequantStub":
        np.testing.assert_allclose(found.numpy(), inputs(name)[0].numpy(), rtol=1e-6)
        return
    scale = get_scale(found.dtype)
    assert len(np.unique(found.numpy())) > 5
    # Equal but for ties that float32 sums decide otherwise.
    step = abs(found.numpy() * np.float32(scale) - wanted) / scale
    assert step.max() < 1.01
    assert (step > 0.01).sum() <= max(2, 0.02 * step.size)


@pytest.mark.parametrize(
    "name",
    ["BatchMatMulActivation", "Concat", "Conv2d", "ConvTransposeRelu2d", "Elemwise", "Linear"],
)
def test_programs_compute_what_eager_does(name):
    integers = getattr(quantized, name).from_qat_module(observed(name, {}))
    eager = integers(*stored(inputs(name)))
    compiled = compile(lambda *given: integers(*given))(*stored(inputs(name)))
    assert abs(compiled.numpy().astype(int) - eager.numpy().astype(int)).max() <= 1
    assert get_scale(compiled.dtype) == get_scale(eager.dtype)


@pytest.mark.parametrize("name", [n for n in LAYERS if "Bn" in n])
def test_batch_statistics_are_learned_while_weights_are_rounded(name):
    layer = getattr(qat, name).from_float_module(made(name, {}))
    twin = made(name, {})
    propagate_qconfig(layer, min_max_fakequant_qconfig)
    disable_fake_quant(layer)
    layer.train()
    twin.train()
    np.testing.assert_allclose(
        layer(*inputs(name)).numpy(), twin(*inputs(name)).numpy(), rtol=1e-3, atol=1e-3
    )
    np.testing.assert_allclose(
        layer.bn.running_mean.numpy(), twin.bn.running_mean.numpy(), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(layer.bn.running_var.numpy(), twin.bn.running_var.numpy(), rtol=1e-4)


@pytest.mark.parametrize("name", ["Conv2d", "ConvBnRelu2d", "LinearBn1d", "ConvTransposeBn2d"])
def test_gradients_reach_every_parameter(name):
    layer = getattr(qat, name).from_float_module(made(name, {}))
    propagate_qconfig(layer, min_max_fakequant_qconfig)
    layer.train()
    with GradManager().attach(layer.parameters()) as gm:
        gm.backward((layer(*inputs(name)) ** 2).sum())
    for key, parameter in layer.named_parameters():
        assert np.isfinite(parameter.grad.numpy()).all(), key
        assert parameter.grad.numpy().any() or key.endswith("bias"), key


def test_a_channel_that_is_scaled_by_zero_stays_finite():
    layer = qat.ConvBn2d.from_float_module(made("ConvBn2d", {}))
    propagate_qconfig(layer, min_max_fakequant_qconfig)
    layer.bn.weight[:, 0] = 0.0
    layer.train()
    assert np.isfinite(layer(*inputs("ConvBn2d")).numpy()).all()


def test_parameters_are_shared_and_names_kept():
    source = made("ConvBn2d", {})
    source.name = "first"
    layer = qat.ConvBn2d.from_float_module(source)
    assert layer.conv.weight is source.conv.weight
    assert layer.name == "first"
    assert isinstance(layer, Float.ConvBn2d)
    assert isinstance(layer, qat.QATModule)


def test_they_print_what_they_are():
    layer = observed("Linear", {})
    assert repr(layer).startswith("QAT.Linear(\n  in_features=5, out_features=6, bias=True\n")
    integers = quantized.Linear.from_qat_module(layer)
    assert repr(integers) == "Quantized.Linear()"


def test_integer_layers_are_for_inference():
    integers = quantized.Linear.from_qat_module(observed("Linear", {}))
    integers.train()
    with pytest.raises(ValueError, match="quantized module only support inference"):
        integers(*stored(inputs("Linear")))
    integers.eval()
    with pytest.raises(DTypeError, match="one of inp and weight is quantized"):
        integers(*inputs("Linear"))


def test_the_state_of_an_integer_layer():
    integers = quantized.ConvBn2d.from_qat_module(observed("ConvBn2d", {}))
    state = integers.state_dict()
    assert sorted(state) == ["bias", "weight"]
    assert is_quantize(state["weight"].dtype)
    other = quantized.ConvBn2d(4, 6, 3, 2, 1, dtype=integers.output_dtype)
    other.eval()
    other.load_state_dict(state)
    given = stored(inputs("ConvBn2d"))
    np.testing.assert_array_equal(other(*given).numpy(), integers(*given).numpy())
    plain = {k: np.array(v, v.dtype.name) for k, v in state.items()}
    other.load_state_dict(plain)
    assert get_scale(other.weight.dtype) == get_scale(integers.weight.dtype)
    twin = copy.deepcopy(integers)
    np.testing.assert_array_equal(twin(*given).numpy(), integers(*given).numpy())


def test_a_layer_needs_scales():
    layer = qat.Linear(5, 6)
    assert layer.get_weight_dtype() is None
    assert layer.get_activation_qparams() is None
    with pytest.raises(ValueError, match="neither an observer nor a quantizer"):
        quantized.Linear.from_qat_module(layer)
    propagate_qconfig(layer, min_max_fakequant_qconfig)
    # Observers that have seen nothing give the smallest scale: a layer may stand unused.
    unused = quantized.Linear.from_qat_module(layer)
    assert get_scale(unused.weight.dtype) == pytest.approx(1e-5)


def test_normalization_without_statistics_cannot_be_folded():
    source = Float.ConvBn2d(4, 6, 3, track_running_stats=False)
    layer = qat.ConvBn2d.from_float_module(source)
    propagate_qconfig(layer, min_max_fakequant_qconfig)
    layer.eval()
    disable_fake_quant(layer)
    x = inputs("ConvBn2d")[0]
    np.testing.assert_allclose(layer(x).numpy(), source(x).numpy(), rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="no running statistics"):
        quantized.ConvBn2d.from_qat_module(layer)


def test_parts_follow_the_class():
    stub, end, layer = qat.QuantStub(), qat.DequantStub(), qat.Linear(3, 3)
    for module in (stub, end, layer):
        module.set_qconfig(min_max_fakequant_qconfig)
    assert stub.weight_observer is stub.weight_fake_quant is None
    assert isinstance(stub.act_observer, MinMaxObserver)
    assert isinstance(layer.weight_fake_quant, FakeQuantize)
    assert layer.weight_observer.dtype.name == "qint8_narrow"
    assert end.act_observer is end.weight_observer is None
    layer.set_observer(False)
    layer.set_fake_quant(False)
    assert not (layer.act_observer.enabled or layer.weight_fake_quant.enabled)


def test_results_say_how_they_were_rounded():
    layer = observed("Linear", {})
    found = layer(*inputs("Linear"))
    assert found.qparams == layer.get_activation_qparams()
    x = mge.tensor([1.0])
    stub = qat.QuantStub()
    stub.set_qconfig(min_max_fakequant_qconfig)
    disable_fake_quant(stub)
    assert stub(x) is not x
    assert x.qparams.scale is None


def test_integers_between_stubs():
    q, d = quantized.QuantStub(qint8(0.5)), quantized.DequantStub()
    q.eval()
    d.eval()
    x = mge.tensor([1.1])
    assert q(x).tolist() == [2]
    assert d(q(x)).tolist() == [1.0]
    assert d(x) is x
    free = quantized.QuantStub()
    free.eval()
    assert free(x) is x
    cat = quantized.Concat()
    cat.eval()
    assert cat([q(x), q(x)]).tolist() == [2, 2]
    assert F.concat([x, x]).shape == (2,)


def test_layers_of_ones_own():
    class Doubled(quantized.QuantizedModule):
        """Twice its input, in float."""

        @classmethod
        def from_qat_module(cls, qat_module):
            made = cls()
            made.training = qat_module.training
            return made

        def forward(self, x):
            return x.astype("float32") * 2

    class DoubledInTraining(qat.QATModule):
        with_weight = False

        @classmethod
        def from_float_module(cls, float_module):
            return cls()

        def forward(self, x):
            return self.apply_quant_activation(x * 2)

    class Double(Float.Module):
        def forward(self, x):
            return x * 2

    net = quantize_qat(Float.Sequential(Double()), mapping={Double: DoubledInTraining})
    assert isinstance(net[0].act_observer, MinMaxObserver)
    net.eval()
    quantize(net, mapping={DoubledInTraining: Doubled})
    assert repr(net[0]) == "Quantized.Doubled()"
    assert net(mge.tensor([1.0]).astype(qint8(0.5))).tolist() == [2.0]
