"""Searching and editing graphs, and what is refused."""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from tests.traced_module.nets import Block, Net, images, same, settle, traced_net

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.traced_module as tm
from treadle.base.errors import EditError, TraceError
from treadle.base.qparams import QuantMode, create_qparams
from treadle.base.quantized import BUILTIN
from treadle.traced_module import CallFunction, CallMethod, Expr, ModuleNode, Node, TracedModule


def traced_block() -> tuple[TracedModule, mge.Tensor, mge.Tensor]:
    block, x = Block(8, 4), images(1, 8, 3, 3)
    settle(block, x)
    return tm.trace_module(block, x), x, block(x)


def users_are_right(traced: TracedModule) -> None:
    found = defaultdict(list)
    for expr in traced.graph._exprs:
        for node in expr.inputs:
            found[node].append(expr._id)
    for node in traced.graph.nodes(recursive=False):
        assert sorted(e._id for e in node.users) == sorted(found[node])


def ids_are_right(traced: TracedModule) -> None:
    nodes = [node._id for node in traced.graph.nodes()]
    exprs = [expr._id for expr in traced.graph.exprs()]
    assert len(set(nodes)) == len(nodes)
    assert len(set(exprs)) == len(exprs)
    assert traced.graph._total_ids == (max(nodes) + 1, max(exprs) + 1)


def test_nodes_are_numbered_anew() -> None:
    traced, _, _ = traced_block()
    for node in traced.graph.nodes():
        node._id += 10
    traced.graph._reset_ids()
    assert [node._id for node in traced.graph.nodes()] == list(range(traced.graph._total_ids[0]))
    assert all(node._qualname == node.qualname for node in traced.graph.nodes())


def relu_of(traced: TracedModule) -> Expr:
    return traced.graph.get_function_by_type(F.relu).as_unique()


def test_search() -> None:
    traced, _, _ = traced_block()
    graph = traced.graph
    relu = relu_of(traced)
    assert isinstance(relu, CallFunction)
    assert relu.func is F.relu
    conv = graph.get_module_by_type(M.Conv2d).as_unique()
    assert isinstance(conv, ModuleNode)
    assert conv.module_type is M.Conv2d
    assert conv.owner is traced.conv1
    add = graph.get_method_by_type("__add__").as_unique()
    assert isinstance(add, CallMethod)
    assert add.method == "__add__"
    assert graph.get_node_by_name("Block_conv1").as_unique() is conv
    assert graph.get_node_by_name("CONV1").as_unique() is conv
    assert graph.get_node_by_name("CONV1", ignorecase=False).as_count() == 0
    assert graph.get_node_by_name("*_out").as_count() == 5
    assert graph.get_expr_by_id(relu._id).as_list() == [relu]
    assert graph.get_node_by_id([conv._id]).as_dict() == {conv._id: conv}
    assert [e._id for e in graph.get_dep_exprs(relu.inputs[0])] == [e._id for e in graph._exprs[:4]]
    with pytest.raises(EditError, match="4 found of calls of methods, expected one"):
        graph.get_method_by_type().as_unique()


def test_recursive_and_not() -> None:
    net, x = traced_net()
    graph = tm.trace_module(net, x).graph
    assert graph.get_function_by_type(F.relu).as_count() == 2
    assert graph.get_function_by_type(F.relu, recursive=False).as_count() == 0


def test_insert() -> None:
    traced, x, expected = traced_block()
    out = relu_of(traced).outputs[0]
    with traced.graph.insert_exprs():
        negative = F.neg(out)
    traced.graph.replace_node({out: negative})
    traced.graph.compile()
    users_are_right(traced)
    ids_are_right(traced)
    same(1 - traced(x), expected - 1)


def test_insert_operators_methods_and_indices() -> None:
    traced, x, expected = traced_block()
    graph = traced.graph
    out = graph.outputs[0]
    with graph.insert_exprs():
        y = (2 * out - out / 2)[:, :2].reshape(out.shape[0], -1)
        y = F.concat([y, F.relu(y)], axis=1).sum(axis=1) + mge.tensor([1.0]) + mge.Tensor(2.0)
        turned = y.T
    graph.reset_outputs({"y": y, "t": turned})
    graph.compile()
    users_are_right(traced)
    z = (2 * expected - expected / 2)[:, :2].reshape(1, -1)
    want = F.concat([z, F.relu(z)], axis=1).sum(axis=1) + 3
    for module in (traced, copy.deepcopy(traced), traced.flatten()):
        same(module(x), {"y": want, "t": want})


