"""Saved tensors that the backward may overwrite."""

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch import fx, nn  # noqa: E402
from torch._functorch import config  # noqa: E402

from treadle.interop.torch import backend, donations, parts  # noqa: E402

ROWS, WIDTH = 64, 32
WHOLE = ROWS * WIDTH * 4


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes of the arena of each program: forward, then backward."""
    found: list[int] = []
    init = parts.PartInstance.__init__

    def noted(self: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
        init(self, runner, *args, **kwargs)
        found.append(runner.peak)

    monkeypatch.setattr(parts.PartInstance, "__init__", noted)
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield found


def network() -> Any:
    layers = [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))


def gradients(model: Any, run: Any, x: Any, **keep: Any) -> list[Any]:
    model.zero_grad()
    loss = run(x).square().mean()
    loss.backward(**keep)
    if keep:
        loss.backward()
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("bundled", [False, True])
def test_the_backward_needs_less_memory(peaks: list[int], bundled: bool) -> None:
    model, x = network(), torch.randn(ROWS, WIDTH)
    needed = {}
    for donated in (False, True):
        torch._dynamo.reset()
        peaks.clear()
        with config.patch(donated_buffer=donated, bundled_autograd_cache=bundled):
            run = torch.compile(model, backend=backend)
            for _ in range(3):
                torch.testing.assert_close(
                    gradients(model, run, x), gradients(model, model, x), rtol=1e-4, atol=1e-6
                )
        needed[donated] = peaks[1]
    assert needed[False] - needed[True] >= WHOLE


def test_a_graph_that_is_kept_is_not_overwritten(peaks: list[int]) -> None:
    model, x = network(), torch.randn(ROWS, WIDTH)
    run = torch.compile(model, backend=backend)
    for keep in ({"retain_graph": True}, {"retain_graph": True}, {}):
        torch.testing.assert_close(
            gradients(model, run, x, **keep), gradients(model, model, x, **keep)
        )
    kept = peaks[1]
    torch._dynamo.reset()
    peaks.clear()
    gradients(model, run, x)
    assert kept - peaks[1] >= WHOLE
    with pytest.raises(RuntimeError, match="donated"):
        gradients(model, run, x, retain_graph=True)


def test_what_the_user_holds_stays(peaks: list[int]) -> None:
    def function(x: Any, w: Any) -> Any:
        hidden = (x @ w).exp()
        return hidden, (hidden * hidden.sin()) @ w

    run = torch.compile(function, backend=backend)
    x, w = torch.randn(ROWS, WIDTH) / 9, torch.randn(WIDTH, WIDTH, requires_grad=True)
    copies = x.clone(), w.detach().clone()
    hidden, y = run(x, w)
    before = hidden.detach().clone()
    y.sum().backward()
    for found, expected in zip((x, w, hidden), (*copies, before), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_arguments_that_share_memory_are_left_alone() -> None:
    graph = fx.Graph()
    whole = torch.zeros(4, 4)
    for name, value in {"x": whole, "y": whole[1:], "z": torch.zeros(4), "n": 3}.items():
        graph.placeholder(name).meta["val"] = value
    donations.note_donated(graph, [0, 1, 2, 3])
    x, y, z, n = graph.find_nodes(op="placeholder")
    first = graph.call_function(torch.cat, ((x, y),))
    both = graph.call_function(torch.add, (z, z))
    assert not donations.donated_to(first) and not donations.donated_to(both)
    one = graph.call_module("part", (n, z, x))
    assert not donations.donated_to(one)  # Another node reads z.
    graph.erase_node(both)
    assert donations.donated_to(one) == {1}
