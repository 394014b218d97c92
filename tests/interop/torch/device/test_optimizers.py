"""Optimizers over lists of parameters: one call for all, with PyTorch's numbers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import treadle

torch = pytest.importorskip("torch", reason="needs PyTorch")

from treadle.interop.torch.device import calls, hot  # noqa: E402
from treadle.interop.torch.device.planned import DeviceCall  # noqa: E402

pytestmark = pytest.mark.torch_device
F = torch.nn.functional

_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "AdamW": [{}, {"amsgrad": True}, {"maximize": True, "betas": (0.3, 0.9)}],
    "Adam": [{"weight_decay": 0.1}],
    "SGD": [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.1},
    ],
    "Adagrad": [{"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1}],
}


def _cases() -> Iterator[Any]:
    for name, listed in _OPTIONS.items():
        for options in listed:
            for way in ("single", "foreach", "fused"):
                chosen = {"foreach": way == "foreach", "fused": way == "fused"}
                yield pytest.param(name, {**options, **chosen}, id=f"{name}-{options}-{way}")
    for name in ("RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "Rprop", "ASGD"):
        yield pytest.param(name, {}, id=name)


def _trained(device: str, make: Callable[..., Any], steps: int = 8) -> list[Any]:
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    g = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x, y = torch.randn(6, 8, generator=g), torch.randn(6, 4, generator=g)
        optimizer.zero_grad()
        F.mse_loss(model(x.to(device)), y.to(device)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize(("name", "options"), list(_cases()))
def test_steps_are_those_of_the_cpu(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot, "HOT", 3)  # op by op, compiled, known
    make = getattr(torch.optim, name)
    expected = _trained("cpu", lambda p: make(p, **options))
    with treadle.fallback("error"):
        found = _trained("treadle:0", lambda p: make(p, **options))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize("way", ["foreach", "fused"])
def test_a_step_of_all_parameters_is_one_call_of_each_kind(way: str) -> None:
    """However many parameters there are, and whatever the learning rate is."""
    weights = [torch.randn(n + 1, 3, device="treadle:0", requires_grad=True) for n in range(6)]
    optimizer = torch.optim.AdamW(weights, **{way: True})
    counts = []
    for _ in range(3):
        for w in weights:
            w.grad = torch.ones_like(w)
        before = {k: p.calls for k, p in calls._PLANS.items() if isinstance(p, DeviceCall)}
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9
        after = {k: p.calls for k, p in calls._PLANS.items() if isinstance(p, DeviceCall)}
        made = {k[0]: n - before.get(k, 0) for k, n in after.items() if n > before.get(k, 0)}
        counts.append(sum(made.values()))
    assert counts[1] == counts[2] <= (2 if way == "fused" else 9)


def test_gradients_that_are_not_finite_leave_weights_alone() -> None:
    for options in ({"fused": True}, {}):
        w = torch.ones(4, device="treadle:0", requires_grad=True)
        optimizer = torch.optim.AdamW([w], lr=0.5, **options)
        scaler = torch.amp.GradScaler("treadle", init_scale=8.0)
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale((w * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        there = torch.ones(4, requires_grad=True)
        other = torch.optim.AdamW([there], lr=0.5)
        for _ in range(2):
            other.zero_grad()
            there.sum().backward()
            other.step()
        torch.testing.assert_close(w.detach().cpu(), there.detach())
        assert scaler.get_scale() == 4.0


@pytest.mark.parametrize("device", ["toy1"])
def test_a_device_of_its_own_memory_steps_as_well(device: str, devices: dict[str, str]) -> None:
    with treadle.fallback("silent"):
        for options in ({"fused": True}, {"foreach": True}):
            make = lambda p, o=options: torch.optim.AdamW(p, **o)  # noqa: E731
            expected = _trained("cpu", make, 3)
            torch.testing.assert_close(_trained(devices[device], make, 3), expected)