class Neg(M.Module):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.identity = M.Identity()
        self.listed = [M.Identity(), M.Identity()]
        self.named = {"0": M.Identity(), "1": M.Identity()}
        self.param = F.zeros((1,))

    def forward(self, x: Any) -> Any:
        x = self.identity(x)
        for key in self.named:
            x = self.named[key](x)
        for module in self.listed:
            x = module(x)
        return F.neg(x) + self.param


def test_insert_modules() -> None:
    traced, x, expected = traced_block()
    graph = traced.graph
    out, me = relu_of(traced).outputs[0], graph.inputs[0]
    traced.neg, traced.neg2, traced.param = Neg("neg"), Neg("neg"), F.zeros((1,))
    traced.more = [M.Identity()]
    with graph.insert_exprs():
        y = me.neg(out)
        y = me.neg2(out)
        y = me.more[0](y) + me.param
    graph.replace_node({out: y})
    graph.compile()
    users_are_right(traced)
    same(1 - traced(x), expected - 1)
    assert isinstance(traced.neg, TracedModule)
    assert isinstance(traced.neg2, TracedModule)
    assert len(traced.neg.graph._exprs) == 13
    assert traced.neg2.graph.top_graph is graph
    same(traced.flatten()(x), traced(x))


class Twice(M.Module):
    """What is below it, it does not call."""

    def forward(self, x: Any) -> Any:
        return x * 2


def test_parts_of_an_inserted_module_are_called_from_outside() -> None:
    traced, x, expected = traced_block()
    graph = traced.graph
    out, me = graph.outputs[0], graph.inputs[0]
    traced.added = Twice()
    traced.added.act, traced.added.rest = M.ReLU(), [Twice()]
    traced.added.shift, traced.added.unused = F.ones((1,)), M.ReLU()
    with graph.insert_exprs():
        y = me.added.rest[0](me.added.act(me.added(out))) + me.added.shift
    graph.replace_node({out: y})
    graph.compile()
    same(traced(x), F.relu(expected * 2) * 2 + 1)
    assert isinstance(traced.added.rest[0], TracedModule)
    assert not hasattr(traced.added, "unused")
    same(pickle.loads(pickle.dumps(traced))(x), traced(x))
    same(traced.flatten()(x), traced(x))


def test_insert_a_fake_quantizer() -> None:
    traced, x, expected = traced_block()
    graph = traced.graph
    meta = BUILTIN["qint8"]
    qparams = create_qparams(QuantMode.SYMMERTIC, meta, scale=mge.tensor(0.25))
    traced.quantizer = tm.fake_quant.FakeQuantize("qint8", qparams=qparams)
    out = graph.outputs[0]
    with graph.insert_exprs():
        rounded = graph.inputs[0].quantizer(out)
    graph.replace_node({out: rounded})
    np.testing.assert_allclose(
        traced(x).numpy(), np.round(expected.numpy() / 0.25) * 0.25, atol=1e-5
    )
    assert traced.quantizer.get_qparams() is qparams
    traced.quantizer.disable()
    same(traced(x), expected)
    with pytest.raises(ValueError, match="set_qparams"):
        tm.fake_quant.FakeQuantize("qint8")(x)


def test_insert_in_place() -> None:
    traced, x, expected = traced_block()
    graph = traced.graph
    first = graph._exprs[0]
    with graph.insert_exprs(first):
        shifted = graph.inputs[1] + 0.0
    assert graph._exprs.index(shifted.expr) == 1
    assert shifted.shape == (1, 8, 3, 3)
    graph.replace_node({graph.inputs[1]: shifted})
    graph.compile()
    same(traced(x), expected)


def test_insertion_that_cannot_be() -> None:
    traced, x, expected = traced_block()
    graph = traced.graph
    text = repr(graph)
    with (
        pytest.raises(EditError, match="used before it is made"),
        graph.insert_exprs(graph._exprs[0]),
    ):
        F.neg(graph.outputs[0])
    with pytest.raises(ZeroDivisionError), graph.insert_exprs():
        F.neg(graph.outputs[0])
        _ = 1 / 0
    other, _, _ = traced_block()
    with pytest.raises(EditError, match="not in graph"), graph.insert_exprs():
        F.neg(other.graph.outputs[0])
    with pytest.raises(EditError, match="not in graph"):
        graph.insert_exprs(other.graph._exprs[0])
    with pytest.raises(EditError, match="already"), graph.insert_exprs(), graph.insert_exprs():
        pass
    graph.outputs[0].shape = None
    with pytest.raises(EditError, match="shape or type is not known"), graph.insert_exprs():
        F.neg(graph.outputs[0])
    assert repr(graph) == text
    users_are_right(traced)
    same(traced(x), expected)


