"""What runs write down, layer by layer, and two such runs compared."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins, plugins
from tests.utils.test_check_ops import wrong_toy

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.utils.dumper import Dumper, compare_dumps

__all__ = ["plugins"]


def small() -> tuple[M.Module, Any]:
    mge.random.seed(3)
    net = M.Sequential(M.Linear(2, 3), M.ReLU()).to("cpux")
    return net, mge.tensor(np.array([[1.0, -2.0]]), device="cpux")


def test_sums_by_layer_and_op(tmp_path: Path) -> None:
    net, x = small()
    with Dumper(tmp_path):
        y = net(x)
    lines = (tmp_path / "tree.txt").read_text().splitlines()
    assert lines[:3] == ["Sequential", "  input_0: float32[1, 2] sum 3", "  0 (Linear)"]
    assert next(line for line in lines if "matmul" in line).startswith("    matmul{")
    total = float(np.abs(y.numpy().astype("float64")).sum())
    assert lines[-1].startswith("  output_0: float32[1, 3] sum ")
    assert float(lines[-1].split()[-1]) == pytest.approx(total)
    folders = sorted(p.name for p in (tmp_path / "0000_Sequential").iterdir() if p.is_dir())
    assert folders == ["0001_0_Linear", "0002_1_ReLU"]
    values = (tmp_path / "0000_Sequential" / "0002_1_ReLU" / "values.txt").read_text()
    assert values.splitlines()[0].startswith("  input_0: ") and "relu at " in values
    assert not list(tmp_path.rglob("*.npz"))


def test_first_values_and_what_is_not_finite(tmp_path: Path) -> None:
    x = mge.tensor(np.arange(20.0), device="cpux")
    with Dumper(tmp_path / "first", "first"):
        x + 1
    text = (tmp_path / "first" / "tree.txt").read_text()
    assert "output_0: float32[20] first 1, 2, 3, 4, 5, 6, 7, 8, 9, 10\n" in text
    with Dumper(tmp_path / "sum"):
        F.log(x)
    assert "1 not finite" in (tmp_path / "sum" / "values.txt").read_text()
    with Dumper(tmp_path / "layers", ops=False):
        small()[0](small()[1])
    assert "matmul" not in (tmp_path / "layers" / "tree.txt").read_text()
    with pytest.raises(ValueError, match="no level 'loud'"):
        Dumper(tmp_path, "loud")  # type: ignore[arg-type]


def test_a_layer_that_raises_is_written_as_far_as_it_came(tmp_path: Path) -> None:
    net, _ = small()
    wrong = mge.tensor(np.ones((1, 5)), device="cpux")
    with pytest.raises(ValueError), Dumper(tmp_path):
        net(wrong)
    assert "input_0: float32[1, 5] sum 5" in (tmp_path / "tree.txt").read_text()
    assert (tmp_path / "0000_Sequential" / "0001_0_Linear" / "values.txt").exists()


def test_two_runs_are_compared_tensor_by_tensor(plugins: Plugins, tmp_path: Path) -> None:
    net = wrong_toy(plugins)
    x = mge.tensor(np.ones((2, 2)), device="toy0")
    with mge.fallback("silent"), Dumper(tmp_path / "toy", "all"):
        net(x)
    net, x = net.to("cpux"), x.to("cpux")
    with Dumper(tmp_path / "host", "all"):
        net(x)
    found = compare_dumps(tmp_path / "host", tmp_path / "toy")
    first = next(d for d in found if d.difference.differs)
    assert first.layer.endswith("_1.0_ReLU") and first.name.endswith("op0_relu_output_0")
    assert first.difference.first == (1, 1)
    again = compare_dumps(tmp_path / "host", tmp_path / "host")
    assert len(again) == len(found) and not any(d.difference.differs for d in again)
    half, more = x[:1], F.relu
    with Dumper(tmp_path / "other", "all"):
        net(half)
    with pytest.raises(ValueError, match=r"float32\[2, 2\] and float32\[1, 2\]"):
        compare_dumps(tmp_path / "host", tmp_path / "other")
    with Dumper(tmp_path / "more", "all"):
        more(net(x))
    with pytest.raises(ValueError, match="the two runs differ in what they did"):
        compare_dumps(tmp_path / "host", tmp_path / "more")


def test_captures_have_no_values_to_write(tmp_path: Path) -> None:
    net, x = small()
    step = mge.jit.compile(net.forward)
    with Dumper(tmp_path):
        y = step(x)
    np.testing.assert_allclose(y.numpy(), net(x).numpy(), rtol=1e-5)
