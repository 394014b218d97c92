"""Programs for many extents whose parts OpenVINO runs: one model for all extents of a program."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.backends import registry
from treadle.base.errors import CompileError
from treadle.engine.package.models import OpenRunner, read_models
from treadle.graph.ir import Graph
from treadle.jit import Options, trace

pytest.importorskip("openvino", reason="needs the openvino extra")
engine: Any = importlib.import_module("treadle.backends.openvino.engine")

pytestmark = pytest.mark.usefixtures("eager")

WITH = Options(engines=("openvino", "cpu"), strict_segments=True)


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Graph]]:
    """Graphs that OpenVINO has compiled; an earlier test has left nothing on disk."""
    (cpu,) = [e for e in registry.engines("cpu") if e.name == "cpu"]
    compiler: Any = cpu.compiler()  # type: ignore[attr-defined]
    saved, save, kept = compiler.saved, compiler.save, dict[str, bytes]()
    mine = ".segment"
    monkeypatch.setattr(
        type(compiler), "saved", lambda _, k: kept.get(k) if k.endswith(mine) else saved(k)
    )
    monkeypatch.setattr(
        type(compiler),
        "save",
        lambda _, k, data: kept.update({k: data}) if k.endswith(mine) else save(k, data),
    )
    graphs: list[Graph] = []
    compiling = engine.compile_segment

    def compile_segment(graph: Graph) -> Any:
        graphs.append(graph)
        return compiling(graph)

    monkeypatch.setattr(engine, "compile_segment", compile_segment)
    yield graphs


class Layer(M.Module):
    """Attention over an open length, and two products."""

    def __init__(self, dim: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = M.LayerNorm(dim)
        self.qkv, self.out = M.Linear(dim, 3 * dim), M.Linear(dim, dim)
        self.up, self.down = M.Linear(dim, 2 * dim), M.Linear(2 * dim, dim)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        n, t, d = x.shape
        qkv = self.qkv(self.norm(x)).reshape(n, t, 3, self.heads, d // self.heads)
        q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        scores = F.softmax(F.matmul(q, k, transpose_b=True) / 2, axis=-1)
        x = x + self.out(F.matmul(scores, v).transpose(0, 2, 1, 3).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(x)))


def layer() -> M.Module:
    mge.random.seed(5)
    net = Layer()
    net.eval()
    return net


def cnn() -> M.Module:
    mge.random.seed(6)
    net = M.Sequential(
        M.Conv2d(3, 8, 3, stride=2, padding=1),
        M.BatchNorm2d(8),
        M.ReLU(),
        M.MaxPool2d(2),
        M.Conv2d(8, 8, 3, padding=1, groups=2),
        M.AvgPool2d(2),
        M.AdaptiveAvgPool2d((1, 1)),
    )
    net.eval()
    return net


def numbers(*shape: int) -> mge.Tensor:
    return mge.tensor(np.random.default_rng(sum(shape)).normal(size=shape).astype("float32"))


def programs(function: Any) -> list[dict[str, Any]]:
    return [p for r in function.explain(form="json")["ranges"] for p in r["programs"]]


def held(function: Any, native: Any, inputs: list[mge.Tensor]) -> None:
    """Hold a compiled function against the CPU engine."""
    for x in inputs:
        wanted = native(x).numpy()
        found = function(x).numpy()
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4, err_msg=str(x.shape))


def test_lengths_share_a_model(made: list[Graph]) -> None:
    net, dynamic = layer(), {0: {0: "n", 1: "t"}}
    function = mge.jit.compile(dynamic=dynamic, options=WITH)(lambda x: net(x))
    native = mge.jit.compile(dynamic=dynamic)(lambda x: net(x))
    held(function, native, [numbers(n, t, 16) for n, t in ((2, 16), (3, 20), (2, 31), (9, 100))])
    assert len(programs(function)) == len(made) == 1
    assert len(made[0].inputs[0].type.shape) == 3
    assert not made[0].inputs[0].type.is_static
    held(
        function, native, [numbers(n, t, 16) for n, t in ((1, 20), (2, 1), (4, 9), (0, 3), (3, 0))]
    )
    assert 1 < len(made) <= len(programs(function))
    groups = function.explain(numbers(3, 20, 16), form="json")["groups"]
    assert [group["engine"] for group in groups] == ["openvino"]


def test_batches_and_sizes_share_a_model(made: list[Graph]) -> None:
    net, dynamic = cnn(), {0: {0: "n", 2: "h", 3: "w"}}
    function = mge.jit.compile(dynamic=dynamic, options=WITH)(lambda x: net(x))
    native = mge.jit.compile(dynamic=dynamic)(lambda x: net(x))
    sizes = (2, 16, 16), (3, 20, 31), (8, 33, 16), (5, 64, 100), (2, 127, 17), (4, 17, 18)
    held(function, native, [numbers(n, 3, h, w) for n, h, w in sizes])
    assert len(programs(function)) == len(made) == 1
    held(function, native, [numbers(1, 3, 16, 16), numbers(1, 3, 40, 20), numbers(0, 3, 16, 16)])
    assert len(made) == 2 <= len(programs(function))


def merged(x: mge.Tensor) -> mge.Tensor:
    """Axes that are merged before a sort, and taken apart behind it: no input tells n or t."""
    n, t, d = x.shape
    rows = F.sort(x.reshape(n * t, d))[0]
    y = F.sigmoid(rows).reshape(n, t, 4, d // 4).transpose(0, 2, 1, 3).reshape(n * 4, t, d // 4)
    scores = F.matmul(y, y, transpose_b=True).reshape(n, 4, t, t).sum(axis=1)
    return scores[:, 1:, ::2] + F.broadcast_to(scores.mean(), (n, t - 1, (t + 1) // 2))


def test_extents_that_no_input_tells_are_given_as_numbers(made: list[Graph]) -> None:
    dynamic = {0: {0: "n", 1: "t"}}
    function = mge.jit.compile(dynamic=dynamic, options=WITH)(merged)
    native = mge.jit.compile(dynamic=dynamic)(merged)
    held(function, native, [numbers(n, t, 8) for n, t in ((2, 20), (3, 31), (7, 50), (5, 17))])
    (program,) = programs(function)
    assert program["range"] == {"n": [2, 15], "t": [16, 127]}
    assert len(made) == 1
    assert [str(v.type) for v in made[0].inputs] == ["float32[n*t,8]"]
    held(function, native, [numbers(n, t, 8) for n, t in ((1, 17), (2, 2), (5, 3), (2, 5))])


def halves(x: mge.Tensor) -> mge.Tensor:
    n, t = x.shape
    first, last = x[:, : t // 2], x[:, t - t // 2 :]
    return F.concat([first * last, last[:, ::-1], F.broadcast_to(x[:, :1], (n, t))], 1)


def test_parts_of_an_open_axis(made: list[Graph]) -> None:
    dynamic = {0: {0: "n", 1: "t"}}
    function = mge.jit.compile(dynamic=dynamic, options=WITH)(halves)
    native = mge.jit.compile(dynamic=dynamic)(halves)
    held(function, native, [numbers(n, t) for n, t in ((2, 20), (3, 31), (7, 50), (1, 17), (5, 2))])
    assert 1 <= len(made) <= len(programs(function))


def test_what_needs_a_number_has_a_program_for_each_of_them(made: list[Graph]) -> None:
    mge.random.seed(7)
    up, after = M.ConvTranspose2d(3, 4, 3, stride=2), M.Conv2d(4, 4, 3)
    function = mge.jit.compile(dynamic={0: {2: "h"}}, options=WITH)(lambda x: after(up(x)))
    held(function, lambda x: after(up(x)), [numbers(2, 3, h, 9) for h in (20, 30, 50)])
    (family,) = function.explain(form="json")["ranges"]
    assert "openvino takes numbers for extents: conv_grad_input" in family["alone"]
    assert len(made) == 3
    assert all(t.is_static for graph in made for t in graph.input_types)


@pytest.mark.parametrize("what", ["compile", "run"])
def test_where_it_fails_others_serve_the_same_extents(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("the accelerator is on fire")

    if what == "compile":
        monkeypatch.setattr(engine, "compile_segment", fails)
    else:
        monkeypatch.setattr(engine.Executable, "run_into", fails)
    net, dynamic = layer(), {0: {0: "n", 1: "t"}}
    plain = Options(engines=("openvino", "cpu"))
    function = mge.jit.compile(dynamic=dynamic, options=plain)(lambda x: net(x))
    inputs = [numbers(n, t, 16) for n, t in ((2, 16), (3, 20), (9, 100))]
    logger = logging.getLogger("treadle")
    logger.addHandler(caplog.handler)  # Its messages go no further once it has one of its own.
    try:
        held(function, net, inputs)
    finally:
        logger.removeHandler(caplog.handler)
    assert len({r.getMessage() for r in caplog.records}) == 1
    assert "is run by other engines" in caplog.text
    assert len(programs(function)) == 1
    strict = mge.jit.compile(dynamic=dynamic, options=WITH)(lambda x: net(x))
    with pytest.raises(CompileError, match=f"openvino failed to {what} it"):
        strict(inputs[0])


def test_results_have_the_extents_that_the_plan_has(made: list[Graph]) -> None:
    function = mge.jit.compile(dynamic={0: {0: "n"}}, options=WITH)(lambda x: F.exp(x))
    function(numbers(20, 3))
    executable = engine.compile_segment(made[0])
    x, result = np.ones((20, 3), "float32"), np.zeros((20, 3), "float32")
    executable.run_into([x, np.array([20])], [result])
    np.testing.assert_allclose(result, np.exp(x), rtol=1e-5)
    with pytest.raises(CompileError, match=r"result 0 has shape \[20, 3\], not \[21, 3\]"):
        executable.run_into([x, np.array([20])], [np.zeros((21, 3), "float32")])


def test_compiled_segments_are_found_again_on_disk(made: list[Graph]) -> None:
    net = layer()
    for _ in range(2):
        function = mge.jit.compile(dynamic={0: {1: "t"}}, options=WITH)(lambda x: net(x))
        held(function, net, [numbers(2, t, 16) for t in (17, 40)])
    assert len(made) == 1


def test_files_keep_what_was_compiled_for_their_own_extents(
    made: list[Graph], tmp_path: Path
) -> None:
    net = layer()

    @trace(symbolic=True, capture_as_const=True)
    def predict(data: mge.Tensor) -> mge.Tensor:
        return net(data)

    for t in (20, 30):  # The second length makes a symbol of it.
        predict(numbers(2, t, 16))
    path = str(tmp_path / "layer.mge")
    predict.dump(path, arg_names=["data"], output_names=["y"], engines=("openvino",))
    (model,) = read_models(path, allow_native=True)
    (own,) = model.graph.input_types
    runner = OpenRunner(model, WITH)
    made.clear()
    for shape in (own.shape, (2, 25, 16), (2, 99, 16)):
        x = numbers(*map(int, shape))
        (found,) = runner.at([x.shape])([x.numpy()])
        np.testing.assert_allclose(found, net(x).numpy(), rtol=1e-3, atol=1e-4)
    assert [t.is_static for graph in made for t in graph.input_types] == [False]
