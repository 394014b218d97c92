"""Properties of PyTorch's tensors that programs rely on, on one of Treadle's devices."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch

from treadle.interop.torch.arrays import DTYPES, PARTS


def _require_equal(got: torch.Tensor, wanted: torch.Tensor, told: str) -> None:
    there = got.cpu()
    if there.dtype is not wanted.dtype or not torch.equal(there, wanted):
        raise AssertionError(f"{told}: {there.tolist()}, not {wanted.tolist()}")


def copies(device: str) -> None:
    """Tensors of every element type, with and without elements, come back as they went."""
    for dtype in (*DTYPES, *PARTS):
        for shape in ((), (0, 3), (5,), (2, 3, 4)):
            x = torch.arange(24).remainder(7)[: max(1, torch.Size(shape).numel())]
            x = (x.to(dtype) if shape != (0, 3) else x[:0].to(dtype)).reshape(shape)
            there = x.to(device)
            if there.device != torch.device(device):
                raise AssertionError(f"a copy is on {there.device}")
            _require_equal(there, x, f"{dtype} {list(shape)}")
            _require_equal(there.clone(), x, f"a clone of {dtype} {list(shape)}")
            _require_equal(torch.empty_like(there).copy_(x), x, f"copy_ of {dtype}")
    x = torch.arange(12.0).reshape(3, 4)
    _require_equal(x.t().to(device), x.t(), "a transposed tensor")
    _require_equal(x.to(device).t().to("cpu"), x.t(), "one that is transposed there")


def copies_between_devices(device: str) -> None:
    """Check that tensors go to every other device and back."""
    x = torch.arange(12.0).reshape(3, 4)
    for i in range(torch.treadle.device_count()):  # type: ignore[attr-defined, unused-ignore]
        other = f"treadle:{i}"
        _require_equal(x.to(device).to(other), x, f"to {other}")
        _require_equal(x.to(other).t().to(device), x.t(), f"from {other}")


def views(device: str) -> None:
    """Check that views share memory: what is written through one is seen through all."""
    x, y = torch.zeros(4, 6), torch.zeros(4, 6, device=device)
    for t in (x, y):
        t[1] = 1.0
        t.t()[2:4, 1:3] += 2.0
        t.view(-1)[::5] = 3.0
        t.as_strided((2, 2), (6, 1), 8).mul_(10)
        t.unsqueeze(0).squeeze(0).diagonal().sub_(1)
        t.narrow(1, 4, 2).copy_(torch.arange(8.0).reshape(4, 2))
    _require_equal(y, x, "writes through views")
    if y[2:].untyped_storage().data_ptr() != y.untyped_storage().data_ptr():
        raise AssertionError("a view has a storage of its own")


def writes(device: str) -> None:
    """Check in-place operators and `out=`, also where they are cast, resized or masked."""
    x, y = torch.arange(6.0), torch.arange(6.0).to(device)
    for t in (x, y):
        t.add_(1).mul_(t).clamp_(max=20)
        t[t > 10] = -1
        t.index_put_((torch.tensor([0, 0], device=t.device),), t[1:3].clone(), accumulate=True)
        torch.add(t, t, out=t)
    _require_equal(y, x, "in place")
    made = torch.empty(0, device=device)
    torch.mul(y, 2, out=made)
    _require_equal(made, x * 2, "out= without room")
    counts = torch.zeros(3, dtype=torch.int64).to(device)
    counts += torch.tensor([True, False, True]).to(device)
    _require_equal(counts, torch.tensor([1, 0, 1]), "bool added to int64")


def gradients(device: str) -> None:
    """Autograd sees what it should: hooks, versions, second derivatives."""
    x: Any = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    seen: list[Any] = []
    y = x * x
    y.register_hook(lambda grad: seen.append(grad.cpu().tolist()))
    slope: Any = torch.autograd.grad((y * x).sum(), x, create_graph=True)[0]
    slope.sum().backward()
    if x.grad is None or seen[:1] != [[1.0, 2.0, 3.0]]:
        raise AssertionError(f"gradients: {x.grad}, seen by hooks {seen}")
    _require_equal(x.grad, torch.tensor([6.0, 12.0, 18.0]), "second derivatives of x**3")
    z = x.exp()
    with torch.no_grad():
        z.add_(1)
    try:
        z.sum().backward()
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
    else:
        raise AssertionError("a tensor that backward needs was changed, and no error was raised")


def saved(device: str) -> None:
    """`torch.save` and `torch.load` from, to and between devices; `deepcopy`."""
    x = torch.arange(6.0).reshape(2, 3)
    there = x.to(device)
    file = io.BytesIO()
    torch.save({"x": there, "view": there[1]}, file)
    for where in (None, "cpu", device):
        file.seek(0)
        state = torch.load(file, map_location=where)
        if state["x"].device != torch.device(where or device):
            raise AssertionError(f"map_location={where} gives {state['x'].device}")
        _require_equal(state["x"], x, f"loaded to {where}")
        state["view"].fill_(7)
        _require_equal(state["x"][1], torch.full((3,), 7.0), "a view that was loaded")
    copied = copy.deepcopy(there)
    there.zero_()
    _require_equal(copied, x, "deepcopy")


def random_numbers(device: str) -> None:
    """Check that the same seed gives the same numbers, and the next ones are others."""
    torch.manual_seed(3)
    first = torch.rand(50, device=device)
    second = torch.rand(50, device=device)
    torch.manual_seed(3)
    again = torch.rand(50, device=device)
    _require_equal(again, first.cpu(), "numbers after the same seed")
    if torch.equal(first.cpu(), second.cpu()) or not 0 < float(first.mean()) < 1:
        raise AssertionError(f"random numbers: {first.cpu().tolist()}")


def between_graphs(device: str) -> None:
    """Check that operators run as they are between two graphs of one compiled function."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).tanh()
        torch._dynamo.graph_break()
        z = y.flip(0) @ y.t()
        return torch.stack([z.sum() + i for i in range(y.nonzero().shape[0])])

    x = torch.tensor([[0.5, 0.0], [-1.0, 2.0]])
    compiled = torch.compile(function, backend="treadle")
    for _ in range(2):
        got, wanted = compiled(x.to(device)).cpu(), function(x)
        if not torch.allclose(got, wanted, atol=1e-5):
            raise AssertionError(f"{got.tolist()}, not {wanted.tolist()}")


def mistakes(device: str) -> None:
    """Shapes that do not fit and tensors of several devices are errors in PyTorch's words."""
    x = torch.ones(2, 3, device=device)
    wrong: dict[str, Callable[[], Any]] = {
        "shapes that do not fit": lambda: x @ x,
        "tensors of two devices": lambda: x + torch.ones(2, 3),
    }
    for told, call in wrong.items():
        try:
            call()
        except RuntimeError:
            continue
        raise AssertionError(f"{told} are accepted")
    _require_equal(x + x, torch.full((2, 3), 2.0), "after mistakes")


CHECKS: dict[str, Callable[[str], None]] = {
    check.__name__: check
    for check in (
        copies,
        copies_between_devices,
        views,
        writes,
        gradients,
        saved,
        random_numbers,
        between_graphs,
        mistakes,
    )
}
