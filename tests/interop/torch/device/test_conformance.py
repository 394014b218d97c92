"""The conformance kit's group for PyTorch, and devices of several backends side by side."""

import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.backends import c_devices

import treadle

torch = pytest.importorskip("torch")

from treadle.backends import registry  # noqa: E402
from treadle.conformance import pytorch, run_checks  # noqa: E402
from treadle.interop.torch.checks import tensors, training  # noqa: E402

pytestmark = pytest.mark.torch_device

ODD = """
import os
import treadle_toy


class OddBackend(treadle_toy.ToyBackend):
    name = "odd"
    device_kinds = ("odd",)

    def kernels(self):
        ends = treadle_toy.kernel("sin", treadle_toy.reals, lambda x: os._exit(3))
        wrong = treadle_toy.kernel("tanh", treadle_toy.reals, lambda x: x - x**3 / 3)
        return [*treadle_toy.KERNELS, wrong, ends]


backend = OddBackend()
"""
"""A second plug-in, whose tanh is wrong, and whose sin ends the process."""


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Installs a plug-in: its name, and the text of its module."""
    names = []

    def write(name: str, text: str) -> None:
        names.append(f"plugin_{name}")
        (tmp_path / f"plugin_{name}.py").write_text(text)
        info = tmp_path / f"treadle_{name}-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: treadle-{name}\nVersion: 0\n")
        points = f"[treadle.backends]\n{name} = plugin_{name}:backend\n"
        (info / "entry_points.txt").write_text(points)
        registry.rescan()

    sys.path.insert(0, str(tmp_path))
    yield write
    sys.path.remove(str(tmp_path))
    for name in names:
        sys.modules.pop(name, None)
    registry.rescan()


@pytest.fixture
def odd(install: Callable[[str, str], None]) -> None:
    install("odd", ODD)


@pytest.fixture
def in_c(install: Callable[[str, str], None], tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    install("ctoy", c_devices.module(c_devices.built(c_devices.PLUGIN / "ctoy.c", tmp_path)))


def _checked(name: str, only: str) -> dict[str, Any]:
    report = run_checks(name, groups=["PyTorch"], only=f"pytorch/{only}", quick=True)
    return {r.name: (r.status, r.message) for r in report.results}


def test_a_device_that_is_right_passes() -> None:
    found = _checked("toy", "tensors/*") | _checked("toy", "training/mlp*")
    assert {status for status, _ in found.values()} == {"passed"}, found
    assert len(found) == len(tensors.CHECKS) + 3


def test_operators_are_pytorchs_own_records() -> None:
    pytest.importorskip("expecttest", reason="PyTorch's records need it")
    found = _checked("toy", "operators/*.*max*") | _checked("toy", "operators/s[eop]*")
    assert len(found) > 4 and {status for status, _ in found.values()} == {"passed"}, found
    from treadle.interop.torch.checks import records

    assert set(pytorch._RECORDS.split()) <= set(records.by_name())


def test_the_kit_asks_all_there_is() -> None:
    assert pytorch._TENSORS.split() == list(tensors.CHECKS)
    assert pytorch._NETWORKS.split() == list(training.CHECKS)


def test_wrong_kernels_and_ended_processes_are_findings(odd: None) -> None:
    found = _checked("odd", "training/mlp")
    status, message = found["training/mlp"]
    assert status == "failed" and "on the CPU" in message
    pytest.importorskip("expecttest", reason="PyTorch's records need it")
    found = _checked("odd", "operators/[tes][aix][npn]*")
    assert found["operators/sin"] == ("failed", "the process ended with 3")
    assert found["operators/tanh"][0] == "failed" and found["operators/exp"][0] == "passed"


def test_without_pytorch_nothing_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch.importlib.util, "find_spec", lambda name: None)
    assert _checked("toy", "*") == {"devices": ("not-offered", "PyTorch is not installed")}


def _net() -> list[Any]:
    torch.manual_seed(5)
    linear, norm = torch.nn.Linear, torch.nn.LayerNorm
    return [linear(4, 8), norm(8), linear(8, 8), linear(8, 1)]


def _losses(places: list[str], *, compiled: bool) -> list[float]:
    parts = [part.to(place) for part, place in zip(_net(), places, strict=True)]
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam([p for part in parts for p in part.parameters()], lr=0.05)

    def loss_of(x: Any) -> Any:
        y = x
        for part, place in zip(parts, places, strict=True):
            y = part(y.to(place)).relu()
        return (y.cpu() - x.sum(1, keepdim=True).abs()).square().mean()

    run = torch.compile(loss_of, backend="treadle") if compiled else loss_of
    found = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = run(x)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("compiled", [False, True])
def test_backends_work_side_by_side(odd: None, in_c: None, compiled: bool) -> None:
    """A model over three plug-ins, one of them in C, and a driver's device trains as on the CPU."""
    names = [torch.treadle.get_device_name(i) for i in range(torch.treadle.device_count())]
    known = {name: f"treadle:{i}" for i, name in enumerate(names)}
    places = [known["toy1"], known["odd0"], known["ctoy1"], known.get("opencl0", known["toy0"])]
    assert len(set(places)) == 4
    with treadle.fallback("silent"):
        found = _losses(places, compiled=compiled)
        assert found == pytest.approx(_losses(["cpu"] * 4, compiled=False), rel=1e-3)
        assert found[-1] < found[0]
        x = torch.arange(6.0).reshape(2, 3)
        for one in places:
            for other in places:
                file = io.BytesIO()
                torch.save(x.to(one).t(), file)
                file.seek(0)
                there = torch.load(file, map_location=other)
                assert str(there.device) == other and torch.equal(there.cpu(), x.t())
                if one != other:
                    with pytest.raises(RuntimeError, match="same device"):
                        x.to(one) + x.to(other)


def _printed(example: str, *options: str) -> list[float]:
    """Losses that an example prints in two epochs."""
    path = Path(__file__).resolve().parents[4] / "examples" / example
    command = [sys.executable, str(path), "--epochs", "2", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if "treadle:0" in options:
        assert "on the host: nothing" in done.stdout
    return [float(loss) for loss in re.findall(r"loss ([0-9.]+)", done.stdout)]


@pytest.mark.parametrize(
    ("example", "smaller", "needed"),
    [
        ("resnet_torch.py", ("--images", "320"), "sklearn"),
        ("transformer_torch.py", ("--lines", "32"), "transformers"),
    ],
)
def test_examples_train_as_on_the_cpu(example: str, smaller: tuple[str, str], needed: str) -> None:
    pytest.importorskip(needed)
    wanted = _printed(example, *smaller)
    assert len(wanted) == 2 and wanted[1] < wanted[0]
    on_device = _printed(example, *smaller, "--device", "treadle:0")
    assert on_device == pytest.approx(wanted, rel=5e-3)
    compiled = _printed(example, *smaller, "--device", "treadle:0", "--compile")
    assert compiled == pytest.approx(wanted, rel=5e-3)
