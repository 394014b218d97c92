"""Ops as values, the registry, and the checks that declarations share."""

import copy
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import treadle
from treadle.base import dtype as dt
from treadle.base.errors import DTypeError, NoGradient, ShapeError
from treadle.base.types import TensorType
from treadle.ops import REGISTRY
from treadle.ops import elementwise as ew
from treadle.ops.creation import Full
from treadle.ops.logic import Less
from treadle.ops.op import Op, Pullback, as_tuple, op
from treadle.ops.select import Clip, Where
from treadle.ops.unary import Abs


def test_ops_compare_by_class_and_attributes() -> None:
    assert Clip(0, 1) == Clip(0, 1) and hash(Clip(0, 1)) == hash(Clip(0, 1))
    assert Clip(0, 1) != Clip(0, 2) and ew.Add() != ew.Sub()
    assert len({Clip(0, 1), Clip(0, 1), Clip(0, 2)}) == 2


def test_an_op_without_attributes_has_one_instance() -> None:
    assert ew.Add() is ew.Add()
    assert pickle.loads(pickle.dumps(ew.Add())) is ew.Add()
    assert pickle.loads(pickle.dumps(Clip(0, 1))) == Clip(0, 1)


EXACT = [
    (1, 1.0),
    (1, True),
    (1.0, True),
    (0.0, -0.0),
    (complex(1, 0.0), complex(1, -0.0)),
    (1, 1 + 0j),
    (np.float32(1), np.int32(1)),
    (1.0, np.float64(1)),
    (1, "1"),
    ((1, 2), (1, 2.0)),
    ((0, (0, 1)), (0, (0, True))),
    ((0.0,), (-0.0,)),
    (dt.float32, "float32"),
]


@pytest.mark.parametrize(("x", "y"), EXACT)
def test_attributes_compare_exactly(x: Any, y: Any) -> None:
    assert Clip(x, 5) != Clip(y, 5) and Clip(x, 5) == Clip(x, 5)
    assert len({Clip(x, 5): 0, Clip(y, 5): 1}) == 2


def test_nan_is_equal_to_itself() -> None:
    first, second = Clip(float("nan"), 1), Clip(float("nan"), 1)
    assert first == second and hash(first) == hash(second)
    assert Clip((float("nan"),), 1) == Clip((float("nan"),), 1)  # type: ignore[arg-type]
    assert Clip(np.float32("nan"), 1) == Clip(np.float32("nan"), 1)


def test_ops_that_differ_share_no_launch() -> None:
    x = treadle.tensor([-1.0, 2.0])
    for value in (0.0, -0.0):
        (y,) = x.apply(Full((1,), value), ())
        assert np.signbit(y.numpy()).item() == np.signbit(value)


def test_ops_travel_between_processes() -> None:
    # Hashes of strings differ there, so no cached hash may come along.
    op = Full((2, 3), 1.5, dt.float16)
    assert hash(op) == hash(Full((2, 3), 1.5, dt.float16))
    code = (
        "import pickle, sys; from treadle.base.dtype import float16;"
        "from treadle.ops.creation import Full;"
        "x = pickle.loads(sys.stdin.buffer.read());"
        "sys.exit({x: 0}.get(Full((2, 3), 1.5, float16), 1))"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=pickle.dumps(op),
            env={"PYTHONHASHSEED": seed},
            timeout=300,
        )
        assert done.returncode == 0


def test_copies_are_equal() -> None:
    op = Clip(0, 1)
    assert copy.copy(op) == copy.deepcopy(op) == op and op.replace(low=-1) == Clip(-1, 1)


def test_wrong_attributes_are_named() -> None:
    with pytest.raises(TypeError, match=r"^clip has no attribute 'lo'; its attributes: low, high$"):
        Clip(0, 1).replace(lo=3)
    with pytest.raises(TypeError, match=r"^add has no attribute 'x'; its attributes: none$"):
        ew.Add().replace(x=3)
    with pytest.raises(TypeError, match=r"^Clip\b.* unexpected keyword argument 'lo'"):
        Clip(lo=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Add\(\).* unexpected keyword argument 'x'"):
        ew.Add(x=3)  # type: ignore[call-arg]


def test_ops_are_frozen() -> None:
    with pytest.raises(AttributeError, match="clip is frozen: its attribute low cannot be set"):
        Clip(0, 1).low = 3.0  # type: ignore[misc]
    with pytest.raises(AttributeError, match="clip is frozen: its attribute low cannot be deleted"):
        del Clip(0, 1).low


def test_text_shows_attributes() -> None:
    assert str(ew.Add()) == "add"
    assert str(Clip(0, 1)) == "clip{low=0, high=1}"
    assert repr(ew.Add()) == "Add()" and repr(Clip(0, 1)) == "Clip(low=0, high=1)"
    assert Clip(0, 1).attributes == {"low": 0, "high": 1}


def test_a_name_can_be_taken_once() -> None:
    class Imposter(Abs):
        name = "add"

    with pytest.raises(ValueError, match=r"^two ops are named add: .*Add and .*Imposter"):
        op(Imposter)
    assert REGISTRY["add"] is ew.Add


def test_an_unfinished_declaration_is_not_registered() -> None:
    class Half(Op):
        name = "half_an_op"

    with pytest.raises(TypeError, match="abstract"):
        op(Half)
    assert "half_an_op" not in REGISTRY


def test_messages_show_operands_by_name() -> None:
    types = TensorType(dt.float32, (2, 3)), TensorType(dt.int32, (3,))
    assert ew.Add().saw(types) == "x float32[2,3], y int32[3]"
    with pytest.raises(DTypeError, match=r"^add: operands differ in element type\n  saw:  x float"):
        ew.Add().infer(*types)
    with pytest.raises(ShapeError, match=r"^where: expects 1 or 2 axes for mask, got 3\n  saw: "):
        Where().check_ndim((TensorType(dt.bool_, (1, 1, 1)),), 0, 1, 2)


def test_the_default_rule_gives_the_reason() -> None:
    at: Pullback[Any] = Pullback((1,), (1, 2), (1,), (True, True))
    with pytest.raises(NoGradient, match=r"^less: is a comparison: its result is bool"):
        Less().vjp(at)


def test_a_missing_cotangent_is_an_error_where_it_is_needed() -> None:
    at: Pullback[Any] = Pullback((None,), (1,), (1,), (True,))
    with pytest.raises(NoGradient, match="first output has no cotangent"):
        at.dy


def test_results_become_tuples_of_arrays() -> None:
    (single,) = as_tuple(np.float32(3))
    assert isinstance(single, np.ndarray) and single.shape == ()
    assert [r.shape for r in as_tuple((np.zeros(2), np.float32(1)))] == [(2,), ()]
