"""Ops from outside: registration, gradients, and blobs of foreign engines."""

import numpy as np
import pytest

from treadle.base import dtype as dt
from treadle.base.errors import LoadError, NoGradient, UnsupportedOp
from treadle.base.types import TensorType
from treadle.ops.abstract import ArrayOperand
from treadle.ops.custom import RuntimeBlob, blob_engine, custom_op, load_blob, store_blob
from treadle.ops.op import Pullback

ROW = TensorType(dt.float32, (3,))


def split_sign(attributes, x):  # type: ignore[no-untyped-def]
    return np.maximum(x, 0), np.minimum(x, 0)


def test_an_op_with_several_results_and_attributes() -> None:
    kernel = custom_op("tests.split_sign", lambda attributes, x: (x, x), split_sign, n_outputs=2)
    op = kernel(unused=1)
    assert op.n_outputs == 2 and op == kernel(unused=1) and op != kernel(unused=2)
    positive, negative = op.outputs(ArrayOperand(np.array([1.0, -2.0])))
    np.testing.assert_array_equal(positive.array + negative.array, [1, -2])
    with pytest.raises(NoGradient, match=r"'tests\.split_sign' has no gradient"):
        op.vjp(Pullback((positive, None), (positive,), (positive, negative), (True,)))


def test_a_name_belongs_to_the_module_that_took_it() -> None:
    custom_op("tests.mine", lambda attributes, x: (x,), split_sign)
    custom_op("tests.mine", lambda attributes, x: (x,), split_sign)
    with pytest.raises(LoadError, match=r"'treadle\.scaled' is already defined"):
        custom_op("treadle.scaled", lambda attributes, x: (x,), split_sign)


def test_blobs_are_found_by_content() -> None:
    digest = store_blob(b"model")
    assert load_blob(digest) == b"model" and store_blob(b"model") == digest
    with pytest.raises(LoadError, match="no blob is stored"):
        load_blob("0" * 64)


def test_a_blob_runs_only_where_its_engine_was_registered() -> None:
    op = RuntimeBlob("tests.engine", store_blob(b"\x02"), (ROW,), (ROW, ROW))
    x = np.ones(3, np.float32)
    assert op.n_outputs == 2 and op.infer(ROW) == (ROW, ROW)
    with pytest.raises(UnsupportedOp, match=r"only the engine 'tests\.engine'"):
        op.reference(x)
    blob_engine("tests.engine", lambda blob, arrays: (arrays[0], arrays[0] * blob[0]))
    np.testing.assert_array_equal(op.reference(x)[1], [2, 2, 2])
