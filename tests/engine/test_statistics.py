"""Statistics of batch norms taken by the convolutions before them: whole programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.backends.targets import compiling_for

import treadle as mge
import treadle.functional as F
import treadle.jit as jit
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.backends.cpu import pool
from treadle.engine.optimize import statistics
from treadle.engine.options import Options
from treadle.graph.ir import Graph
from treadle.ops.column_moments import ColumnMoments
from treadle.ops.fused import Fused

SHAPE = (3, 32, 29, 27)
DIRECT = Options(winograd=0)
SEPARATE = Options(winograd=0, disabled=("statistics",))
STEP = Callable[[mge.Tensor], list[mge.Tensor]]


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "LEAST", 0)


class Block(M.Module):
    """Convolutions with batch norms and rectifiers; one has a bias and a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = (M.Conv2d(32, 32, 3, 1, 1, bias=False) for _ in range(2))
        self.c3 = M.Conv2d(32, 72, 3, 2, 1)
        self.b1, self.b2, self.b3 = M.BatchNorm2d(32), M.BatchNorm2d(32), M.BatchNorm2d(72)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        x = F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + x)
        return F.relu(self.b3(self.c3(x)))


def block(dtype: str = "float32") -> Block:
    made, rng = Block(), np.random.default_rng(1)
    for p in made.parameters():
        p[...] = mge.tensor(rng.uniform(-0.5, 0.5, p.shape).astype("float32"))
    if dtype != "float32":
        for tensor in (*made.parameters(), *made.buffers()):
            tensor._reset(tensor.astype(dtype))
    return made


def data(dtype: str = "float32", shape: tuple[int, ...] = SHAPE) -> mge.Tensor:
    rng = np.random.default_rng(0)
    return mge.tensor(rng.standard_normal(shape, np.float32).astype(dtype))


def training(model: Block) -> STEP:
    gm = GradManager().attach(model.parameters())

    def step(x: mge.Tensor) -> list[mge.Tensor]:
        with gm:
            y = model(x)
            gm.backward((y * y).mean())
        found = [y, *(p.grad for p in model.parameters())]
        for p in model.parameters():
            p.grad = None
        return [t for t in found if t is not None]

    return step


def between_layouts(function: Callable[[mge.Tensor], mge.Tensor]) -> Callable[..., mge.Tensor]:
    """The function on maps that the user holds channels-last."""
    return lambda x: F.transpose(function(F.transpose(x, (0, 3, 1, 2))), (0, 2, 3, 1))


def compiled(function: Callable[..., Any], options: Options) -> Any:
    return jit.compile(options=options)(function)


def measured(graph: Graph) -> int:
    """How many convolutions leave statistics."""
    bodies = [n.op.body for n in graph.nodes if isinstance(n.op, Fused)]
    inside = [n for b in bodies if isinstance(b, Graph) for n in b.nodes]
    return sum(isinstance(n.op, ColumnMoments) for n in inside)


def test_convolutions_leave_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    step = training(block())
    # 72 channels are no whole tiles of 32, so AVX-512 keeps the last convolution row-major.
    for target, count in {"generic": 3, "avx2": 3, "avx512": 2}.items():
        with compiling_for(target):
            assert measured(compiled(step, DIRECT).lower(data()).lower()) == count
    assert measured(compiled(step, SEPARATE).lower(data()).lower()) == 0
    assert measured(compiled(step, Options(level=1)).lower(data()).lower()) == 0
    monkeypatch.setattr(statistics, "LEAST", 8 << 20)
    small = data(shape=(2, 32, 29, 27))
    assert measured(compiled(step, DIRECT).lower(small).lower()) == 0


def test_numbers_are_those_of_separate_passes_and_of_double_precision() -> None:
    runs = {}
    for name, dtype, options in (
        ("wide", "float64", SEPARATE),
        ("separate", "float32", SEPARATE),
        ("together", "float32", DIRECT),
    ):
        model = block(dtype)
        found = compiled(training(model), options)(data(dtype))
        runs[name] = [t.numpy() for t in (*found, *model.buffers())]
    for exact, separate, together in zip(*runs.values(), strict=True):
        # Rounding may take an element to the other side of a relu, so not each one is compared;
        # gradients of what a norm takes away again are noise.
        scale = np.linalg.norm(exact) + 1e-4 * np.sqrt(exact.size)
        assert np.linalg.norm(separate - exact) <= 1e-3 * scale
        assert np.linalg.norm(together - exact) <= 1e-3 * scale


def test_the_same_bits_on_any_number_of_threads() -> None:
    step, x = compiled(training(block()), DIRECT), data()
    before = pool.get_threads()
    seen = set()
    try:
        for threads in (1, 2, 3):
            pool.set_threads(threads)
            seen.add(b"".join(t.numpy().tobytes() for t in step(x)))
    finally:
        pool.set_threads(before)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("options", "limit"), [(DIRECT, 3e-7), (SEPARATE, 3e-6)], ids=["together", "separate"]
)
def test_a_large_mean(options: Options, limit: float) -> None:
    """Deviations of 1 about 10,000, which the bias of the convolution adds."""
    conv, norm = M.Conv2d(SHAPE[1], 32, 3, 1, 1), M.BatchNorm2d(32, momentum=0.0)
    rng = np.random.default_rng(3)
    conv.weight[...] = mge.tensor(rng.normal(0, 1 / 17, conv.weight.shape).astype("float32"))
    assert conv.bias is not None
    conv.bias[...] = 10_000.0
    step = compiled(between_layouts(lambda x: F.relu(norm(conv(x)))), options)
    x = data(shape=(4, 32, 60, 50))
    held = F.transpose(x, (0, 2, 3, 1))
    assert measured(step.lower(held).lower()) == (not options.disabled)
    y = step(held).numpy().transpose(0, 3, 1, 2)
    wide = F.conv2d(x.astype("float64"), conv.weight.astype("float64"), None, 1, 1).numpy()
    axes = (0, 2, 3)
    mean, variance = wide.mean(axes, keepdims=True), wide.var(axes, ddof=1, keepdims=True)
    assert norm.running_mean is not None and norm.running_var is not None
    np.testing.assert_allclose(norm.running_mean.numpy(), mean + 1e4, rtol=limit)
    np.testing.assert_allclose(norm.running_var.numpy(), variance, rtol=1e-4)
    wanted = np.maximum((wide - mean) / np.sqrt(variance + 1e-5), 0)
    assert np.abs(y - wanted).max() <= 2e-3 + 1e4 * limit  # 10,000 is known to 1e-3.


def test_one_bad_channel_spoils_no_other() -> None:
    model = block()
    model.c1.weight[3] = float("nan")
    model.c1.weight[5] = float("inf")
    step = compiled(between_layouts(lambda x: model.b1(model.c1(x))), DIRECT)
    held = F.transpose(data(), (0, 2, 3, 1))
    assert measured(step.lower(held).lower()) == 1
    out = step(held).numpy()
    assert np.isnan(out[..., [3, 5]]).all()
    assert np.isfinite(np.delete(out, [3, 5], -1)).all()
