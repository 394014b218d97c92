"""Model files loaded, searched, edited, run and written again."""

from __future__ import annotations

import io
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.base.errors import CheckpointError, GraphError, ShapeError, TraceError, TreadleError
from treadle.engine.package import models
from treadle.utils import comp_graph_tools as cgtools
from treadle.utils import network_node
from treadle.utils.network import (
    Network,
    NodeFilter,
    NodeFilterCheckType,
    NodeFilterHasInput,
    NodeFilterName,
    NodeFilterNotType,
    NodeFilterType,
    as_oprnode,
    as_varnode,
    set_symbolic_shape,
)


class Net(M.Module):
    """A convolution, a norm, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = M.Conv2d(3, 4, 3)
        self.norm = M.BatchNorm2d(4)
        self.fc = M.Linear(4 * 36, 5)

    def forward(self, x: Any) -> Any:
        return self.fc(F.flatten(F.relu(self.norm(self.conv(x))), 1))


def images(n: int = 2) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).random((n, 3, 8, 8), np.float32)


@pytest.fixture
def dumped() -> tuple[io.BytesIO, np.ndarray[Any, Any], Net]:
    """A model file, its output for `images()`, and the module it is of."""
    net = Net()
    net.eval()
    traced = jit.trace(lambda x: net(x), symbolic=True, capture_as_const=True)
    out = traced(mge.tensor(images()))
    file = io.BytesIO()
    traced.dump(file, arg_names=["data"], output_names=["logits"])
    file.seek(0)
    return file, out.numpy(), net


def sum_of_product() -> io.BytesIO:
    """`relu`-free: c = a * b + 2, named."""

    @jit.trace(symbolic=True, capture_as_const=True)
    def f(a: Any, b: Any) -> Any:
        return a * b + 2

    f(mge.tensor([1.0, -2.0]), mge.tensor([3.0, 4.0]))
    file = io.BytesIO()
    f.dump(file, arg_names=["a", "b"], output_names=["c"])
    file.seek(0)
    return file


A, B = np.array([1.0, -2.0], np.float32), np.array([3.0, 4.0], np.float32)


# -- dump ------------------------------------------------------------------------------------


def test_other_sizes_are_read_when_they_are_asked_for(
    dumped: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    parse = models.parse

    def counted(text: str, *rest: Any) -> Any:
        texts.append(text)
        return parse(text, *rest)

    monkeypatch.setattr(models, "parse", counted)
    net = Network.load(dumped[0])
    assert len(texts) == 1
    net.reset_batch_size(5)
    net.reset_batch_size(3)
    assert len(texts) == 2


def test_dump_tells_what_it_wrote(tmp_path: Path) -> None:
    weight = mge.tensor([[1.0, 2.0], [3.0, 4.0]], name="weight")

    @jit.trace(symbolic=True, capture_as_const=True)
    def f(x: Any) -> Any:
        return x @ weight

    f(mge.tensor([[1.0, 1.0]]))
    path = tmp_path / "model.mge"
    done = f.dump(path, user_info={"author": "me"}, enable_fuse_conv_bias_nonlinearity=True)
    assert done.tot_bytes == path.stat().st_size
    assert (done.inputs, done.params) == (["arg_0"], ["weight"])
    assert done.nr_opr >= 3
    assert done.tensor_value_bytes == 16
    assert len(done.content_hash) == 64
    assert len(done.outputs) == 1
    meta = Network.load(path).metadata
    assert meta["user_info"] == {"author": "me"}
    assert meta["enable_fuse_conv_bias_nonlinearity"] is True
    assert meta["graph_modified"] is False
    assert meta["optimized_for_inference"] is True
    net = Network.load(path)
    net.dump(tmp_path / "changed.mge")
    assert Network.load(tmp_path / "changed.mge").metadata["graph_modified"] is True
    f.dump(tmp_path / "plain.mge", optimize_for_inference=False)
    assert Network.load(tmp_path / "plain.mge").metadata["optimized_for_inference"] is False
    f.dump(tmp_path / "bare.mge", enable_metadata=False)
    assert Network.load(tmp_path / "bare.mge").metadata is None
    again = f.dump(tmp_path / "again.mge", user_info={"author": "me"})
    assert again.content_hash == done.content_hash


def test_dump_runs_elsewhere(dumped: Any) -> None:
    file, out, _ = dumped
    run = cgtools.GraphInference(file)
    found = run.run(images())
    assert list(found) == ["logits"]
    np.testing.assert_allclose(found["logits"], out, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(run.run(inp_dict={"data": images()})["logits"], found["logits"])


def test_outputs_of_dicts_and_lists_have_names() -> None:
    @jit.trace(symbolic=True, capture_as_const=True)
    def f(x: Any) -> Any:
        return {"twice": x * 2, "exp": F.exp(x)}

    f(mge.tensor(A))
    file = io.BytesIO()
    f.dump(file)
    file.seek(0)
    found = cgtools.GraphInference(file).run(A)
    np.testing.assert_allclose(found["twice"], A * 2)
    np.testing.assert_allclose(found["exp"], np.exp(A), rtol=1e-6)

    @jit.trace(symbolic=True, capture_as_const=True)
    def g(x: Any, *, shift: Any) -> Any:
        return [x + shift, x - shift]

    g(mge.tensor(A), shift=mge.tensor(B))
    assert g.dump(io.BytesIO()).inputs == ["arg_0", "kwarg_shift"]


def test_what_is_no_tensor_is_part_of_the_model() -> None:
    net = M.Linear(2, 1)

    @jit.trace(symbolic=True, capture_as_const=True)
    def run(data: Any, *, net: M.Module, bias: Any, scale: float = 1.0) -> Any:
        return net(data) * scale + bias

    x, bias = mge.tensor([[1.0, 2.0]]), mge.tensor([3.0])
    wanted = run(x, net=net, bias=bias, scale=2.0).numpy()
    file = io.BytesIO()
    assert run.dump(file).inputs == ["arg_0", "kwarg_bias"]
    file = io.BytesIO()
    run.dump(file, arg_names=["data", "bias"], output_names="out")
    file.seek(0)
    found = cgtools.GraphInference(file).run(inp_dict={"data": x.numpy(), "bias": bias.numpy()})
    np.testing.assert_allclose(found["out"], wanted, rtol=1e-6)


def test_dump_is_refused_where_there_is_nothing_to_dump() -> None:
    plain = jit.trace(lambda x: x + 1)
    plain(mge.tensor(A))
    with pytest.raises(ValueError, match="capture_as_const"):
        plain.dump(io.BytesIO())
    fresh = jit.trace(lambda x: x + 1, capture_as_const=True)
    with pytest.raises(ValueError, match="call the traced function"):
        fresh.dump(io.BytesIO())
    with pytest.raises(AssertionError, match="tensor type args"):
        fresh(3)
    fresh(mge.tensor(A))
    with pytest.raises(ValueError, match="arg_names"):
        fresh.dump(io.BytesIO(), arg_names=["x", "y"])
    with pytest.raises(ValueError, match="output_names"):
        fresh.dump(io.BytesIO(), output_names=["x", "y"])
    with pytest.raises(ValueError, match="unknown option 'enable_magic'"):
        fresh.dump(io.BytesIO(), enable_magic=True)


def test_what_changes_state_is_not_dumped() -> None:
    net = Net()
    traced = jit.trace(lambda x: net(x), capture_as_const=True)
    traced(mge.tensor(images()))
    with pytest.raises(TraceError, match="changes tensors"):
        traced.dump(io.BytesIO())


def test_record_only_computes_nothing() -> None:
    seen = []

    @jit.trace(record_only=True)
    def f(x: Any) -> Any:
        seen.append(1)
        return x * 3

    out = f(mge.tensor(A))
    assert out.shape == (2,)
    with pytest.raises(TraceError):
        out.numpy()
    file = io.BytesIO()
    f.dump(file)
    file.seek(0)
    [found] = cgtools.GraphInference(file).run(A).values()
    np.testing.assert_array_equal(found, A * 3)


def test_cases_are_kept_with_the_model(tmp_path: Path) -> None:
    from treadle.engine.package.models import read_models

    np.save(tmp_path / "x.npy", A)
    f = jit.trace(lambda x: x * 2, capture_as_const=True)
    f(mge.tensor(A))
    path = tmp_path / "m.mge"
    f.dump(path, arg_names=["x"], input_data=[f"x:{tmp_path / 'x.npy'}", "#rand(0, 1)", B])
    first, second, third = read_models(path)[0].cases
    np.testing.assert_array_equal(first.outputs[next(iter(first.outputs))], A * 2)
    assert 0 <= second.inputs["x"].min() <= second.inputs["x"].max() <= 1
    np.testing.assert_array_equal(third.inputs["x"], B)
    with pytest.raises(ValueError, match="neither"):
        f.dump(path, input_data=["x.jpg"])
    with pytest.raises(ValueError, match="shape"):
        f.dump(path, input_data=[np.zeros((3,), np.float32)])


def test_append_adds_a_model(tmp_path: Path) -> None:
    from treadle.engine.package.models import read_models

    f = jit.trace(lambda x: x * 2, capture_as_const=True)
    f(mge.tensor(A))
    path = tmp_path / "m.mge"
    f.dump(path)
    f.dump(path, append=True)
    assert len(read_models(path)) == 2


def test_profiles_of_traces() -> None:
    f = jit.trace(lambda x: F.exp(x) + 1, profiling=True)
    with pytest.raises(TraceError, match="nothing has been measured"):
        f.get_profile()
    f(mge.tensor(A))
    profile = f.get_profile()
    assert {"graph_exec", "profiler"} == set(profile)
    assert "exp" in profile["graph_exec"]["operator"]["0"]["type"]
    times = profile["profiler"]["device"]["0"]["cpu0:0"]
    assert times["start"][0] <= times["kern"][0] <= times["end"][0]
    assert [op.name for op in f.ops] == ["exp", "constant", "add"]
    assert len(f.vars) == 4


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    mge.save({"a": mge.tensor(A)}, path)
    with pytest.raises(CheckpointError, match=r"treadle\.load"):
        Network.load(path)
    sum_path = tmp_path / "model"
    sum_path.write_bytes(sum_of_product().getvalue())
    with pytest.raises(CheckpointError, match=r"Network\.load"):
        mge.load(sum_path)
    damaged = bytearray(sum_of_product().getvalue())
    damaged[200] ^= 1
    with pytest.raises(CheckpointError):
        Network.load(io.BytesIO(bytes(damaged)))
    with pytest.raises(CheckpointError, match="no model"):
        Network.load(io.BytesIO(b"x" * 100))


# -- networks ---------------------------------------------------------------------------------


def run(net: Network, *arrays: Any) -> OrderedDict[str, Any]:
    file = io.BytesIO()
    net.dump(file)
    file.seek(0)
    return cgtools.GraphInference(file).run(*arrays)


def test_a_network_is_what_was_dumped(dumped: Any) -> None:
    file, out, _ = dumped
    net = Network.load(file)
    np.testing.assert_allclose(run(net, images())["logits"], out, rtol=1e-5, atol=1e-6)
    assert net.opr_filter.type("ConvolutionForward").as_count() == 1
    assert net.get_opr_by_type(network_node.CLASSES["MatrixMul"]).type == "MatrixMul"
    assert net.data_providers_filter.as_unique().name == "data"
    assert len(net.params_filter.as_list()) >= 4
    assert net.get_var_by_name("data").shape == (2, 3, 8, 8)


def test_functions_of_variables_extend_a_network() -> None:
    net = Network.load(sum_of_product())
    a, b = net.var_filter.name("a").as_unique(), net.var_filter.name("b").as_unique()
    out = F.relu(F.mul(a, b))
    [product] = net.opr_filter.has_input(a)
    net.replace_vars({product.outputs[0]: out})
    np.testing.assert_array_equal(run(net, A, B)["c"], np.maximum(A * B, 0) + 2)


def test_a_variable_is_replaced_by_a_function_of_itself() -> None:
    net = Network.load(sum_of_product())
    [c] = net.dest_vars
    net.replace_vars({c: F.exp(c) - 1})
    [found] = run(net, A, B).values()
    np.testing.assert_allclose(found, np.exp(A * B + 2) - 1, rtol=1e-5)


def test_operators_are_replaced() -> None:
    net = Network.load(sum_of_product())
    product = net.get_opr_by_type(network_node.CLASSES["Elemwise"], unique=False)[0]
    a, b = product.inputs
    net.replace_oprs({product: as_oprnode(a - b)})
    np.testing.assert_array_equal(run(net, A, B)["c"], A - B + 2)


def test_operators_made_beside_a_network_are_found_once_they_are_used() -> None:
    @jit.trace(symbolic=True, capture_as_const=True)
    def run(a: Any, b: Any) -> Any:
        return (a - b) * 2

    run(mge.tensor([1, 2]), mge.tensor([3, 4]))
    file = io.BytesIO()
    run.dump(file, arg_names=["a", "b"], output_names="o")
    file.seek(0)
    net = Network.load(file)
    assert [v.name for v in net.input_vars] == ["a", "b"]
    assert [v.name for v in net.output_vars] == ["o"]
    a, b = net.get_var_by_name("a"), net.get_var_by_name("b")
    assert (a.owner.shape, a.owner.dtype) == ((2,), np.dtype("int32"))
    (made,) = net.add_dep_oprs(F.relu(F.sub(a, b)))
    before = net.opr_filter.has_input(a).as_unique()
    net.replace_oprs({before: made.owner})
    file = io.BytesIO()
    net.dump(file)
    file.seek(0)
    assert cgtools.GraphInference(file).run([1, 5], [3, 4])["o"].tolist() == [0, 2]


def test_constants_and_inputs_are_made() -> None:
    net = Network.load(sum_of_product())
    a = net.get_var_by_name("a")
    fresh = net.make_input_node((2,), "float32", name="fresh")
    ten = net.make_const(np.float32(10), name="ten")
    net.replace_vars({a: fresh * ten})
    graph = net.graph()
    assert [v.name for v in graph.inputs] == ["b", "fresh"]
    np.testing.assert_array_equal(run(net, B, A)["c"], 10 * A * B + 2)
    assert net.get_opr_by_name("ten").get_value() == 10
    net.get_opr_by_name("ten").set_value(2)
    np.testing.assert_array_equal(run(net, B, A)["c"], 2 * A * B + 2)


def test_outputs_are_added_and_removed() -> None:
    net = Network.load(sum_of_product())
    [c] = net.dest_vars
    product = c.owner.inputs[0]
    net.add_output(product)
    assert list(run(net, A, B)) == ["c", "MUL"]
    net.remove_output(c)
    np.testing.assert_array_equal(run(net, A, B)["MUL"], A * B)
    net.remove_output(product)
    with pytest.raises(GraphError, match="nothing to dump"):
        net.dump(io.BytesIO())


def test_another_batch_size(dumped: Any) -> None:
    file, _, module = dumped
    net = Network.load(file)
    net.reset_batch_size(5)
    assert net.get_var_by_name("data").shape == (5, 3, 8, 8)
    assert net.dest_vars[0].shape == (5, 5)
    want = module(mge.tensor(images(5))).numpy()
    np.testing.assert_allclose(run(net, images(5))["logits"], want, rtol=1e-5, atol=1e-6)


def test_names_are_changed() -> None:
    net = Network.load(sum_of_product())
    net.modify_opr_names("left")
    assert net.get_var_by_name("left.a").name == "left.a"
    assert net.get_var_by_name("a").name == "left.a"
    net.modify_opr_names(str.upper)
    assert net.var_filter.name("LEFT.*").as_count() == 5
    with pytest.raises(TypeError):
        net.modify_opr_names(3)  # type: ignore[arg-type]


def test_two_networks_are_joined() -> None:
    first, second = Network.load(sum_of_product()), Network.load(sum_of_product())
    second.modify_opr_names("second")
    [c] = first.dest_vars
    second.replace_vars({second.get_var_by_name("second.a"): c})
    found = run(second, B, A, B)
    [value] = found.values()
    np.testing.assert_array_equal(value, (A * B + 2) * B + 2)


def test_filters() -> None:
    net = Network.load(sum_of_product())
    everything = net.opr_filter
    assert everything.not_type(network_node.Host2DeviceCopy).as_count() == len(everything) - 2
    assert list(everything.data_provider().as_dict()) == ["a", "b"]
    with pytest.raises(ValueError, match="found 2"):
        everything.data_provider().as_unique()
    with pytest.raises(TypeError, match="check_type"):
        everything.check_type(network_node.Host2DeviceCopy).as_list()
    assert everything.check_type(network_node.OpNode).as_list() == everything.as_list()
    assert list(net.all_oprs_dict.values()) == everything.as_list()
    assert net.all_vars_dict["a"] is net.get_var_by_name("a")
    assert list(net.all_vars_dict) == [v.name for v in net.all_vars]
    assert net.get_var_by_name("a").partial_shape == (2,)
    assert NodeFilter.make_all_deps(*net.dest_vars).as_count() == len(everything)
    assert as_varnode(everything.data_provider().as_list()[0]).name == "a"
    with pytest.raises(TypeError):
        as_varnode(3)


def test_filters_are_classes_that_programs_make_themselves() -> None:
    net = Network.load(sum_of_product())
    product = net.get_var_receive_oprs(net.get_var_by_name("a"))[0]
    made = {
        NodeFilterType: (network_node.Elemwise,),
        NodeFilterNotType: (network_node.Host2DeviceCopy,),
        NodeFilterCheckType: (network_node.NetworkNode,),
        NodeFilterName: ("A", True),
        NodeFilterHasInput: (product.outputs[0],),
    }
    for cls, arguments in made.items():
        found = cls(net.all_oprs, *arguments)
        assert isinstance(found, NodeFilter)
        assert list(found) == list(found)  # Read twice, though MegEngine's is an iterator.
        assert all(isinstance(n, network_node.OpNode) for n in found.as_list())
    assert NodeFilterName(net.all_oprs, "A").as_unique().name == "a"
    assert NodeFilterName(net.all_oprs, "A", False).as_count() == 0
    assert [o.name for o in net.opr_filter.name("?")] == ["a", "b"]
    assert NodeFilterName.make_re("a*[0]").match("ab[0]")
    assert NodeFilterType(net.opr_filter, network_node.Elemwise).as_list()[0] is product
    # Of a variable: what its owner depends on; of an operator the same.
    assert [o.name for o in NodeFilter(product.outputs[0])] == ["a", "b"]
    assert [o.name for o in NodeFilter(product).data_provider()] == ["a", "b"]
    one_by_one = NodeFilter(iter(net.all_oprs))
    assert one_by_one.as_count() == one_by_one.as_count() > 2
    for wrong in (3, None):
        with pytest.raises(TypeError, match="not a node"):
            NodeFilter(wrong)
    with pytest.raises(TypeError, match="not a node"):
        NodeFilter([3]).as_list()
    with pytest.raises(TypeError, match="not a class of nodes"):
        net.opr_filter.type(int)
    with pytest.raises(TypeError, match="not an operator"):
        net.var_filter.has_input(net.get_var_by_name("a")).as_list()
    with pytest.raises(TypeError, match="a text"):
        net.opr_filter.name(3)  # type: ignore[arg-type]


def test_classes_of_operators_form_a_tree() -> None:
    x = F.ones((2, 3, 4))
    traced = jit.trace(
        lambda x: F.topk(F.sort(x[:, 1:])[0] + F.floor(x[:, :2] + 0.5), 2), capture_as_const=True
    )
    traced(x)
    file = io.BytesIO()
    traced.dump(file)
    file.seek(0)
    net = Network.load(file)
    assert net.opr_filter.type(network_node.IndexingBase).as_count() == 2
    assert net.opr_filter.type(network_node.ArgsortForward).as_count() == 1
    assert net.opr_filter.type(network_node.MeshIndexing).as_count() == 0
    assert issubclass(network_node.UniformRNG, network_node.RNGOpr)
    assert issubclass(network_node.SetSubtensor, network_node.IndexingBase)
    assert not issubclass(network_node.IndexingBase, network_node.ConstOpBase)
    assert all(isinstance(v, network_node.NetworkNode) for v in net.all_vars + net.all_oprs)
    assert network_node.str_to_mge_class("Nobody's") is network_node.ReadOnlyOpNode
    constant = net.make_const(np.float32([1, 2])).owner
    assert constant.shape == (2,) and constant.dtype == np.float32
    assert constant.numpy().tolist() == [1, 2]


def test_shapes_are_variables_where_programs_ask_for_them() -> None:
    net = Network.load(sum_of_product())
    a = net.get_var_by_name("a")
    assert set_symbolic_shape(True) is False
    try:
        shape = a.shape
        assert isinstance(shape, network_node.VarNode) and shape.owner.type == "GetVarShape"
        assert shape.numpy().tolist() == [2] and a.partial_shape == (2,)
        # Functions take the tuple where they look themselves.
        (y,) = net.dest_vars
        net.add_output((shape * 10).astype("float32"), F.relu(y))
    finally:
        assert set_symbolic_shape(False) is True
    assert a.shape == (2,)
    net.reset_batch_size(3)
    assert shape.numpy().tolist() == [3]
    out = io.BytesIO()
    net.dump(out)
    out.seek(0)
    inference = cgtools.GraphInference(out)
    given = {v.name: np.ones(3, np.float32) for v in net.input_vars}
    found = list(inference.run(inp_dict=given).values())
    assert any(f.tolist() == [30.0] for f in found)


def test_a_variable_has_no_value_of_its_own() -> None:
    net = Network.load(sum_of_product())
    a = net.get_var_by_name("a")
    with pytest.raises(GraphError, match="where the network runs"):
        a.numpy()
    with pytest.raises(GraphError, match="only a constant"):
        a.set_value(A)
    with pytest.raises(ShapeError):
        _ = a + net.make_const(np.zeros((3,), np.float32))


# -- cgtools ----------------------------------------------------------------------------------


def test_graphs_are_looked_into() -> None:
    net = Network.load(sum_of_product())
    [c] = net.dest_vars
    assert cgtools.get_owner_opr_type(c) == "Elemwise"
    assert cgtools.get_opr_type(c.owner) == "Elemwise"
    assert [v.shape for v in cgtools.get_owner_opr_inputs(c)] == [(2,), ()]
    assert [v.name for v in cgtools.get_dep_vars(c, "Host2DeviceCopy")] == ["a", "b"]
    assert len(cgtools.get_oprs_seq(c)) == 4
    assert len(cgtools.get_oprs_seq(c, prune_immtensor=False)) == 5
    oprs, variables, takers, receivers, by_count, counts = cgtools.graph_traversal(c)
    a = net.get_var_by_name("a")
    assert len(oprs) == len(counts) == 5
    assert variables[a.id] is a
    [(taker, place)] = takers[a.id]
    assert (oprs[taker].type, place) == ("Elemwise", 0)
    assert receivers[a.owner.id] == [taker]
    assert by_count[0] == {v.owner.id for v in variables.values() if not v.owner.inputs}
    assert counts[taker] == 2
    assert (a.owner.id, a.id) == (0, 1)  # counted in each network from 0
    [found] = cgtools.find_vars_by_name([c], ["a"])
    assert found.name == "a"
    with pytest.raises(TypeError):
        cgtools.get_opr_type(3)  # type: ignore[arg-type]


def test_inputs_become_constants() -> None:
    net = Network.load(sum_of_product())
    outs, made = cgtools.embed_inputs(net.dest_vars, [A, B])
    fixed = Network()
    fixed.add_output(*outs)
    assert len(made) == 2
    [value] = run(fixed).values()
    np.testing.assert_array_equal(value, A * B + 2)
    with pytest.raises(ValueError, match="arrays"):
        cgtools.embed_inputs(net.dest_vars, [A, A, A])


def test_wrong_inputs_of_a_run_are_named() -> None:
    infer = cgtools.GraphInference(sum_of_product(), profiling=True)
    with pytest.raises(ValueError, match=r"\['a', 'b'\]"):
        infer.run(A)
    with pytest.raises(ValueError, match=r"\['a', 'b'\]"):
        infer.run(A, B, inp_dict={"a": A})
    with pytest.raises(ShapeError, match=r"takes no inputs of these shapes: .*a_0 - b_0"):
        infer.run(np.zeros((3,), np.float32), B)
    with pytest.raises(ValueError, match="profiling"):
        infer.get_profile()
    infer.run(A, B)
    assert infer.get_profile()["profiler"]["device"]


def test_outputs_are_chosen_by_name(dumped: Any) -> None:
    file, _, _ = dumped
    found = cgtools.GraphInference(file, outputs=["data"]).run(images())
    np.testing.assert_array_equal(found["data"], images())


class Block(M.Module):
    """Two layers in a list, the second with a name of its own."""

    def __init__(self) -> None:
        super().__init__(name="net")
        self.layers = [M.Linear(3, 3), M.Linear(3, 3, name="last")]
        self.shift = mge.Parameter([1.0], name="by")

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = F.relu(layer(x))
        return 2 * x + self.shift


def test_ops_and_parameters_are_called_after_their_modules() -> None:
    block = Block()
    traced = jit.trace(lambda x: block(x), capture_as_const=True)
    traced(mge.tensor(np.ones((2, 3)), name="image"))
    file = io.BytesIO()
    done = traced.dump(file)
    assert (done.inputs, done.outputs) == (["image"], ["net.ADD"])
    file.seek(0)
    net = Network.load(file)
    names = [v.name for v in net.all_vars]
    assert len(set(names)) == len(names) and all(names)
    for name in ("net.layers.0.MatrixMul", "net.last.MatrixMul", "net.RELU[0]", "net.RELU[1]"):
        assert net.get_opr_by_name(name).outputs[0].name == name
    assert {"net.layers.0.weight", "net.last.bias", "net.by"} <= set(names)
    modes = [n.params["mode"] for n in cgtools.get_oprs_seq(net.dest_vars) if n.type == "Elemwise"]
    assert modes == ["ADD", "RELU", "ADD", "RELU", "MUL", "ADD"]


def test_results_that_the_program_names_keep_their_names() -> None:
    def body(x: Any) -> Any:
        y, z = x * 2, x + 1
        y.name = "doubled"
        z.name = "image"  # the name of the argument, which is taken
        return y, z

    traced = jit.trace(body, capture_as_const=True)
    traced(mge.tensor(np.ones((2, 3)), name="image"))
    file = io.BytesIO()
    done = traced.dump(file, arg_names=["image"])
    assert done.outputs[0] == "doubled" and done.outputs[1].startswith("ADD")
    assert "image" not in done.outputs
    file.seek(0)
    var = Network.load(file).dest_vars[0]
    assert (var.name, var.owner.name) == ("doubled", "MUL")


def test_an_operator_takes_the_place_of_another() -> None:
    net = Network.load(sum_of_product())
    old = net.get_opr_by_name("MUL")
    a, b = net.input_vars
    new = (a - b).owner
    net.replace_oprs({old: new})
    assert old.outputs[0].owner is new and new.outputs[0] is old.outputs[0]
    np.testing.assert_array_equal(run(net, A, B)["c"], A - B + 2)
    net.replace_vars({a: net.make_const(np.array([4.0, 5.0]))})  # float64: as tensors are made.
    np.testing.assert_array_equal(run(net, B)["c"], np.array([4, 5], "float32") - B + 2)


def test_gradients_are_dumped() -> None:
    x = mge.tensor([2.0, 3.0])
    gm = mge.autodiff.GradManager().attach([x])

    @jit.trace(capture_as_const=True)
    def f(x: Any) -> Any:
        with gm:
            y = x * x
            gm.backward(y.sum())
        return y, x.grad

    f(x)
    file = io.BytesIO()
    f.dump(file)
    file.seek(0)
    found = list(cgtools.GraphInference(file).run(A).values())
    np.testing.assert_array_equal(found, [A * A, 2 * A])


def test_networks_with_extents_that_data_decide() -> None:
    @jit.trace(symbolic=True, capture_as_const=True)
    def f(x: Any) -> Any:
        return F.cond_take(x > 1, x)

    given = mge.tensor([1.0, 2.0, 3.0])
    f(given)
    file = io.BytesIO()
    f.dump(file, arg_names=["x"], output_names=["values", "places"])
    file.seek(0)
    net = Network.load(file)
    fresh = net.make_input_node(shape=(3,), dtype="float32", name="x")
    net.replace_vars({net.input_vars[0]: fresh})
    again = io.BytesIO()
    net.dump(again)
    again.seek(0)
    found = cgtools.GraphInference(again).run(np.array([4.0, 0.0, 5.0], "float32"))
    assert found["values"].tolist() == [4, 5] and found["places"].tolist() == [0, 2]


def test_masks_choose_and_assign_in_networks() -> None:
    net = Network()
    x = net.make_input_node((2, 3), "float32", "x")
    mask = net.make_input_node((2, 3), "bool", "mask")
    chosen = x[mask]
    changed = x * 1
    changed[mask] = chosen * 10
    net.add_output(chosen, changed)
    file = io.BytesIO()
    net.dump(file)
    file.seek(0)
    given = np.arange(6, dtype="float32").reshape(2, 3)
    run = cgtools.GraphInference(file)
    for where in (given > 2, given % 2 == 0, given > 9):
        found = list(run.run(inp_dict={"x": given, "mask": where}).values())
        np.testing.assert_array_equal(found[0], given[where])
        np.testing.assert_array_equal(found[1], np.where(where, given * 10, given))


def test_variables_are_on_the_devices_that_they_were_given() -> None:
    net = Network()
    x = net.make_input_node((2,), "float32", "x", device="cpu1")
    ones = net.make_const(np.ones(2, "float32"), device="cpu1")
    assert str(x.device) == "cpu1:0" and str((x + ones).device) == "cpu1:0"
    y = net.make_input_node((2,), "float32", "y")
    assert str((y * 2).device).startswith(str(y.device)[:3]) and y.device != x.device
    with pytest.raises(TreadleError, match="cpu1"):
        F.concat([x, y])
    assert str(F.concat([x, F.copy(y, "cpu1")]).device) == "cpu1:0"


def test_inputs_of_a_file_stay_inputs_where_nothing_depends_on_them() -> None:
    @jit.trace(symbolic=True, capture_as_const=True)
    def f(x: Any, y: Any) -> Any:
        return y * 2

    f(mge.tensor([1.0]), mge.tensor([2.0]))
    file = io.BytesIO()
    f.dump(file, arg_names=["x", "y"], output_names=["out"])
    file.seek(0)
    run = cgtools.GraphInference(file)
    given = {"x": np.ones(1, "float32"), "y": np.full(1, 3, "float32")}
    assert run.run(inp_dict=given)["out"].tolist() == [6]
    file.seek(0)
    assert cgtools.GraphInference(file, ["out"]).run(given["y"])["out"].tolist() == [6]
    file.seek(0)
    net = Network.load(file)
    net.replace_vars({net.input_vars[0]: net.make_input_node((1,), "float32", "z")})
    again = io.BytesIO()
    net.dump(again)
    again.seek(0)
    run = cgtools.GraphInference(again)
    with pytest.raises(ValueError, match=r"inputs are \['z', 'y'\]|inputs are \['y', 'z'\]"):
        run.run(inp_dict=given)
    given["z"] = given.pop("x")
    assert run.run(inp_dict=given)["out"].tolist() == [6]


def _names(path: Path) -> list[str]:
    return [opr.name for opr in cgtools.get_oprs_seq(Network.load(path).dest_vars)]


def test_operators_without_names_are_called_by_what_they_do(tmp_path: Path) -> None:
    f = mge.jit.trace(lambda x: F.relu(2 * x + x), symbolic=True, capture_as_const=True)
    f(mge.tensor([1.0, 2.0]))
    f.dump(tmp_path / "bare.mge", arg_names=["x"], keep_opr_name=False)
    names = [
        opr.name for opr in cgtools.get_oprs_seq(Network.load(tmp_path / "bare.mge").dest_vars)
    ]
    assert names == ["x", "MUL(x,const<2>[2])[4]", "ADD(var[5],x)[6]", "RELU(var[7])[8]"]
    f.dump(tmp_path / "named.mge", arg_names=["x"])
    kept = [
        opr.name for opr in cgtools.get_oprs_seq(Network.load(tmp_path / "named.mge").dest_vars)
    ]
    assert kept == ["x", "MUL", "ADD", "RELU"]


def test_dumps_are_rewritten_at_a_level_that_is_asked_for(tmp_path: Path) -> None:
    for level, wanted in (({}, ["x", "EXP", "LOG"]), ({"opt_level": 1}, ["x"])):
        f = mge.jit.trace(lambda x: F.log(F.exp(x)), symbolic=True, capture_as_const=True, **level)
        f(mge.tensor([1.0, 2.0]))
        f.dump(tmp_path / "model.mge", arg_names=["x"])
        assert _names(tmp_path / "model.mge") == wanted
