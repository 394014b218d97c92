"""Plug-ins that raise in a kernel, an allocation, a copy: one error each, and life goes on."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import treadle

torch = pytest.importorskip("torch")

from treadle.backends import registry  # noqa: E402
from treadle.backends.api import Kernel  # noqa: E402
from treadle.base.errors import DeviceError  # noqa: E402

pytestmark = pytest.mark.torch_device

BROKEN: set[str] = set()
"""Calls of the device, and kernels, that raise now."""


@pytest.fixture(scope="module")
def flaky(devices: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Two devices of a backend whose calls raise on request."""
    import treadle_toy

    class FlakyDevice(treadle_toy.ToyDevice):
        pass

    def checked(name: str) -> Callable[..., Any]:
        whole = getattr(treadle_toy.ToyDevice, name)

        def call(self: Any, *args: Any) -> Any:
            if name in BROKEN:
                raise OSError(f"{name}: the link is down")
            return whole(self, *args)

        call.__name__ = name  # which errors tell
        return call

    for name in ("alloc", "copy_in", "copy_out"):
        setattr(FlakyDevice, name, checked(name))

    def trapping(kernel: Kernel) -> Kernel:
        def run(*args: Any) -> None:
            if kernel.op in BROKEN:
                raise ZeroDivisionError("trap 3")
            kernel.run(*args)

        return Kernel(kernel.op, run, kernel.supports)

    class FlakyBackend(treadle_toy.ToyBackend):
        name = "flaky"
        device_kinds = ("flaky",)

        def open(self, index: int) -> Any:
            return FlakyDevice(index)

        def kernels(self) -> list[Kernel]:
            return [trapping(kernel) for kernel in treadle_toy.KERNELS]

    made = FlakyBackend()
    registry.entries()["flaky"] = registry.BackendEntry("flaky", "a test", lambda: made)
    from treadle.interop.torch.device import places

    places.places.cache_clear()
    names = [torch.treadle.get_device_name(i) for i in range(torch.treadle.device_count())]
    yield f"treadle:{names.index('flaky0')}", f"treadle:{names.index('flaky1')}"
    BROKEN.clear()
    registry.rescan()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with treadle.fallback("silent"):
        yield
    BROKEN.clear()


def fails(broken: str, run: Callable[[], Any], *words: str) -> None:
    """A run raises one error with these words while something is broken, and then works again."""
    expected = run()
    BROKEN.add(broken)
    for _ in range(2):
        with pytest.raises(DeviceError) as caught:
            run()
        assert isinstance(caught.value, RuntimeError)  # as PyTorch's programs expect of devices
        for word in ("flaky", *words):
            assert word in str(caught.value)
    BROKEN.clear()
    again = run()
    assert torch.equal(torch.as_tensor(again), torch.as_tensor(expected))


def test_kernels(flaky: tuple[str, str]) -> None:
    x = torch.arange(4.0, device=flaky[0])
    fails("add", lambda: (x + x).cpu(), "add: the kernel", "ZeroDivisionError: trap 3")
    compiled = torch.compile(lambda x: (x * 2).exp(), backend="treadle")
    fails("mul", lambda: compiled(x).cpu(), "mul: the kernel", "trap 3")


def test_writes_are_not_begun(flaky: tuple[str, str]) -> None:
    x = torch.arange(4.0, device=flaky[0])
    out = torch.ones(4, device=flaky[0])
    BROKEN.add("add")
    with pytest.raises(DeviceError, match="trap 3"):
        x.add_(x)
    with pytest.raises(DeviceError, match="trap 3"):
        torch.add(x, x, out=out)
    assert x.tolist() == [0, 1, 2, 3] and out.tolist() == [1] * 4
    BROKEN.clear()
    assert x.add_(x).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("broken", "words"),
    [("matmul", "matmul: the kernel"), ("alloc", "alloc failed"), ("copy_out", "copy_out failed")],
)
def test_backward(flaky: tuple[str, str], compiled: bool, broken: str, words: str) -> None:
    x = torch.arange(16.0, device=flaky[0]).reshape(4, 4) / 16
    w = torch.eye(4, device=flaky[0]).requires_grad_()

    def forward(w: Any) -> Any:
        return (x @ w).exp().sum()

    call = torch.compile(forward, backend="treadle") if compiled else forward

    def run() -> Any:
        BROKEN.clear()
        w.grad = None
        loss = call(w)
        BROKEN.update(wanted)
        loss.backward()
        return w.grad.cpu()

    wanted: set[str] = set()
    expected = run()
    wanted = {broken}
    for _ in range(2):
        with pytest.raises(DeviceError, match=words):
            run()
    wanted = set()
    assert torch.equal(run(), expected)


def test_steps_of_optimizers(flaky: tuple[str, str]) -> None:
    w = torch.ones(4, device=flaky[0], requires_grad=True)
    w.grad = torch.ones_like(w)
    optimizer = torch.optim.SGD([w], lr=0.5)
    BROKEN.update(("add", "sub", "mul"))
    with pytest.raises(DeviceError, match="trap 3"):
        optimizer.step()
    BROKEN.clear()
    assert w.tolist() == [1] * 4
    optimizer.step()
    assert w.tolist() == [0.5] * 4


def test_copies(flaky: tuple[str, str]) -> None:
    """To the host, from the host, between devices: the error is where the bytes move."""
    one, two = flaky
    host = torch.arange(4.0)
    x = host.to(one)
    lost = ("copy_out failed", "the link is down")
    fails("copy_out", lambda: (x + x).cpu(), *lost)
    fails("copy_out", lambda: (x + x).sum().item(), *lost)
    fails("copy_out", lambda: (x + x).to(two).cpu(), *lost)
    fails("copy_out", lambda: (x + x).nextafter(x).cpu(), *lost)  # which the host computes
    fails("copy_in", lambda: (host.to(one) + 1).cpu(), "copy_in failed", "the link is down")
    fails("copy_in", lambda: ((x + x).to(two) + 1).cpu(), "flaky1: copy_in failed")
    fails("alloc", lambda: (x + x).cpu(), "alloc failed")


def test_printing(flaky: tuple[str, str]) -> None:
    x = torch.arange(4.0, device=flaky[0])
    BROKEN.add("copy_out")
    with pytest.raises(DeviceError, match="copy_out failed"):
        repr(x + x)
    BROKEN.clear()
    assert "6." in repr(x + x)
