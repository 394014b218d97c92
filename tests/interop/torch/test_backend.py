"""`torch.compile(..., backend="treadle")` computes what PyTorch computes, forward and backward."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch import nn  # noqa: E402

from treadle.interop.torch import backend, left_to_torch  # noqa: E402


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function: Any) -> Any:
    return torch.compile(function, backend=backend)


def left(before: list[Any]) -> set[str]:
    """Operators that were left to PyTorch since then."""
    known = {(x.operator, x.nodes) for x in before}
    return {x.operator for x in left_to_torch() if (x.operator, x.nodes) not in known}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=2),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 5))

    def forward(self, x: Any) -> Any:
        return self.head(self.features(x).flatten(1))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 30)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.layer(self.embed(tokens))).transpose(1, 2)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]] = {
    "cnn": (Classifier, lambda: torch.randn(4, 3, 12, 12), lambda: torch.randint(0, 5, (4,))),
    "transformer": (
        Language,
        lambda: torch.randint(0, 30, (2, 6)),
        lambda: torch.randint(0, 30, (2, 6)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_training_follows_the_same_curve_and_nothing_is_left(name: str) -> None:
    make, inputs, targets = MODELS[name]
    ours, x, y, before = make(), inputs(), targets(), left_to_torch()
    theirs = copy.deepcopy(ours)
    step = compiled(ours)
    optimizers = [torch.optim.Adam(m.parameters(), 0.01) for m in (ours, theirs)]
    curves: list[list[float]] = [[], []]
    for _ in range(4):
        for curve, run, optimizer in zip(curves, (step, theirs), optimizers, strict=True):
            loss = nn.functional.cross_entropy(run(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)
    assert curves[0][-1] < curves[0][0]
    assert left(before) == set()


def test_inference_is_one_program() -> None:
    model = Classifier().eval()
    x = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-4, atol=1e-5)


def test_what_has_no_counterpart_stays_with_torch_and_is_reported() -> None:
    before = left_to_torch()

    def mixed(x: Any) -> Any:
        return torch.linalg.eigvalsh(x * 2 + 1) + 1

    x = torch.eye(3)
    torch.testing.assert_close(compiled(mixed)(x), mixed(x))
    names = left(before)
    assert names and not any(n.startswith(("add", "mul")) for n in names)


def test_places_of_maxima_that_the_program_reads_are_true() -> None:
    def places(x: Any) -> Any:
        return nn.functional.max_pool2d(x, 2, return_indices=True)

    x = torch.randn(1, 2, 6, 6)
    for ours, theirs in zip(compiled(places)(x), places(x), strict=True):
        torch.testing.assert_close(ours, theirs)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "integers": lambda x: (x * 10).to(torch.int32) // 3 - (x * 7).to(torch.int64) % 4,
    "comparisons": lambda x: torch.where(x > 0, x, 2 * x).clamp(-1, 0.5),
    "shapes": lambda x: torch.cat([x.t()[1:, :2], x[:2, ::2].reshape(3, 2)[:, :2]]).flip(0),
    "reductions": lambda x: (x.amax(1), x.argmax(1), x.var(0), x.cumsum(1), x.norm(), x.any()),
    "indices": lambda x: (x[[0, 2, 1]], x.gather(1, (x > 0).long()), x[x.argmax(0) % 4, 1]),
    "powers": lambda x: (x**2, x.abs() ** 0.5, 2.0**x, torch.rsqrt(x.abs() + 1), x.round()),
    "halves": lambda x: (x.bfloat16() @ x.bfloat16().t()).float().softmax(1),
    "sorted": lambda x: (*x.sort(1, descending=True), *x.topk(2, dim=0)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_tensors(name: str) -> None:
    function = FUNCTIONS[name]
    x = torch.randn(4, 5)
    found, expected = compiled(function)(x), function(x)
    for ours, theirs in zip(
        *(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True
    ):
        tolerance = (
            {"rtol": 2e-2, "atol": 2e-2} if name == "halves" else {"rtol": 1e-5, "atol": 1e-5}
        )
        torch.testing.assert_close(ours, theirs, **tolerance)


def test_the_name_is_known_to_torch() -> None:
    def double(x: Any) -> Any:
        return x * 2

    run = torch.compile(double, backend="treadle")
    torch.testing.assert_close(run(torch.ones(3)), torch.full((3,), 2.0))
