"""What a call of a compiled graph goes through: the program itself, where it is all there is."""

import sys
from collections.abc import Callable
from types import FrameType
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


# -- PyTorch's wrappers around a call ----------------------------------------------------------


def _called(run: Callable[[], Any]) -> set[str]:
    """Names of the functions in Python that a call goes through."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def _doubled_in_place(x: Any, y: Any) -> Any:
    x.mul_(2)
    return x + y


def _without_gradient(x: Any, y: Any) -> Any:
    with torch.no_grad():
        return x * y


WRAPPED: dict[str, tuple[Callable[..., Any], bool]] = {
    "new results": (lambda x, y: (x + y, x * y), False),
    "one argument in use": (lambda x, y: y.cos(), False),
    "a size": (lambda x, y: x * y.shape[0], False),
    "written": (_doubled_in_place, True),
    "a view": (lambda x, y: (x[1:], x + y), True),
    "views of a result": (lambda x, y: (x + y).split(2), True),
    "without gradient": (_without_gradient, False),
}


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("dynamic", [False, True])
def test_wrappers_with_nothing_to_do_are_passed_by(name: str, dynamic: bool) -> None:
    function, is_wrapped = WRAPPED[name]
    torch._dynamo.reset()
    run = torch.compile(function, backend=backend, dynamic=dynamic)
    for rows in (4, 4, 6) if dynamic else (4, 4):
        x, y = torch.randn(rows, 3), torch.randn(rows, 3)
        copies = x.clone(), y.clone()
        torch.testing.assert_close(run(x, y), function(*copies))
        torch.testing.assert_close((x, y), copies)
    # It notes at results which extents vary.
    is_called = any("runtime_wrapper" in n for n in _called(lambda: run(x, y)))
    assert is_called is (is_wrapped or dynamic)


def test_gradients_pass_through_the_wrapper() -> None:
    torch._dynamo.reset()
    run = torch.compile(_without_gradient, backend=backend)
    x, y = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
    found = run(x, y)
    assert not found.requires_grad
    torch.testing.assert_close(found, x.detach() * y)
    assert any("runtime_wrapper" in n for n in _called(lambda: run(x, y)))
    run = torch.compile(lambda x, y: x * y, backend=backend)
    with torch.no_grad():
        assert not run(x, y).requires_grad
        assert not any("runtime_wrapper" in n for n in _called(lambda: run(x, y)))
    run(x, y).sum().backward()
    torch.testing.assert_close(x.grad, y)


def test_backward_graphs_that_are_compiled_when_they_are_called() -> None:
    """PyTorch wraps those of other sizes and ranks once more, and asks the wrapper."""
    torch._dynamo.reset()
    f = lambda x, y: torch.tensordot(x, y, ([0, 1], [2, 0]))  # noqa: E731
    run = torch.compile(f, backend=backend)
    y = torch.randn(2, 1, 2, requires_grad=True)
    for shape in ((2, 2, 1), (1, 1, 1), (2, 2, 5), (2, 2, 7)):
        x = torch.randn(shape, requires_grad=True)
        found, wanted = (torch.autograd.grad(g(x, y).square().sum(), (x, y)) for g in (run, f))
        torch.testing.assert_close(found, wanted)


def test_one_tensor_given_twice_and_buffers() -> None:
    torch._dynamo.reset()
    run = torch.compile(lambda x, y: x * 2 + y, backend=backend)
    x, y = torch.randn(4), torch.randn(4)
    for given in ((x, y), (x, x), (y, x), (y, y)):
        torch.testing.assert_close(run(*given), given[0] * 2 + given[1])
    model = nn.BatchNorm1d(3)
    expected = nn.BatchNorm1d(3)
    norm = torch.compile(model, backend=backend)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(5, 3)
            torch.testing.assert_close(norm(x), expected(x))
    torch.testing.assert_close(model.state_dict(), expected.state_dict())


def test_subclasses_that_are_taken_apart_keep_their_wrapper() -> None:
    two = pytest.importorskip("torch.testing._internal.two_tensor")
    torch._dynamo.reset()
    run = torch.compile(lambda x, y: x * 2 + y, backend=backend)
    x, y = (two.TwoTensor(torch.randn(3), torch.randn(3)) for _ in range(2))
    with torch.no_grad():
        for _ in range(2):
            found = run(x, y)
            assert type(found) is two.TwoTensor
            torch.testing.assert_close(found.a, x.a * 2 + y.a)
            torch.testing.assert_close(found.b, x.b * 2 + y.b)
