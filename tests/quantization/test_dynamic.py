"""Dynamic quantization: products on integers at scales that are found on what is multiplied."""

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import quantization as Q
from treadle.base.errors import DTypeError, ShapeError
from treadle.module.quantized import DynamicLinear, DynamicLinearRelu
from treadle.quantization.dtype import qint8, qint16

SHAPES = {
    "rows": ((7, 33), 5),
    "one row": ((1, 64), 16),
    "tiles and rest": ((2, 37, 130), 67),
    "four axes": ((2, 3, 5, 48), 96),
    "vector": ((40,), 9),
    "one term": ((6, 1), 4),
}


def layer_of(terms, outputs, bias=True, seed=0):
    made = M.Linear(terms, outputs, bias)
    rng = np.random.default_rng(seed)
    made.weight[:] = rng.normal(size=(outputs, terms)).astype(np.float32)
    if bias:
        made.bias[:] = rng.normal(size=outputs).astype(np.float32)
    made.eval()
    return made


def numbers(shape, seed=1):
    """Numbers whose rows differ in size by powers of ten."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.integers(-3, 4, size=(*shape[:-1], 1))
    return (rng.normal(size=shape) * sizes).astype(np.float32)


def exact(layer, x):
    """The real result, and how far rounding both operands to 8 bits may take it, in float64."""
    w, x = layer.weight.numpy().astype(np.float64), x.astype(np.float64)
    half_w = np.abs(w).max(1) / 254
    half_x = np.abs(x).max(-1, keepdims=True) / 254
    most = np.abs(x).sum(-1, keepdims=True) * half_w + half_x * np.abs(w).sum(1)
    most = most + x.shape[-1] * half_x * half_w
    bias = 0.0 if layer.bias is None else layer.bias.numpy().astype(np.float64)
    return x @ w.T + bias, most * (1 + 1e-5)


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_error_is_that_of_rounding_both_operands(case, compiled, bias):
    shape, outputs = SHAPES[case]
    layer = layer_of(shape[-1], outputs, bias)
    rounded = Q.quantize_dynamic(layer, inplace=False)
    run = mge.jit.compile(lambda x: rounded(x)) if compiled else rounded
    x = numbers(shape)
    found, (wanted, most) = run(mge.tensor(x)).numpy(), exact(layer, x)
    assert found.dtype == np.float32
    assert (abs(found - wanted) <= most + 1e-6 * abs(wanted)).all()


@pytest.mark.parametrize("scales", ["token", "tensor"])
def test_levels_are_those_of_the_definition(scales):
    layer = layer_of(48, 20)
    rounded = Q.quantize_dynamic(layer, inplace=False, scales=scales)
    x = numbers((9, 48))
    axis = 1 if scales == "token" else None
    step = abs(x).max(axis, keepdims=True) / np.float32(127)
    w = rounded.weight.numpy().astype(np.float64)
    by = abs(layer.weight.numpy()).max(1) / np.float64(127)
    wanted = (np.rint(x / step) @ w.T) * step * by + layer.bias.numpy()
    program = mge.jit.compile(lambda x: rounded(x))
    for run in (rounded, program):
        # A level next to a tie may be one off, which is one weight.
        found = run(mge.tensor(x)).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=float(step.max()) * 0.1)
    if scales == "tensor":
        assert len(np.unique(np.rint(x[abs(x).max(1) < 1] / step))) == 1  # small rows are lost


def test_what_is_not_finite_stays_in_its_row():
    rounded = Q.quantize_dynamic(layer_of(64, 32), inplace=False)
    x = numbers((6, 64))
    expected = rounded(mge.tensor(x)).numpy()
    x[1, 3], x[3, 0], x[4, 60] = np.nan, np.inf, -np.inf
    for run in (rounded, mge.jit.compile(lambda x: rounded(x))):
        found = run(mge.tensor(x)).numpy()
        assert np.isnan(found[[1, 3, 4]]).all()
        np.testing.assert_allclose(found[[0, 2, 5]], expected[[0, 2, 5]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_zeros_subnormals_and_the_largest_numbers(compiled):
    rounded = Q.quantize_dynamic(layer_of(32, 8, bias=False), inplace=False)
    run = mge.jit.compile(lambda x: rounded(x)) if compiled else rounded
    x = np.zeros((4, 32), np.float32)
    x[1], x[2], x[3] = -0.0, 1e-41, np.finfo(np.float32).max / 64
    found = run(mge.tensor(x)).numpy()
    assert (found[:3] == 0).all()
    wanted = x[3:].astype(np.float64) @ (rounded.weight.astype("float32").numpy().T)
    np.testing.assert_allclose(found[3:], wanted, rtol=1e-3)


def test_a_row_has_the_same_result_alone_and_in_company():
    rounded = Q.quantize_dynamic(layer_of(96, 40), inplace=False)
    x = numbers((12, 96))
    together = rounded(mge.tensor(x)).numpy()
    for i in range(12):
        alone = rounded(mge.tensor(x[i : i + 1])).numpy()
        np.testing.assert_allclose(alone[0], together[i], rtol=1e-6)


class Network(M.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = M.LinearRelu(32, 64), M.LayerNorm(64)
        self.rest = [M.Linear(64, 64), M.Linear(64, 8, bias=False)]
        self.again = self.rest[0]

    def forward(self, x):
        x = self.norm(self.first(x))
        return self.rest[1](F.gelu(self.again(self.rest[0](x))))


def test_networks():
    mge.random.seed(3)
    net = Network()
    net.eval()
    x = mge.tensor(np.random.default_rng(0).normal(size=(5, 32)).astype(np.float32))
    wanted = net(x).numpy()
    rounded = Q.quantize_dynamic(net, inplace=False)
    assert type(net.first) is M.LinearRelu
    assert type(rounded.first) is DynamicLinearRelu
    assert type(rounded.rest[1]) is DynamicLinear
    assert rounded.again is rounded.rest[0]
    assert abs(rounded(x).numpy() - wanted).max() < 0.03 * abs(wanted).max()
    program = mge.jit.compile(lambda x: rounded(x))
    np.testing.assert_allclose(program(x).numpy(), rounded(x).numpy(), rtol=1e-4, atol=2e-3)
    ops = [n.op.name for n in program.graph(x).nodes]
    assert ops.count("int_matmul") == 4
    assert "matmul" not in ops


def stack(seed):
    net = M.Sequential(layer_of(16, 12, seed=seed), M.ReLU(), layer_of(12, 3))
    net.eval()
    return Q.quantize_dynamic(net)


def test_layers_are_saved_and_loaded():
    net = stack(0)
    other = stack(5)
    state = net.state_dict()
    assert {v.dtype for k, v in state.items() if "weight" in k} == {np.dtype("int8")}
    other.load_state_dict(state)
    x = mge.tensor(numbers((4, 16)))
    np.testing.assert_array_equal(other(x).numpy(), net(x).numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_element_types(dtype):
    rounded = Q.quantize_dynamic(layer_of(24, 6), inplace=False)
    x = np.random.default_rng(0).normal(size=(3, 24)).astype(np.float32)
    found = rounded(mge.tensor(x).astype(dtype))
    assert found.dtype == mge.tensor(x).astype(dtype).dtype
    wanted = rounded(mge.tensor(x)).numpy()
    assert abs(found.astype("float32").numpy() - wanted).max() < 0.02 * abs(wanted).max()


def test_any_number_of_rows_has_one_program():
    rounded = Q.quantize_dynamic(layer_of(64, 48), inplace=False)
    program = mge.jit.compile(lambda x: rounded(x), dynamic={0: {0: "rows"}})
    for rows in (2, 3, 17, 64):
        x = mge.tensor(numbers((rows, 64), rows))
        np.testing.assert_allclose(program(x).numpy(), rounded(x).numpy(), rtol=1e-5, atol=1e-4)


def test_no_elements_and_rows_of_zeros_in_a_weight():
    layer = layer_of(8, 3)
    layer.weight[1] = 0.0
    rounded = Q.quantize_dynamic(layer, inplace=False)
    assert rounded(F.zeros((0, 8))).shape == (0, 3)
    x = mge.tensor(numbers((2, 8)))
    np.testing.assert_allclose(rounded(x).numpy()[:, 1], layer.bias.numpy()[1], rtol=1e-6)
    empty = Q.quantize_dynamic(layer_of(0, 3), inplace=False)
    np.testing.assert_array_equal(empty(F.zeros((2, 0))).numpy(), [layer_of(0, 3).bias.numpy()] * 2)


def test_weights_of_rounded_training():
    net = Q.quantize_qat(M.Sequential(layer_of(16, 4)), qconfig=Q.per_channel_fakequant_qconfig)
    x = mge.tensor(numbers((3, 16)))
    net.train()
    net(x)
    net.eval()
    made = Q.quantize(net, inplace=False, mapping={M.qat.Linear: DynamicLinear})
    kind = net[0].get_weight_dtype()
    np.testing.assert_array_equal(made[0].weight.numpy(), net[0].weight.astype(kind).numpy())
    wanted = net[0].weight.numpy() @ x.numpy().T
    assert abs(made(x).numpy() - wanted.T - net[0].bias.numpy()).max() < 0.02 * abs(wanted).max()


def test_refusals():
    class Scaled(M.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    with pytest.raises(TypeError, match="Scaled is derived"):
        Q.quantize_dynamic(M.Sequential(Scaled(2, 2)))
    kept = Scaled(2, 2)
    kept.disable_quantize()
    assert type(Q.quantize_dynamic(M.Sequential(kept))[0]) is Scaled
    with pytest.raises(ValueError, match="'token' or 'tensor'"):
        Q.quantize_dynamic(layer_of(2, 2), scales="channel")
    broken = layer_of(2, 2)
    broken.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        Q.quantize_dynamic(broken)
    with pytest.raises(ValueError, match="only support inference"):
        Q.quantize_dynamic(M.Linear(2, 2))(F.zeros((1, 2)))
    x, weight = F.zeros((1, 4)), F.zeros((2, 4))
    for wrong in (weight, weight.astype(qint16(0.1))):
        with pytest.raises(DTypeError, match="matrix of qint8"):
            F.quantized.dynamic_linear(x, wrong)
    with pytest.raises(DTypeError, match="matrix of qint8"):
        F.quantized.dynamic_linear(x.astype(qint8(0.1)), weight.astype(qint8(0.1)))
    with pytest.raises(ShapeError, match="inner extents"):
        F.quantized.dynamic_linear(F.zeros((1, 3)), weight.astype(qint8(0.1)))
    wide = F.zeros((1, 131_072))
    with pytest.raises(ShapeError, match="32 bits hold sums of 131071"):
        F.quantized.dynamic_linear(wide, wide.astype(qint8(0.1)))
