"""Custom ops in ONNX files: as operators of their own domain, or as what they consist of."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.base import dtype as dt
from treadle.base.errors import UnsupportedOp
from treadle.base.types import TensorType
from treadle.ops.custom import forget_custom_op
from treadle.utils import custom
from treadle.utils.custom_op_tools import CustomOp, build_and_load

onnx = pytest.importorskip("onnx")

from onnx import AttributeProto  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx.reference.op_run import OpRun  # noqa: E402

from treadle.interop.onnx import export, load  # noqa: E402

pytestmark = pytest.mark.onnx
X = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)


class Rows(CustomOp):
    """factor x, and the sums of its rows."""

    name = "onnxtest.rows"
    n_outputs = 2

    def infer(self, x: TensorType) -> Any:
        return x, TensorType(x.dtype, x.shape[:1])

    def forward(self, x: Any) -> Any:
        y = x * x.dtype.type(self.factor)
        return y, y.sum(1)


class Taken(Rows):
    """The same, in the name of an operator of somebody else."""

    name = "onnxtest.taken"
    onnx = "com.somebody::Rows"


class Apart(Rows):
    """The same, and what it consists of."""

    name = "onnxtest.apart"

    def expand(self, x: Any) -> Any:
        y = x * self.factor
        return y, F.sum(y, axis=1)


def model(cls: type[CustomOp], **attributes: Any) -> Any:
    def both(x: Any) -> Any:
        y, rows = cls(**attributes)(x)
        return F.exp(y), rows + 1

    return both


GIVEN = {"factor": 0.1, "axes": (1, 2), "mode": "same", "flag": True, "none": (), "mixed": (0.5, 1)}


def test_an_op_is_a_node_of_its_domain_and_comes_back() -> None:
    own = model(Rows, **GIVEN)
    made = export(own, mge.tensor(X))
    (node,) = (n for n in made.graph.node if n.domain)
    assert (node.domain, node.op_type) == ("onnxtest", "rows")
    assert {(o.domain, o.version) for o in made.opset_import} == {("", 21), ("onnxtest", 1)}
    kinds = {a.name: AttributeProto.AttributeType.Name(a.type) for a in node.attribute}
    assert kinds == {
        **{"factor": "FLOAT", "axes": "INTS", "mode": "STRING", "flag": "INT"},
        **{"none": "INTS", "mixed": "FLOATS"},
    }
    assert {v.name for v in made.graph.value_info} == set(node.output)
    loaded = load(made.SerializeToString())
    for found, wanted in zip(loaded(mge.tensor(X)), own(mge.tensor(X)), strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    # 0.1 is the number again that it was, although ONNX's is a float32.
    again = export(loaded, mge.tensor(X))
    (same,) = (n for n in again.graph.node if n.domain)
    assert list(same.attribute) == list(node.attribute)


def test_onnx_s_own_evaluator_runs_it_with_the_op_in_python() -> None:
    class rows(OpRun):
        op_domain = "onnxtest"

        def _run(self, x: Any, factor: float = 0) -> Any:
            y = x * np.float32(factor)
            return y, y.sum(1)

    own = model(Rows, factor=0.25)
    made = export(own, mge.tensor(X))
    found = ReferenceEvaluator(made, new_ops=[rows]).run(None, {"arg_0": X})
    for one, wanted in zip(found, own(mge.tensor(X)), strict=True):
        np.testing.assert_allclose(one, wanted.numpy(), 1e-6)


def test_an_op_that_says_what_it_consists_of_runs_in_onnx_runtime() -> None:
    runtime = pytest.importorskip("onnxruntime")
    own = model(Apart, factor=0.5)
    made = export(own, mge.tensor(X))
    assert not any(n.domain for n in made.graph.node)
    session = runtime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"arg_0": X})
    for one, wanted in zip(found, own(mge.tensor(X)), strict=True):
        np.testing.assert_allclose(one, wanted.numpy(), 1e-6)

    class Wrong(Apart):
        name = "onnxtest.wrong"

        def expand(self, x: Any) -> Any:
            return x, x

    with pytest.raises(UnsupportedOp, match="expand gives other types than infer"):
        export(model(Wrong, factor=0.5), mge.tensor(X))


def test_operators_of_others_are_named_and_found() -> None:
    made = export(model(Taken, factor=2.0), mge.tensor(X))
    assert [(n.domain, n.op_type) for n in made.graph.node if n.domain] == [
        ("com.somebody", "Rows")
    ]
    np.testing.assert_array_equal(load(made)(mge.tensor(X))[1].numpy(), [-1, 8])


def test_nodes_that_nobody_registered_say_how() -> None:
    class Gone(Rows):
        name = "onnxtest.gone"

    made = export(model(Gone, factor=2.0), mge.tensor(X))
    forget_custom_op("onnxtest.gone")
    with pytest.raises(UnsupportedOp, match=r'(?s)domain \'onnxtest\'.*"onnxtest::gone"'):
        load(made)(mge.tensor(X))


@pytest.mark.parametrize("value", [None, (1, "a"), ((1, 2),), 1 << 70, b"x"])
def test_attributes_without_a_form_in_onnx_are_refused(value: Any) -> None:
    with pytest.raises(UnsupportedOp, match=r"(?s)its attribute odd=.*cannot be written.*expand"):
        export(model(Rows, factor=1.0, odd=value), mge.tensor(X))


SOURCE = r"""
#include "treadle_op.h"
static int scale(const treadle_tensor *in, treadle_tensor *out, const double *params) {
    const float *x = in[0].data;
    float *y = out[0].data, by = (float)params[0], plus = (float)params[1];
    for (int64_t i = 0; i < treadle_size(in); i++) y[i] = x[i] * by + plus;
    return 0;
}
TREADLE_OPS({"onnx_scale", 1, 1, "by=0.1 plus:int=2", NULL, scale, NULL})
"""


@pytest.fixture
def library(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "scale.c").write_text(SOURCE)
    path = build_and_load("scale", tmp_path / "scale.c", build_dir=tmp_path)
    yield
    custom.unload(path)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_ops_of_libraries_are_written_too(library: None) -> None:
    def scaled(x: Any) -> Any:
        return custom.onnx_scale(plus=3)(x)

    x, wanted = mge.tensor(X), X * np.float32(0.1) + 3
    made = export(scaled, x)
    assert next((n.domain, n.op_type) for n in made.graph.node) == ("treadle.custom", "onnx_scale")
    np.testing.assert_allclose(load(made)(x).numpy(), wanted, 1e-6)
    custom.written_to_onnx("onnx_scale", "my.ops::Scale")
    assert next(n.domain for n in export(scaled, x).graph.node) == "my.ops"
    custom.written_to_onnx("onnx_scale", expand=lambda x, by, plus: x * by + plus)
    (found,) = ReferenceEvaluator(export(scaled, x)).run(None, {"arg_0": X})
    np.testing.assert_allclose(found, wanted, 1e-6)
    with pytest.raises(UnsupportedOp, match="'no_such_op'"):
        custom.written_to_onnx("no_such_op")


def test_element_types_of_results_are_their_own() -> None:
    class Above(CustomOp):
        name = "onnxtest.above"

        def infer(self, x: TensorType) -> TensorType:
            return TensorType(dt.bool_, x.shape)

        def forward(self, x: Any) -> Any:
            return x > 0

    made = export(lambda x: F.where(Above()(x), x, -x), mge.tensor(X))
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(made))
    np.testing.assert_array_equal(load(made)(mge.tensor(X)).numpy(), np.abs(X))
