"""Whole networks: converted, switched, calibrated, searched."""

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import quantization as Q
from treadle.autodiff import GradManager
from treadle.jit import compile
from treadle.module import qat, quantized
from treadle.optimizer import SGD
from treadle.quantization.dtype import is_dtype_equal, is_quantize, qint8
from treadle.serialization import load_program, save_program


class Net(M.Module):
    """Layers as attributes, in a list, and one that is shared."""

    def __init__(self):
        super().__init__()
        mge.random.seed(0)
        self.quant = M.QuantStub()
        self.body = [M.ConvBnRelu2d(3, 8, 3, padding=1), M.Conv2d(8, 8, 3, padding=1)]
        self.again = self.body[1]
        self.add = M.Elemwise("ADD")
        self.join = M.Concat()
        self.pool = M.AvgPool2d(2)
        self.head = M.Linear(16 * 4 * 4, 5)
        self.dequant = M.DequantStub()

    def forward(self, x):
        x = self.body[0](self.quant(x))
        y = self.add(x, self.again(self.body[1](x)))
        z = F.max_pool2d(self.pool(self.join([x, y], 1)), 1)
        return self.dequant(self.head(F.flatten(z, 1)))


def batch(seed=0):
    x = np.random.default_rng(seed).normal(size=(4, 3, 8, 8))
    return mge.tensor(x.astype(np.float32))


CONFIGS = {
    "min_max_fakequant_qconfig": 0.1,
    "ema_fakequant_qconfig": 0.1,
    "sync_ema_fakequant_qconfig": 0.1,
    "per_channel_fakequant_qconfig": 0.1,
    "calibration_qconfig": 0.1,
    "per_channel_calibration_qconfig": 0.1,
    "weight_only_qconfig": 0.02,
    "int16_fakequant_qconfig": 0.001,
    "ema_lowbit_fakequant_qconfig": 1.0,
}


@pytest.mark.parametrize("config", CONFIGS)
def test_calibrated_and_converted(config):
    net = Net()
    net.eval()
    wanted = net(batch()).numpy()
    rounded = Q.calibrate(net, [batch(), batch().numpy()], False, getattr(Q, config))
    integers = Q.quantize(rounded, inplace=False)
    found = integers(batch()).numpy()
    assert abs(found - wanted).max() < CONFIGS[config] * abs(wanted).max()
    stages = [n.op.name for n in compile(integers).graph(batch()).nodes]
    assert ("int_conv" in stages) == (not config.startswith(("weight_only", "int16")))


@pytest.mark.parametrize("config", ["per_channel_calibration_qconfig", "weight_only_qconfig"])
def test_compiled_and_traced(config):
    integers = Q.quantize(Q.calibrate(Net(), [batch()], True, getattr(Q, config)))
    found = integers(batch()).numpy()
    for program in (compile(integers), mge.jit.trace(lambda x: integers(x))):
        step = abs(program(batch()).numpy() - found).max()
        assert step < 0.02 * abs(found).max()


def test_rounded_and_converted_agree_within_a_level():
    rounded = Q.calibrate(Net(), [batch()], True, Q.min_max_fakequant_qconfig)
    layer = rounded.head
    integers = Q.quantize(rounded, inplace=False)
    level = layer.get_activation_qparams().scale.item()
    # Means of four are halves, of which the last bit of a product decides: it is another one where
    # there is no fused multiplication. A level becomes a few on the way through the layer behind.
    off = abs(integers(batch()).numpy() - rounded(batch()).numpy())
    assert off.max() < 6 * level and off.mean() < 1.6 * level


def test_every_known_layer_is_replaced_and_sharing_kept():
    net = Net()
    changed = Q.quantize_qat(net)
    assert changed is net
    assert isinstance(net.quant, qat.QuantStub)
    assert isinstance(net.body[0], qat.ConvBnRelu2d)
    assert isinstance(net.body[1], qat.Conv2d)
    assert net.body[1] is net.again
    assert isinstance(net.pool, M.AvgPool2d)
    assert isinstance(net.head.act_observer, Q.ExponentialMovingAverageObserver)
    net.eval()
    Q.enable_observer(net)
    net(batch())
    Q.quantize(net)
    assert isinstance(net.body[0], quantized.ConvBnRelu2d)
    assert net.body[1] is net.again
    assert is_quantize(net.head.weight.dtype)


