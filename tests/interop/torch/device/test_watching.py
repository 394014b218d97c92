"""Tools that watch ops, on programs of PyTorch: layers, lines, dumps, wrong kernels."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from treadle.backends import registry  # noqa: E402
from treadle.base.errors import Divergence  # noqa: E402
from treadle.base.observer import foreign_array  # noqa: E402
from treadle.utils.check_ops import CheckFinite, CompareOps  # noqa: E402
from treadle.utils.dumper import Dumper, compare_dumps  # noqa: E402
from treadle.utils.profiler import Profiler  # noqa: E402

pytestmark = pytest.mark.torch_device
HOME = "treadle:0"


class Net(torch.nn.Module):
    """A layer in a layer, called by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        self.last = torch.nn.Linear(8, 2)

    def forward(self, x: Any, scale: Any = None) -> Any:
        y = self.last(self.inner(x))
        return {"plain": y, "scaled": y * scale}


def _net() -> Any:
    torch.manual_seed(0)
    return Net().to(HOME)


def _line() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_layers_and_lines_are_those_of_the_program() -> None:
    net, x = _net(), torch.randn(3, 4).to(HOME)
    plain = torch.nn.Module.__call__
    with CompareOps() as compared:
        y = net(x, scale=2.0)["scaled"]
        line = _line() + 1
        y.sum().backward()
    assert torch.nn.Module.__call__ is plain
    layers = [row.layer for row in compared.rows]
    assert layers[:5] == ["inner.0 (Linear)"] * 2 + ["inner.1 (ReLU)"] + ["last (Linear)"] * 2
    assert layers[5] == "Net" and layers[-1] == ""
    assert compared.rows[5].at.endswith("in forward")
    assert f"test_watching.py:{line} in test_" in compared.rows[-1].at
    assert compared.first is None and net.last.weight.grad is not None


def test_a_wrong_kernel_is_named(devices: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that have run often before, compiled or without Python, are looked at as well."""
    import treadle_toy

    wrong = treadle_toy.kernel("tanh", treadle_toy.reals, lambda x: x - x**3 / 3)
    with monkeypatch.context() as patch:
        patch.setattr(treadle_toy, "KERNELS", [*treadle_toy.KERNELS, wrong])
        registry.rescan()
        net = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Tanh())
        x = torch.randn(3, 17)
        for where in (HOME, devices["toy0"]):
            given = x.to(where)
            for _ in range(40):
                net(given)
            with CompareOps("record") as compared:
                net(given)
            assert [(row.op, row.layer) for row in compared.rows] == [("tanh", "1 (Tanh)")]
            assert (compared.first is None) == (where == HOME)
        with pytest.raises(Divergence, match=r"on toy0:0 differs .*, in 1 \(Tanh\)"), CompareOps():
            net(given)
    registry.rescan()


def test_the_first_layer_that_makes_no_numbers() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softplus()).to(HOME)
    with torch.no_grad():
        net[0].weight.fill_(1e38)
    with pytest.raises(Divergence, match=r"in 0 \(Linear\)"), CheckFinite():
        net(torch.full((2, 4), 1e4, device=HOME))


def test_dumps_of_devices_are_compared(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    net = _net()
    with Dumper(tmp_path / "there", level="all", ops=False):
        net(x.to(HOME), 3.0)
    with Dumper(tmp_path / "host", level="all", ops=False):
        net.cpu()(x, 3.0)
    found = compare_dumps(tmp_path / "host", tmp_path / "there")
    assert len(found) == 11 and not any(d.difference.differs for d in found)
    tree = (tmp_path / "there" / "tree.txt").read_text(encoding="utf-8").splitlines()
    assert tree[0] == "Net" and tree[2] == "  inner (Sequential)"
    assert tree[-1].startswith("  output_1: float32[3, 2]")


def test_values_of_tensors() -> None:
    z = torch.randn(3, dtype=torch.complex64)
    for x in (z, z.to(HOME), z.to(HOME).conj().imag, torch.ones(3).bfloat16().to(HOME)):
        found = foreign_array(x)
        wanted = x.cpu().resolve_conj().resolve_neg()
        wanted = wanted.float() if wanted.dtype is torch.bfloat16 else wanted
        assert np.array_equal(np.asarray(found, wanted.numpy().dtype), wanted.numpy())
    assert foreign_array(3) is None and foreign_array(torch.eye(2).to_sparse()) is None


def test_calls_outlive_devices_that_are_looked_for_again(devices: dict[str, str]) -> None:
    """Devices are closed then, and plans of calls know those that they ran on."""
    for _ in range(2):
        x = torch.full((5,), 2.0).to(devices["toy0"])
        assert (x * x).cpu().tolist() == [4] * 5
        registry.rescan()


def test_modules_are_scopes_of_profiles(tmp_path: Path) -> None:
    net = _net()
    net.name = torch.nn.Parameter(torch.ones(2, device=HOME))
    with Profiler(str(tmp_path), with_scopes=True):
        net(torch.ones(3, 4, device=HOME), 2.0)
    (profile,) = tmp_path.glob("*.json")
    text = profile.read_text(encoding="utf-8")
    assert all(f'"name": "{name}"' in text for name in ("Net", "Sequential", "Linear", "ReLU"))


def test_a_compiled_model_is_compiled_while_somebody_watches() -> None:
    net, x = _net(), torch.ones(3, 4, device=HOME)
    compiled = torch.compile(net, backend="treadle", fullgraph=True)
    wanted = net(x, 2.0)["scaled"]
    for _ in range(2):
        with CompareOps("record") as compared:
            found = compiled(x, 2.0)["scaled"]
        assert not compared.rows and torch.allclose(found.cpu(), wanted.cpu())
        assert torch.allclose(compiled(x, 2.0)["scaled"].cpu(), wanted.cpu())
