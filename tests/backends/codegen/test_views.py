"""Movement ops as strides: what they read and write must be what the ops' oracles say."""

import numpy as np
import pytest

from treadle.backends.codegen.views import dense, strided_input, strided_output
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder
from treadle.ops.elementwise import Add
from treadle.ops.movement import Broadcast, Flip, Reshape, Roll, Transpose
from treadle.ops.slicing import Slice
from treadle.ops.transfer import Identity


def body_of(shape, *ops):
    builder = GraphBuilder()
    x = builder.input(TensorType(dt.float32, shape))
    for op in ops:
        (x,) = builder.apply(op, (x,))
    builder.output(x)
    return builder.build()


def look(memory, view):
    """The elements of a view, one by one."""
    places = np.full(view.shape, view.offset)
    for axis, stride in enumerate(view.strides):
        steps = np.arange(view.shape[axis]) * stride
        places = places + steps.reshape([-1 if i == axis else 1 for i in range(len(view.shape))])
    return memory.ravel()[places]


CHAINS = {
    "nothing": ((2, 3), ()),
    "transpose": ((2, 3, 4), (Transpose((2, 0, 1)),)),
    "heads": ((2, 5, 12), (Reshape((2, 5, 3, 4)), Transpose((0, 2, 1, 3)))),
    "merged": ((2, 3, 5, 4), (Transpose((0, 2, 1, 3)), Reshape((2, 5, 12)))),
    "thirds": (
        (2, 5, 12),
        (Slice((0, 0, 4), (2, 5, 8), (1, 1, 1)), Reshape((10, 4)), Transpose((1, 0))),
    ),
    "steps": ((9, 7), (Slice((8, 1), (-1, 7), (-3, 2)),)),
    "repeated": ((3,), (Reshape((3, 1)), Broadcast((2, 3, 4)))),
    "reversed": ((3, 4), (Flip((0, 1)), Identity(), Transpose((1, 0)))),
    "scalar": ((), (Broadcast((2, 2)),)),
}


@pytest.mark.parametrize("case", [name for name in CHAINS if name != "merged"])
def test_input_chain_reads_what_the_oracle_does(case):
    shape, ops = CHAINS[case]
    body = body_of(shape, *ops)
    view = strided_input(body, body.outputs[0])
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    assert view is not None
    assert view.index == 0
    np.testing.assert_array_equal(look(x, view), body.evaluate((x,))[0])


@pytest.mark.parametrize(
    "ops", [(Transpose((1, 0)), Reshape((6,))), (Roll((1,), (0,)),)], ids=["reshape", "roll"]
)
def test_a_copy_is_no_view(ops):
    body = body_of((2, 3), *ops)
    assert strided_input(body, body.outputs[0]) is None


def test_computed_values_are_no_view():
    builder = GraphBuilder()
    x = builder.input(TensorType(dt.float32, (2, 3)))
    builder.output(*builder.apply(Add(), (x, x)))
    body = builder.build()
    assert strided_input(body, body.outputs[0]) is None


@pytest.mark.parametrize("case", ["nothing", "transpose", "merged", "reversed"])
def test_output_chain_writes_what_the_oracle_does(case):
    shape, ops = CHAINS[case]
    body = body_of(shape, *ops)
    found = strided_output(body, 0)
    assert found is not None
    value, view = found
    assert value is body.inputs[0]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    (result,) = body.evaluate((x,))
    np.testing.assert_array_equal(look(result, view), x)


def test_output_of_an_irreversible_movement_is_the_movement():
    body = body_of((3,), Broadcast((2, 3)), Transpose((1, 0)))
    found = strided_output(body, 0)
    assert found is not None
    assert isinstance(found[0].producer.op, Broadcast)


def test_an_axis_split_and_transposed_is_no_view_of_the_whole_axis():
    body = body_of((2, 5, 12), Reshape((2, 5, 3, 4)), Transpose((0, 2, 1, 3)))
    assert strided_output(body, 0) is None


def test_broadcasting_repeats():
    view = dense(0, (3, 1)).broadcast_to((2, 3, 4))
    assert (view.shape, view.strides) == ((2, 3, 4), (0, 1, 0))