def test_copies_leave_the_network_alone():
    net = Net()
    changed = Q.quantize_qat(net, inplace=False)
    assert isinstance(changed.head, qat.Linear)
    assert type(net.head) is M.Linear
    assert changed.head.weight is not net.head.weight


def test_containers_of_every_kind():
    net = M.Sequential(M.Linear(3, 3))
    net.pair, net.table = (M.Linear(3, 3), 1), {"a": M.Linear(3, 3)}
    Q.quantize_qat(net)
    assert [type(m) for m in net.children()].count(qat.Linear) == 3
    assert net.pair[1] == 1


def test_a_network_of_one_layer():
    changed = Q.quantize_qat(M.Linear(3, 3))
    assert isinstance(changed, qat.Linear)
    Q.calibrate(changed, [mge.tensor(np.ones((2, 3), "f4"))])
    assert isinstance(Q.quantize(changed), quantized.Linear)


def test_layers_print_what_rounds_results_before_what_rounds_weights():
    net = Q.quantize_qat(M.Sequential(M.Linear(3, 3)), inplace=False)
    printed = [line.split(":")[0].strip(" ()") for line in repr(net[0]).splitlines()[2:-1]]
    assert printed == ["act_observer", "act_fake_quant", "weight_observer", "weight_fake_quant"]


def test_disabled_layers_stay():
    net = Net()
    net.head.disable_quantize()
    Q.quantize_qat(net)
    assert type(net.head) is M.Linear


def test_derived_layers_are_refused():
    class Own(M.Conv2d):
        pass

    class OwnQAT(qat.Conv2d):
        pass

    net = M.Sequential(Own(1, 1, 1))
    with pytest.raises(TypeError, match="Own is derived from a layer that can be quantized"):
        Q.quantize_qat(net, inplace=False)
    changed = Q.quantize_qat(net, inplace=False, mapping={Own: OwnQAT})
    assert type(changed[0]) is OwnQAT
    with pytest.raises(TypeError, match="OwnQAT is derived"):
        Q.quantize(changed, inplace=False)
    changed[0].disable_quantize()
    Q.quantize(changed)
    net[0].disable_quantize()
    assert type(Q.quantize_qat(net)[0]) is Own


@pytest.mark.parametrize("function", [Q.quantize_qat, Q.quantize, Q.calibrate])
def test_only_modules_are_converted(function):
    with pytest.raises(TypeError, match="takes a Module, got list"):
        function([], [])


def test_a_float_network_has_nothing_to_convert():
    net = M.Sequential(M.Linear(2, 2))
    assert type(Q.quantize(net)[0]) is M.Linear


def test_calibration_needs_data():
    with pytest.raises(ValueError, match="at least one batch"):
        Q.calibrate(Net(), [])


def test_switches():
    net = Q.quantize_qat(Net())
    layer = net.head
    parts = layer.act_observer, layer.weight_observer
    for switch, value in ((Q.disable_observer, False), (Q.enable_observer, True)):
        switch(net)
        assert {p.enabled for p in parts} == {value}
    for switch, value in ((Q.disable_fake_quant, False), (Q.enable_fake_quant, True)):
        switch(net)
        assert layer.act_fake_quant.enabled is layer.weight_fake_quant.enabled is value


def test_hooks_on_every_layer():
    net, seen = Q.quantize_qat(Net()), []
    Q.hook_qat_module(net, lambda m, i, o: seen.append(type(m).__name__))
    net(batch())
    assert seen.count("Conv2d") == 2
    assert {"QuantStub", "ConvBnRelu2d", "Elemwise", "Concat", "Linear"} <= set(seen)


def test_other_quantizers_start_from_known_scales():
    net = Q.calibrate(Net(), [batch()], True, Q.min_max_fakequant_qconfig)
    passive = Q.reset_qconfig(net, Q.passive_qconfig, inplace=False)
    assert passive.head.get_weight_qparams() == net.head.get_weight_qparams()
    assert passive.head.get_activation_qparams() == net.head.get_activation_qparams()
    np.testing.assert_array_equal(passive(batch()).numpy(), net(batch()).numpy())
    trained = Q.reset_qconfig(net, Q.tqt_qconfig, inplace=False)
    assert isinstance(trained.head.weight_fake_quant, Q.TQT)
    assert trained.dequant.act_fake_quant is None
    np.testing.assert_allclose(
        trained.head.get_weight_qparams().scale.numpy(),
        net.head.get_weight_qparams().scale.numpy(),
        rtol=1e-5,
    )
    integers = Q.quantize(trained, inplace=False)
    np.testing.assert_allclose(integers(batch()).numpy(), trained(batch()).numpy(), atol=0.1)
    with pytest.raises(AssertionError, match="initialized scale"):
        Q.reset_qconfig(qat.Linear(3, 3), Q.passive_qconfig)


