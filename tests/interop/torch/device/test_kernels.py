"""Operators on devices are Treadle's ops, with PyTorch's numbers, strides and writes."""

from typing import Any

import pytest

import treadle

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch_device
F = torch.nn.functional

_CALLS = {
    "add": lambda x, y: x + y,
    "of views": lambda x, y: x.t()[1:, ::2] @ y[::2, :3],
    "repeated": lambda x, y: x[:1].expand(4, 6) * y,
    "channels last": lambda x, y: F.conv2d(
        x.reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last), y.view(3, 2, 2, 2)
    ),
    "several results": lambda x, y: torch.cat([*x.sort(1), *y.topk(2)], 1),
    "taken apart": lambda x, y: F.layer_norm(x, (6,), y[0], y[1]),
    "integers": lambda x, y: x.mul(9).int() // (y.mul(9).int().abs() + 1),
    "complex": lambda x, y: torch.complex(x, y).conj() * (1 + 2j),
    "sixteen bits": lambda x, y: (x.bfloat16() @ y.t().bfloat16()).float(),
    "constant": lambda x, y: torch.zeros_like(x).add_(y),
    "in place": lambda x, y: x.clone().mul_(y).clamp_(-1, 1).add_(y, alpha=-0.5),
    "out": lambda x, y: torch.mul(x, y, out=torch.empty_like(y)),
    "out of another type": lambda x, y: torch.add(
        x, y, out=torch.empty(4, 6).double().to(x.device)
    ),
    "into a view": lambda x, y: x.clone().t().add_(y.t()).t(),
    "nothing": lambda x, y: x[:0] + y[:0],
    "number": lambda x, y: x.pow(2).sum() * 3,
    "means kept": lambda x, y: F.instance_norm(x.view(2, 3, 4)),
}


@pytest.mark.parametrize("name", _CALLS)
def test_calls_equal_pytorchs(device: str, name: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    call = _CALLS[name]
    expected = call(x, y)
    there = [v.to(device) for v in (x, y)]
    with treadle.fallback("error" if device == "treadle:0" else "silent"):
        for _ in range(2):  # written, then known
            found = call(*there)
            torch.testing.assert_close(found.cpu(), expected)
            assert found.stride() == expected.stride()
            found.zero_()  # nobody else's memory
    assert torch.equal(there[0].cpu(), x) and torch.equal(there[1].cpu(), y)


def test_batch_norm_writes_running_means(device: str) -> None:
    found: list[Any] = []
    x = torch.arange(12.0).reshape(4, 3)
    for where in ("cpu", device):
        norm = torch.nn.BatchNorm1d(3).to(where)
        norm(x.to(where))
        found.append(
            [norm.running_mean.cpu(), norm.running_var.cpu(), norm.eval()(x.to(where)).cpu()]
        )
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: x.int().add_(0.5), "can't be cast"),
        (lambda x: x.expand(3, 4).add_(1), "single memory location"),
        (lambda x: x + torch.ones(5, device=x.device), "must match the size"),
        (lambda x: x @ x.double(), "dtype"),
        (lambda x: x.add_(torch.ones(2, 4, device=x.device)), "doesn't match the broadcast"),
    ],
)
def test_what_pytorch_refuses_is_refused_in_its_words(device: str, call: Any, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        call(torch.ones(4, device=device))


def test_tensors_of_the_cpu_are_refused_but_for_numbers(device: str) -> None:
    x = torch.ones(3, device=device)
    assert (x * torch.tensor(2.0)).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(3)


@pytest.mark.parametrize("name", ["sgn", "sign", "round", "floor", "trunc"])
def test_gradients_that_are_zero_everywhere(device: str, name: str) -> None:
    """PyTorch makes some of them without memory."""
    x = torch.randn(4).to(device).requires_grad_()
    getattr(x, name)().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), torch.zeros(4))
