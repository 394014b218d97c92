"""Operators over lists of tensors, and optimizers, whose steps are made of them."""

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
from treadle.interop.torch.lists import one_by_one  # noqa: E402


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def left(run: Callable[[], Any]) -> set[str]:
    """Operators that stayed with PyTorch while something was compiled."""
    before = {(x.operator, x.reason): x.nodes for x in left_to_torch()}
    run()
    after = {(x.operator, x.reason): x.nodes for x in left_to_torch()}
    return {k[0] for k, nodes in after.items() if before.get(k) != nodes} - {"(not captured)"}


def lists(count: int) -> list[list[Any]]:
    return [[torch.rand(3) + 0.5, torch.rand(2, 2) + 0.5] for _ in range(count)]


X, Y, Z = lists(3)
each = lambda name: getattr(torch, f"_foreach_{name}")  # noqa: E731
OF_ONE = "abs ceil cos erf exp expm1 floor frac lgamma log neg reciprocal round rsqrt sigmoid sign"
OF_TWO = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "clamp_min", "clamp_max")
CASES: dict[str, Callable[[], Any]] = {
    "of one": lambda: [each(name)(X) for name in OF_ONE.split()],
    **{name: lambda name=name: [each(name)(X, y) for y in (Y, 0.7, [0.6, 0.8])] for name in OF_TWO},
    "factors": lambda: [
        each("add")(X, Y, alpha=2.0),
        each("add")(X, torch.tensor(2.0), alpha=3),
        each("mul")(X, torch.tensor(2.0)),
        each("pow")(2.0, X),
        each("lerp")(X, Y, 0.3),
        each("lerp")(X, Y, Z),
        *(each(n)(X, Y, Z, *v) for n in ("addcmul", "addcdiv") for v in ((), (2.0,), ([3.0, 4],))),
    ],
    "sizes": lambda: [each("norm")(X), each("norm")(X, 1), each("max")(X)],
}


@pytest.mark.parametrize("name", CASES)
def test_operators_over_lists(name: str) -> None:
    made: list[Any] = []
    run = torch.compile(CASES[name], backend="treadle")
    assert left(lambda: made.append(run())) == set()
    torch.testing.assert_close(made[0], CASES[name]())


def test_every_operator_over_lists_has_one_of_elements() -> None:
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::_foreach_")]
    known = {str(operator) for operator in one_by_one()}
    missing = set()
    for schema in schemas:
        name = schema.name.removeprefix("aten::")
        operator = getattr(getattr(torch.ops.aten, name), schema.overload_name or "default")
        if (
            not operator._schema.is_mutable
            and not name.endswith("_")
            and str(operator) not in known
        ):
            missing.add(str(operator))
    assert missing == {"aten._foreach_addcdiv.Tensor", "aten._foreach_addcmul.Tensor"}


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Rprop"])
def test_steps_of_optimizers(name: str, foreach: bool) -> None:
    def trained(compiles: bool) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, foreach=foreach)
        step = torch.compile(optimizer.step, backend="treadle") if compiles else optimizer.step
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.linspace(-1, 1, 12).reshape(3, 4)).square().sum().backward()
            step()
        return [p.detach() for p in model.parameters()]

    made: list[Any] = []
    assert left(lambda: made.append(trained(True))) == set()
    torch.testing.assert_close(made[0], trained(False), rtol=1e-4, atol=1e-6)


def test_results_without_elements_can_grow() -> None:
    def grows(x: Any) -> Any:
        out = torch.empty(0)
        torch.add(x, 1, out=out)
        return out

    found = torch.compile(grows, backend="treadle")(torch.ones(3))
    torch.testing.assert_close(found, torch.full((3,), 2.0))
