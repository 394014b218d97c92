"""PyTorch programs on Treadle's devices do what they do on the CPU."""

from typing import Any

import pytest

import treadle

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch_device
nn = torch.nn


def _image_net() -> Any:
    # Without a bias, which the norm takes out: its gradient is rounding, and Adam makes it large.
    layers = [nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25), nn.Linear(8, 4))


def _trained(device: str, optimizer: Any, **options: Any) -> list[Any]:
    torch.manual_seed(1)
    model = _image_net()
    x, y = torch.randn(8, 3, 8, 8).to(device), torch.arange(8).remainder(4).to(device)
    model.to(device)
    made = optimizer(model.parameters(), lr=0.01, **options)
    torch.manual_seed(2)
    for _ in range(3):
        made.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        made.step()
    return [v.detach().cpu() for v in model.state_dict().values()]


_OPTIMIZERS = [
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.SGD, {"fused": True}),
    (torch.optim.Adam, {"foreach": True}),
    (torch.optim.AdamW, {"foreach": False}),
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.RMSprop, {}),
]


@pytest.mark.parametrize(("optimizer", "options"), _OPTIMIZERS)
def test_training_gives_the_cpus_numbers(device: str, optimizer: Any, options: Any) -> None:
    there = _trained(device, optimizer, **options)
    for ours, theirs in zip(there, _trained("cpu", optimizer, **options), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_give_the_cpus_gradients(device: str, kind: Any) -> None:
    torch.manual_seed(0)
    layer = kind(3, 4, num_layers=2, bidirectional=True).double()
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    found = []
    for where in ("cpu", device):
        layer.to(where).zero_grad()
        y, state = layer(x.to(where))
        last = state[1] if kind is nn.LSTM else state
        (y.sin().sum() + last.cos().sum()).backward()
        found.append([y.cpu(), *(p.grad.cpu() for p in layer.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_repeats_the_same_dropout(device: str, reentrant: bool) -> None:
    x = torch.ones(1000, device=device, requires_grad=True)
    run = torch.utils.checkpoint.checkpoint
    y = run(lambda v: nn.functional.dropout(v) * 3, x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of what jvp imports
def test_function_transforms(device: str) -> None:
    x = torch.arange(6.0, device=device).reshape(2, 3)
    assert torch.equal(torch.func.grad(lambda v: (v * v).sum())(x), 2 * x)
    assert torch.func.vmap(lambda v: v.sum())(x).tolist() == [3, 12]
    _, tangent = torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, x.cos())


def test_random_numbers_equal_the_cpus_and_states_return(device: str) -> None:
    torch.manual_seed(7)
    expected = torch.randn(5)
    torch.manual_seed(7)
    assert torch.equal(torch.randn(5, device=device).cpu(), expected)
    state = torch.treadle.get_rng_state(device)
    first = torch.rand(3, device=device)
    torch.treadle.set_rng_state(state, device)
    assert torch.equal(torch.rand(3, device=device), first)
    with torch.random.fork_rng(devices=[torch.device(device)], device_type="treadle"):
        torch.rand(3, device=device)
    again = torch.treadle.get_rng_state(device)
    torch.treadle.set_rng_state(state, device)
    torch.rand(3, device=device)
    assert torch.equal(torch.treadle.get_rng_state(device), again)


def test_backward_crosses_devices(devices: dict[str, str]) -> None:
    x = torch.ones(3, device=devices["toy0"], requires_grad=True)
    with treadle.fallback("silent"):
        (x.to(devices["toy1"]) * 2).to("treadle:0").sum().backward()
    assert str(x.grad.device) == devices["toy0"] and x.grad.tolist() == [2, 2, 2]


def test_fallback_is_counted_and_refused_by_name(device: str) -> None:
    x = torch.ones(4, device=device)
    treadle.fallback_report(clear=True)
    x.nextafter(x)
    (row,) = treadle.fallback_report()
    assert (row.op, row.device, row.calls) == ("aten::nextafter", device, 1)
    refused = r"aten::nextafter[\s\S]*test_programs.py"
    with treadle.fallback("error"), pytest.raises(NotImplementedError, match=refused):
        x.nextafter(x)


def test_current_device_is_the_threads(devices: dict[str, str]) -> None:
    toy = torch.device(devices["toy1"])
    with torch.treadle.device(toy):
        assert torch.treadle.current_device() == toy.index
        assert torch.empty(1, device="treadle").device == toy
    assert torch.empty(1, device="treadle").device.index == 0
    with torch.treadle.device(-1):
        assert torch.treadle.current_device() == 0
    with pytest.raises(RuntimeError, match="no device treadle:77"):
        torch.treadle.set_device(77)


def test_events_and_memory(device: str) -> None:
    begin, end = (torch.treadle.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.ones(100, device=device) + 1
    end.record()
    assert begin.elapsed_time(end) > 0
    with pytest.raises(RuntimeError, match="enable_timing"):
        torch.treadle.Event().elapsed_time(end)
    torch.treadle.synchronize(device)
    assert torch.treadle.get_device_properties(device).kind in ("cpu", "toy")
    assert torch.treadle.memory_allocated(device) >= 0
