"""Calls that native code runs: views by PyTorch's C interface, and operators that come often."""

import contextlib
import copy
import gc
import io
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from treadle.base.errors import CompileError  # noqa: E402
from treadle.base.observer import observe  # noqa: E402
from treadle.interop.torch.device import calls, hot  # noqa: E402
from treadle.interop.torch.native import library as native  # noqa: E402
from treadle.interop.torch.native.library import library  # noqa: E402

pytestmark = [
    pytest.mark.torch_device,
    pytest.mark.skipif(library() is None, reason="there is no native part on this machine"),
]
HOME = "treadle:0"
F = torch.nn.functional
Tensor = Any


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot, "HOT", 2)


# -- views -------------------------------------------------------------------------------------


def _tries(rng: random.Random, x: Tensor) -> Callable[[Tensor], Tensor]:
    """A view that may be right or wrong."""
    if rng.random() < 0.5:
        rest, sizes = x.numel(), list[int]()
        while rest > 1 and len(sizes) < 4:
            sizes.append(rng.choice([n for n in range(1, rest + 1) if not rest % n]))
            rest //= sizes[-1]
        sizes.append(rest)
        rng.shuffle(sizes)
        if rng.random() < 0.4:
            sizes[rng.randrange(len(sizes))] = rng.choice([-1, -1, -2, 5])
        return lambda t: t.view(sizes)
    axes = rng.randint(0, 3)
    sizes = [rng.randint(0, 4) for _ in range(axes)]
    strides = [rng.randint(-1, 6) for _ in range(axes if rng.random() < 0.95 else axes + 1)]
    offset = rng.choice([None, 0, 1, 2, -1, 5])
    return lambda t: t.as_strided(sizes, strides, offset)


