"""Ops as values, the registry, and the checks that declarations share."""

import pickle
from typing import Any

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.errors import DTypeError, NoGradient, ShapeError
from treadle.base.types import TensorType
from treadle.ops import REGISTRY
from treadle.ops import elementwise as ew
from treadle.ops.logic import Less
from treadle.ops.op import Pullback, as_tuple, op
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


def test_ops_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Clip(0, 1).low = 3.0  # type: ignore[misc]


def test_text_shows_attributes() -> None:
    assert str(ew.Add()) == "add"
    assert str(Clip(0, 1)) == "clip{low=0, high=1}"
    assert Clip(0, 1).attributes == {"low": 0, "high": 1}


def test_a_name_can_be_taken_once() -> None:
    class Imposter(Abs):
        name = "add"

    with pytest.raises(ValueError, match="two ops are named add"):
        op(Imposter)
    assert REGISTRY["add"] is ew.Add


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
