"""Which algorithm a convolution gets: what was measured wins over the model, within the options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.backends.codegen import tuned
from treadle.backends.cpu import backend
from treadle.backends.program import Lowered, MeasuringCompiler, Watched
from treadle.engine.options import Options
from treadle.graph.ir import Graph, regions_of
from treadle.inspect import Inspected
from treadle.ops.winograd import WinogradConv, WinogradConvGradWeight

X, W = (2, 32, 24, 24), (32, 32, 3, 3)


@pytest.fixture(autouse=True)
def no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path))
    before = tuned.installed()
    tuned.install({})
    yield
    tuned.install(before)


def tiles_in(
    graph: Graph, kind: type[WinogradConv | WinogradConvGradWeight] = WinogradConv
) -> list[int]:
    """Tiles of Winograd's algorithm, in groups or out of them."""
    found: list[int] = []
    for node in graph.nodes:
        if isinstance(node.op, kind):
            found.append(node.op.tile)
        for inner in regions_of(node.op):
            found += tiles_in(inner, kind)
    return found


def lowered(**options: int) -> Inspected:
    rng = np.random.default_rng(0)
    x, w = (mge.tensor(rng.standard_normal(s, "float32"), device="cpux") for s in (X, W))
    convolve = mge.jit.compile(lambda x, w: F.conv2d(x, w, padding=1), options=Options(**options))
    return convolve.lower(x, w)


def optimized(**options: int) -> Graph:
    return lowered(**options).lower()


def watched() -> Watched:
    """What is asked about the algorithm."""
    compiler = backend.compiler()
    assert isinstance(compiler, MeasuringCompiler)
    with compiler.watch() as found:
        lowered()
    [work] = [w for w in found if w.others]
    return work


def test_the_question_names_the_convolution_and_lists_every_algorithm() -> None:
    work = watched()
    [(name, offers)] = work.asked.items()
    assert name.endswith("conv 2x32x24x24 32x32x3x3 padding 1+1,1+1 weights")
    assert len(offers) == len(work.others) == 2
    [modelled] = {0, 2, 4} - {offer["way"] for offer in offers}
    assert tiles_in(optimized()) == ([modelled] if modelled else [])
    compiler = backend.compiler()
    for op in (work.op, *work.others):
        assert isinstance(compiler.lower(op, work.types, work.frozen), Lowered)


@pytest.mark.parametrize("way", [0, 2, 4])
def test_what_was_measured_wins(way: int) -> None:
    [name] = watched().asked
    tuned.install({name: {"way": way}})
    stages = lowered()
    assert tiles_in(stages.lower()) == ([way] if way else [])
    reasons = {d.reason for d in stages.report.decisions}
    assert ("measured to be the fastest on this machine" in reasons) == bool(way)


def gradient_stages() -> Inspected:
    """A program whose one convolution with a choice is a gradient in the weight."""
    rng = np.random.default_rng(0)
    x, w = (mge.tensor(rng.standard_normal(s, "float32"), device="cpux") for s in (X, W))

    def gradient(x: mge.Tensor, w: mge.Tensor) -> mge.Tensor | None:
        w.grad = None
        with GradManager().attach(w) as gm:
            gm.backward((F.conv2d(x, w, padding=1) ** 2).sum())
        found: mge.Tensor | None = w.grad
        return found

    return mge.jit.compile(gradient).lower(x, w)


@pytest.mark.parametrize("way", [0, 2, 4])
def test_gradients_in_the_weight_are_measured_alike(way: int) -> None:
    compiler = backend.compiler()
    assert isinstance(compiler, MeasuringCompiler)
    with compiler.watch() as found:
        gradient_stages()
    [work] = [w for w in found if any("conv_grad_weight" in name for name in w.asked)]
    [(name, offers)] = work.asked.items()
    assert len(offers) == len(work.others) == 2
    for op in (work.op, *work.others):
        assert isinstance(compiler.lower(op, work.types, work.frozen), Lowered)
    tuned.install({name: {"way": way}})
    assert tiles_in(gradient_stages().lower(), WinogradConvGradWeight) == ([way] if way else [])


def test_options_come_first() -> None:
    [name] = watched().asked
    tuned.install({name: {"way": 4}})
    assert 4 not in tiles_in(optimized(winograd=2))
    assert tiles_in(optimized(winograd=0)) == []


@pytest.mark.parametrize("choice", [{"way": 3}, {"tile": 4}, {}], ids=str)
def test_records_that_make_no_sense_leave_it_to_the_model(choice: dict[str, int]) -> None:
    modelled = tiles_in(optimized())
    [name] = watched().asked
    tuned.install({name: choice})
    assert tiles_in(optimized()) == modelled


def test_all_algorithms_are_timed() -> None:
    compiler = backend.compiler()
    work = watched()
    [found] = compiler.tune([work], 0.0)
    assert found.tried == 3
    assert found.before > 0 and found.after <= found.before
