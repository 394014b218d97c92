"""The one reverse walk: which rules it calls, what it accumulates, what it leaves out."""

import weakref
from typing import Any

import numpy as np
import pytest
from tests.ops.harness import TapeOperand

from treadle.base.errors import NoGradient, TreadleError
from treadle.ops.logic import IsNan
from treadle.ops.op import Op, Pullback
from treadle.ops.reverse import TapeEntry, backpropagate
from treadle.ops.unary import Exp


def inputs(*values: float) -> tuple[list[TapeEntry[Any]], list[TapeOperand]]:
    tape: list[TapeEntry[Any]] = []
    return tape, [TapeOperand(np.array(v), tape) for v in values]


def gradient(tape: list[TapeEntry[Any]], y: TapeOperand, *xs: TapeOperand) -> list[float | None]:
    steps = list(tape)
    found = backpropagate(steps, {id(y): y.constant(1.0)}, [id(x) for x in xs])
    return [found[id(x)].array.item() if id(x) in found else None for x in xs]


def test_uses_of_a_value_add_up() -> None:
    tape, (x,) = inputs(3.0)
    assert gradient(tape, x * x + x, x) == [7.0]


def test_a_value_that_nothing_depends_on_is_left_out() -> None:
    tape, (x, unused) = inputs(3.0, 4.0)
    unused * 2.0
    assert gradient(tape, x * 2.0, x, unused) == [2.0, None]


def test_the_seed_itself_can_be_wanted() -> None:
    tape, (x,) = inputs(3.0)
    y = x * 2.0
    z = y * 5.0
    assert gradient(tape, z, z, y, x) == [1.0, 5.0, 10.0]


def test_several_seeds_add_up() -> None:
    tape, (x,) = inputs(3.0)
    y, z = x * 2.0, x * x
    seeds = {id(y): x.constant(10.0), id(z): x.constant(1.0)}
    found = backpropagate(list(tape), seeds, [id(x)])
    assert found[id(x)].array.item() == 26.0


def test_branches_that_need_nothing_are_not_visited() -> None:
    tape, (x, y) = inputs(3.0, 4.0)
    product = x * Exp()(y)
    seen: list[str] = []
    backpropagate(
        list(tape),
        {id(product): x.constant(1.0)},
        [id(x)],
        observe=lambda step, grads: seen.append(f"{step.op} {[g is not None for g in grads]}"),
    )
    assert seen == ["mul [True, False]"]


def test_a_constant_input_has_no_key() -> None:
    _, (x, y) = inputs(3.0, 4.0)
    out = x * y
    step: TapeEntry[Any] = TapeEntry(
        out.tape[-1].op, (id(x), None), (id(out),), lambda: ((x, y), (out,))
    )
    found = backpropagate([step], {id(out): x.constant(1.0)}, [id(x)])
    assert {k: v.array.item() for k, v in found.items()} == {id(x): 4.0}


def test_an_op_without_gradient_says_so_when_it_is_reached() -> None:
    tape, (x,) = inputs(3.0)
    flag = IsNan()(x)
    seed = flag.constant(True)
    with pytest.raises(NoGradient, match=r"^is_nan: is a test: its result is bool"):
        backpropagate(list(tape), {id(flag): seed}, [id(x)])


def test_a_rule_that_returns_too_few_gradients_is_named() -> None:
    class Short(Op):
        name = "short"
        operands = ("x", "y")

        def infer(self, *types: Any) -> Any:
            return types[:1]

        def reference(self, *arrays: Any) -> Any:
            return arrays[0]

        @classmethod
        def samples(cls) -> Any:
            return ()

        def vjp(self, at: Pullback[Any]) -> Any:
            return (at.dy,)

    tape, (x, y) = inputs(3.0, 4.0)
    out = Short()(x, y)
    with pytest.raises(TreadleError, match=r"^short: .* returned 1 cotangents for 2 inputs"):
        gradient(tape, out, x)


def test_a_long_chain_needs_no_recursion() -> None:
    tape, (x,) = inputs(1.0)
    y = x
    for _ in range(10_000):
        y = y + 1.0
    assert gradient(tape, y, x) == [1.0]


def test_a_cotangent_is_let_go_once_it_was_used() -> None:
    class Cotangent:
        pass

    alive: weakref.WeakSet[Cotangent] = weakref.WeakSet()
    counts: list[int] = []

    class Rule:
        def vjp(self, at: Pullback[Any]) -> Any:
            made = Cotangent()
            alive.add(made)
            counts.append(len(alive))
            return (made,)

    rule: Any = Rule()
    steps = [TapeEntry(rule, (i,), (i + 1,), lambda: ((None,), (None,))) for i in range(8)]
    backpropagate(steps, {8: Cotangent()}, [0])
    assert counts == [1, *[2] * 7], "the one that comes in and the one that goes out"
