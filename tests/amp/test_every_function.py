"""Mixed precision loses what 16 bits cost, and no more: every public function, with gradients.

Each case of `cases.py` is called with operands in float32, with those in 16 bits that layers hand
on, and with all in 16 bits and no `autocast`. The reference is the same function in float64, of
operands that are rounded where its list says so. What it may differ by:

- results in 16 bits, one rounding of each (`steps` of the largest, where terms are rounded);
- results in float32, sums and functions in float32: as much as without mixed precision, beside a
  few roundings of the largest. Functions of the lists "high" and "kept" never see rounded places,
  statistics or losses;
- gradients, `ROUNDINGS` of the largest, in the type of fewest bits on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.amp.cases import CASES, Case, Operand, Way

import treadle as mge
import treadle.functional as F
import treadle.optimizer as O
import treadle.random as R
from treadle import distributions, jit
from treadle.amp import autocast
from treadle.autodiff import GradManager
from treadle.tensor import Parameter, Tensor

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
LEAST = {"float16": 2.0**-25, "bfloat16": 0.0, "float32": 0.0}
ROUNDINGS = {"mixed": 4, "plain": 8}
"""Of gradients; without mixed precision the terms of a quotient's are rounded one by one."""
WIDE = 32.0
"""Roundings of float32 that functions of float32 may be apart, of the largest value."""
EXEMPT = {
    **dict.fromkeys(("left_shift", "right_shift"), "takes integers"),
    **dict.fromkeys(("logical_and", "logical_not", "logical_or", "logical_xor"), "takes bools"),
    **dict.fromkeys(("block_linear", "block_experts"), "multiplies integers: tests/functional"),
    **dict.fromkeys(("arange", "eye", "full", "linspace", "ones", "zeros"), "takes no tensor"),
    "nvof": "no backend has it",
    "real": "see complex",
}
LOW = ("float16", "bfloat16")
FEEDS = ("float32", "handed on", "plain")


def test_every_public_function_has_a_case() -> None:
    public = {
        name
        for module in (F, F.nn, F.vision, F.loss, F.metric)
        for name in module.__all__
        if callable(getattr(module, name))
    }
    known = {word for name in CASES for word in name.split()}
    assert public - known - set(EXEMPT) == set()
    assert set(EXEMPT) <= public


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str) -> None:
    case = CASES[name]
    for low in LOW:
        for feed in FEEDS:
            check(case, low, feed, compiled=False)
    check(case, "bfloat16", "handed on", compiled=True)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_compiled(name: str) -> None:
    for low in LOW:
        for feed in FEEDS:
            check(CASES[name], low, feed, compiled=True)


def check(case: Case, low: str, feed: str, *, compiled: bool) -> None:
    what = f"{low}, {feed}, {'compiled' if compiled else 'eager'}"
    given = [_as_given(o, low, feed) for o in case.operands]
    exact = [
        _as_computed(x, operand, i, case.way, low)
        for i, (x, operand) in enumerate(zip(given, case.operands, strict=True))
    ]
    rule = None if feed == "plain" else low
    with np.errstate(all="ignore"):
        found, gradients = run(case, given, rule, compiled=compiled)
        seed = found.dtype.name
        wanted, slopes = run(case, exact, None, seed)
        wide = [x.astype("float32") if x._kind.dtype.is_float else x for x in exact]
        plain, plain_slopes = run(case, wide, None, seed)
    assert seed == _type(case, given, rule, plain), what
    multiplies = case.way in ("low", "statistics", "sums")
    _compare(found, wanted, plain, case.steps, low if multiplies else seed, what)
    few = multiplies or feed != "float32"
    for i, (g, w, p) in enumerate(zip(gradients, slopes, plain_slopes, strict=True)):
        unit = UNIT[low if few else "float32"]
        most = ROUNDINGS["plain" if rule is None else "mixed"] * unit * _largest(w)
        room, name = most + _apart(p, w), g.dtype.name
        _within(_array(g), _array(w), room, name, f"{what}: gradient {i}")


