"""User gradients and anomaly mode."""

from __future__ import annotations

import copy
import pickle
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import Function, GradManager, detect_anomaly
from treadle.autodiff.tape import current
from treadle.base.errors import AutodiffError, NoGradient
from treadle.base.modes import LOCAL
from treadle.tensor import Tensor


class Scale(Function):
    """Multiplies by a number; its gradient is deliberately another one."""

    def __init__(self, factor: float = 2.0) -> None:
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

    def backward(self, dy: Tensor) -> Tensor:
        return dy * 100


class Pair(Function):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        self.x = x
        return x * y, x + y

    def backward(self, d_product: Any, d_sum: Any) -> Any:
        self.seen = d_product is None, d_sum is None
        dx = d_sum if d_product is None else d_product * 7
        return dx, None


def test_the_users_gradient_is_used() -> None:
    x = mge.tensor([1.0, 2.0])
    gm = GradManager().attach(x)
    with gm:
        y = Scale()(x)
        gm.backward(y.sum())
    np.testing.assert_array_equal(y.numpy(), [2.0, 4.0])
    np.testing.assert_array_equal(x.grad.numpy(), [100.0, 100.0])


def test_unused_outputs_give_none_and_backward_may_return_none() -> None:
    x, y = mge.tensor([2.0]), mge.tensor([3.0])
    gm = GradManager().attach([x, y])
    with gm:
        product, _ = Pair()(x, y)
        gm.backward(product)
    np.testing.assert_array_equal(x.grad.numpy(), [7.0])
    assert y.grad is None


def test_ops_inside_forward_are_not_recorded() -> None:
    x = mge.tensor([1.0])
    gm = GradManager().attach(x)
    with gm:
        y = Scale()(x)
        assert y._trace[0].rule.name == "Scale"
        assert [s[2][0].rule for s in y._trace[0].inputs] == [None]
        gm.backward(y)


def test_functions_differentiate_again() -> None:
    class Cube(Function):
        def forward(self, x: Tensor) -> Tensor:
            self.x = x
            return x * x * x

        def backward(self, dy: Tensor) -> Tensor:
            return dy * dy

    x = mge.tensor([2.0])
    outer, inner = GradManager().attach(x), GradManager().attach(x)
    with outer:
        with inner:
            inner.backward(Cube()(x) * x)
        first, x.grad = x.grad, None
        outer.backward(first)
    # d(x c(x)) = c + dy^2 with dy = x, so the derivative of that is dy of c (= 1)^2 + 2 x.
    assert float(first) == 8.0 + 4.0
    assert float(x.grad) == 1.0 + 4.0


def test_only_positional_tensors_are_taken() -> None:
    with pytest.raises(TypeError, match="positional tensors"):
        Scale()(np.ones(2))
    with pytest.raises(TypeError):
        Scale()(x=mge.tensor([1.0]))


def test_too_many_gradients_are_refused() -> None:
    class Wrong(Scale):
        def backward(self, dy: Tensor) -> Any:
            return dy, dy

    class Worse(Scale):
        def backward(self, dy: Tensor) -> Any:
            return 3.0

    x = mge.tensor([1.0])
    for kind, error in ((Wrong, AutodiffError), (Worse, NoGradient)):
        gm = GradManager().attach(x)
        with pytest.raises(error), gm:
            gm.backward(kind()(x))


def test_what_a_subclass_leaves_out_is_named() -> None:
    class Half(Function):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    x = mge.tensor([1.0])
    with pytest.raises(NotImplementedError, match="a Function defines forward"):
        Function()(x)
    gm = GradManager().attach(x)
    with pytest.raises(NotImplementedError, match="a Function defines backward"), gm:
        gm.backward(Half()(x))


def test_copies_and_pickles_work() -> None:
    scale = pickle.loads(pickle.dumps(copy.deepcopy(Scale(3.0))))
    np.testing.assert_array_equal(scale(mge.tensor([1.0])).numpy(), [3.0])


def test_anomaly_mode_names_the_first_op_and_line() -> None:
    x = mge.tensor([-1.0])
    with pytest.raises(AutodiffError) as caught, detect_anomaly():
        y = F.log(x)
        _ = y * 2
    assert str(caught.value).startswith("log: made a NaN")
    assert "test_function.py" in str(caught.value)


def test_anomaly_mode_names_the_op_whose_gradient_is_nan() -> None:
    x = mge.tensor([0.0])
    gm = GradManager().attach(x)
    with pytest.raises(AutodiffError) as caught, detect_anomaly(), gm:
        y = F.sqrt(x * 0.0)
        gm.backward(y)
    message = str(caught.value)
    line = test_anomaly_mode_names_the_op_whose_gradient_is_nan.__code__.co_firstlineno + 4
    assert message.startswith("mul: its gradient is NaN")
    assert f"test_function.py:{line}" in message, "where the op ran, not where backward did"


@pytest.mark.parametrize("outside", [True, False])
def test_anomaly_mode_outlives_a_backward_whose_rules_make_constants(outside: bool) -> None:
    x = mge.tensor([[0.0, 0.0]])
    gm = GradManager().attach(x)
    with ExitStack() as stack:
        for block in (detect_anomaly(), gm) if outside else (gm, detect_anomaly()):
            stack.enter_context(block)
        gm.backward(F.nn.cross_entropy(x, mge.tensor([1])))
        with pytest.raises(AutodiffError, match="log: made a NaN"):
            F.log(x - 1.0)
    assert x.grad.tolist() == [[0.5, -0.5]]
    assert LOCAL.hook is None
    assert not current().places


def test_anomaly_mode_nests() -> None:
    with detect_anomaly():
        with detect_anomaly():
            pass
        with pytest.raises(AutodiffError, match="log: made a NaN"):
            F.log(mge.tensor([-1.0]))
    assert LOCAL.hook is None


def test_anomaly_mode_is_quiet_without_one_and_ends() -> None:
    x = mge.tensor([1.0])
    gm = GradManager().attach(x)
    with detect_anomaly(), gm:
        gm.backward(F.log(x))
    assert float(x.grad) == 1.0
    assert np.isnan(F.log(mge.tensor([-1.0])).numpy()).all()


def test_a_compiled_function_keeps_the_gradient_that_the_user_wrote() -> None:
    """Also where it is differentiated from outside, by rules of the ops its graph consists of."""
    x = mge.tensor([1.0, 2.0])
    eager = gradient_through(Scale(3.0), x)
    compiled = gradient_through(mge.jit.compile(lambda t: Scale(3.0)(t)), x)
    np.testing.assert_array_equal(compiled, eager)
    assert not np.array_equal(eager, [3.0, 3.0])  # which is what the ops would say


def gradient_through(function: Any, x: Tensor) -> np.ndarray[Any, Any]:
    x.grad = None
    gm = GradManager().attach(x)
    with gm:
        gm.backward(function(x).sum())
    assert x.grad is not None
    return np.asarray(x.grad.numpy())
