"""Batch norm around convolutions: how many passes a program takes, and that its numbers hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.jit as jit
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.backends.cpu import pool
from treadle.backends.program import Lowered
from treadle.engine.devices.placement import find_compiler
from treadle.engine.options import Options
from treadle.graph.ir import Graph
from treadle.ops.fused import Fused

SHAPE = (8, 32, 24, 24)
STEP = Callable[[mge.Tensor], list[mge.Tensor]]


class Block(M.Module):
    """Two convolutions with batch norms beside a residual path."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.c1, self.c2 = (M.Conv2d(channels, channels, 3, 1, 1, bias=False) for _ in range(2))
        self.b1, self.b2 = M.BatchNorm2d(channels), M.BatchNorm2d(channels)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + x)


def block(dtype: str = "float32") -> Block:
    """A block whose parameters are the same numbers in every type."""
    made, rng = Block(SHAPE[1]), np.random.default_rng(1)
    for p in made.parameters():
        scale = 0.1 if p.ndim == 4 and p.shape[2] > 1 else 1.0
        p[...] = mge.tensor((rng.uniform(-1.0, 1.0, p.shape) * scale).astype("float32"))
    if dtype != "float32":
        for tensor in (*made.parameters(), *made.buffers()):
            tensor._reset(tensor.astype(dtype))
    return made


def data(dtype: str = "float32") -> mge.Tensor:
    rng = np.random.default_rng(0)
    return mge.tensor(rng.standard_normal(SHAPE, np.float32).astype(dtype))


def gradients(model: Block) -> STEP:
    gm = GradManager().attach(model.parameters())

    def step(x: mge.Tensor) -> list[mge.Tensor]:
        with gm:
            y = model(x).mean((2, 3))
            gm.backward((y * y).sum())
        found = [y, *(p.grad for p in model.parameters())]
        for p in model.parameters():
            p.grad = None
        return [t for t in found if t is not None]

    return step


def groups(graph: Graph) -> list[Fused]:
    """The groups that read or write whole activations."""
    size = int(np.prod(SHAPE)) * 4
    return [
        n.op
        for n in graph.nodes
        if isinstance(n.op, Fused) and any(v.type.nbytes >= size for v in (*n.inputs, *n.outputs))
    ]


def names(group: Fused) -> list[str]:
    return [n.op.name for n in group.body.nodes] if isinstance(group.body, Graph) else []


def test_inference_is_one_group_per_convolution() -> None:
    model = block()
    model.eval()
    graph = jit.compile(lambda x: model(model(x)).mean((2, 3))).lower(data()).lower()
    found = [g for g in groups(graph) if g.kind != "loop"]
    assert [g.kind for g in found] == ["contraction"] * 4
    for group in found:
        assert {"add", "relu"} <= set(names(group))
        # What is per channel is computed per channel, once, and scales are in the weights.
        assert not {"mul", "sqrt", "div", "sub"} & set(names(group))
    others = {name for g in groups(graph) if g.kind == "loop" for name in names(g)}
    assert not {"mul", "add", "relu"} & others


def test_training_takes_two_passes_per_norm_and_direction() -> None:
    graph = jit.compile(gradients(block())).lower(data()).lower()
    compiler = find_compiler(Options())
    size = int(np.prod(SHAPE)) * 4
    passes = Counter[str]()
    for group in groups(graph):
        if group.kind == "loop" and set(names(group)) - {"transpose", "reshape"}:
            assert isinstance(group.body, Graph)
            lowered = compiler.lower(group, group.body.input_types)
            assert isinstance(lowered, Lowered)
            passes["backward" if "less" not in names(group) and "sum" in names(group) else ""] += (
                sum(launch.nbytes >= size for launch in lowered.launches)
            )
    assert passes == {"": 4, "backward": 4}


def test_gradients_are_those_of_double_precision() -> None:
    wide = gradients(block("float64"))(data("float64"))
    found = jit.compile(gradients(block()))(data())
    for got, wanted in zip(found, wide, strict=True):
        # Rounding may take an element to the other side of a relu, so not each one is compared.
        exact = wanted.numpy()
        assert np.linalg.norm(got.numpy() - exact) <= 1e-3 * np.linalg.norm(exact)


def test_the_same_bits_on_any_number_of_threads() -> None:
    step, x = jit.compile(gradients(block())), data()
    before = pool.get_threads()
    seen = set()
    try:
        for threads in (1, 2, 3):
            pool.set_threads(threads)
            seen.add(b"".join(t.numpy().tobytes() for t in step(x)))
    finally:
        pool.set_threads(before)
    assert len(seen) == 1


def test_running_statistics_survive_a_large_mean() -> None:
    model = M.BatchNorm2d(SHAPE[1], momentum=0.0)
    x = data() * 0.5 + 1000.0
    jit.compile(lambda x: model(x))(x)
    exact = x.numpy().astype(np.float64)
    mean, variance = exact.mean((0, 2, 3)), exact.var((0, 2, 3), ddof=1)
    assert model.running_mean is not None and model.running_var is not None
    np.testing.assert_allclose(model.running_mean.numpy().reshape(-1), mean, 1e-6)
    np.testing.assert_allclose(model.running_var.numpy().reshape(-1), variance, 1e-4)


def test_one_bad_channel_spoils_no_other() -> None:
    x = np.array(data().numpy())
    x[0, 3, 5, 5], x[1, 4, 0, 0] = np.nan, np.inf
    model = M.BatchNorm2d(SHAPE[1])
    y = jit.compile(lambda x: model(x))(mge.tensor(x)).numpy()
    assert np.isnan(y[:, 3:5]).all()
    assert np.isfinite(np.delete(y, [3, 4], 1)).all()