def run(
    case: Case,
    operands: Sequence[Tensor],
    low: str | None,
    seed: str = "float32",
    *,
    compiled: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """The result and the gradients of a mixture of its elements, with factors of a type."""

    def body(*xs: Tensor) -> tuple[Tensor, list[Tensor]]:
        reals = [x for x in xs if x._kind.dtype.is_float]
        if not case.gradient:
            return case.call(*xs), []
        with GradManager().attach(reals) as gm:
            y = case.call(*xs)
            mixture = np.sin(np.arange(1.0, y.size + 1)).reshape(y.shape)
            gm.backward(y, Tensor(mixture, dtype="float32").astype(seed).astype(y.dtype))
        return y, [F.zeros_like(x) if x.grad is None else x.grad for x in reals]

    mge.random.seed(3)
    fresh = [x.detach() * 1 if x._kind.dtype.is_float else x for x in operands]
    function: Callable[..., Any] = jit.compile(body) if compiled else body
    if low is None:
        made = function(*fresh)
    else:
        with autocast(low_prec_dtype=low):
            made = function(*fresh)
    y, gradients = made
    return y, gradients


def _as_given(operand: Operand, low: str, feed: str) -> Tensor:
    x = Tensor(operand.values)
    few = feed == "plain" or (feed == "handed on" and operand.moves)
    return x.astype(low) if few and x._kind.dtype.is_float and not operand.fixed else x


def _as_computed(x: Tensor, operand: Operand, index: int, way: Way, low: str) -> Tensor:
    """The operand in float64; rounded as the function's list says."""
    if not x._kind.dtype.is_float:
        return x
    rounded = (way == "low" and not operand.place) or (way == "statistics" and index == 0)
    return (x.astype(low) if rounded else x).astype("float32" if operand.fixed else "float64")


def _type(case: Case, given: Sequence[Tensor], low: str | None, plain: Tensor) -> str:
    """The type that the function's list gives a result."""
    if not plain._kind.dtype.is_float:
        return str(plain.dtype.name)
    reals = [x for x in given if x._kind.dtype.is_float]
    if low is not None and case.way in ("low", "statistics"):
        return low
    if low is not None and case.way == "high":
        return "float32"
    if case.way == "first":
        return str(given[0].dtype.name)
    names = {x.dtype.name for x in reals}
    return names.pop() if len(names) == 1 and case.way != "mean" else "float32"


def _compare(found: Tensor, wanted: Tensor, plain: Tensor, steps: int, low: str, what: str) -> None:
    """Check a result against the one in float64, with the room that its type leaves."""
    if not found._kind.dtype.is_float:
        np.testing.assert_array_equal(found.numpy(), wanted.numpy(), what)
        return
    exact = _array(wanted)
    share = np.abs(exact) if steps == 1 else steps * np.abs(exact).max(initial=0)
    room = 1.01 * UNIT[low] * share + _apart(plain, wanted)
    _within(_array(found), exact, room, found.dtype.name, what)


def _within(found: Any, exact: Any, room: Any, name: str, what: str) -> None:
    largest = float(np.finfo(np.float16).max) if name == "float16" else np.inf
    beyond = np.abs(exact) > largest
    assert np.isinf(found[beyond]).all(), what
    off = np.abs(np.where(beyond, 0, found) - np.where(beyond, 0, exact))
    assert (off <= room + LEAST[name]).all(), (
        f"{what}: off by {off.max():.3g}, {np.max(off / (room + 1e-30)):.3g} times what is allowed"
    )


def _apart(plain: Tensor, wanted: Tensor) -> Any:
    """Room for sums and functions in float32: twice what they are off without mixed precision."""
    a, b = _array(plain), _array(wanted)
    return 2 * np.abs(a - b).max(initial=0) + WIDE * UNIT["float32"] * _largest(wanted)


def _largest(x: Tensor) -> float:
    return float(np.abs(_array(x)).max(initial=0))


def _array(x: Tensor) -> Any:
    return x.astype("float64").numpy()


# -- what takes no tensors, or draws, or updates parameters: the same to the bit ------------------


def _stepped(name: str) -> list[Any]:
    params = [Parameter(np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4))]
    optimizer = getattr(O, name)(params, lr=0.1)
    for i in range(3):
        params[0].grad = Tensor(100 * np.sin(np.arange(12, dtype="float32") + i).reshape(3, 4))
        optimizer.step()
    return [params[0]]


def _clipped() -> list[Any]:
    param = Parameter(np.ones((3, 4), np.float32))
    param.grad = Tensor(np.linspace(-300, 900, 12, dtype=np.float32).reshape(3, 4))
    return [O.clip_grad_norm([param], 1.0), param.grad]


RATE = Tensor([0.3, 2.0])
WAITING = distributions.Exponential(RATE)
SAME: dict[str, Callable[[], Any]] = {
    "arange": lambda: F.arange(0, 300, 0.3),
    "eye": lambda: F.eye(3),
    "full": lambda: F.full((3,), 0.1234567),
    "linspace": lambda: F.linspace(0, 301.7, 1001),
    "ones": lambda: F.ones(3),
    "zeros": lambda: F.zeros(3),
    "normal": lambda: R.normal(0, 1, (100,)),
    "uniform": lambda: R.uniform(0, 1, (100,)),
    "gamma": lambda: R.gamma(RATE, RATE, (50,)),
    "beta": lambda: R.beta(RATE, RATE, (50,)),
    "poisson": lambda: R.poisson(RATE * 100, (50,)),
    "exponential": lambda: R.exponential(RATE, (50,)),
    "multinomial": lambda: R.multinomial(F.linspace(1, 2, 999), 500),
    "multinomial with replacement": lambda: R.multinomial(F.linspace(1, 2, 999), 500, True),
    "permutation": lambda: R.permutation(3000),
    "log_prob": lambda: WAITING.log_prob(Tensor([1.3, 5.7])),
    "cdf": lambda: WAITING.cdf(Tensor([1.3, 5.7])),
    "icdf": lambda: WAITING.icdf(Tensor([0.3, 0.7])),
    "variance": lambda: WAITING.variance,
    "clip_grad_norm": _clipped,
    **{
        name: lambda name=name: _stepped(name)
        for name in ("SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "RMSprop", "LAMB", "LAMBFp16")
    },
}


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("name", SAME)
def test_what_mixed_precision_leaves_alone(name: str, low: str) -> None:
    mge.random.seed(3)
    plain = SAME[name]()
    mge.random.seed(3)
    with autocast(low_prec_dtype=low):
        mixed = SAME[name]()
    for a, b in zip(*([x] if isinstance(x, Tensor) else x for x in (plain, mixed)), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
