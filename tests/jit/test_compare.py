"""`jit.compare`: a wrong kernel is found, named, and told apart from rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.engine.python_compiler import PythonCompiler, PythonKernel

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.backends.api import Support
from treadle.backends.program import Launch, Lowered, Ref
from treadle.base.observer import OBSERVER
from treadle.base.types import TensorType
from treadle.engine.targets import compiled
from treadle.ops.fused import Fused
from treadle.ops.op import Op, as_tuple
from treadle.utils.tensor_sanity_check import TensorSanityCheck


class Wrong:
    """An op whose first result is off by some function."""

    def __init__(self, op: Op, spoil: Callable[[Any], Any]) -> None:
        self.op, self.name, self.spoil = op, op.name, spoil

    def reference(self, *arrays: Any) -> tuple[Any, ...]:
        first, *rest = as_tuple(self.op.reference(*arrays))
        return (self.spoil(first), *rest)


class WrongCompiler(PythonCompiler):
    """Right but for the ops that `chosen` accepts."""

    def __init__(self, chosen: Callable[[Op], bool], spoil: Callable[[Any], Any]) -> None:
        super().__init__()
        self.chosen, self.spoil = chosen, spoil

    def lower(
        self, op: Op, types: Sequence[TensorType], frozen: Sequence[bool] = (), /
    ) -> Lowered | Support:
        if not self.chosen(op):
            return super().lower(op, types, frozen)
        results = op.infer(*types)
        kernel = PythonKernel(Wrong(op, self.spoil), tuple(types), results)  # type: ignore[arg-type]
        refs = [Ref("input", i) for i in range(len(types))]
        refs += [Ref("output", i) for i in range(len(results))]
        return Lowered((Launch(kernel, tuple(refs)),))


def use(monkeypatch: pytest.MonkeyPatch, compiler: PythonCompiler) -> None:
    monkeypatch.setattr(compiled, "find_compiler", lambda options, kind: compiler)


def named(*names: str) -> Callable[[Op], bool]:
    """Ops of these names."""
    return lambda op: op.name in names


def body(x: Any) -> Any:
    y = F.exp(x)
    y = F.tanh(y) * 2.0
    return F.softmax(y)


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("level", [0, 2])
def test_all_agree_where_nothing_is_wrong(level: int) -> None:
    found = jit.compare(body, X, level=level)
    assert found.agrees and found.first is None and found.level == level
    assert [row.op for row in found.ops] == ["exp", "tanh", "mul", "softmax"]
    assert "all agree" in str(found)


def test_the_first_wrong_op_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, WrongCompiler(named("tanh"), lambda a: a * np.float32(1.1)))
    found = jit.compare(body, X, level=0)
    assert not found.agrees and found.first is not None
    assert found.first.op == "tanh"
    line = body.__code__.co_firstlineno + 2
    assert found.first.at == f"test_compare.py:{line}"
    assert 0.01 < found.first.relative < 0.1
    # What follows computes rightly on what it is given.
    assert [row.op for row in found.ops if row.differs] == ["tanh"]
    assert f"the first that differs: tanh at test_compare.py:{line}" in str(found)
    assert jit.compare(body, X, level=0, rtol=0.2).agrees


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_differ(monkeypatch: pytest.MonkeyPatch, bad: float) -> None:
    use(monkeypatch, WrongCompiler(named("exp"), lambda a: np.where(a > 2, np.float32(bad), a)))
    found = jit.compare(body, X, level=0).first
    assert found is not None and found.op == "exp" and found.largest == np.inf


def test_integers_must_be_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    big = mge.tensor(np.array([2**62], np.int64), dtype="int64")
    use(monkeypatch, WrongCompiler(named("add"), lambda a: a + 1))
    found = jit.compare(lambda x: x + x.sum(), big, level=0).first
    assert found is not None and (found.op, found.tolerance) == ("add", 0.0)
    assert found.differs


def test_a_group_at_fault_is_found_where_its_ops_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def lone_result(op: Op) -> bool:
        return isinstance(op, Fused) and len(op.body.output_types) == 1

    use(monkeypatch, WrongCompiler(lone_result, lambda a: a + np.float32(0.5)))
    found = jit.compare(lambda x: F.relu(x * 2.0) + 1.0, X)
    assert found.first is not None and found.first.op == "loop(constant+mul+relu+constant+add)"
    assert not any(row.differs for row in found.ops)


def test_state_stays_and_sums_that_cancel_are_not_blamed() -> None:
    w = mge.Parameter(np.ones((4, 4), np.float32))
    gm, opt = mge.autodiff.GradManager().attach(w), mge.optimizer.SGD([w], lr=0.1)

    def step(x: Any) -> Any:
        with gm:
            loss = F.matmul(x, w).sum()
            gm.backward(loss)
        opt.step().clear_grad()
        return loss

    found = jit.compare(jit.compile(step), np.concatenate([X, -X]))
    assert found.agrees
    assert (w.numpy() == 1).all()
    assert "sgd_update" in [row.op for row in found.ops]


def test_options_of_a_compiled_function_are_kept() -> None:
    compiled = jit.compile(options=jit.Options(level=1))(body)
    assert jit.compare(compiled, X).level == 1
    assert jit.compare(compiled, X, level=0).level == 0
    assert jit.compare(lambda x: x, X).ops == ()


# -- layers -------------------------------------------------------------------------------


def test_every_op_knows_its_layer() -> None:
    net = M.Sequential(M.Linear(2, 3), M.Sequential(M.ReLU())).to("cpux")
    x = mge.tensor([[1.0, 2.0]], device="cpux")
    found = mge.jit.compare(lambda x: F.exp(net(x)), x)
    layers = [(row.op, row.layer) for row in found.ops]
    assert layers[-2:] == [("relu", "1.0 (ReLU)"), ("exp", "")]
    assert layers[0] == ("matmul", "0 (Linear)")
    assert OBSERVER.now is None
    with TensorSanityCheck():  # somebody else watches: layers are not known
        assert {row.layer for row in mge.jit.compare(net.forward, x).ops} == {""}
