"""MegEngine's internal modules, as programs call them: modes, subgraphs, scopes, graphs by hand."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.data import DataLoader
from treadle.data.dataset import ArrayDataset
from treadle.interop.megengine import runtime
from treadle.traced_module.pytree import tree_flatten
from treadle.utils import comp_graph_tools as cgtools
from treadle.utils.network import Network

ops = mge.core.ops.builtin
core2 = mge.core._imperative_rt.core2
graphs = mge.core.tensor.megbrain_graph


def test_modules_are_sent_by_their_names() -> None:
    # The launcher sends a program's globals; cloudpickle knows plain modules alone.
    modules = [mge, mge.amp, mge.config, mge.core, ops, core2, graphs]
    assert all(type(module) is not type(io) for module in modules[:3])
    for module in modules:
        assert pickle.loads(pickle.dumps(module, protocol=5)) is module


def test_modes_are_the_text_of_their_names() -> None:
    mode = ops.Elemwise.Mode
    assert mode.ADD == "ADD" and isinstance(mode.ADD, mode)
    assert ops.Elemwise(mode.ADD) == ops.Elemwise("add") == ops.Elemwise(mode="ADD")
    assert ops.Elemwise(mode.ADD) != ops.Elemwise(mode.SUB)
    assert len({ops.Elemwise("ADD"), ops.Elemwise("Add")}) == 1
    assert (mode.__qualname__, ops.Elemwise.__qualname__) == ("Elemwise.Mode", "Elemwise")
    assert ops.Pooling.Mode.AVERAGE == "AVERAGE" and ops.Convolution.Sparse.GROUP == "GROUP"


def test_definitions_are_pickled() -> None:
    kinds = ops.Convolution.Strategy
    made = ops.Convolution(stride_h=9, strategy=kinds.PROFILE | kinds.REPRODUCIBLE)
    again = pickle.loads(pickle.dumps(made))
    assert again == made and again.strategy == 6


@pytest.mark.parametrize("mode, expected", [("qadd", [1.0, -1.0]), ("QMUL", [0.0, -6.0])])
def test_quantized_modes(mode: str, expected: list[float]) -> None:
    kind = mge.quantization.dtype.qint8(0.5)
    x, y = (mge.tensor(v).astype(kind) for v in ([1.0, 2.0], [0.0, -3.0]))
    made = ops.ElemwiseMultiType(mode=mode, dtype=kind)(x, y)[0]
    assert made.astype("float32").tolist() == expected


def test_a_missing_name_is_named() -> None:
    code = "from treadle.core import no_such_name"
    run = [sys.executable, "-c", f"import treadle; treadle.core\n{code}"]
    done = subprocess.run(run, capture_output=True, text=True)
    assert "cannot import name 'no_such_name' from 'treadle.core'" in done.stderr


def test_subgraphs_with_and_without_their_own_gradient() -> None:
    @runtime.subgraph_fn("Cube", dtype="float32", nr_inputs=1)
    def cube(inputs: list[mge.Tensor], f: Callable[..., Any], c: Callable[..., Any]) -> Any:
        (x,) = inputs
        return (f("*", f("**", x, c(2.0)), x),), (True,)

    @runtime.subgraph_fn("Doubled", nr_inputs=2, custom_grad=True)
    def product(
        inputs: list[mge.Tensor], f: Callable[..., Any], c: Callable[..., Any]
    ) -> Iterator[Any]:
        x, y = inputs
        (dz,) = yield (f("*", x, y),)
        yield f("*", dz, y), f("-", f("*", dz, x))

    x, y = mge.tensor([3.0]), mge.tensor([5.0])
    gm = GradManager().attach([x, y])
    with gm:
        (a,), (b,) = cube(x), product(x, y)
        gm.backward(a + b)
    assert (a.item(), b.item()) == (27.0, 15.0)
    assert (x.grad.item(), y.grad.item()) == (27.0 + 5.0, -3.0)


def test_subgraphs_are_ops_that_are_made_and_then_applied() -> None:
    @runtime.subgraph("Gap", "float32", None, 2, gopt_level=2)
    def gap(inputs: list[mge.Tensor], f: Callable[..., Any], c: Callable[..., Any]) -> Any:
        x, y = inputs
        rows = f(ops.AddAxis(axis=[1]), x)
        first = f(ops.Subtensor(items=[[0, False, False, False, True]]), y, c(1, dtype="int32"))
        return [f("max", f(ops.Elemwise(mode=ops.Elemwise.Mode.SUB), rows, first), c(0))], [True]

    assert mge.core.tensor.utils.subgraph is runtime.subgraph
    (found,) = core2.apply(gap(), mge.tensor([1.0, 5.0]), mge.tensor([9.0, 2.0]))
    assert found.tolist() == [[0.0], [3.0]]


def test_functions_of_the_run_time() -> None:
    core2.push_scope("net")
    with pytest.raises(ValueError, match="not the innermost"):
        core2.pop_scope("other")
    core2.pop_scope("net")
    before = core2.get_async_level()
    core2.config_async_level(1)
    assert mge.config.async_level == 1
    core2.config_async_level(before)
    made = core2.create_complex(mge.tensor([1.0]), mge.tensor([2.0]))
    assert F.imag(made).tolist() == [2.0]
    assert core2.TensorWeakRef(made)() is made
    with pytest.warns(UserWarning, match="_set_defrag has no effect"):
        core2._set_defrag(True)
    config = mge.core._imperative_rt.OperatorNodeConfig()
    config.comp_node_arr = ["xpux", "xpux:1"]
    with pytest.raises(ValueError, match="2 devices"):
        config.comp_node
    assert mge.core._imperative_rt.CompNode("cpu0") == "cpu0"


def test_graphs_are_fed_and_read() -> None:
    graph = graphs.Graph()
    given = graphs.InputNode(device="xpux", dtype="float32", graph=graph)
    total = graphs.apply_normal_varnode(
        ops.Elemwise("ADD"), given.outputs[0], graph.make_const(1.5)
    )[0]
    read, attributes = graphs.OutputNode(total), graphs.AttrOutputNode(total)
    seen: list[Any] = []
    run = graph.compile(graphs.output_callback(seen.append, total))
    for value in ([1.0], [2.0, 3.0]):
        given.reset()
        given.set_value(mge.tensor(value))
        run.execute()
        assert read.get_value().tolist() == [v + 1.5 for v in value] == seen[-1].tolist()
        assert attributes.get_value().shape == (len(value),)


def test_graphs_of_files_and_back() -> None:
    net = Network()
    x = net.make_input_node((2,), "float32", "x")
    data, done = graphs.dump_graph({"y": F.relu(x) + 1})
    found = graphs.load_graph(io.BytesIO(data))
    assert list(found.output_vars_dict) == done.outputs == ["y"]
    assert found.output_vars_list[0].owner.type == "Elemwise"


def test_variables_of_networks_have_values_where_inputs_are_known() -> None:
    net = Network()
    x = net.make_const(np.array([[1.0, -2.0], [3.0, 4.0]], "float32"))
    y = F.concat([F.relu(x), x * 2], axis=0).sum(axis=1)
    np.testing.assert_array_equal(y.numpy(), [1.0, 7.0, -2.0, 14.0])
    y += 1
    y[0] = 9.0
    assert y.numpy().tolist() == [9.0, 8.0, -1.0, 15.0]
    assert type(y)(y.var).numpy().tolist() == y.numpy().tolist()
    z = net.make_input_node((2,), "float32", "z")
    with pytest.raises(mge.TreadleError, match="depends on the input z"):
        (z + 1).numpy()


def test_spellings_and_arguments_of_early_programs() -> None:
    x = mge.tensor([1.0, 2.0])
    assert F.nn.l1_loss(x, x + 1, "none").tolist() == [1.0, 1.0]
    assert F.nn.hinge_loss(x[None], F.ones((1, 2)), "L2", "sum").item() == 0.0
    assert F.pad(x, pad_witdth=[(1, 0)]).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(TypeError, match="missing pad_width"):
        F.pad(x)
    assert F.concat([x, 3, mge.tensor(4.0)]).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert mge.random.uniform(size=mge.tensor(3)).shape == (3,)
    assert mge.random.gamma(2.0, size=mge.tensor(3)).shape[0] == 3


def test_loaders_trees_and_quantized_layers_of_early_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loader = DataLoader(ArrayDataset(np.arange(3)), num_workers=0, divide=True)
    assert len(list(loader)) == 3 and "divide has no effect" in capsys.readouterr().err
    x = mge.tensor([0.26])
    found, tree = tree_flatten(
        {"x": [x, 5], "y": 6}, is_const_leaf=lambda leaf: not isinstance(leaf, mge.Tensor)
    )
    assert found == [x] and tree.unflatten([7]) == {"x": [7, 5], "y": 6}
    layer = M.qat.Linear(1, 1)
    layer.set_qconfig(mge.quantization.ema_fakequant_qconfig)
    made = layer._apply_fakequant_with_observer(x, layer.act_fake_quant, layer.act_observer)
    assert made.qparams.scale is not None and abs(made.item() - 0.26) < 0.01
    assert layer._apply_fakequant_with_observer(x, None, None) is x


def test_tensors_with_constructors_of_their_own() -> None:
    class Boxes(mge.Tensor):
        def __init__(self, data: Any, mode: str = "xyxy") -> None:
            self.mode = mode

    class Masks(mge.Tensor):
        def __new__(cls, data: Any) -> Any:
            return super().__new__(cls, data)

        def __init__(self, data: Any) -> None:
            self.count = len(data)

    boxes = Boxes([[1.0, 2.0]], mode="xywh")
    assert (boxes.shape, boxes.mode, (boxes + 1).tolist()) == ((1, 2), "xywh", [[2.0, 3.0]])
    assert Boxes(boxes).tolist() == boxes.tolist() and Masks(np.ones(3, "f")).count == 3
    gm = GradManager().attach([boxes])
    with gm:
        gm.backward((boxes * boxes).sum())
    assert boxes.grad.tolist() == [[2.0, 4.0]]


def test_members_of_modules_with_their_holders() -> None:
    net = M.Sequential(M.Linear(2, 2), M.BatchNorm2d(2))
    parents = {name: parent for name, _, parent in net.named_parameters(with_parent=True)}
    assert parents["0.weight"] is net[0] and parents["1.weight"] is net[1]
    assert all(parent is net[1] for _, _, parent in net.named_buffers(with_parent=True))
    assert list(net.modules(with_parent=True)) == [(net, None), (net[0], net), (net[1], net)]
    assert [p for _, p in net.children(with_parent=True)] == [net, net]
    assert len(list(net.parameters(requires_grad=True))) == 4
    assert list(net.parameters(requires_grad=False)) == []


def test_variables_know_their_graph_and_are_read_by_hand() -> None:
    net = Network()
    mask = net.make_const(np.array([True, False, True]))
    found = net.make_const(np.arange(3.0, dtype="float32"))[mask]
    read = graphs.OutputNode(found)
    found.graph.compile(read.outputs).execute()
    assert read.get_value().tolist() == [0, 2]
    axis = mge.core.tensor.utils.astensor1d([1, 2], found, dtype="int32")
    assert isinstance(axis, graphs.VarNode) and axis.numpy().tolist() == [1, 2]


def test_variables_are_replaced_in_graphs_that_are_fed() -> None:
    graph = graphs.Graph()
    given = graphs.InputNode(device="xpux", dtype="float32", graph=graph)
    x, constant = given.outputs[0], graph.make_const(1.5, device="xpux")
    double = graphs.apply_normal_varnode(ops.Elemwise(mode="ADD"), x, x)[0]
    scaled = graphs.apply_normal_varnode(ops.Elemwise(mode="MUL"), double, constant)[0]
    (made,) = cgtools.replace_vars([scaled], {constant: double})
    given.set_value(mge.tensor(5.0))
    assert graphs.OutputNode(made).get_value().item() == 100
