"""Small programs run on the memory of PyTorch's tensors, without arrays in between."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

from treadle.base.errors import IndexRangeError  # noqa: E402
from treadle.interop.torch import backend, parts, placements  # noqa: E402


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def arrays(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Tensors that were made arrays of."""
    found: list[Any] = []
    plain = placements.to_array
    monkeypatch.setattr(placements, "to_array", lambda t: found.append(t) or plain(t))
    return found


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool]] = {
    "one result": (lambda x, y: (x * 2 + y).relu(), (torch.ones(16), torch.arange(16.0)), True),
    "a scalar": (lambda x: x.sum(), (torch.arange(5.0),), True),
    "no elements": (lambda x: x * 2, (torch.zeros(0, 3),), False),
    "sixteen bits": (lambda x: x + 1, (torch.arange(8).bfloat16(),), True),
    "complex result": (torch.complex, (torch.arange(3.0), torch.ones(3)), True),
    "order of axes": (lambda x: (x.t().contiguous() + 1).t(), (torch.rand(3, 4),), True),
    "an input as it is": (lambda x: (x, x + 1), (torch.rand(4),), True),
    "not dense": (lambda x: x + 1, (torch.rand(4, 6)[:, ::2],), False),
    "complex": (lambda x: x * 2, (torch.rand(4, dtype=torch.complex64).conj(),), False),
    "negated": (lambda x: x * 2, (torch.rand(4, dtype=torch.complex64).conj().imag,), False),
    "without memory": (lambda x: x * 2 + 1, (torch._efficientzerotensor(4),), False),
    "sixteen bits without memory": (
        lambda x: x + 1,
        (torch._efficientzerotensor(4, dtype=torch.bfloat16),),
        False,
    ),
    "complex without memory": (
        lambda x: x + 1j,
        (torch._efficientzerotensor(4, dtype=torch.complex64),),
        False,
    ),
    "large": (lambda x: x * 2, (torch.rand(1 << 15),), False),
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_pytorch(case: str, arrays: list[Any]) -> None:
    function, given, is_straight = CASES[case]
    run = torch.compile(function, backend=backend)
    for x in (given, [x.clone() if x.is_contiguous() else x for x in given]):
        ours, theirs = run(*x), function(*x)
        torch.testing.assert_close(ours, theirs, check_stride=True)
    assert bool(arrays) is not is_straight


def test_sizes_change(arrays: list[Any]) -> None:
    run = torch.compile(lambda x: torch.tanh(x) * 3, backend=backend, dynamic=True)
    for n in (3, 9, 4, 33, 9):
        x = torch.rand(n, 2)
        torch.testing.assert_close(run(x), torch.tanh(x) * 3)
    assert not arrays


def test_gradients_and_steps(arrays: list[Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    run = torch.compile(model, backend=backend)
    for _ in range(3):
        x = torch.randn(5, 4)
        found = [torch.autograd.grad(f(x).square().sum(), model.parameters()) for f in (run, model)]
        torch.testing.assert_close(*found)
        with torch.no_grad():
            for p, g in zip(model.parameters(), found[0], strict=True):
                p -= 0.1 * g
    assert not arrays


def test_an_index_out_of_range_is_told() -> None:
    table = torch.rand(5, 2)
    run = torch.compile(torch.nn.functional.embedding, backend=backend)
    torch.testing.assert_close(run(torch.tensor([4, 0]), table), table[[4, 0]])
    with pytest.raises(IndexRangeError, match="7"):
        run(torch.tensor([1, 7]), table)
    torch.testing.assert_close(run(torch.tensor([1, 2]), table), table[[1, 2]])


def test_threads_do_not_share_results() -> None:
    run = torch.compile(lambda x: (x + 1) * x, backend=backend)
    wrong: list[float] = []

    def work(value: float) -> None:
        x = torch.full((16,), value)
        for _ in range(300):
            if not torch.equal(run(x), (x + 1) * x):
                wrong.append(value)

    run(torch.zeros(16))
    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_counters_count_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    call = parts.PartInstance.__call__
    monkeypatch.setattr(
        parts.PartInstance, "__call__", lambda self, given: made.append(self) or call(self, given)
    )
    run = torch.compile(lambda x, y: x * y, backend=backend)
    for _ in range(3):
        run(torch.rand(4), torch.rand(4))
    counters = made[0].runner.counters
    assert (counters.iterations, counters.entries, counters.transfers) == (3, 3, 9)