def test_the_search_finds_better_scales():
    net = Q.calibrate(Net(), [batch()], True, Q.min_max_fakequant_qconfig)
    net.eval()
    Q.disable_fake_quant(net)
    wanted = net(batch()).numpy()
    Q.enable_fake_quant(net)
    found = Q.reset_qconfig(net, Q.easyquant_qconfig, inplace=False)
    for layer in found.modules():
        if isinstance(layer, Q.PassiveObserver):
            layer.orig_scale = layer.orig_scale * 4
            layer.scale = layer.orig_scale
    before = abs(found(batch()).numpy() - wanted).mean()
    start = found.head.weight_observer.scale.item()
    assert Q.apply_easy_quant(found, batch(), 0.25, 1.0, 4) is found
    assert not any(m._forward_hooks for m in found.modules())
    factor = found.head.weight_observer.scale.item() / start
    assert factor in (0.25, 0.5, 0.75, 1.0)
    assert abs(found(batch()).numpy() - wanted).mean() < 0.5 * before
    with pytest.raises(ValueError, match="no factors"):
        Q.apply_easy_quant(found, batch(), num=0)


def test_training_in_a_program_follows_switches():
    net = M.Sequential(M.QuantStub(), M.LinearRelu(6, 8), M.Linear(8, 3), M.DequantStub())
    Q.quantize_qat(net, qconfig=Q.ema_fakequant_qconfig)
    gm, opt = GradManager().attach(net.parameters()), SGD(net.parameters(), 0.05)
    x = mge.tensor(np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32))

    @compile
    def step(x):
        with gm:
            loss = (net(x) ** 2).mean()
            gm.backward(loss)
        opt.step().clear_grad()
        return loss

    losses = [step(x).item() for _ in range(4)]
    assert losses[-1] < losses[0]
    seen = net[2].act_observer.max_val.item()
    Q.disable_observer(net)
    step(x * 100)
    assert net[2].act_observer.max_val.item() == seen
    assert len(step.variants) == 2


def test_an_integer_network_is_exported(tmp_path):
    net = Q.quantize(Q.calibrate(Net(), [batch()]))
    program = compile(lambda x: net(x))
    wanted = program(batch()).numpy()
    save_program(program, tmp_path / "net.program", batch())
    loaded = load_program(tmp_path / "net.program")
    np.testing.assert_array_equal(loaded(batch()).numpy(), wanted)


def test_programs_of_quantized_tensors_keep_their_types(tmp_path):
    path = tmp_path / "flat.program"
    x = mge.tensor([[1.0, 2.0]]).astype(qint8(0.5))
    save_program(lambda x: (x.flatten(), x.astype("float32")), path, x)
    loaded = load_program(path)
    flat, real = loaded(x)
    assert is_dtype_equal(flat.dtype, qint8(0.5))
    assert (flat.tolist(), real.tolist()) == ([2, 4], [[1.0, 2.0]])
    with pytest.raises(mge.TreadleError, match=r"must stand for qint8\(0.5\)"):
        loaded(x.astype(qint8(0.25)))
    with pytest.raises(mge.TreadleError, match="must stand for"):
        loaded(mge.tensor([[2, 4]], dtype="int8"))


def test_the_state_of_an_integer_network_is_saved(tmp_path):
    net = Q.quantize(Q.calibrate(Net(), [batch()]))
    mge.save(net.state_dict(), tmp_path / "state.tm")
    other = Q.quantize(Q.calibrate(Net(), [batch()]))
    for parameter in other.parameters():
        parameter.reset_zero()
    other.load_state_dict(mge.load(tmp_path / "state.tm"))
    assert is_quantize(other.head.weight.dtype)
    np.testing.assert_array_equal(other(batch()).numpy(), net(batch()).numpy())


def test_a_config_holds_constructors():
    config = Q.QConfig(None, Q.MinMaxObserver, None, None)
    assert config.act_observer is Q.MinMaxObserver
    assert config._fields == (
        "weight_observer",
        "act_observer",
        "weight_fake_quant",
        "act_fake_quant",
    )
    with pytest.raises(ValueError, match="must not receive observer or fake quantizer instances"):
        Q.QConfig(None, Q.MinMaxObserver(), None, None)
