"""Branches, loops and regions that PyTorch keeps apart, and what backward keeps or recomputes."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch import nn  # noqa: E402

from treadle.interop.torch import left_to_torch  # noqa: E402
from treadle.interop.torch.parts import PartInstance  # noqa: E402


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[PartInstance]:
    """Programs that ran, in order."""
    found: list[PartInstance] = []
    call = PartInstance.__call__
    monkeypatch.setattr(
        PartInstance, "__call__", lambda self, given: found.append(self) or call(self, given)
    )
    return found


def either(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x * 2).exp(), lambda x: x.sin() - 1, (x,)) + 1


def doubled(x: Any) -> Any:
    def smaller(i: Any, y: Any) -> Any:
        return i < 5

    def turn(i: Any, y: Any) -> Any:
        return i + 1, (y * 2).tanh()

    return torch.while_loop(smaller, turn, (torch.tensor(0), x))[1]


def sums(x: Any) -> Any:
    def turn(total: Any, row: Any) -> Any:
        made = total * 0.5 + row.sin()
        return made, made * 2

    return torch._higher_order_ops.scan(turn, torch.zeros(x.shape[1]), x, dim=0)[1]


@torch.compiler.nested_compile_region
def layer(x: Any, weight: Any) -> Any:
    return torch.nn.functional.gelu(x @ weight) + x


def region(x: Any) -> Any:
    weight = torch.linspace(-1, 1, 16).reshape(4, 4)
    for _ in range(3):
        x = layer(x, weight)
    return x


def nested(x: Any) -> Any:
    def turn(i: Any, y: Any) -> Any:
        less, more = lambda y: y * 0.9 - 0.1, lambda y: y.sin() + 0.2
        return i + 1, torch.cond(y.sum() > 0, less, more, (y,))

    return torch.while_loop(lambda i, y: i < 7, turn, (torch.tensor(0), x))[1]


def drawing(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x + torch.rand(4) * 0, lambda x: x - 1, (x,)).tanh()


def odd(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.nextafter(x) * 2, lambda x: x.sin(), (x,)).tanh()


BODIES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "cond": (either, 1),
    "while_loop": (doubled, 1),
    "scan": (sums, 1),
    "while_loop with cond": (nested, 1),
    "invoke_subgraph": (region, 3),
    "cond that draws": (drawing, 2),
    "cond with what has no counterpart": (odd, 2),
}
"""Functions, and how many programs run: one where the whole is a program of ours."""


@pytest.mark.parametrize("name", BODIES)
def test_bodies_are_programs(name: str, runs: list[PartInstance]) -> None:
    function, count = BODIES[name]
    run = torch.compile(function, backend="treadle", fullgraph=True)
    for x in (torch.randn(6, 4).abs(), -torch.randn(6, 4).abs()):
        runs.clear()
        torch.testing.assert_close(run(x), function(x), rtol=1e-5, atol=1e-6)
        assert len(runs) == 1 if count == 1 else len(runs) >= count
    operators = {entry.operator for entry in left_to_torch()}
    assert not operators & {"sin.default", "tanh.default", "gelu.default", "exp.default"}


def test_loops_of_many_sizes_share_a_program() -> None:
    run = torch.compile(sums, backend="treadle", fullgraph=True, dynamic=True)
    for rows, columns in ((5, 4), (17, 4), (33, 9), (101, 3)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(run(x), sums(x), rtol=1e-5, atol=1e-6)
    run = torch.compile(either, backend="treadle", fullgraph=True, dynamic=True)
    for rows in (5, 17, 33):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(run(x), either(x), rtol=1e-5, atol=1e-6)


def test_bodies_check_indices() -> None:
    def picked(x: Any, places: Any) -> Any:
        def turn(i: Any, y: Any) -> Any:
            return i + 1, y + x[places]

        return torch.while_loop(lambda i, y: i < 3, turn, (torch.tensor(0), x[:2] * 0))[1]

    run = torch.compile(picked, backend="treadle", fullgraph=True)
    x = torch.randn(4, 3)
    places = torch.tensor([3, 1])
    torch.testing.assert_close(run(x, places), picked(x, places))
    with pytest.raises(IndexError):
        run(x, torch.tensor([3, 4]))
    torch.testing.assert_close(run(x, places), picked(x, places))


def test_branches_and_regions_have_gradients() -> None:
    for function in (either, region, sums):
        torch._dynamo.reset()
        x = torch.randn(6, 4, requires_grad=True)
        (ours,) = torch.autograd.grad(torch.compile(function, backend="treadle")(x).sum(), x)
        (theirs,) = torch.autograd.grad(function(x).sum(), x)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any) -> Any:
        for one in self.layers:
            x = torch.sigmoid(torch.exp(torch.sin(one(x))).cos()) * x
        return x


def kept(options: dict[str, Any]) -> tuple[int, list[Any]]:
    """Bytes that the forward keeps, and the gradients."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    model, x = Deep(), torch.randn(64, 8)
    run = torch.compile(model, backend="treadle", options=options)
    saved: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = run(x)
    y.square().sum().backward()
    return sum(saved.values()), [p.grad for p in model.parameters()]


def test_backward_computes_again_what_is_cheap() -> None:
    most, usual = kept({})
    fewer, again = kept({"recompute": True})
    assert fewer < 0.6 * most
    for ours, theirs in zip(again, usual, strict=True):
        torch.testing.assert_close(ours, theirs)
    with torch._functorch.config.patch(activation_memory_budget=0.1):
        least, again = kept({"recompute": True})
    assert least <= fewer
    for ours, theirs in zip(again, usual, strict=True):
        torch.testing.assert_close(ours, theirs)