def _changed(rng: random.Random, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """The same view of both."""
    if c.dim() >= 2 and rng.random() < 0.5:
        i, j = rng.sample(range(c.dim()), 2)
        return c.transpose(i, j), d.transpose(i, j)
    if c.dim() and rng.random() < 0.7:
        axis = rng.randrange(c.dim())
        start, step = rng.randint(0, max(c.shape[axis] - 1, 0)), rng.randint(1, 2)
        index = (*[slice(None)] * axis, slice(start, None, step))
        return c[index], d[index]
    return c.unsqueeze(0), d.unsqueeze(0)


def _answer(view: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    try:
        return view(x)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(4))
def test_views_are_those_of_pytorch(seed: int) -> None:
    rng = random.Random(seed)
    refused = 0
    for _ in range(400):
        c = torch.randn([rng.choice([0, 1, 1, 2, 3, 4, 6]) for _ in range(rng.randint(0, 4))])
        d = c.to(HOME)
        for _ in range(rng.randint(0, 2)):
            c, d = _changed(rng, c, d)
        view = _tries(rng, c)
        wanted, found = _answer(view, c), _answer(view, d)
        if isinstance(wanted, str):
            refused += 1
            is_beyond = "beyond the memory" in found and "out of bounds" in wanted
            assert found == wanted or is_beyond
            continue
        assert (found.shape, found.stride()) == (wanted.shape, wanted.stride())
        assert found.storage_offset() == wanted.storage_offset()
        assert found._base is not None and torch.equal(found.cpu(), wanted)
    assert refused > 20


_FAR = 1 << 61
_BEYOND: dict[str, Callable[[Tensor], Tensor]] = {
    "stride": lambda x: x.as_strided((2,), (_FAR,)),
    "product": lambda x: x.as_strided((1 << 32, 1), (1 << 32, 1)),
    "sum": lambda x: x.as_strided((3, 3), (_FAR, _FAR), 1),
    "offset": lambda x: x.as_strided((1,), (1,), (1 << 63) - 1),
    "bytes": lambda x: x.as_strided((1,), (1,), 1 << 62),
    "alias": lambda x: torch.ops.aten._reshape_alias(x, (5,), (_FAR,)),
    "repeated": lambda x: x.as_strided((1 << 40, 1 << 40), (0, 0)),
    "expanded": lambda x: x[:1, None].expand(1 << 40, 1 << 40),
    "elements": lambda x: x.view((1 << 62) + 1, 4),
    "inferred": lambda x: x.view(1 << 32, 1 << 32, -1),
    "none": lambda x: x[:0].view(1 << 32, 1 << 32),
    "new": lambda x: torch.empty_strided((2,), (_FAR,), device=x.device),
    "new and wide": lambda x: torch.empty_strided((1 << 30,), (1 << 40,), device=x.device),
    "new and large": lambda x: torch.empty((1 << 31, 1 << 31), device=x.device),
    "new and of many axes": lambda x: torch.empty([1] * 65, device=x.device),
    "new and negative": lambda x: torch.empty_strided((2,), (-1,), device=x.device),
}


@pytest.mark.parametrize("name", _BEYOND)
def test_numbers_that_do_not_fit_into_a_word_are_refused(name: str) -> None:
    """Products that wrap around would be views beyond the memory; errors of C++ end the process."""
    with pytest.raises((RuntimeError, torch.OutOfMemoryError)):
        _BEYOND[name](torch.arange(4.0, device=HOME))


def test_views_are_differentiated_and_versioned() -> None:
    x = torch.arange(6.0, device=HOME, requires_grad=True)
    y = x * 1
    y.view(2, 3)[1].mul_(3)
    y.as_strided((3,), (2,)).sum().backward()
    assert x.grad.tolist() == [1, 0, 1, 0, 3, 0]
    z = torch.zeros(4, device=HOME)
    z.view(2, 2).t().add_(1)
    assert z._version == 1 and z.tolist() == [1] * 4


# -- operators that come often -----------------------------------------------------------------


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_call_that_is_known_does_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(3, 5).to(HOME), torch.randn(3, 5).to(HOME)
    for _ in range(3):
        torch.hypot(x, y)
    monkeypatch.setattr(hot, "HOT", -1)
    plans = [p for key, p in calls._PLANS.items() if key[0] is torch.ops.aten.hypot.default]
    before = [p.calls for p in plans]
    torch.testing.assert_close(torch.hypot(x, y).cpu(), torch.hypot(x.cpu(), y.cpu()))
    assert [p.calls for p in plans] == before


_CALLS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "scaled": lambda x, y: torch.add(x, y, alpha=2),
    "scaled by less": lambda x, y: torch.sub(x, y, alpha=0.5),
    "number": lambda x, y: x * 1.5 + 2,
    "transposed": lambda x, y: x.t() @ y,
    "sliced": lambda x, y: x[:, 1::2] * y[:, ::2],
    "repeated": lambda x, y: x[:1].expand(4, 6) - y,
    "text": lambda x, y: F.gelu(x, approximate="tanh") + F.gelu(y),
    "rounded": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "cast": lambda x, y: x.to(torch.float64) + y.int(),
    "several": lambda x, y: torch.cat([*torch.var_mean(x, 1), y.amax(0)]),
    "lists": lambda x, y: torch.cat(torch._foreach_add([x, y], [y, x], alpha=0.5)),
    "numbers": lambda x, y: torch.cat(torch._foreach_mul([x, y], [2.0, 0.5])),
    "in place": lambda x, y: x.clone().mul_(y).add_(y, alpha=-0.5),
    "onto itself": lambda x, y: x.clone().add_(x).sub_(y),
    "into a view": lambda x, y: x.clone().t().add_(y.t()).t(),
    "out": lambda x, y: torch.mul(x, y, out=torch.empty_like(y)),
    "nothing": lambda x, y: x[:0] + y[:0],
    "norm": lambda x, y: F.layer_norm(x, (6,), y[0], y[1]),
    "bits": lambda x, y: torch.complex(x, y).conj().imag.clone() * 2,
}


@pytest.mark.parametrize("name", _CALLS)
def test_calls_stay_the_same_when_they_come_often(name: str) -> None:
    """The same call by ops, compiled, and known: results, strides, memory of their own."""
    torch.manual_seed(3)
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    there = x.to(HOME), y.to(HOME)
    wanted = _CALLS[name](x, y)
    for _ in range(5):
        found = _CALLS[name](*there)
        torch.testing.assert_close(found.cpu(), wanted)
        assert found.stride() == wanted.stride()
        found.zero_()
    assert torch.equal(there[0].cpu(), x) and torch.equal(there[1].cpu(), y)


