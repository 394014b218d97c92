"""The engine in one file: it computes what NumPy does, and its stages do what they are for."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.docs.pages import DOCS, blocks

FILE = DOCS / "from_scratch.py"
PAGE = DOCS / "from-scratch.md"


@pytest.fixture(scope="module")
def engine() -> ModuleType:
    """The file as a module."""
    spec = importlib.util.spec_from_file_location("from_scratch", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["from_scratch"] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def classifier(e: Any) -> Any:
    def step(x: Any, y: Any, w: Any, b: Any, v: Any) -> Any:
        likely = e.exp(e.relu(x @ w + b) @ v)
        loss = 0 - e.total(y * e.log(likely / e.total(likely, 1))) / x.shape[0]
        return (loss, *e.gradients(loss, [w, b, v]))

    return step


def operands() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 7))
    y = np.eye(3)[(x[:, 0] > 0) * 1 + (x[:, 1] > 0)]
    rest = [rng.standard_normal(s) * 0.5 for s in ((7, 16), (16,), (16, 3))]
    return [a.astype(np.float32) for a in (x, y, *rest)]


def loss_of(x: Any, y: Any, w: Any, b: Any, v: Any) -> float:
    likely = np.exp(np.maximum(x @ w + b, 0) @ v)
    return float(-(y * np.log(likely / likely.sum(1, keepdims=True))).sum() / len(x))


def test_it_stays_a_file_that_is_read_in_a_sitting() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("engines", [("loops", "numpy"), ("numpy",)])
def test_values_and_gradients_are_right(engine: Any, engines: tuple[str, ...]) -> None:
    given = operands()
    loss, *gradients = engine.Compiled(classifier(engine), engines)(*given)
    wide = [a.astype(np.float64) for a in given]
    assert loss.item() == pytest.approx(loss_of(*wide), rel=1e-5)
    rng = np.random.default_rng(1)
    for number, gradient in enumerate(gradients, 2):
        direction, small = rng.standard_normal(wide[number].shape), 1e-5
        ends = [
            loss_of(*(a + sign * small * direction if i == number else a for i, a in found))
            for sign in (1, -1)
            if (found := list(enumerate(wide)))
        ]
        slope = (ends[0] - ends[1]) / (2 * small)
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=1e-3, abs=1e-5)


def test_prepare_folds_shares_and_drops(engine: Any) -> None:
    def program(x: Any) -> Any:
        e = engine
        _ = e.exp(x)  # Nobody reads it.
        same = e.log(x * 1) + e.log(x + 0)
        return same * (e.constant(2.0) + 3.0) + e.transposed(e.transposed(x))

    graph = engine.prepare(engine.capture(program, [(4, 5)]))
    names = [n.op.name for n in graph.nodes if n.op.name not in ("input", "const")]
    assert names == ["log", "add", "mul", "add"]


def test_groups_keep_what_others_read(engine: Any) -> None:
    def program(x: Any) -> Any:
        y = engine.exp(x) + 1
        return y, engine.log(y) * 2

    *_, optimized, planned, _ = engine.Compiled(program).stages((5, 3))
    assert str(optimized).splitlines() == ["loops: ['exp', 'add']", "loops: ['log', 'mul']"]
    assert planned.size == 0  # Both values are outputs, which no arena holds.


def test_values_that_live_together_lie_apart(engine: Any) -> None:
    *_, planned, loaded = engine.Compiled(classifier(engine)).stages(*(a.shape for a in operands()))
    last = {x: i for i, (_, _, reads) in enumerate(planned.steps) for x in reads}
    made = {value: i for i, (_, value, _) in enumerate(planned.steps)}
    held = sum(loaded.values[x].size for x in planned.places)
    assert planned.size < 0.7 * held
    for x in planned.places:
        for y in planned.places:
            if x is not y and made[x] <= made[y] <= last[x]:
                assert not np.shares_memory(loaded.values[x], loaded.values[y])


def test_one_program_for_each_shape(engine: Any) -> None:
    double = engine.Compiled(lambda x: x + x)
    for rows in (3, 70, 3, 130):
        x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
        np.testing.assert_array_equal(double(x), x * 2)
    assert len(double.programs) == 3
    assert double(np.float32(4)) == 8


def test_shapes_that_do_not_fit_are_errors_where_they_stand(engine: Any) -> None:
    with pytest.raises(ValueError, match="columns of the first are rows"):
        engine.capture(lambda x: x @ x, [(2, 3)])


def test_the_page_shows_the_file() -> None:
    text = FILE.read_text(encoding="utf-8")
    shown = [b.code for b in blocks(PAGE, "text")]
    assert len(shown) >= 5
    for code in shown:
        for part in re.split(r"\n+    \.\.\.\n+|\n\.\.\.\n", code):
            assert part.strip("\n") in text, part