def test_nodes_are_no_tensors_outside_of_an_insertion() -> None:
    traced, _, _ = traced_block()
    node, me = traced.graph.outputs[0], traced.graph.inputs[0]
    with pytest.raises(EditError, match="insert_exprs"):
        _ = node + 1
    with pytest.raises(AttributeError, match="insert_exprs"):
        node.reshape(-1)
    with pytest.raises(AttributeError, match="insert_exprs"):
        _ = me.conv1
    with pytest.raises(EditError, match="insert_exprs"):
        me(node)


def test_delete() -> None:
    traced, x, expected = traced_block()
    graph = traced.graph
    relu = relu_of(traced)
    graph.replace_node({relu.outputs[0]: relu.inputs[0]})
    graph.compile()
    users_are_right(traced)
    assert relu not in graph._exprs
    same(F.relu(traced(x) - 1), expected - 1)
    graph.replace_node({graph.outputs[0]: graph.inputs[1]})
    graph.compile()
    assert graph._exprs == []
    same(traced(x), x)


def test_a_replacement_does_not_replace_what_it_is_made_of() -> None:
    traced, x, expected = traced_block()
    graph = traced.graph
    out = relu_of(traced).outputs[0]
    with graph.insert_exprs():
        y = F.relu(out) + out
    graph.replace_node({out: y})
    graph.compile()
    same(traced(x), 2 * (expected - 1) + 1)


def test_add_inputs_and_outputs() -> None:
    net, x = traced_net()
    traced = tm.trace_module(net, x)
    y, graph = net(x), traced.graph
    data = graph.add_input_node(shape=(1, 3, 224, 224), name="data")
    graph.add_output_node(data)
    assert data.name == "data"
    assert graph.inputs[-1] is data
    assert len(graph.inputs) == 3
    same(traced(x, y), (y, y))
    same(traced(x, data=x), (y, x))
    graph.add_output_node(data)
    same(traced(x, x), (y, x, x))
    graph.reset_outputs(({"orig_out": graph.outputs[0]}, graph.outputs[1]))
    same(traced(x, x), ({"orig_out": y}, x))
    same(copy.deepcopy(traced)(x, x), ({"orig_out": y}, x))


def test_reset_inputs() -> None:
    net, x = traced_net()
    traced = tm.trace_module(net, x)
    (old,) = traced.graph.inputs[1:]
    (new,) = traced.graph.reset_inputs({"image": x})
    with pytest.raises(EditError, match="nothing in the graph makes it"):
        traced({"image": x})
    traced.graph.replace_node({old: new})
    traced.graph.compile()
    same(traced({"image": x}), net(x))


def test_graphs_of_sub_modules_keep_their_inputs_and_outputs() -> None:
    net, x = traced_net()
    graph = tm.trace_module(net, x).block0.graph
    for change in (
        lambda: graph.add_input_node((1,)),
        lambda: graph.add_output_node(graph.outputs[0]),
        lambda: graph.reset_inputs(x),
        lambda: graph.reset_outputs(graph.outputs[0]),
    ):
        with pytest.raises(EditError, match="is called by graph Net"):
            change()


def test_edit_sub_modules_copy_and_trace_again() -> None:
    net, x = traced_net()
    traced = pickle.loads(pickle.dumps(tm.trace_module(net, x)))
    Node._set_next_id(159)
    Expr._set_next_id(1024)
    for expr in traced.graph.get_function_by_type(F.relu).as_list():
        graph, out = expr.top_graph, expr.outputs[0]
        with graph.insert_exprs():
            negative = F.neg(out)
        graph.replace_node({out: negative})
        graph.compile()
    ids_are_right(traced)
    flat = traced.flatten()
    ids_are_right(flat)
    names = [node.name for node in flat.graph.nodes()]
    assert len(set(names)) == len(names)
    same(flat(x), traced(x))


def test_flatten() -> None:
    net, x = traced_net()
    traced = tm.trace_module(net, x)
    flat = traced.flatten()
    assert len(flat.graph._exprs) == 12
    users_are_right(flat)
    same(flat(x), net(x))
    again = flat.flatten()
    assert len(again.graph._exprs) == 12
    same(again(x), net(x))
    assert flat.block0.conv1 is not traced.block0.conv1
    assert flat.graph.get_node_by_name("block1_relu_out").as_count() == 1
    with pytest.raises(TraceError, match="another structure"):
        flat.block0(x)


def test_names() -> None:
    net, x = traced_net()
    graph = tm.trace_module(net, x).graph
    out = graph.outputs[0]
    with pytest.raises(AssertionError, match="'block1_out' is taken"):
        out.name = "block1_out"
    out.name = "output"
    out.name = "output"
    assert str(graph.outputs[0]) == "output"
    graph.name = "Top"
    assert graph.get_node_by_name("Top_output").as_unique() is out


