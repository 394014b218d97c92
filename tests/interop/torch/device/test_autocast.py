"""Mixed precision on devices: Treadle's lists, PyTorch's blocks and scaler."""

from typing import Any

import pytest

import treadle

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch_device
F = torch.nn.functional
LOW, FULL = torch.bfloat16, torch.float32

_CALLS = {
    "matmul": (lambda x: x @ x.t(), LOW),
    "linear": (lambda x: F.linear(x, x), LOW),
    "conv2d": (lambda x: F.conv2d(x[None, None], x[None, None, :2, :2]), LOW),
    "attention": (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]), LOW),
    "softmax": (lambda x: x.to(LOW).softmax(1), FULL),
    "layer_norm": (lambda x: F.layer_norm(x.to(LOW), (4,)), FULL),
    "loss": (lambda x: F.mse_loss(x.to(LOW), x.to(LOW)), FULL),
    "exp": (lambda x: x.to(LOW).exp(), FULL),
    "widest": (lambda x: torch.addcmul(x, x.to(LOW), x.to(LOW)), FULL),
    "widest of few bits": (lambda x: torch.dot(x[0].to(LOW), x[0].to(LOW)), LOW),
    "not listed": (lambda x: x.to(LOW).relu(), LOW),
    "doubles stay": (lambda x: x.double() @ x.double(), torch.float64),
    "integers stay": (lambda x: x.int() + 1, torch.int32),
}


@pytest.mark.parametrize("name", _CALLS)
def test_operators_compute_in_the_listed_type(device: str, name: str) -> None:
    torch.manual_seed(0)
    call, dtype = _CALLS[name]
    x = torch.randn(4, 4)
    there = x.to(device)
    with torch.autocast("treadle", dtype=LOW):
        found = call(there)
    assert found.dtype is dtype
    expected = call(x) if dtype is not LOW else call(x.to(LOW))
    torch.testing.assert_close(found.cpu().float(), expected.float(), rtol=3e-2, atol=3e-2)
    with torch.autocast("treadle", enabled=False):
        assert (there @ there).dtype is FULL


def _losses(device: str, dtype: Any, *, scaled: bool) -> list[float]:
    torch.manual_seed(3)
    layers = [torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(144, 3)).to(device)
    x, y = torch.randn(6, 1, 8, 8).to(device), torch.arange(6).remainder(3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(torch.device(device).type, init_scale=64.0, enabled=scaled)
    found = []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast(torch.device(device).type, dtype=dtype):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append(loss.item())
    assert all(p.dtype is FULL and p.grad.dtype is FULL for p in model.parameters())
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_in_few_bits_follows_the_cpus(device: str, dtype: Any) -> None:
    expected = _losses("cpu", dtype, scaled=False)
    found = _losses(device, dtype, scaled=dtype is torch.float16)
    assert found[-1] < found[0]
    torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)


def test_a_scaler_skips_steps_whose_gradients_are_infinite(device: str) -> None:
    weight = torch.nn.Parameter(torch.ones(3).to(device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("treadle", init_scale=4.0)
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1, 1, 1] and scaler.get_scale() == 2.0


def test_the_backward_of_a_block_computes_in_few_bits_too(device: str) -> None:
    x = torch.randn(4, 4)
    found = []
    for where in ("cpu", device):
        leaf = x.clone().to(where).detach().requires_grad_()
        with torch.autocast(torch.device(where).type, dtype=LOW):
            y = leaf @ leaf
        y.float().square().sum().backward()
        found.append(leaf.grad.cpu())
    exact = x.clone().requires_grad_()
    (exact @ exact).square().sum().backward()
    assert found[1].dtype is FULL and not torch.equal(found[1], exact.grad)
    torch.testing.assert_close(found[1], found[0], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("training", [True, False])
def test_norms_of_images_in_few_bits_stay_on_the_device(training: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5, 5).to(LOW)
    found = []
    for where in ("cpu", "treadle:0"):
        norm = torch.nn.BatchNorm2d(3).to(where).train(training)
        with treadle.fallback("error"):
            y = norm(x.to(where))
        found.append([y.cpu(), norm.running_mean.cpu(), norm.running_var.cpu()])
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-2)
