from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.serve.running import Array, double, doubling

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.base.errors import LoadError
from treadle.deploy import compile_offline
from treadle.engine.extents import plans
from treadle.engine.package.models import Model, read_models, write_models
from treadle.engine.package.offline import load_offline
from treadle.serve import ServedModel, load_compiled, load_model
from treadle.serve.protocol import RequestRefusal


def shapes_seen(sizes: Sequence[int], rows: int) -> tuple[list[int], Array]:
    seen: list[int] = []

    def program(arrays: Sequence[Array]) -> list[Array]:
        seen.append(len(arrays[0]))
        return double(arrays)

    model = doubling([(n, 3) for n in sizes], most=max(sizes), program=program)
    seen.clear()
    x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    (y,) = model.run([x])
    assert (y == 2 * x).all()
    return seen, y


@pytest.mark.parametrize(
    ("rows", "turns"), [(1, [1]), (3, [2, 1]), (4, [4]), (6, [4, 2]), (7, [7])]
)
def test_rows_run_in_the_largest_programs_that_they_fill(rows: int, turns: list[int]) -> None:
    assert shapes_seen((1, 2, 4, 7), rows)[0] == turns


def test_extents_that_programs_share_are_told_and_others_are_open() -> None:
    assert doubling([(1, 3), (2, 3)]).inputs[0].described["shape"] == [-1, 3]
    assert doubling([(2, 3)]).outputs[0].described["shape"] == [2, 3]


def test_requests_are_joined_up_to_a_limit_where_there_is_a_program_for_one_row() -> None:
    assert doubling([(1, 3), (2, 3), (4, 3)], most=2).sizes == {((3,),): (1, 2)}
    assert doubling([(1, 3), (2, 3)], most=1).sizes == {}
    assert doubling([(2, 3), (4, 3)], most=4).sizes == {}


def test_shapes_without_a_program_are_refused() -> None:
    joined, fixed = doubling([(1, 3), (2, 3), (4, 3)], most=2), doubling([(2, 3), (2, 5)])
    zeros = [np.zeros((n, 3), np.float32) for n in range(5)]
    assert [joined.rows([zeros[n]]) for n in (1, 2, 4)] == [1, 2, 0]
    assert fixed.rows([zeros[2]]) == 0
    for n in (0, 3):
        with pytest.raises(RequestRefusal, match=f"1 to 2 rows, not \\[{n}, 3\\]"):
            joined.rows([zeros[n]])
    with pytest.raises(
        RequestRefusal, match="no program for \\[1, 3\\], but for \\[2, 3\\]; \\[2, 5\\]"
    ):
        fixed.rows([zeros[1]])


def test_requests_are_not_joined_where_rows_depend_on_each_other() -> None:
    def mean(arrays: Sequence[Array]) -> list[Array]:
        return [arrays[0] - arrays[0].mean(0, keepdims=True)]

    model = doubling([(1, 3), (2, 3)], most=2, program=mean)
    assert model.sizes == {} and "not independent" in model.notes[0]


def test_requests_are_not_joined_where_results_have_no_rows() -> None:
    model = doubling([(1, 3), (2, 3)], most=2, program=lambda a: [a[0].sum(0)])
    assert model.sizes == {}


