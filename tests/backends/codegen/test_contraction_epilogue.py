"""What is applied to a product's sums before they are stored: operands, ops, casts, movement."""

import numpy as np
import pytest
from tests.backends.codegen.contractions import check, fused, interpreted, lowered, types_of, values
from tests.backends.codegen.irregular import HOST

from treadle.backends.api import Support
from treadle.backends.codegen.lower import lower
from treadle.base import dtype as dt
from treadle.ops.activation import Gelu
from treadle.ops.matmul import IntMatmul, Matmul
from treadle.ops.movement import Broadcast, Reshape, Transpose
from treadle.ops.reduce import Sum
from treadle.ops.unary import Erf, Exp, Relu

SHAPES = [(7, 20, 18), (64, 40, 48), (1, 33, 21), (3, 2100, 17)]


def one(op, *xs):
    return xs[0].apply(op, xs)[0]


def arrays(m, k, n, *others, dtype=dt.float32):
    rng = np.random.default_rng(m + k + n)
    shapes = [(m, k), (n, k), *others]
    return [values(rng, shape, dtype) for shape in shapes]


def product(x, w):
    return one(Matmul(False, True), x, w)


@pytest.mark.parametrize("m, k, n", SHAPES)
@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.float64], ids=str)
def test_bias_and_relu(m, k, n, dtype):
    given = arrays(m, k, n, (n,), dtype=dtype)
    op = fused(lambda x, w, b: one(Relu(), product(x, w) + b), given)
    assert len(lowered(op, given).launches) <= 2
    check(op, given, k)


@pytest.mark.parametrize("m, k, n", SHAPES)
def test_operands_of_every_shape(m, k, n):
    given = arrays(m, k, n, (m, n), (m, 1), (1, 1), (n,), ())

    def body(x, w, full, column, single, row, scalar):
        return (product(x, w) * full + column) * single + row - scalar * 0.5

    check(fused(body, given), given, 4 * k)


