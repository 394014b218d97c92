"""Graph tools and nodes under MegEngine's names: replacing variables, inputs, operators; rows."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.lite import LiteBackend, LiteOptions
from treadle.utils import comp_graph_tools as cgtools
from treadle.utils import network_node
from treadle.utils.network import Network
from treadle.utils.profile_analyzer import OprProfRst, Record

A, B = np.array([1.0, -2.0], np.float32), np.array([3.0, 4.0], np.float32)


@pytest.fixture
def net() -> Network:
    """c = exp(a) * b."""

    @jit.trace(symbolic=True, capture_as_const=True)
    def f(a: Any, b: Any) -> Any:
        return F.exp(a) * b

    f(mge.tensor(A), mge.tensor(B))
    file = io.BytesIO()
    f.dump(file, arg_names=["a", "b"], output_names=["c"])
    file.seek(0)
    return Network.load(file)


def run(outputs: Any, **given: Any) -> np.ndarray[Any, Any]:
    """The first output's values, through a file."""
    made = Network()
    made.add_output(*outputs)
    file = io.BytesIO()
    made.dump(file)
    file.seek(0)
    (found,) = cgtools.GraphInference(file).run(inp_dict=given).values()
    return found


def test_variables_are_replaced_by_others(net: Network) -> None:
    (c,) = net.dest_vars
    b = net.get_var_by_name("b")
    (replaced,) = cgtools.replace_vars([c], {b: b + 1})
    np.testing.assert_allclose(run([replaced], a=A, b=B), np.exp(A) * (B + 1), 1e-5)


def test_operators_are_replaced_by_others(net: Network) -> None:
    (c,) = net.dest_vars
    mul = c.owner
    (replaced,) = cgtools.replace_oprs([c], {mul: (mul.inputs[0] - mul.inputs[1]).owner})
    np.testing.assert_allclose(run([replaced], a=A, b=B), np.exp(A) - B, 1e-5)


def test_inputs_are_made_anew_and_outputs_kept(net: Network) -> None:
    old = {id(net.get_var_by_name(n)) for n in ("a", "b")}
    outputs, fresh = cgtools.convert_inputs(net.dest_vars)
    assert [v.name for v in fresh] == ["a", "b"]
    assert not old & {id(v) for v in fresh}
    np.testing.assert_allclose(run(outputs, a=A, b=B), np.exp(A) * B, 1e-5)
    first, second = cgtools.convert_outputs(outputs)
    assert first == second == list(outputs)


def test_nodes_have_classes_by_operator(net: Network) -> None:
    (c,) = net.dest_vars
    assert isinstance(c, network_node.VarNode) and isinstance(c.owner, network_node.Elemwise)
    source = net.get_var_by_name("a").owner
    assert isinstance(source, network_node.Host2DeviceCopy | network_node.OpNode)
    assert network_node.str_to_mge_class("Elemwise") is network_node.Elemwise
    for cls in (
        network_node.Host2DeviceCopy,
        network_node.ImmutableTensor,
        network_node.SharedDeviceTensor,
        network_node.ConvolutionForward,
    ):
        assert issubclass(cls, network_node.OpNode)
        assert network_node.str_to_mge_class(cls.__name__) is cls


def test_convolutions_of_a_file_are_found_by_class() -> None:
    conv = M.Conv2d(1, 2, 3)
    traced = jit.trace(lambda x: conv(x), symbolic=True, capture_as_const=True)
    traced(F.ones((1, 1, 4, 4)))
    file = io.BytesIO()
    traced.dump(file)
    file.seek(0)
    found = Network.load(file).opr_filter.type(network_node.ConvolutionForward).as_list()
    assert len(found) == 1


def test_rows_of_profiles_hold_times_and_rates() -> None:
    row = OprProfRst({"id": 3, "type": "Elemwise"})
    row.update_device_prof_info({"cpu0": {"start": 0.0, "kern": 1.0, "end": 3.0}})
    row.update_host_prof_info({"main": {"start": 0.0, "end": 1.0}})
    row.update_footprint({"computation": 8.0, "memory": 16.0})
    assert [len(row.time_dict[k]) for k in ("host", "device")] == [1, 1]
    record = Record(2.0, row.opr_info, row.footprint)
    assert (record.opr_id, record.flops, record.bandwidth) == (3, 4.0, 8.0)
    assert record.get_column_by_name() == 2.0 and record.get_column_by_name("flops") == 4.0
    with pytest.raises(TypeError, match="an operator is a dict"):
        OprProfRst([1])  # type: ignore[arg-type]


def test_options_of_lite_carry_over() -> None:
    assert LiteBackend.LITE_DEFAULT == 0
    options = LiteOptions(weight_preprocess=True)
    assert options.weight_preprocess and options.var_sanity_check_first_run
    assert not LiteOptions().fuse_preprocess