def test_element_types_that_the_protocol_lacks_are_refused() -> None:
    with pytest.raises(LoadError, match="complex64"):
        doubling(dtype="complex64")
    doubling(dtype=ml_dtypes.bfloat16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    mge.random.seed(0)
    net = M.Sequential(M.Linear(4, 8), M.ReLU(), M.Linear(8, 3))
    net.eval()

    @jit.trace(symbolic=True, capture_as_const=True)
    def predict(data: mge.Tensor) -> mge.Tensor:
        return F.softmax(net(data), axis=1)

    predict(mge.tensor(np.ones((1, 4), np.float32)))
    path = tmp_path_factory.mktemp("models") / "small.tm"
    predict.dump(str(path), arg_names=["data"], output_names=["scores"])
    return read_models(path)[0]


def results(served: ServedModel) -> Array:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    return served.run([x])[0] if served.most > 1 else served.run([x[:1]])[0]


def test_a_graph_is_compiled_for_the_batches_that_may_come(model: Model) -> None:
    served = load_model("small", "1", model, 3)
    assert served.sizes == {((4,),): (1, 2, 3)} and not served.notes
    alone = load_model("small", "1", model)
    assert alone.most == 1 and alone.inputs[0].shape == (1, 4)
    np.testing.assert_allclose(results(served)[:1], results(alone), rtol=1e-5)


def test_every_number_of_rows_has_a_program_of_a_plan_that_others_share(model: Model) -> None:
    """There were programs for 1, 2, 4 and 7 rows, and five rows took two runs."""
    many = load_model("small", "1", model, 40)
    (sizes,) = many.sizes.values()
    assert sizes == tuple(range(1, 41)) and not many.notes
    x = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    alone = np.concatenate([many.run([x[i : i + 1]])[0] for i in range(40)])
    shared = {many._programs[((rows, 4),)].__self__.executor for rows in range(2, 41)}
    assert len(shared) <= 3, "of 2 to 15 rows, and of 16 and more"
    for rows in range(1, 41):
        (found,) = many.run([x[:rows]])
        np.testing.assert_allclose(found, alone[:rows], rtol=1e-5)


def test_where_no_plan_serves_many_rows_requests_are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There were programs for 1, 2, 4, ... rows, each with a compilation of its own."""
    monkeypatch.setattr(plans, "refusal", lambda origin: "numbers are needed")

    @jit.trace(symbolic=True, capture_as_const=True)
    def scaled(x: mge.Tensor) -> mge.Tensor:
        return x * 8

    scaled(mge.tensor(np.ones((1, 3), np.float32)))
    path = tmp_path / "scaled.tm"
    scaled.dump(str(path), arg_names=["x"], output_names=["y"])
    served = load_model("scaled", "1", read_models(path)[0], 7)
    assert served.most == 1 and list(served._programs) == [((1, 3),)]
    assert "takes 1 and no other number of rows" in served.notes[0]
    assert "numbers are needed" in served.notes[0]
    (found,) = served.run([np.ones((1, 3), np.float32)])
    assert (found == 8).all()


@pytest.mark.parametrize("rows", [1, 3])
def test_files_that_say_nothing_of_other_sizes_join_where_no_op_holds_one(
    model: Model, tmp_path: Path, rows: int
) -> None:
    old = replace(model, graph=model.at([(rows, 4)]), opened=None)
    served = load_model("small", "1", old, 5)
    assert served.sizes == {((4,),): (1, 2, 3, 4, 5)} and not served.notes
    np.testing.assert_allclose(results(served), results(load_model("small", "1", model, 3)), 1e-5)

    @jit.trace(symbolic=True, capture_as_const=True, symbolic_shape=False)
    def flat(x: mge.Tensor) -> mge.Tensor:
        return F.relu(x).reshape(x.shape[0], -1)

    flat(mge.tensor(np.ones((rows, 2, 3), np.float32)))
    flat.dump(str(tmp_path / "flat.tm"), arg_names=["x"], output_names=["y"])
    served = load_model("flat", "1", read_models(tmp_path / "flat.tm")[0], 4)
    assert served.most == 1 and f"takes {rows} and no other" in served.notes[0]
    assert "reshape: shape may follow from an extent" in served.notes[0]
    (found,) = served.run([np.ones((rows, 2, 3), np.float32)])
    assert found.shape == (rows, 6)


def test_a_model_with_a_loop_takes_any_number_of_rows(tmp_path: Path) -> None:
    """Loops had programs for 1, 2, 4 and 7 rows."""

    @jit.trace(symbolic=True, capture_as_const=True)
    def scaled(x: mge.Tensor) -> mge.Tensor:
        start = (mge.tensor(0), x)
        return jit.while_loop(lambda n, _: n < 3, lambda n, y: (n + 1, y * 2), start)[1]

    scaled(mge.tensor(np.ones((1, 3), np.float32)))
    path = tmp_path / "scaled.tm"
    scaled.dump(str(path), arg_names=["x"], output_names=["y"])
    served = load_model("scaled", "1", read_models(path)[0], 7)
    assert served.sizes == {((3,),): tuple(range(1, 8))} and not served.notes
    for rows in range(1, 8):
        (found,) = served.run([np.ones((rows, 3), np.float32)])
        assert found.shape == (rows, 3) and (found == 8).all()


def test_a_graph_of_one_batch_size_is_served_as_it_is(tmp_path: Path) -> None:
    @jit.trace(symbolic=True, capture_as_const=True)
    def mixed(x: mge.Tensor) -> mge.Tensor:
        return F.matmul(x.T, x)

    mixed(mge.tensor(np.ones((2, 3), np.float32)))
    path = tmp_path / "mixed.tm"
    mixed.dump(str(path), arg_names=["x"], output_names=["y"])
    served = load_model("mixed", "1", read_models(path)[0], 4)
    assert served.most == 1


def test_gears_of_a_file_are_the_batches_that_may_come(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "gears.tm"
    gears = [{"data": (n, 4)} for n in (1, 2)]
    write_models(str(path), [compile_offline(model, gears)], "test")
    served = load_compiled("small", "1", load_offline(path))
    assert served.sizes == {((4,),): (1, 2)}
    expected = results(load_model("small", "1", model, 2))
    np.testing.assert_allclose(results(served), expected, rtol=1e-5)
    assert load_compiled("small", "1", load_offline(path), 1).most == 1


def test_a_file_of_one_shape_says_that_it_cannot_join(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "one.tm"
    write_models(str(path), [compile_offline(model)], "test")
    served = load_compiled("small", "1", load_offline(path), 8)
    assert served.most == 1 and "one shape" in served.notes[0]
