"""Eager ops beside the host's, and looked through for what is not finite: the first at fault."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins, plugins
from tests.backends.toy_backend import elementwise, kernel

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.base.errors import Divergence
from treadle.ops.unary import Exp
from treadle.utils.check_ops import CheckFinite, CompareOps
from treadle.utils.dumper import Dumper

__all__ = ["plugins"]


def wrong_relu(x: Any) -> Any:
    made = np.maximum(x, np.float32(0))
    made[-1, 1] += 0.25
    return made


def wrong_toy(plugins: Plugins) -> M.Module:
    """A network on a device whose relu is wrong in one element."""
    kernels = [k for k in elementwise() if k.op != "relu"]
    plugins.toy(kernels=[*kernels, kernel("relu", wrong_relu)])
    net = M.Sequential(M.Linear(2, 3), M.Sequential(M.ReLU(), M.Linear(3, 1)))
    return net.to("toy0")


def test_the_first_wrong_op_is_named_with_layer_line_and_values(
    plugins: Plugins, tmp_path: Path
) -> None:
    net = wrong_toy(plugins)
    x = mge.tensor(np.ones((2, 2)), device="toy0")
    checking = CompareOps(replay=str(tmp_path))
    with mge.fallback("silent"), pytest.raises(Divergence) as caught, checking:
        net(x)
    text = str(caught.value)
    assert text.startswith("relu: its result on toy0:0 differs from the host's, in 1.0 (ReLU)")
    assert "x float32[2,3]@toy0:0; 1 of 6 differ, first at [1, 1]; largest 0.25" in text
    assert "test_check_ops.py" in text and f"python {tmp_path}/relu_0.py runs it again" in text
    assert any("from [1, 0]: found" in note for note in caught.value.__notes__)
    assert checking.first is checking.rows[-1] and checking.first.layer == "1.0 (ReLU)"
    with mge.fallback("silent"):
        net(x)  # nobody looks any more


def test_all_differences_are_recorded_if_asked(plugins: Plugins) -> None:
    net = wrong_toy(plugins)
    x = mge.tensor(np.ones((2, 2)), device="toy0")
    with mge.fallback("silent"), CompareOps("record") as compared:
        net(x)
    assert [row.op.partition("{")[0] for row in compared.rows] == [
        "matmul", "add", "relu", "matmul", "add",
    ]  # fmt: skip
    assert [row.difference.differs for row in compared.rows] == [False, False, True, False, False]
    text = str(compared)
    assert text.startswith("5 results, 1 differ") and "1.0 (ReLU)" in text
    loose = CompareOps("record", rtol=10.0)
    with mge.fallback("silent"), loose:
        net(x)
    assert loose.first is None


def test_ops_of_the_host_are_compared_with_numpy(plugins: Plugins) -> None:
    x = mge.tensor(np.linspace(0, 1, 4096, dtype="float32"), device="cpux")
    with CompareOps() as compared:
        F.exp(x) + 1
        F.argsort(x.reshape(64, 64))
    assert {"exp", "add"} <= {row.op for row in compared.rows}
    assert compared.first is None


def test_gradients_are_compared_as_well(plugins: Plugins) -> None:
    plugins.toy(kernels=[kernel("add", np.add), kernel("mul", lambda x, y: x * y + 1)])
    w = mge.Parameter([1.0, 2.0], device="toy0")
    gm = mge.autodiff.GradManager().attach([w])
    with mge.fallback("silent"), pytest.raises(Divergence, match="mul"), CompareOps(), gm:
        loss = F.exp(w).sum()
        gm.backward(loss)


def test_another_type_is_a_difference() -> None:
    compared = CompareOps()
    with pytest.raises(Divergence, match=r"another type.*\n.*float64\[2\] instead of float32\[2\]"):
        compared.ran(Exp(), (np.zeros(2, "float32"),), (np.ones(2),))
    assert compared.rows == []


def test_one_watcher_at_a_time_and_none_is_left(tmp_path: Path) -> None:
    with CompareOps(), pytest.raises(RuntimeError, match="another"), Dumper(tmp_path):
        pytest.fail("the block was entered")
    with CheckFinite():
        pass


# -- what is not finite --------------------------------------------------------------------------


def test_the_op_that_makes_an_infinity_is_named() -> None:
    class Scaled(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = M.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return F.exp(self.head(x) * 0 + 200.0) * 1e-30

    net, x = Scaled().to("cpux"), mge.tensor([[1.0, 2.0]], device="cpux")
    with pytest.raises(Divergence) as caught, CheckFinite():
        net(x)
    text = str(caught.value)
    assert text.startswith("exp: made 2 infinities and 0 NaNs of finite operands, in Scaled")
    assert "operands from 200 to 200; first at [0, 0]" in text and "test_check_ops.py" in text


def test_operands_of_any_kind_are_described() -> None:
    x, flags = mge.tensor([1e30, 0.0], device="cpux"), mge.tensor([True, False], device="cpux")
    with pytest.raises(Divergence, match="mul: made 1 inf") as caught, CheckFinite():
        F.where(flags, x, x * 0) * 1e30
    assert "operands from 0 to 1e+30, 1e+30 to 1e+30; first at [0]" in str(caught.value)


def test_what_was_infinite_before_is_no_news() -> None:
    x = mge.tensor([1.0, np.inf, -1.0], device="cpux")
    with CheckFinite("record") as check:
        y = x + 1
        z = y - y
        F.full((3,), -np.inf)
        F.log(mge.tensor([0.0], device="cpux"))
        F.sqrt(mge.tensor([-1.0], device="cpux"))
    assert np.isnan(z.numpy()[1])
    assert [row[0] for row in check.rows] == ["log", "sqrt"]
    assert all("test_check_ops.py" in row[2] for row in check.rows)


def test_the_environment_turns_comparisons_on() -> None:
    code = (
        "import treadle as mge\nfrom treadle.base.observer import OBSERVER\n"
        "print(mge.tensor([1.0], device='cpux') * 2, len(OBSERVER.now.rows))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TREADLE_COMPARE": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.stdout, done.stderr) == ("Tensor([2.], device=cpux:0) 1\n", "")