@pytest.mark.parametrize("m, k, n", SHAPES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_and_what_it_is_of(m, k, n, approximate):
    given = arrays(m, k, n, (n,))

    def body(x, w, b):
        u = product(x, w) + b
        return one(Gelu(approximate), u), u

    op = fused(body, given)
    assert len(op.infer(*types_of(given))) == 2
    check(op, given, k)


def test_the_sums_themselves_are_a_result_too():
    given = arrays(9, 30, 20)

    def body(x, w):
        u = product(x, w)
        return u, one(Erf(), u), u * u

    check(fused(body, given), given, 30 * 30)


def test_masks_and_casts():
    given = [*arrays(9, 30, 20), np.random.default_rng(0).integers(0, 2, (9, 20)).astype(bool)]

    def body(x, w, mask):
        u = product(x, w)
        return u * mask.astype("float32"), u.astype("float64"), u.astype("bfloat16")

    check(fused(body, given), given, 30)


def test_truth_values_are_results():
    given = arrays(9, 30, 20, (20,))

    def body(x, w, b):
        u = product(x, w) + b
        return one(Relu(), u), u > 0.0, (u > 0.0).astype("int8")

    check(fused(body, given), given, 30)


def test_residual_behind_a_reshape():
    given = arrays(12, 30, 20, (3, 4, 20), (20,))

    def body(x, w, residual, bias):
        return one(Reshape((3, 4, 20)), product(x, w)) + bias + residual

    check(fused(body, given), given, 30)


def test_transposed_result():
    given = arrays(12, 30, 20, (20,), (12, 20))

    def body(x, w, bias, residual):
        u = product(x, w) + bias + residual
        return one(Transpose((1, 0)), u)

    check(fused(body, given), given, 30)


def test_results_in_two_layouts():
    given = arrays(12, 30, 20)

    def body(x, w):
        u = product(x, w)
        return one(Transpose((1, 0)), u), one(Relu(), u)

    check(fused(body, given), given, 30)


def test_heads_merged_again():
    rng = np.random.default_rng(3)
    given = [values(rng, (2, 3, 5, 7), dt.float32), values(rng, (2, 3, 7, 4), dt.float32)]

    def body(p, v):
        moved = one(Transpose((0, 2, 1, 3)), one(Matmul(), p, v))
        return one(Reshape((2, 5, 12)), moved)

    op = fused(body, given)
    assert len(lowered(op, given).launches) == 1
    check(op, given, 7)


def test_what_is_computed_beside_the_product():
    given = arrays(9, 30, 20, (20,), (9, 1))

    def body(x, w, b, c):
        scaled = one(Broadcast((9, 20)), one(Exp(), b) * 0.5)
        return product(x, w) + scaled * c

    check(fused(body, given), given, 30)


def test_constants_in_the_body():
    given = arrays(9, 30, 20)
    row = np.linspace(-1, 1, 20, dtype=np.float32)

    def body(x, w):
        return (product(x, w) + x.constant(row)) * -0.0 + x.constant(np.float32(2))

    check(fused(body, given), given, 30)


def test_signs_of_zero_are_kept_apart():
    given = [np.ones((2, 4), np.float32), np.zeros((3, 4), np.float32)]
    for zero in (0.0, -0.0):
        op = fused(lambda x, w, z=zero: product(x, w) * 0.0 + z, given)
        (found,) = check(op, given, 4)
        assert not np.signbit(found).any()
        op = fused(lambda x, w, z=zero: -(product(x, w) + 1.0) * z, given)
        (found,) = check(op, given, 4)
        assert (np.signbit(found) == (zero == 0.0 and not np.signbit(zero))).all()


@pytest.mark.parametrize("flag", [False, True])
def test_quantized_product_scaled(flag):
    rng = np.random.default_rng(8)
    given = [
        values(rng, (11, 300), dt.uint8),
        values(rng, (20, 300), dt.int8),
        values(rng, (20,), dt.float32),
    ]

    def body(x, w, scale):
        u = one(IntMatmul(False, True), x, w)
        made = u.astype("float32") * (scale * 1e-3)
        return (made, u) if flag else made

    check(fused(body, given), given, 9)


def test_batches_with_operands_of_each():
    rng = np.random.default_rng(9)
    shapes = [(2, 3, 5, 7), (3, 7, 18), (2, 1, 5, 18), (3, 1, 1), (18,)]
    given = [values(rng, s, dt.float32) for s in shapes]
    op = fused(lambda x, w, a, b, c: one(Matmul(), x, w) * b + a + c, given)
    check(op, given, 7)


@pytest.mark.parametrize("m, k, n", [(3, 9, 18), (8, 9, 5)])
def test_every_access_stays_inside(m, k, n):
    given = arrays(m, k, n, (n,), (m, n))
    op = fused(lambda x, w, b, r: one(Relu(), product(x, w) + b) + r, given)
    check(op, given, k, runner=interpreted)


def test_frozen_weight_with_epilogue():
    given = arrays(12, 30, 20, (20,))
    op = fused(lambda x, w, b: one(Relu(), product(x, w) + b), given)
    how = lowered(op, given, (False, True, True))
    assert len(how.prelude) == 1
    check(op, given, 30, frozen=(False, True, True))


def test_what_is_refused_says_why():
    given = arrays(6, 5, 4)
    for body, reason in (
        (lambda x, w: one(Sum((0,)), product(x, w)), "sum behind the product"),
        (lambda x, w: product(product(x, w), w.transpose((1, 0))), "one contraction, not 2"),
        (lambda x, w: product(x + 1.0, w), "computed in the group"),
        (lambda x, w: (product(x, w), x + 1.0), "does not depend"),
        (lambda x, w: product(x, w).astype("complex64"), "complex"),
        (lambda x, w: product(x, w).reshape((4, 6)) + product(x, w).reshape((4, 6)), "2"),
    ):
        answer = lower(fused(body, given), types_of(given), (), HOST)
        assert isinstance(answer, Support)
        assert reason in answer.message
