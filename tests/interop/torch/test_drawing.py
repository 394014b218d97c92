"""Random numbers of compiled and exported programs: their distributions, seeds and gradients."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

import numpy as np  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import treadle as mge  # noqa: E402
from treadle.base.errors import GraphError  # noqa: E402
from treadle.interop.torch import backend, from_exported, left_to_torch  # noqa: E402

N = 20_000


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def left(before: list[Any]) -> set[str]:
    known = {(x.operator, x.nodes) for x in before}
    return {x.operator for x in left_to_torch() if (x.operator, x.nodes) not in known}


SHARES = torch.tensor([0.1, 0.0, 0.6, 0.3]).expand(N // 4, 4)
DRAWS: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "rand": (lambda x: torch.rand(N) + 0 * x[0], 1 / 2, 12**-0.5),
    "rand_like": (lambda x: torch.rand_like(x, dtype=torch.float64), 1 / 2, 12**-0.5),
    "randn": (lambda x: torch.randn(N) + 0 * x[0], 0, 1),
    "randn_like": (torch.randn_like, 0, 1),
    "uniform": (lambda x: x.clone().uniform_(2, 5), 3.5, 3 * 12**-0.5),
    "normal": (lambda x: x.clone().normal_(2, 3), 2, 3),
    "normal of tensors": (lambda x: torch.normal(x, 2 * x), 1, 2),
    "exponential": (lambda x: x.clone().exponential_(4), 1 / 4, 1 / 4),
    "geometric": (lambda x: x.clone().geometric_(0.25), 4, 12**0.5),
    "geometric of integers": (lambda x: x.long().geometric_(0.25).float(), 4, 12**0.5),
    "log_normal": (lambda x: x.clone().log_normal_(0, 0.5).log(), 0, 0.5),
    "cauchy": (lambda x: x.clone().cauchy_(1, 2).sub(1).abs().le(2).float(), 1 / 2, 1 / 2),
    "bernoulli": (lambda x: torch.bernoulli(0.3 * x), 0.3, 0.21**0.5),
    "bernoulli with p": (lambda x: x.clone().bernoulli_(0.3), 0.3, 0.21**0.5),
    "dropout": (lambda x: F.dropout(x, 0.2), 1, 0.5),
    "rrelu": (lambda x: F.rrelu(-x, training=True), -11 / 48, 5 / 24 * 12**-0.5),
    "randint": (lambda x: torch.randint(-2, 5, (N,)) + 0 * x[0], 1, 2),
    "randint_like": (lambda x: torch.randint_like(x, 7), 3, 2),
    "randperm": (lambda x: torch.randperm(N) / N + 0 * x[0], 1 / 2, 12**-0.5),
    "poisson": (lambda x: torch.poisson(4 * x), 4, 2),
    "gamma": (lambda x: torch._standard_gamma(4 * x), 4, 2),
    "with replacement": (
        lambda x: torch.multinomial(SHARES + 0 * x[0], 4, True).flatten().float(),
        2.1,
        0.69**0.5,
    ),
    "without replacement": (
        lambda x: torch.multinomial(SHARES[:, 2:] + 0 * x[0], 1).float().repeat(4, 1),
        1 / 3,
        (2 / 9) ** 0.5,
    ),
}
"""What is drawn, its mean and its standard deviation."""


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_have_their_distribution_and_nothing_is_left(name: str) -> None:
    function, mean, deviation = DRAWS[name]
    before, run = left_to_torch(), torch.compile(function, backend=backend, fullgraph=True)
    x = torch.ones(N)
    made, expected = run(x), function(x)
    assert made.dtype is expected.dtype and made.shape == expected.shape
    found = made.double()
    assert found.mean().item() == pytest.approx(mean, abs=5 * deviation * (N / 4) ** -0.5)
    assert found.std().item() == pytest.approx(deviation, rel=0.06)
    assert not torch.equal(run(x), made)
    torch.manual_seed(7)
    again = run(x)
    torch.manual_seed(7)
    assert torch.equal(run(x), again)
    assert left(before) == set()


def test_draws_of_one_program_are_of_streams_of_their_own() -> None:
    def three(x: Any) -> Any:
        return torch.rand_like(x), torch.rand_like(x), F.dropout(x, 0.5)

    one, other, kept = torch.compile(three, backend=backend)(torch.ones(N))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.05
    assert abs(np.corrcoef(one, kept)[0, 1]) < 0.05


@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
def test_gradients_of_dropout_are_those_of_what_was_kept(p: float) -> None:
    x = torch.randn(8, 50, requires_grad=True)
    y = torch.compile(lambda x: F.dropout(x, p), backend=backend)(x)
    y.sum().backward()
    scale = 0 if p == 1 else (y != 0) / (1 - p)
    torch.testing.assert_close(x.grad, scale * torch.ones_like(x))


def test_what_is_computed_again_draws_the_same_numbers() -> None:
    def inside(x: Any) -> Any:
        return F.dropout(torch.sin(x), 0.5)

    x = torch.rand(8, 50, requires_grad=True)
    run = torch.compile(lambda x: checkpoint(inside, x, use_reentrant=False), backend=backend)
    y = run(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.cos(x) * (y != 0))


def test_dropout_trains_and_zeroes_as_many() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.25), nn.ReLU(), nn.Linear(64, 1)).train()
    run, before = torch.compile(model, backend=backend), left_to_torch()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    x = torch.randn(64, 4)
    losses = []
    for _ in range(40):
        loss = F.mse_loss(run(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    assert left(before) == set()


def test_numbers_are_pytorchs_where_it_is_to_draw_them() -> None:
    def drawn(x: Any) -> Any:
        return F.dropout(x, 0.5), torch.rand_like(x), x.clone().exponential_()

    run = torch.compile(drawn, backend="treadle", options={"fallback_random": True})
    x, before = torch.ones(64, 4), left_to_torch()
    torch.manual_seed(3)
    found = run(x)
    torch.manual_seed(3)
    for ours, theirs in zip(found, drawn(x), strict=True):
        torch.testing.assert_close(ours, theirs)
    names = {"native_dropout.default", "rand_like.default", "exponential.default"}
    assert left(before) == names


def test_options_that_the_backend_does_not_have_are_refused() -> None:
    for options, message in (
        ({"options": {"max_autotune": True}}, "no option 'max_autotune'"),
        ({"options": {"fallback_random": 1}}, "is not of type bool"),
        ({"mode": "reduce-overhead"}, "no mode"),
    ):
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message) as caught:
            torch.compile(torch.sin, backend="treadle", **options)(torch.ones(2))
        assert isinstance(caught.value.inner_exception, GraphError)


def test_dropout_of_an_exported_program_draws_from_treadles_generator() -> None:
    model = nn.Sequential(nn.Linear(4, 256), nn.Dropout(0.25), nn.Dropout(0.5)).train()
    module = from_exported(torch.export.export(model, (torch.ones(2, 4),)))
    x = mge.tensor(np.ones((2, 4), np.float32))
    mge.random.seed(1)
    first, second = module(x).numpy(), module(x).numpy()
    assert 0.5 < (first == 0).mean() < 0.75 and (first != second).any()
    mge.random.seed(1)
    np.testing.assert_array_equal(module(x).numpy(), first)
    step = mge.jit.compile(module)
    mge.random.seed(1)
    np.testing.assert_array_equal(step(x).numpy() == 0, first == 0)
    assert (step(x).numpy() != first).any()
