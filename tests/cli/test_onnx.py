"""Commands on ONNX models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")

from onnx import helper  # noqa: E402
from tests.interop.onnx import models  # noqa: E402

from treadle.base.errors import ShapeError  # noqa: E402
from treadle.cli import main  # noqa: E402
from treadle.cli.models.opening import open_model  # noqa: E402
from treadle.engine.package.models import read_models, write_models  # noqa: E402
from treadle.graph.evaluate import evaluate  # noqa: E402
from treadle.serve import load_model  # noqa: E402
from treadle.utils.comp_graph_tools import GraphInference  # noqa: E402

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Convolution, norm, pooling and a classifier over [N, 3, 8, 8]."""
    path = tmp_path / "cnn.onnx"
    onnx.save(models.small_cnn(), path)
    return path


def test_open_batches_become_gears(source: Path, capsys: Capture) -> None:
    assert main(["compile", str(source), "--batch", "1,3"]) == 0
    capsys.readouterr()
    assert main(["info", str(source.with_suffix(".tm")), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [g["shapes"]["x"] for g in found["gears"]] == [[1, 3, 8, 8], [3, 3, 8, 8]]
    assert found["info"]["source"]["framework"] == "onnx"
    assert found["info"]["source"]["opsets"] == {"ai.onnx": models.OPSET}


def test_nodes_keep_their_names_with_ranges(source: Path) -> None:
    graphs = []
    for shape in ("x=2,3,8,8", "x=1..4,3,8,8"):
        assert main(["compile", str(source), "--shape", shape, "--portable"]) == 0
        graphs.append(read_models(source.with_suffix(".tm"))[0].graph)
    named, ranged = ([(n.op.name, n.names) for n in graph.nodes if n.inputs] for graph in graphs)
    assert named == ranged
    keep = next(names[0] for op, names in named if op == "conv")
    assert keep == "stem[0]"
    for given, kind in ((keep, "float32"), ("stem", "float32"), ("add", "bfloat16")):
        asked = ["--shape", "x=1..4,3,8,8", "--precision", "mixed-bfloat16", "--keep", given]
        assert main(["compile", str(source), *asked, "--portable"]) == 0
        (made,) = read_models(source.with_suffix(".tm"))
        kinds = {n.inputs[0].type.dtype.name for n in made.graph.nodes if keep in n.names}
        assert kinds == {kind}


def test_open_extents_have_to_be_given(source: Path, capsys: Capture) -> None:
    assert main(["compile", str(source)]) == 1
    assert "hint: give them: --shape x=1,3,8,8\n" in capsys.readouterr().err
    assert main(["compile", str(source), "--shape", "x=1,3,16,16"]) == 1
    said = capsys.readouterr().err
    assert "the fixed extent 8 on axis 2, not 16" in said and "x=n,3,8,8" in said
    assert main(["compile", str(source), "--shape", "x=1,3"]) == 1
    assert "input x has 4 axes, not 2" in capsys.readouterr().err


def test_an_extent_of_less_than_nothing_is_open(source: Path, capsys: Capture) -> None:
    """PaddlePaddle's exporter writes -1; `--shape` was refused, as if the model had fixed it."""
    model = onnx.load(source)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(model, source)
    assert main(["compile", str(source), "--shape", "x=2,3,8,8", "--portable"]) == 0
    (made,) = read_models(source.with_suffix(".tm"))
    assert made.graph.inputs[0].type.shape == (2, 3, 8, 8)
    capsys.readouterr()
    assert main(["compile", str(source)]) == 1
    assert "hint: give them: --shape x=1,3,8,8\n" in capsys.readouterr().err
    assert main(["compile", str(source), "--batch", "1,3"]) == 0


def test_outputs_are_chosen_by_names_of_values_and_nodes(source: Path, capsys: Capture) -> None:
    made = source.with_suffix(".tm")
    shape = ["--shape", "x=2,3,8,8", "--portable"]
    assert main(["compile", str(source), *shape, "--outputs", "stem", "--outputs", "p"]) == 0
    (model,) = read_models(made)
    assert model.outputs == ("stem", "p")
    assert [v.type.shape for v in model.graph.outputs] == [(2, 4, 8, 8), (2, 4, 4, 4)]
    # The classifier is gone with its weights.
    assert "matmul" not in {n.op.name for n in model.graph.nodes}
    assert main(["compile", str(source), *shape, "--outputs", "sten"]) == 1
    assert "did you mean stem" in capsys.readouterr().err
    assert main(["compile", str(source), *shape]) == 0
    again = ["compile", str(made), "--outputs", "stem", "--portable", "-o", str(made)]
    assert main(again) == 0
    assert read_models(made)[0].graph.outputs[0].type.shape == (2, 4, 8, 8)


def test_info_names_operators_without_converters(tmp_path: Path, capsys: Capture) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Twice", ["r"], ["y"], domain="cli.tests"),
    ]
    proto = models.model(nodes, {"x": ("N", 3)}, {"y": ("N", 3)})
    proto.opset_import.append(helper.make_opsetid("cli.tests", 1))
    onnx.save(proto, tmp_path / "own.onnx")
    assert main(["info", str(tmp_path / "own.onnx"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unsupported"] == ["cli.tests.Twice"]
    assert found["operators"] == {"Relu": 1, "cli.tests.Twice": 1}
    assert found["ends"][0] == {"kind": "input", "name": "x", "type": "float32[N,3]"}
    assert main(["info", str(tmp_path / "own.onnx")]) == 0
    assert "no converter" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "own.onnx"), "--graph", "x.txt"]) == 1


def test_functions_and_inner_graphs_count_as_operators(tmp_path: Path, capsys: Capture) -> None:
    value = helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, [3])
    node = helper.make_node("Twice", ["x"], ["t"], domain="cli.tests")
    inner = helper.make_graph([node], "inner", [], [value])
    branch = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    wanted = helper.make_tensor("c", onnx.TensorProto.BOOL, [], [True])
    proto = models.model([branch], {"x": (3,)}, {"y": (3,)}, [wanted])
    proto.opset_import.append(helper.make_opsetid("cli.tests", 1))
    onnx.save(proto, tmp_path / "branch.onnx")
    assert main(["info", str(tmp_path / "branch.onnx"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["operators"] == {"cli.tests.Twice": 2, "If": 1}
    assert found["unsupported"] == ["cli.tests.Twice"]


def test_other_batches_of_fixed_extents_are_right_or_refused(tmp_path: Path) -> None:
    """The number of rows is computed by `Shape`; other batches had that of the file's own."""
    made = (
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["extents"], to=onnx.TensorProto.FLOAT),
        helper.make_node("ReduceProd", ["extents"], ["count"], keepdims=0),
        helper.make_node("Div", ["x", "count"], ["y"]),
        helper.make_node("Reshape", ["y", "numbers"], ["z"]),
    )
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in "xyz"]
    numbers = onnx.numpy_helper.from_array(np.array([2, 3], np.int64), "numbers")
    for count, outputs in ((4, ends[1:2]), (5, ends[2:])):
        graph = helper.make_graph(made[:count], "count", ends[:1], outputs, [numbers])
        path = tmp_path / f"{count}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
        model = open_model(path, {})
        if count == 5:
            with pytest.raises(ShapeError, match=r"is a number in|its course needs"):
                model.at([(5, 3)])
            continue
        (y,) = evaluate(model.at([(5, 3)]), [np.full((5, 3), 30, np.float32)])
        np.testing.assert_array_equal(y, np.full((5, 3), 2, np.float32))
        served = load_model("count", "1", model, 3)
        assert served.most == 1 and "not independent" in served.notes[0]


def test_networks_of_loops_that_are_written_out(tmp_path: Path) -> None:
    """Over an axis of a known length a recurrent node is one turn after the other; else a loop."""
    rng = np.random.default_rng(0)
    kept = {"w": (1, 16, 3), "r": (1, 16, 4)}
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in kept.items()
    ]
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 2, 3])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 1, 2, 4])
    graph = helper.make_graph([node], "lstm", [x], [y], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx"
    )
    model = open_model(tmp_path / "m.onnx", {})
    write_models(tmp_path / "m.tm", [model], "test")
    given = rng.standard_normal((3, 2, 3)).astype(np.float32)
    (wanted,) = evaluate(model.graph, [given])
    (found,) = GraphInference(str(tmp_path / "m.tm")).run(inp_dict={"x": given}).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
