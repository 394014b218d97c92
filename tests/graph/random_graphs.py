"""Random well-typed graphs, from samples of the registry and from a few differentiable ops."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from treadle.base import dtype as dt
from treadle.base.errors import TreadleError
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder
from treadle.graph.ir import Graph
from treadle.ops import REGISTRY
from treadle.ops.constant import Constant
from treadle.ops.control import ControlFlow
from treadle.ops.custom import Custom
from treadle.ops.families import Elementwise
from treadle.ops.op import Op

SHAPES = ((), (3,), (2, 3), (1, 3), (2, 1), (0, 3))
DTYPES = (dt.float32, dt.int32, dt.bool_, dt.float64, dt.bfloat16)


def _sampled_ops() -> list[Op]:
    """One op value per sample that carries its facts in its attributes alone."""
    skipped = (Constant, ControlFlow, Custom)
    found: dict[str, Op] = {}
    for name, cls in sorted(REGISTRY.items()):
        if not issubclass(cls, skipped):
            found.update((str(s.op), s.op) for s in cls.samples()[:3])
        assert name == cls.name
    return list(found.values())


OPS = _sampled_ops()


SIMPLE = [o for o in OPS if not o._fields and issubclass(type(o), Elementwise)]


@st.composite
def graphs(draw: Callable[..., Any], n_ops: int = 14) -> Graph:
    """A graph of ops drawn from the registry, applied wherever their type rules allow it."""
    builder = GraphBuilder(draw(st.sampled_from(("g", "a/b", ""))))
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SHAPES))
    values = [builder.input(TensorType(dtype, shape), name) for name in ("x", "")]
    other = TensorType(draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SHAPES)))
    values.append(builder.input(other, "y 1"))
    values.append(values[0].constant(np.asarray(draw(st.integers(-1, 2))).astype(dtype.numpy)))
    ops = st.one_of(st.sampled_from(SIMPLE), st.sampled_from(OPS))
    for op in draw(st.lists(ops, min_size=4, max_size=n_ops)):
        arity = 2 if "*" in "".join(op.operands) else len(op.operands)
        inputs = [draw(st.sampled_from(values)) for _ in range(arity)]
        try:
            values += builder.apply(op, inputs)
        except TreadleError:
            continue  # These types do not fit; a graph holds what does.
    builder.output(*draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)), values[-1])
    return builder.build()


SMOOTH = ("add", "mul", "sub", "neg", "sin", "tanh", "sigmoid")


@st.composite
def smooth_graphs(draw: Callable[..., Any]) -> Graph:
    """A graph of differentiable ops on float64 whose one output is a number."""
    builder = GraphBuilder("smooth")
    shapes = draw(st.lists(st.sampled_from(((), (3,), (2, 3))), min_size=1, max_size=3))
    values = [builder.input(TensorType(dt.float64, s)) for s in shapes]
    for name in draw(st.lists(st.sampled_from(SMOOTH), min_size=1, max_size=8)):
        op = REGISTRY[name]()
        inputs = [draw(st.sampled_from(values)) for _ in op.operands]
        values += builder.apply(op, inputs)
    total = values[-1]
    for value in values[:-1]:
        total = total.sum() + value.sum()
    builder.output(total.sum())
    return builder.build()


def arrays_for(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    """Input arrays: small numbers, with special values among the floats of odd seeds."""
    rng = np.random.default_rng(seed)
    arrays = []
    for type_ in graph.input_types:
        array = np.asarray(rng.uniform(-2, 2, type_.shape)).astype(type_.dtype.numpy)
        if seed % 2 and type_.dtype.is_float and array.size:
            specials = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0])
            mask = rng.random(type_.shape) < 0.4
            array = np.where(mask, rng.choice(specials, type_.shape), array)
            array = np.asarray(array).astype(type_.dtype.numpy)
        arrays.append(array)
    return arrays


def same(x: np.ndarray, y: np.ndarray) -> bool:
    """Equal bit for bit, but that any NaN equals any other."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    wide_x, wide_y = (a.astype(np.float64) if a.dtype.kind == "V" else a for a in (x, y))
    nan = (wide_x != wide_x) & (wide_y != wide_y)
    zeros = np.signbit(wide_x) == np.signbit(wide_y) if wide_x.dtype.kind == "f" else True
    return bool((nan | ((wide_x == wide_y) & zeros)).all())
