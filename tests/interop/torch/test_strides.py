"""Results of `torch.compile(..., backend="treadle")` lie in memory as PyTorch's own do."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch import nn  # noqa: E402

from treadle.interop.torch import backend, from_exported, left_to_torch  # noqa: E402
from treadle.interop.torch.parts import PartInstance  # noqa: E402
from treadle.interop.torch.strides import placed  # noqa: E402

LAST = torch.channels_last


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def same(function: Callable[..., Any], *given: Any) -> list[Any]:
    """Our results and gradients, equal to PyTorch's in values and strides."""
    both: list[list[Any]] = []
    for run in (torch.compile(function, backend=backend), function):
        leaves = [x.detach().clone().requires_grad_() for x in given]
        results = run(*leaves)
        found = list(results) if isinstance(results, (tuple, list)) else [results]
        torch.manual_seed(1)
        # PyTorch's compiler expects gradients of results to lie as the results do.
        passed = [torch.randn_like(y) for y in found]
        grads = torch.autograd.grad(found, leaves, passed, allow_unused=True)
        both.append([x for x in (*found, *grads) if x is not None])
    for ours, theirs in zip(*both, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, check_stride=True)
    return both[0]


def net() -> nn.Module:
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, 1)
    return nn.Sequential(*layers).to(memory_format=LAST)


@pytest.mark.parametrize("shape", [(2, 3, 7, 9), (1, 3, 4, 4)], ids=str)
def test_convolutions_give_channels_last_for_channels_last(shape: tuple[int, ...]) -> None:
    result, gradient = same(net(), torch.randn(shape).to(memory_format=LAST))
    assert result.is_contiguous(memory_format=LAST)
    assert gradient.is_contiguous(memory_format=LAST)


def test_gradients_of_weights_lie_as_the_weights_do() -> None:
    model, x = net(), torch.randn(2, 3, 7, 9)
    torch.compile(model, backend=backend)(x).sum().backward()
    assert all(p.grad.stride() == p.stride() for p in model.parameters())


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "transposed": (lambda x: ((x * 2).t() * 1, x.t().exp()), ((3, 4),)),
    "permuted": (lambda x: torch.exp(x.permute(2, 0, 3, 1)), ((2, 3, 5, 6),)),
    "solved": (lambda a, b: torch.linalg.solve(a, b), ((2, 3, 3), (2, 3, 2))),
    "empty, of padded": (lambda x: nn.functional.unfold(x, 2, padding=1), ((0, 1, 5, 5),)),
    "repeated": (lambda x: x.sum(1, keepdim=True), ((3, 4),)),
    "left to PyTorch": (
        lambda x: torch.atan2(x.t() * 2, x.t()) + torch.special.zeta(x.t().abs() + 2, 3.0).detach(),
        ((3, 4),),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_and_gradients_have_the_strides_of_pytorch(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    same(function, *(torch.randn(shape) for shape in shapes))


def test_complex_numbers_and_what_is_empty() -> None:
    def both(x: Any) -> Any:
        return torch.fft.fft(x.t(), dim=0), x[:0] * 2

    x = torch.randn(4, 3)
    for ours, theirs in zip(torch.compile(both, backend=backend)(x), both(x), strict=True):
        torch.testing.assert_close(ours, theirs, check_stride=True)


def test_a_program_may_depend_on_strides() -> None:
    def rows(x: Any) -> Any:
        return (x.t() * 2, x + 1)

    doubled, _ = torch.compile(rows, backend=backend)(torch.randn(3, 4))
    assert doubled.t().view(-1).shape == (12,)


MEMORY: dict[str, Callable[[Any], Any]] = {
    "permuted": lambda x: (x.t() * 2).as_strided((2, 2), (1, 3), 1) + 0,
    "of a part": lambda x: (x * 2)[1:].as_strided((2, 2), (1, 3), 1) + 0,
    "of a part, from its start": lambda x: (x * 2).t()[1:].as_strided((2, 2), (1, 3)) + 0,
    "of gaps": lambda x: (x * 2)[:, ::2].as_strided((2, 3), (1, 3)) + 0,
    "set": lambda x: torch.as_strided_scatter(x * 2, torch.ones(2, 2), (2, 2), (1, 3), 2),
}


@pytest.mark.parametrize("name", MEMORY)
def test_strides_over_memory_that_is_not_the_tensor_s_own(name: str) -> None:
    function, x, before = MEMORY[name], torch.randn(5, 3), left_to_torch()
    found = torch.compile(function, backend=backend)(x)
    torch.testing.assert_close(found, function(x))
    assert left_to_torch() == before

    class Module(nn.Module):
        def forward(self, given: Any) -> Any:
            return function(given)

    exported = from_exported(torch.export.export(Module(), (x,)))
    torch.testing.assert_close(torch.from_numpy(exported(x.numpy()).numpy()), function(x))


def test_an_argument_that_starts_inside_its_memory() -> None:
    def part(x: Any) -> Any:
        return x.as_strided((2, 2), (1, 3), 4) + 1

    x = torch.randn(6, 3)[1:]
    torch.testing.assert_close(torch.compile(part, backend=backend)(x), part(x))


def test_row_major_results_are_given_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[PartInstance] = []
    call = PartInstance.__call__
    monkeypatch.setattr(
        PartInstance, "__call__", lambda self, given: made.append(self) or call(self, given)
    )
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
    torch.compile(model, backend=backend)(torch.randn(2, 4)).square().mean().backward()
    assert made and not any(any(instance._places) for instance in made)


def test_how_a_tensor_lies() -> None:
    x = torch.empty(2, 3, 4)
    assert placed(x) is None
    assert placed(x[:, :, ::2]) is None  # with gaps
    turned = placed(x.permute(2, 0, 1))
    assert turned is not None and turned.axes == (1, 2, 0)
    repeated = placed(torch.empty(3, 1).expand(3, 4))
    assert repeated is not None and repeated.strides == (1, 0)
