"""Which types come out of which functions, and where autocast holds."""

import threading

import numpy as np
import pytest

import treadle.functional as F
import treadle.jit as jit
import treadle.module as M
from treadle import amp, config
from treadle.amp import autocast
from treadle.autodiff import GradManager
from treadle.base.errors import DTypeError
from treadle.tensor import Tensor


def _x(*shape: int, dtype: str = "float32") -> Tensor:
    values = np.random.default_rng(0).uniform(0.5, 1.5, shape).astype("float32")
    return Tensor(values).astype(dtype)


IMAGE = (2, 4, 6, 6)
LOW = {
    "matmul": lambda x: F.matmul(x, x),
    "operator": lambda x: x @ x,
    "linear": lambda x: M.Linear(6, 3)(x),
    "conv2d": lambda x: M.Conv2d(4, 6, 3)(x),
    "conv_transpose2d": lambda x: M.ConvTranspose2d(4, 6, 3)(x),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "batch_norm": lambda x: M.BatchNorm2d(4)(x),
    "attention layer": lambda x: M.MultiHeadAttention(6, 2)(x[0], x[0], x[0])[0],
}
HIGH = {
    "exp": F.exp,
    "log": F.log,
    "divide": lambda x: x / x,
    "divide by a number": lambda x: x / 2.0,
    "power": lambda x: x**3.0,
    "square as a power": lambda x: x**2,
    "sqrt": F.sqrt,
    "softplus": F.softplus,
    "logsumexp": lambda x: F.logsumexp(x, 1),
    "layer_norm": lambda x: M.LayerNorm(6)(x),
    "cross_entropy": lambda x: F.nn.cross_entropy(x[0, 0], F.zeros(6).astype("int32")),
    "binary_cross_entropy": lambda x: F.nn.binary_cross_entropy(x, F.ones(IMAGE)),
}
KEPT = {
    "add": lambda x: x + x,
    "sum": lambda x: x.sum(),
    "square": F.square,
    "dot": lambda x: F.dot(x.reshape(-1), x.reshape(-1)),
    "relu": F.relu,
    "softmax": lambda x: F.softmax(x, 1),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
}


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("given", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", [*LOW, *HIGH, *KEPT])
def test_result_types(name: str, given: str, low: str) -> None:
    x = _x(*IMAGE, dtype=given)
    with autocast(low_prec_dtype=low):
        found = (LOW | HIGH | KEPT)[name](x)
    wanted = low if name in LOW else "float32" if name in HIGH else given
    assert found.dtype.name == wanted


def test_mixed_operands_promote() -> None:
    with autocast():
        assert (_x(2, dtype="float16") + _x(2)).dtype == np.float32


IMAGES = _x(1, 3, 40, 40) * 100
TURN = Tensor([[[1.01, 0.02, 3.0], [-0.03, 0.98, 5.0], [1e-4, 2e-4, 1.0]]])
IN_FULL = {
    "warp_perspective": lambda: F.vision.warp_perspective(IMAGES, TURN, (40, 40)),
    "warp_affine": lambda: F.vision.warp_affine(IMAGES, TURN[:, :2], (40, 40), format="NCHW"),
    "cvt_color": lambda: F.vision.cvt_color(IMAGES.transpose(0, 2, 3, 1), "RGB2GRAY"),
    "roi_pooling": lambda: F.vision.roi_pooling(
        IMAGES, Tensor([[0.0, 1.0, 2.0, 30.0, 35.0]]), (3, 3), mode="average"
    ),
    "area": lambda: F.vision.resize(IMAGES, (9, 7), "NCHW", "area"),
}


@pytest.mark.parametrize("name", IN_FULL)
def test_products_inside_of_other_functions_stay_in_full_precision(name: str) -> None:
    """Their operands are places or weights; in 16 bits an image was shifted by parts of a pixel."""
    with autocast():
        found = IN_FULL[name]()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.numpy(), IN_FULL[name]().numpy())


def test_a_square_does_not_overflow() -> None:
    with autocast():
        assert (Tensor([300.0]).astype("float16") ** 2).item() == 90000.0


def test_values_are_those_of_cast_operands() -> None:
    x, y = _x(3, 4), _x(4, 5)
    with autocast(low_prec_dtype="bfloat16"):
        found = F.matmul(x, y)
    wanted = F.matmul(x.astype("bfloat16"), y.astype("bfloat16"))
    np.testing.assert_array_equal(found.astype("float32").numpy(), wanted.astype("float32").numpy())