def test_known_calls_are_told_apart() -> None:
    """Types, shapes, strides, numbers and names: each changed alone, after the first is known."""
    x = torch.randn(6, 6)
    variants: list[tuple[Tensor, Any, dict[str, Any]]] = [
        (x, x, {}),
        (x.double(), x.double(), {}),
        (x[:3], x[:3], {}),
        (x.t(), x, {}),
        (x, x[:, :1], {}),
        (x, x, {"alpha": 2}),
        (x, x, {"alpha": 2.5}),
        (x, 3, {}),
        (x, 3.5, {}),
        (x.int(), x.int(), {"alpha": 3}),
    ]
    for _ in range(4):
        for a, b, options in variants:
            here = b.to(HOME) if isinstance(b, torch.Tensor) else b
            found = torch.add(a.to(HOME), here, **options)
            wanted = torch.add(a, b, **options)
            assert found.dtype is wanted.dtype
            torch.testing.assert_close(found.cpu(), wanted)


def test_numbers_that_change_make_no_new_calls() -> None:
    x, y = torch.randn(8), torch.randn(8)
    a, b = x.to(HOME), y.to(HOME)
    count = 0
    for step in range(1, 30):
        rate = 0.1 / step
        x.add_(y, alpha=-rate).mul_(1 - rate).addcdiv_(y, x.abs() + 1, value=rate).lerp_(y, rate)
        a.add_(b, alpha=-rate).mul_(1 - rate).addcdiv_(b, a.abs() + 1, value=rate).lerp_(b, rate)
        if step == 4:
            count = len(calls._PLANS)
    torch.testing.assert_close(a.cpu(), x)
    assert len(calls._PLANS) == count


def test_tensors_that_are_more_than_their_memory() -> None:
    """Conjugated, negated and zero by a bit, where the same call on plain ones is known."""
    z, w = torch.randn(3, 3, dtype=torch.complex64), torch.randn(3, 3, dtype=torch.complex64)
    a, b = z.to(HOME), w.to(HOME)
    for _ in range(4):
        torch.testing.assert_close((a @ b).cpu(), z @ w)
        torch.testing.assert_close((a.mH @ b).cpu(), z.mH @ w)
        torch.testing.assert_close(torch.dot(a[0].conj(), b[0]).cpu(), torch.dot(z[0].conj(), w[0]))
        torch.testing.assert_close(torch.vdot(a[0], b[0]).cpu(), torch.vdot(z[0], w[0]))
        imag, its = a.conj().imag, z.conj().imag
        assert imag.is_neg()
        torch.testing.assert_close((imag + imag).cpu(), its + its)
        torch.testing.assert_close(imag.repeat_interleave(2).cpu(), its.repeat_interleave(2))
    x = torch.randn(4).to(HOME)
    zeros = torch._efficientzerotensor((4,), device=HOME)
    for _ in range(4):
        assert torch.equal((x + x).cpu(), 2 * x.cpu())
        assert torch.equal((x + zeros).cpu(), x.cpu()) and not (x * zeros).cpu().any()


def test_results_of_native_calls_are_tensors_as_any() -> None:
    x = torch.arange(6.0).to(HOME)
    for _ in range(4):
        y = x + x
    other = copy.deepcopy({"y": y, "part": y[1:]})
    other["part"][0] = 50
    assert other["y"].tolist() == [0, 50, 4, 6, 8, 10] and y.tolist() == [0, 2, 4, 6, 8, 10]
    file = io.BytesIO()
    torch.save(y, file)
    file.seek(0)
    assert torch.equal(torch.load(file), y) and "treadle:0" in repr(y)
    assert y.sort(descending=True)[0].nextafter(x).tolist()[0] == pytest.approx(10)
    y.resize_(2, 6)
    assert y[0].tolist() == [0, 2, 4, 6, 8, 10]
    with pytest.raises((NotImplementedError, RuntimeError)):
        (x + x).untyped_storage().resize_(1 << 20)


