"""Every rewrite rule fires on its example, keeps its promise, and shows what it does."""

import numpy as np
import pytest
from tests.graph.random_graphs import same

from treadle.base.dtype import as_dtype
from treadle.base.errors import ShapeError
from treadle.base.types import TensorType
from treadle.graph.builder import trace_body
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph
from treadle.graph.moves import AFTER_GRADIENTS
from treadle.graph.printer import to_text
from treadle.graph.rewrite import Rule, counting_hits, rewrite
from treadle.graph.simplify import RULES
from treadle.graph.verify import verify

ALL = (*RULES, *(r for r in AFTER_GRADIENTS if r not in RULES))
CASES = [(rule, dtype) for rule in ALL for dtype in rule.dtypes]


def example(rule: Rule, dtype: str, shapes: tuple[tuple[int, ...], ...]) -> Graph:
    assert rule.example is not None
    return trace_body(rule.example, [TensorType(as_dtype(dtype), s) for s in shapes], "rule")


def inputs(graph: Graph, level: str) -> list[np.ndarray]:
    """Values that a rule of this level must not change, the extremes of the type among them."""
    rng = np.random.default_rng(7)
    arrays = []
    for type_ in graph.input_types:
        numpy = type_.dtype.numpy
        pool = rng.uniform(-3, 3, 40).astype(numpy)
        if type_.dtype.is_integer:
            limits = np.iinfo(numpy)
            pool = np.array([limits.min, limits.max, 0, 1, *pool[:8]], numpy)
        elif type_.dtype.kind == "float" and level == "exact":
            pool = np.concatenate([pool, np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], numpy)])
        elif type_.dtype.kind == "float":
            pool = np.where(pool == 0, numpy.type(1), pool)
        arrays.append(np.asarray(rng.choice(pool, type_.shape)).astype(numpy))
    return arrays


def agree(level: str, x: np.ndarray, y: np.ndarray) -> bool:
    if level == "exact":
        return same(x, y)
    wide = np.float64 if x.dtype.kind not in "iub" else x.dtype
    x, y = x.astype(wide), y.astype(wide)
    # "safe" leaves zeros of either sign, "fast" also another order of summation.
    tolerance = 1e-5 if level == "fast" and x.dtype.kind == "f" else 0
    return bool(np.allclose(x, y, rtol=tolerance, atol=tolerance))


@pytest.mark.parametrize(("rule", "dtype"), CASES, ids=[f"{r.name}, {d}" for r, d in CASES])
def test_rule_keeps_its_promise(rule: Rule, dtype: str) -> None:
    for graph in variants(rule, dtype):
        with counting_hits() as hits:
            after = rewrite(graph, (rule,))
        assert hits[rule.name] > 0
        verify(after)
        arrays = inputs(graph, rule.level)
        for given in (arrays, [np.zeros_like(a) for a in arrays]):
            with np.errstate(all="ignore"):
                (before,), (now,) = evaluate(graph, given), evaluate(after, given)
            assert agree(rule.level, before, now)


def variants(rule: Rule, dtype: str) -> list[Graph]:
    """The example as it stands, and without elements where its attributes allow that."""
    graphs = [example(rule, dtype, rule.shapes)]
    try:
        graphs.append(example(rule, dtype, tuple((0, *s[1:]) for s in rule.shapes)))
    except ShapeError:
        return graphs
    return graphs


# File names cannot tell "x * 1" from "x / 1".
IDS = [r.name.replace("*", "times").replace("/", "over") for r in ALL]


@pytest.mark.parametrize("rule", ALL, ids=IDS)
def test_rule_rewrites(rule: Rule, golden) -> None:
    graph = example(rule, rule.dtypes[0], rule.shapes)
    golden(f"{to_text(graph)}--- {rule.level}: {rule.name}\n{to_text(rewrite(graph, (rule,)))}")


def test_names_are_unique() -> None:
    names = [rule.name for rule in ALL]
    assert sorted(set(names)) == sorted(names)
