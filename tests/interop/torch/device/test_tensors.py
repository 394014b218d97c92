"""Tensors on Treadle's devices are PyTorch's own: views, writes, copies, storages."""

import copy
import io
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch_device


def test_devices_are_the_host_and_those_of_plug_ins(devices: dict[str, str]) -> None:
    assert devices["cpu0"] == "treadle:0"
    assert {"toy0", "toy1"} <= set(devices)


def test_tensor_prints_as_pytorchs(device: str) -> None:
    x = torch.tensor([[1.5, -2.0]], device=device)
    assert type(x) is torch.Tensor
    assert repr(x) == f"tensor([[ 1.5000, -2.0000]], device='{device}')"


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "uint8", "uint16", "int64", "float16", "bfloat16"),
        *("complex64", "float8_e4m3fn", "float8_e5m2"),
    ],
)
def test_every_element_type_travels(device: str, dtype: str) -> None:
    x = torch.tensor([0, 1, 3]).to(getattr(torch, dtype))
    there = x.to(device)
    assert there.dtype is x.dtype and there.device == torch.device(device)
    back = there.clone().cpu()
    assert torch.equal(back.view(torch.uint8), x.view(torch.uint8))


def test_views_share_memory(device: str) -> None:
    x = torch.zeros(3, 4, device=device)
    x.t()[1].add_(2)
    x[:, 3:].fill_(7)
    x.view(-1)[0] = 5
    expected = torch.zeros(3, 4)
    expected.t()[1].add_(2)
    expected[:, 3:].fill_(7)
    expected.view(-1)[0] = 5
    assert torch.equal(x.cpu(), expected)
    assert x.t().untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_versions_catch_what_backward_needs_and_was_overwritten(device: str) -> None:
    x = torch.ones(3, device=device, requires_grad=True)
    y = x.exp()
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_in_place_on_a_view_is_differentiated(device: str) -> None:
    x = torch.ones(2, 3, device=device, requires_grad=True)
    y = x * 2
    y[0].mul_(5)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), torch.tensor([[10.0] * 3, [2.0] * 3]))


def test_out_is_resized_and_written(device: str) -> None:
    out = torch.empty(0, device=device)
    returned = torch.add(torch.ones(4, device=device), 1, out=out)
    assert returned is out and torch.equal(out.cpu(), torch.full((4,), 2.0))


def test_resize_keeps_bytes_and_grows(device: str) -> None:
    x = torch.arange(4.0, device=device)
    x.resize_(2, 4)
    assert x.shape == (2, 4) and torch.equal(x[0].cpu(), torch.arange(4.0))
    assert x.fill_(3).sum().item() == 24


def test_set_puts_a_tensor_on_another_storage(device: str) -> None:
    x, y = torch.zeros(2, device=device), torch.arange(6.0, device=device)
    x.set_(y.untyped_storage(), 1, (2, 2), (2, 1))
    y[4] = 40
    assert torch.equal(x.cpu(), torch.tensor([[1.0, 2.0], [3.0, 40.0]]))
    assert x.set_().numel() == 0


def test_copies_between_devices(devices: dict[str, str]) -> None:
    places = [*devices.values(), "cpu"]
    x = torch.arange(6.0).reshape(2, 3)
    for source in places:
        for target in places:
            moved = x.to(source).t().to(target)
            assert str(moved.device) == target and torch.equal(moved.cpu(), x.t())


def test_mixed_devices_are_refused(devices: dict[str, str]) -> None:
    x, y = (torch.ones(2, device=devices[name]) for name in ("toy0", "toy1"))
    with pytest.raises(RuntimeError, match="same device"):
        x + y


def test_unknown_number_is_refused_with_the_list() -> None:
    with pytest.raises(RuntimeError, match=r"no device treadle:99[\s\S]*treadle:0 \(cpu0"):
        torch.empty(2, device="treadle:99")


def test_complex_bits_are_kept_and_resolved(device: str) -> None:
    z = torch.tensor([1 + 2j, 3 - 1j])
    there = z.to(device)
    assert there.conj().is_conj() and torch.equal(there.conj().cpu(), z.conj())
    assert torch.equal((there.conj() * there).real.cpu(), (z.conj() * z).real)
    assert torch.equal(there.conj().imag.cpu(), z.conj().imag)


@pytest.mark.parametrize("moved", ["same", "cpu", "other"])
def test_files_load_where_they_are_wanted(device: str, moved: str, devices: dict[str, str]) -> None:
    file = io.BytesIO()
    x = torch.arange(6.0, device=device)
    torch.save({"whole": x, "part": x[2:4]}, file)
    file.seek(0)
    where = {"same": None, "cpu": "cpu", "other": devices["toy0"]}[moved]
    read = torch.load(file, map_location=where)
    assert {str(t.device) for t in read.values()} == {where or device}
    read["part"][0] = 20  # on one storage, as when it was saved
    assert read["whole"][2].item() == 20


def test_copies_of_tensors_and_modules_are_their_own(device: str) -> None:
    layer = torch.nn.Linear(2, 2).to(device)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.weight.zero_()
    assert other.weight.device == torch.device(device) and layer.weight.abs().sum().item() > 0
    x = torch.arange(4.0, device=device)
    pair = copy.deepcopy({"x": x, "y": x[1:]})
    pair["y"][0] = 9
    assert pair["x"].tolist() == [0, 9, 2, 3] and x.tolist() == [0, 1, 2, 3]


def test_batches_are_pinned(device: str) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)
    sums = [b.to(device, non_blocking=True).sum().item() for (b,) in loader]
    assert sums == [1, 5]


def test_threads_differentiate_at_once(device: str) -> None:
    found: list[float] = []

    def work(scale: float) -> None:
        x = torch.full((50,), scale, device=device, requires_grad=True)
        for _ in range(10):
            (x * x).sum().backward()
        found.append(x.grad.sum().item() / scale)

    threads = [threading.Thread(target=work, args=(float(n),)) for n in (1, 2, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [1000.0] * 3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda d: torch.empty(2, device=d, pin_memory=True), "only tensors of the cpu can be"),
        (lambda d: torch.zeros(2, device=d).untyped_storage().resize_(999), "cannot grow to 999"),
        (lambda d: torch.zeros(2, device=d).numpy(), "Use Tensor.cpu"),
        (lambda d: torch.zeros(2, device=d).to_sparse(), "Sparse"),
        (lambda d: torch.Generator(d), "enerator"),
    ],
)
def test_what_cannot_be_is_refused_in_words(device: str, make: Any, said: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=said):
        make(device)