def test_memory_is_given_back() -> None:
    x = torch.randn(64, 64).to(HOME)

    def work(times: int) -> None:
        for _ in range(times):
            y = (x + x).view(-1)[10:] * 2.0
            y.add_(1)
            with contextlib.suppress(RuntimeError):
                x.view(7)

    work(300)
    gc.collect()
    before = _resident()
    work(3000)
    assert _resident() - before < 8 << 20  # the results alone are 48 MB


def test_threads_share_known_calls() -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(16, 16, generator=g)
        there, wanted = x.to(HOME), (x @ x).relu() + x
        for n in range(300):
            if not torch.allclose(((there @ there).relu() + there).cpu(), wanted, atol=1e-4):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_forked_child_calls_what_is_known() -> None:
    x = torch.randn(32, 32).to(HOME)
    for _ in range(4):
        y = x @ x
    child = os.fork()
    if not child:
        same = torch.allclose((x @ x).cpu(), y.cpu()) and (x.relu() >= 0).all().item()
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


class _Watching:
    """An observer that notes ops."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def launch(self, op: Any, launch: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*payloads: Any) -> Any:
            self.seen.append(op.name)
            return launch(*payloads)

        return watched

    def program(self, name: str, run: Callable[[], Any]) -> Any:
        return run()

    def module(self, module: Any, inputs: Any, forward: Callable[[], Any]) -> Any:
        return forward()


def test_who_watches_sees_every_op() -> None:
    x = torch.randn(5, 7).to(HOME)
    for _ in range(4):
        x.sinh()
    watching = _Watching()
    observe(watching)
    try:
        y = x.sinh()
    finally:
        observe(None)
    assert watching.seen
    torch.testing.assert_close(y.cpu(), x.cpu().sinh())


def test_one_way_to_compute_where_that_is_asked_for() -> None:
    x = torch.randn(9, 11).to(HOME)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(5):
            x.cosh()
        (plan,) = (p for k, p in calls._PLANS.items() if k[0] is torch.ops.aten.cosh.default)
        assert plan.calls == 5 and plan._compiled is None
    finally:
        torch.use_deterministic_algorithms(False)


# -- where native code cannot be ---------------------------------------------------------------

_WITHOUT = """
import torch
from treadle.interop.torch.native import library
library.TRIED = ()
import treadle.torch
assert library.library() is None
torch.manual_seed(1)
models = [torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))]
models.append(__import__("copy").deepcopy(models[0]).to("treadle:0"))
x = torch.randn(6, 4)
for model, given in zip(models, (x, x.to("treadle:0"))):
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(40):
        optimizer.zero_grad()
        model(given.view(3, 2, 4).transpose(0, 1)).square().mean().backward()
        optimizer.step()
pairs = zip(*(m.parameters() for m in models))
torch.testing.assert_close([b.detach().cpu() for _, b in pairs], list(models[0].parameters()))
small = torch.compile(lambda t: t.sin() + 1, backend="treadle")(x)
torch.testing.assert_close(small, x.sin() + 1)
"""
_AT_THE_END = """
import builtins, torch, treadle.torch
x = torch.randn(8, device="treadle:0")
for _ in range(40):
    y = x + x
class Late:
    def __del__(self):
        try:
            (y + y).view(2, 4)
        except Exception:  # parts of PyTorch are gone
            pass
builtins.kept = [y.view(2, 4), torch.nn.Parameter(y), Late()]
torch.kept = builtins.kept
"""


@pytest.mark.parametrize("text", [_WITHOUT, _AT_THE_END], ids=["without", "at the end"])
def test_another_process(text: str) -> None:
    """PyTorch of another version, by Python alone; and tensors that outlive the interpreter."""
    made = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert not made.stderr.strip()


@pytest.mark.parametrize("name", ["TRIED", "are_as_expected", "_MACHINES", "TENSOR"])
def test_unknown_layouts_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other: dict[str, Any] = {"are_as_expected": lambda: False, "TENSOR": 0}
    monkeypatch.setattr(native, name, other.get(name, ()))
    with pytest.raises(CompileError):
        native.NativeLibrary()