def test_arguments() -> None:
    net = M.Sequential(M.Linear(3, 4))
    net.forward = lambda x, k=2.0: F.softmax(net[0](x) * k, axis=1)
    x = images(2, 3)
    traced = tm.trace_module(net, x)
    softmax = traced.graph.get_function_by_type(F.softmax).as_unique()
    assert softmax.named_args["axis"] == 1
    softmax.set_arg("axis", 0)
    mul = traced.graph.get_method_by_type("__mul__").as_unique()
    mul.set_args_kwargs(mul.args[0], 3.0)
    same(traced(x), F.softmax(net[0](x) * 3.0, axis=0))
    with pytest.raises(EditError, match="no argument 'axes'"):
        softmax.set_arg("axes", 0)
    with pytest.raises(TraceError, match="not supported"):
        mul.set_args_kwargs(mul.args[0], object())


def test_graphs_that_cannot_run_say_why() -> None:
    traced, x, _ = traced_block()
    graph = traced.graph
    conv = graph.get_node_by_name("conv1_out").as_unique().expr
    bn = graph.get_node_by_name("bn1_out").as_unique()
    relu = relu_of(traced)
    conv.set_args_kwargs(conv.inputs[0], relu.outputs[0])
    with pytest.raises(EditError, match="relu_out is used before it is made"):
        traced(x)
    with pytest.raises(EditError, match="in a circle"):
        graph.compile()
    conv.set_args_kwargs(conv.inputs[0], graph.inputs[1])
    graph.compile()
    other, _, _ = traced_block()
    relu.set_args_kwargs(other.graph.outputs[0])
    with pytest.raises(EditError, match="nothing in the graph makes it"):
        graph.compile()
    with pytest.raises(EditError, match="nothing in the graph makes it"):
        traced(x)
    with pytest.raises(EditError, match="nothing in the graph makes it"):
        copy.deepcopy(traced)
    relu.set_args_kwargs(bn)
    with pytest.raises(EditError, match="not in graph"):
        graph.replace_node({bn: other.graph.outputs[0]})
    with pytest.raises(EditError, match="cannot replace a module"):
        graph.replace_node({bn: conv.inputs[0]})
    with pytest.raises(EditError, match="not in graph"):
        graph.reset_outputs(other.graph.outputs[0])
    traced(x)
    del traced.conv1
    with pytest.raises(EditError, match="the module has no 'conv1'"):
        traced(x)
    with pytest.raises(EditError, match="takes 1 tensors, got 2"):
        graph.interpret(traced, x, x)


def test_exprs_may_be_out_of_order_until_compiled() -> None:
    traced, x, expected = traced_block()
    traced.graph._exprs.reverse()
    traced.graph.compile()
    same(traced(x), expected)


def test_single_nodes_and_expressions_are_not_copied() -> None:
    traced, _, _ = traced_block()
    with pytest.raises(EditError, match="copied alone"):
        copy.deepcopy(traced.graph.outputs[0])
    with pytest.raises(EditError, match="copied alone"):
        copy.deepcopy(traced.graph._exprs[0])


def test_eval_runs_the_graph() -> None:
    traced, x, expected = traced_block()
    same(traced.graph.eval(x), [expected])


def test_shared_layers_are_fetched_once_per_graph() -> None:
    class Twice(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = M.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            return self.fc(self.fc(x)) @ self.fc.weight

    x = images(2, 3)
    traced = tm.trace_module(Twice(), x)
    node = traced.graph.get_module_by_type(M.Linear).as_unique()
    assert len(node.users) == 2
    weight = traced.graph.get_node_by_name("fc_weight").as_unique()
    assert weight.value is traced.fc.weight
    assert len(list(traced.parameters())) == 2


def test_every_net_is_as_before_after_all_this() -> None:
    net, x = Net(), images(1, 8, 3, 3)
    net.eval()
    same(tm.trace_module(net, x)(x), net(x))


def test_names_of_tensors_are_names_of_nodes() -> None:
    class Named(M.Module):
        def forward(self, x: Any) -> Any:
            y = x + 1
            y.name = "plus_one"
            z = y * 2
            z.name = "x"
            return z

    x = images(2, 2)
    traced = tm.trace_module(Named(), x)
    assert traced.graph._namespace.used_names == {"self", "x", "plus_one", "x_1"}
    holder, x, _ = traced_block()
    holder.more = Named()
    with holder.graph.insert_exprs():
        out = holder.graph.inputs[0].more(holder.graph.outputs[0])
    holder.graph.replace_node({holder.graph.outputs[0]: out})
    assert "plus_one" in holder.more.graph._namespace.used_names
