"""What a call of a compiled graph goes through: the program itself, where it is all there is."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch import fx, nn  # noqa: E402

from treadle.interop.torch import backend  # noqa: E402


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for every graph of PyTorch's that is called on the way."""
    called: list[int] = []
    call = fx.GraphModule.__call__

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        called.append(1)
        return call(self, *args, **kwargs)

    torch._dynamo.reset()
    monkeypatch.setattr(fx.GraphModule, "__call__", noted)
    return called


CASES: dict[str, tuple[Callable[..., Any], bool]] = {
    "one result": (lambda x, y: (x * 2 + y).relu(), True),
    "several": (lambda x, y: (x + y, x * y, x.sum()), True),
    "an argument, twice a result": (lambda x, y: (x, x.exp(), None, x.exp(), 3), True),
    "one argument in use": (lambda x, y: y.cos(), True),
    "in place": (lambda x, y: x.clone().add_(y).mul_(2), True),
    "PyTorch in between": (lambda x, y: torch.nextafter(x * 2, y) + 1, False),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_function(name: str, modules: list[int]) -> None:
    function, straight = CASES[name]
    run = torch.compile(function, backend=backend)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    with torch.no_grad():
        run(x, y)
        modules.clear()
        found, expected = run(x, y), function(x, y)
    torch.testing.assert_close(found, expected)
    assert bool(modules) is not straight


def test_training_calls_no_graph_of_pytorchs(modules: list[int]) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
    run = torch.compile(model, backend=backend)
    x = torch.randn(2, 4)
    run(x).square().sum().backward()
    modules.clear()
    run(x).square().sum().backward()
    assert not modules