def test_float64_is_left_alone() -> None:
    x = Tensor(np.eye(2), dtype="float64")
    with autocast():
        assert F.matmul(x, x).dtype == np.float64


def test_blocks_nest_and_end() -> None:
    x = _x(2, 2)
    with autocast():
        with autocast(low_prec_dtype="bfloat16"):
            assert F.matmul(x, x).dtype.name == "bfloat16"
        with autocast(enabled=False):  # A block that is not enabled changes nothing.
            assert F.matmul(x, x).dtype.name == "float16"
        assert F.matmul(x, x).dtype.name == "float16"
    assert F.matmul(x, x).dtype.name == "float32"


def test_an_error_ends_the_block() -> None:
    with pytest.raises(ZeroDivisionError), autocast():
        raise ZeroDivisionError
    assert not amp.enabled


def test_decorator_and_recursion() -> None:
    @autocast(low_prec_dtype="bfloat16")
    def deep(x: Tensor, n: int) -> Tensor:
        """Its own words."""
        return F.matmul(x, x) if n == 0 else deep(x, n - 1)

    assert deep(_x(2, 2), 3).dtype.name == "bfloat16"
    assert deep.__doc__ == "Its own words."
    assert not amp.enabled


def test_blocks_are_for_their_thread() -> None:
    found = []
    with autocast():
        worker = threading.Thread(target=lambda: found.append(amp.enabled))
        worker.start()
        worker.join()
        assert amp.enabled
    assert found == [False]


def test_switches_are_for_the_process() -> None:
    x, found = _x(2, 2), []
    amp.enabled = True
    try:
        assert F.matmul(x, x).dtype.name == "float16"
        amp.low_prec_dtype = "bfloat16"
        assert F.matmul(x, x).dtype.name == "bfloat16"
        worker = threading.Thread(target=lambda: found.append(F.matmul(x, x).dtype.name))
        worker.start()
        worker.join()
        with autocast(low_prec_dtype="float16"):
            assert amp.low_prec_dtype == "float16"
    finally:
        amp.enabled = False
        amp.low_prec_dtype = "float16"
    assert found == ["bfloat16"]
    assert F.matmul(x, x).dtype.name == "float32"
    assert (amp.enabled, amp.low_prec_dtype, amp.high_prec_dtype) == (False, "float16", "float32")


def test_the_compute_mode_is_float32_inside() -> None:
    assert config._compute_mode == "default"
    with autocast():
        assert config._compute_mode == "float32"
    assert config._compute_mode == "default"


def test_gradients_are_those_of_the_chosen_precisions() -> None:
    weight = _x(3, 3)
    manager = GradManager().attach(weight)
    with autocast(low_prec_dtype="bfloat16"), manager:
        manager.backward(F.exp(F.matmul(_x(2, 3), weight)).sum())
    assert weight.grad.dtype == np.float32
    x = _x(2, 3).astype("bfloat16").astype("float32").numpy()
    w = weight.astype("bfloat16").astype("float32").numpy()
    np.testing.assert_allclose(weight.grad.numpy(), x.T @ np.exp(x @ w), rtol=0.05)


def test_programs_differ_by_the_block_they_are_called_in() -> None:
    @jit.compile
    def product(x: Tensor) -> Tensor:
        return F.matmul(x, x)

    x = _x(4, 4)
    for _ in range(2):
        assert product(x).dtype.name == "float32"
        with autocast():
            assert product(x).dtype.name == "float16"
        with autocast(low_prec_dtype="bfloat16"):
            assert product(x).dtype.name == "bfloat16"
    assert len(product.variants) == 3


def test_dynamic_axes_under_autocast() -> None:
    @jit.compile(dynamic={0: {0: "batch"}})
    def product(x: Tensor) -> Tensor:
        return F.matmul(x, F.ones((4, 4)))

    with autocast():
        assert product(_x(2, 4)).dtype.name == "float16"
        assert product(_x(3, 4)).shape == (3, 4)
    assert product(_x(3, 4)).dtype.name == "float32"


@pytest.mark.parametrize(
    ("low", "high"), [("float32", "float32"), ("int16", "float32"), ("float16", "bfloat16")]
)
def test_wrong_types(low: str, high: str) -> None:
    with pytest.raises(DTypeError, match="a float of 16 bits and a wider one"):
        autocast(low_prec_dtype=low, high_prec_dtype=high)
