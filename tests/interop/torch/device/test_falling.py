"""Calls that run on the host in place of a device, as a rule all of a program's."""

import subprocess
import sys
from pathlib import Path

import pytest

import treadle

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch_device


def calls() -> dict[str, int]:
    found: dict[str, int] = {}
    for row in treadle.fallback_report(clear=True):
        found[row.op] = found.get(row.op, 0) + row.calls
    return found


def test_a_call_that_falls_is_the_same_every_time(device: str) -> None:
    """The first call of a kind is looked at, later ones are short: views, writes, `out=`."""
    x, y = torch.randn(6, 8), torch.randn(6, 8)
    calls()
    for turn in range(3):
        a, b = (x + turn).to(device), y.to(device)
        pairs = [(a, b), (a[1:, ::2], b[1:, ::2]), (a.t(), b.t()), (a[2], b[2])]
        for one, two in pairs:
            made = torch.nextafter(one, two)
            expected = torch.nextafter(one.cpu().clone(), two.cpu().clone())
            assert made.device == a.device
            assert made.stride() == expected.stride()
            assert torch.equal(made.cpu(), expected)
        expected = torch.nextafter(a.cpu(), b.cpu())
        part = torch.zeros(2, 6, 8, device=device)
        assert torch.nextafter(a, b, out=part[1]).data_ptr() == part[1].data_ptr()
        assert torch.equal(part.cpu(), torch.stack([torch.zeros(6, 8), expected]))
        empty = torch.empty(0, device=device)
        torch.nextafter(a, b, out=empty)  # which gets a storage of its own
        assert torch.equal(empty.cpu(), expected)
        a.nextafter_(b)
        assert torch.equal(a.cpu(), expected)
        held = a.t()
        held[1].nextafter_(b.t()[1])
        expected.t()[1].nextafter_(y.t()[1])
        assert torch.equal(a.cpu(), expected)
    assert calls()["aten::nextafter"] == 12


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_sizes_that_data_decide_are_those_of_each_call(device: str) -> None:
    # The first call writes what is as large as before, later ones less. More, PyTorch refuses.
    for values in ([1, 0, 2], [0, 0, 2], [0, 0, 0]):
        x = torch.tensor(values, device=device)
        out = torch.zeros(2, 1, dtype=torch.int64, device=device)
        assert torch.equal(torch.nonzero(x, out=out).cpu(), torch.nonzero(x.cpu()))
        assert out.shape == torch.nonzero(x.cpu()).shape
        picked = torch.zeros(2, dtype=x.dtype, device=device)
        torch.masked_select(x, x > 0, out=picked)
        assert torch.equal(picked.cpu(), x.cpu()[x.cpu() > 0])


def test_results_of_the_host_have_memory_of_their_own(device: str) -> None:
    x = torch.randn(5, device=device)
    made = torch.nextafter(x, x + 1)
    before = made.cpu()
    x.zero_()
    assert torch.equal(made.cpu(), before)
    made.fill_(2)
    assert not x.cpu().any()
    del x
    assert (made * 3).cpu().tolist() == [6.0] * 5
    made.resize_(100)
    assert made.cpu()[:5].tolist() == [2.0] * 5


def test_refused_falls_leave_everything_as_it_was(device: str) -> None:
    x = torch.randn(5, device=device)
    torch.nextafter(x, x)
    for _ in range(2):
        with treadle.fallback("error"), pytest.raises(NotImplementedError, match="nextafter"):
            torch.nextafter(x, x)
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.nextafter(x, torch.randn(4, device=device))
    assert torch.equal(torch.nextafter(x, x).cpu(), x.cpu())


BARE = """
import torch
import treadle
from treadle.backends import registry
from treadle.backends.api import Availability, Backend, Device, DeviceInfo


class Bare(Device):
    info = DeviceInfo("bare")

    def alloc(self, nbytes, /):
        return bytearray(nbytes)

    def free(self, buffer, /):
        pass

    def copy_in(self, buffer, source, /):
        raise AssertionError("nothing runs there")

    copy_out = copy_in


class BareBackend(Backend):
    name, protocol, device_kinds = "bare", (1, 1), ("bare",)

    def probe(self):
        return Availability(True, "has no kernel", 1)

    def open(self, index, /):
        return Bare()

    def kernels(self):
        return []


made = BareBackend()
registry.entries()["bare"] = registry.BackendEntry("bare", "a script", lambda: made)
import treadle.torch

names = [torch.treadle.get_device_name(i) for i in range(torch.treadle.device_count())]
device = f"treadle:{names.index('bare0')}"


def run(device, kind):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    x = torch.randn(16, 4)
    model, x = model.to(device), x.to(device)
    optimizer = kind(model.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), 2 * x[:, :1])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


treadle.fallback_report(clear=True)
with treadle.fallback("silent"):
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        assert run(device, kind) == run("cpu", kind), kind
rows = treadle.fallback_report()
assert rows and all(row.op.startswith("aten::") for row in rows), rows
names = {row.op for row in rows}
assert {"aten::addmm", "aten::mm", "aten::relu"} <= names, names
assert any(name.startswith("aten::_foreach_") for name in names), names


@torch.compile(backend="eager", fullgraph=True)
def compiled(x):  # a function of the script that the backend is in
    return x + 1


assert compiled(torch.ones(2)).tolist() == [2, 2]
"""


def test_a_device_without_kernels_runs_pytorchs_own(tmp_path: Path) -> None:
    """Steps equal the CPU's to the digit; the backend is in a script, which has no module spec."""
    script = tmp_path / "bare.py"
    script.write_text(BARE)
    subprocess.run([sys.executable, str(script)], check=True, timeout=300)
