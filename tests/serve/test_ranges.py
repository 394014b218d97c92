"""Models that serve ranges of extents: their programs, refusals, batches, and ONNX files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serve.running import Array, ask, infer, running

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.base.errors import LoadError
from treadle.cli import main
from treadle.cli.models.ranges import are_ranged, parsed_ranges, ranged_onnx
from treadle.cli.status import Misuse
from treadle.deploy import load_offline
from treadle.engine.extents import making
from treadle.serve.protocol import RequestRefusal
from treadle.serve.ranges import (
    RangedFunction,
    RangedModel,
    ServedAxis,
    ServedInput,
    load_filed,
    load_ranged,
)

ROWS, LENGTH = ServedAxis("rows", 1, 4), ServedAxis("length", 1, 40)
FLOAT = np.dtype("float32")


def attention() -> Callable[[mge.Tensor], mge.Tensor]:
    mge.random.seed(0)
    norm, last = M.LayerNorm(8), M.Linear(8, 3)
    for module in (norm, last):
        module.eval()

    def run(x: mge.Tensor) -> mge.Tensor:
        scores = F.softmax(F.matmul(x, F.transpose(x, (0, 2, 1))), axis=-1)
        result: mge.Tensor = last(norm(x + F.matmul(scores, x)))
        return result

    return run


def ranged(
    function: Callable[..., Any], *shape: int | ServedAxis, most: int = 1, name: str = "m"
) -> RangedModel:
    inputs = [ServedInput("x", FLOAT, shape)]
    return RangedModel(name, "1", RangedFunction(name, function, inputs), inputs, ["y"], most)


def filled(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape, "float32")


def test_programs_for_all_extents_are_made_before_requests_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    function = attention()
    model = ranged(function, ROWS, LENGTH, 8)
    assert not model.notes, "all 160 were tried"
    assert model.inputs[0].described["shape"] == [-1, -1, 8]
    assert model.outputs[0].described["shape"] == [-1, -1, 3]
    programs: Any = model._programs
    captures = programs._function._captures
    count = captures.count
    monkeypatch.setattr(making, "compile_regime", None)
    for rows, length in ((1, 1), (1, 5), (4, 1), (2, 2), (4, 15), (3, 16), (4, 33), (2, 40)):
        x = filled(rows, length, 8)
        assert model.rows([x]) == 0
        (found,) = model.run([x])
        np.testing.assert_allclose(found, function(mge.tensor(x)).numpy(), rtol=1e-4, atol=1e-5)
    assert captures.count == count == 4, "one and more, of rows and of lengths"


@pytest.mark.parametrize(
    "shape", [(5, 3, 8), (0, 3, 8), (1, 41, 8), (1, 3, 7), (1, 3), (1, 3, 8, 1)]
)
def test_extents_outside_of_the_ranges_are_refused(shape: tuple[int, ...]) -> None:
    model = ranged(lambda x: x * 2, ROWS, LENGTH, 8)
    with pytest.raises(
        RequestRefusal, match=r"no program for .*, but for x \[1 to 4, 1 to 40, 8\]"
    ):
        model.rows([np.zeros(shape, np.float32)])


def test_axes_of_one_name_have_equal_extents() -> None:
    inputs = [ServedInput("x", FLOAT, (LENGTH, 2)), ServedInput("y", FLOAT, (2, LENGTH))]
    model = RangedModel("m", "1", RangedFunction("m", F.matmul, inputs), inputs, ["z"])
    (found,) = model.run([filled(5, 2), filled(2, 5)])
    assert found.shape == (5, 5)
    with pytest.raises(RequestRefusal, match=r"\[5, 2\] \[2, 6\]"):
        model.rows([filled(5, 2), filled(2, 6)])


def test_extents_that_an_op_does_not_take_are_refused_and_hold_nothing_up() -> None:
    def blocks(x: mge.Tensor) -> mge.Tensor:
        return F.reshape(x, (x.shape[0] // 32, 32)).sum(axis=1)

    model = ranged(blocks, ServedAxis("n", 32, 128))
    for n in (32, 64, 96, 128):
        assert model.run([filled(n)])[0].shape == (n // 32,)
    with pytest.raises(RequestRefusal, match="does not take these extents"):
        model.run([filled(65)])
    assert model.run([filled(64)])[0].shape == (2,)


def test_what_cannot_be_served_is_said_at_once() -> None:
    with pytest.raises(LoadError, match=r"cannot be run.*(?s:.)*n = 2"):
        ranged(lambda x: F.reshape(x, (3, -1)), ServedAxis("n", 2, 9))
    with pytest.raises(LoadError, match="not a tensor"):
        ranged(lambda x: [x], ServedAxis("n", 2, 9))
    with pytest.raises(LoadError, match="complex64"):
        load_ranged("m", "1", lambda x: x, [("x", np.dtype("complex64"), [("n", 1, 3)])], ["y"])


def test_rows_are_joined_where_they_are_apart() -> None:
    function = attention()
    assert ranged(function, ROWS, LENGTH, 8, most=3).most == 3
    assert ranged(lambda x: x * 2, ROWS, 8, most=9).most == 4
    assert ranged(lambda x: x * 2, ServedAxis("rows", 2, 6), 8, most=4).most == 1
    assert ranged(lambda x: x.sum(axis=0), ROWS, 8, most=4).most == 1
    mixed = ranged(lambda x: x - x.mean(axis=0, keepdims=True), ROWS, 8, most=4)
    assert mixed.most == 1 and "not independent" in mixed.notes[0]


def test_clients_with_texts_of_many_lengths_get_their_own_results() -> None:
    function = attention()
    model = ranged(function, ROWS, LENGTH, 8, most=4)
    requests = [filled(1 + i % 4, 1 + (7 * i) % 23, 8) for i in range(40)]

    def answer(x: Array) -> Array:
        found = ask(port, "/v2/models/m/infer", infer(x))
        assert found.status == 200, found.body
        (y,) = found.json["outputs"]
        return np.array(y["data"], np.float32).reshape(y["shape"])

    with running([model]) as server, ThreadPoolExecutor(8) as pool:
        port = server.port
        assert ask(port, "/v2/models/m").json["inputs"][0]["shape"] == [-1, -1, 8]
        results = list(pool.map(answer, requests))
        refused = ask(port, "/v2/models/m/infer", infer(filled(1, 41, 8)))
    assert refused.status == 400 and b"1 to 40" in refused.body
    for x, y in zip(requests, results, strict=True):
        np.testing.assert_allclose(y, function(mge.tensor(x)).numpy(), rtol=1e-4, atol=1e-5)


# -- as the command has them -------------------------------------------------------------------


def test_ranges_are_written_with_two_dots() -> None:
    assert are_ranged(["x=1..8,3"]) and not are_ranged(["a..b=1,3"])
    assert parsed_ranges(["x=1..8,3", "y=2"]) == {"x": ((1, 8), (3, 3)), "y": ((2, 2),)}
    for wrong in ("x=1..", "x=..3", "=1..2", "1..2", "x=1..2..", "x=a..b", "x=-1..2"):
        with pytest.raises(Misuse, match="is not a shape"):
            parsed_ranges([wrong])
    assert parsed_ranges(["x=1..4..8"]) == {"x": ((1, 4, 8),)}
    for wrong in ("x=3..2", "x=0..2", "x=1..9..8", "x=1..4..4..8"):
        with pytest.raises(Misuse, match="is not a range"):
            parsed_ranges([wrong])


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    """Tokens and a mask of (batch, length), and weights of 2, to scores of (batch, 2)."""
    onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
    helper, kinds = onnx.helper, onnx.TensorProto
    table = np.random.default_rng(0).standard_normal((7, 2), "float32")
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["rows"]),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Mul", ["rows", "wide"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["sums"], keepdims=0),
        helper.make_node("Mul", ["sums", "weights"], ["scores"]),
    ]
    shape = ["batch", "length"]
    graph = helper.make_graph(
        nodes,
        "scores",
        [
            helper.make_tensor_value_info("tokens", kinds.INT64, shape),
            helper.make_tensor_value_info("weights", kinds.FLOAT, [2]),
            helper.make_tensor_value_info("mask", kinds.FLOAT, shape),
        ],
        [helper.make_tensor_value_info("scores", kinds.FLOAT, ["batch", 2])],
        [
            onnx.numpy_helper.from_array(table, "table"),
            onnx.numpy_helper.from_array(np.array([2], np.int64), "last"),
            onnx.numpy_helper.from_array(np.array([1], np.int64), "middle"),
        ],
    )
    path = tmp_path / "scores.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    return path


@pytest.mark.onnx
def test_an_onnx_model_has_ranges_for_the_extents_that_it_leaves_open(scores: Path) -> None:
    made = ranged_onnx(scores, parsed_ranges(["tokens=1..4,1..40"]))
    assert made.inputs[2] == ("mask", FLOAT, (("batch", 1, 4), ("length", 1, 40)))
    made = ranged_onnx(scores, parsed_ranges(["tokens=1..4,1..12..40"]))
    assert made.inputs[2] == ("mask", FLOAT, (("batch", 1, 4), ("length", 1, 40, (12,))))
    model = load_ranged("scores", "1", *made, 4)
    assert model.most == 1 and model.outputs[0].described["shape"] == [-1, 2]
    table = np.random.default_rng(0).standard_normal((7, 2), "float32")
    for rows, length in ((1, 1), (3, 1), (1, 9), (4, 40)):
        tokens = np.random.default_rng(length).integers(0, 7, (rows, length))
        mask = (np.random.default_rng(rows).random((rows, length)) > 0.3).astype("float32")
        (found,) = model.run([tokens, np.array([1, -2], "float32"), mask])
        expected = (table[tokens] * mask[..., None]).sum(1) * [1, -2]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.onnx
def test_a_file_for_ranges_is_served_for_them(scores: Path, tmp_path: Path) -> None:
    made = tmp_path / "scores.tm"
    ranges = ["--shape", "tokens=1..4,1..12..40", "--shape", "mask=1..4,1..12..40"]
    assert main(["compile", str(scores), "-o", str(made), *ranges]) == 0
    offline = load_offline(made)
    assert offline.ranges == {"batch": (1, 4), "length": (1, 40)}
    model = load_filed("scores", "1", offline)
    assert not model.notes or "not independent" in model.notes[0]
    assert model.inputs[0].described["shape"] == [-1, -1]
    table = np.random.default_rng(0).standard_normal((7, 2), "float32")
    weights = np.array([1, -2], "float32")
    for rows, length in ((1, 1), (3, 1), (1, 9), (4, 40), (2, 2)):
        tokens = np.random.default_rng(length).integers(0, 7, (rows, length))
        mask = np.ones((rows, length), "float32")
        (found,) = model.run([tokens, weights, mask])
        np.testing.assert_allclose(found, table[tokens].sum(1) * weights, rtol=1e-5, atol=1e-6)
    assert not offline._compiled
    with pytest.raises(RequestRefusal, match="there is no program for"):
        model.rows([np.zeros((5, 2), np.int64), weights, np.ones((5, 2), "float32")])
    with pytest.raises(RequestRefusal, match="does not take these extents"):
        model.run([np.zeros((5, 2), np.int64), weights, np.ones((5, 2), "float32")])


@pytest.mark.onnx
@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (["tokens=1..4,9", "mask=1..4,8"], "'length', so they are equal"),
        (["tokens=1..4"], "2 axes, not 1"),
        (["token=1..4,9"], "no input token"),
        (["tokens=1..4,9", "weights=1..2"], "fixed extent 2 on axis 0, not 1..2"),
        (["weights=2..2"], "tokens has open extents: batch,length"),
    ],
)
def test_ranges_that_do_not_fit_the_model_are_refused(
    scores: Path, shapes: Sequence[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [part for shape in shapes for part in ("--shape", shape)]
    assert main(["serve", str(scores), "--port", "0", *options]) == 1
    assert says in capsys.readouterr().err


def test_a_model_file_takes_no_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.tm"
    path.write_bytes(b"")
    assert main(["serve", str(path), "--port", "0", "--shape", "x=1..4"]) == 1
    assert "need an ONNX file" in capsys.readouterr().err
