"""Every op that has a translation gives what its oracle gives, on all samples that are taken."""

from __future__ import annotations

import importlib
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treadle.backends.openvino import backend
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder
from treadle.ops.composite import Composite
from treadle.ops.op import REGISTRY, Op, Sample, as_tuple

pytest.importorskip("openvino", reason="needs the openvino extra")
TABLE: Any = importlib.import_module("treadle.backends.openvino.translation").TABLE
KINDS = (dt.float32, dt.int8, dt.uint8, dt.int32, dt.bool_)
Case = tuple[Op, tuple[np.ndarray, ...], tuple[TensorType, ...]]


def cases(samples: tuple[Sample, ...]) -> Iterator[Case]:
    """The samples that the engine takes."""
    for sample in samples:
        for kind in sample.element_types():
            if kind not in KINDS:
                continue
            arrays = sample.arrays(kind)
            types = tuple(TensorType(dt.as_dtype(a.dtype), a.shape) for a in arrays)
            if backend.supports(sample.op, types):
                yield sample.op, arrays, types


def together(found: list[Case]) -> list[tuple[np.ndarray, ...]]:
    """The results of all cases, as one model: compiling takes longer than running."""
    builder = GraphBuilder("samples")
    for op, _, types in found:
        builder.output(*builder.apply(op, [builder.input(t) for t in types]))
    arrays = [a for _, given, _ in found for a in given]
    results = iter(backend.compile_segment(builder.build()).run(arrays))
    return [tuple(next(results) for _ in op.infer(*types)) for op, _, types in found]


OPS = sorted({kind.name for kind in TABLE} - {"identity"})


@pytest.mark.parametrize("name", OPS)
def test_results_are_those_of_the_oracle(name: str) -> None:
    found = list(cases(REGISTRY[name].samples()))
    assert found
    for (op, arrays, _), results in zip(found, together(found), strict=True):
        wanted = as_tuple(op.reference(*arrays))
        for x, y in zip(results, wanted, strict=True):
            assert (x.dtype, x.shape) == (np.asarray(y).dtype, np.shape(y)), op
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5, err_msg=str(op))


@pytest.mark.parametrize("name", ["batch_norm_infer", "group_norm", "rms_norm"])
def test_composites_are_taken_in_parts(name: str) -> None:
    assert issubclass(REGISTRY[name], Composite) and REGISTRY[name] not in TABLE
    found = list(cases(REGISTRY[name].samples()))
    assert found
    for (op, arrays, _), results in zip(found, together(found), strict=True):
        np.testing.assert_allclose(results[0], op.reference(*arrays), rtol=1e-4, atol=1e-5)


def f32(*shape: int) -> TensorType:
    return TensorType(dt.float32, shape)


@pytest.mark.parametrize(
    ("name", "attributes", "types", "reason", "said"),
    [
        ("sort", {"axis": 0, "descending": False}, (f32(3),), "op", "no translation of sort"),
        ("add", {}, (f32(0), f32(0)), "shape", "no elements"),
        ("add", {}, (TensorType(dt.float64, (2,)),) * 2, "dtype", "add of float64"),
        ("abs", {}, (TensorType(dt.int32, (2,)),), "dtype", "it is taken for float32"),
        ("cast", {"dtype": dt.int32}, (f32(2),), "precision", "wraps here"),
        ("broadcast", {"shape": (2,)}, (f32(2),), "alias", "changes nothing"),
        ("clip", {"low": 2.0, "high": 1.0}, (f32(2),), "attribute", "above the high one"),
    ],
)
def test_refusals_have_reasons(
    name: str, attributes: dict[str, Any], types: tuple[TensorType, ...], reason: str, said: str
) -> None:
    answer = backend.supports(REGISTRY[name](**attributes), types)
    assert (bool(answer), answer.reason) == (False, reason)
    assert said in answer.message


def test_sums_that_float32_does_not_hold_are_refused() -> None:
    types = TensorType(dt.uint8, (1, 64, 8, 8)), TensorType(dt.int8, (4, 64, 3, 3))
    op = REGISTRY["int_conv"]((1, 1), ((0, 0), (0, 0)), (1, 1), 1)
    assert backend.supports(op, types).reason == "precision"
    small = TensorType(dt.uint8, (1, 8, 8, 8)), TensorType(dt.int8, (4, 8, 3, 3))
    assert backend.supports(op, small)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "maximum", "minimum"])
def test_integers_are_exact(name: str) -> None:
    rng = np.random.default_rng(0)
    arrays = tuple(rng.integers(-(2**30), 2**30, (3, 40)).astype(np.int32) for _ in range(2))
    op, types = REGISTRY[name](), (TensorType(dt.int32, (3, 40)),) * 2
    ((found,),) = together([(op, arrays, types)])
    assert (found == op.reference(*arrays)).all()


def test_single_ops_are_left_to_other_engines() -> None:
    assert not backend.prepare(REGISTRY["add"](), (f32(2), f32(2)))


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_the_callers_and_not_held() -> None:
    builder = GraphBuilder("g")
    builder.output(*builder.apply(REGISTRY["exp"](), [builder.input(f32(4, 16))]))
    made: Any = backend.compile_segment(builder.build())
    for _ in range(2):
        x, y = np.ones((4, 16), np.float32), np.zeros((4, 16), np.float32)
        x.flags.writeable = False
        made.run_into([x], [y])
        np.testing.assert_allclose(y, np.exp(x), rtol=1e-5)
        native = made._idle[0]._request
        assert address(native.get_input_tensor(0).data) == address(x)
        assert address(native.get_output_tensor(0).data) == address(y)
        gone = weakref.ref(x), weakref.ref(y)
        del x, y
        assert [g() for g in gone] == [None, None]


def test_blobs_run_in_another_process(tmp_path: Path) -> None:
    builder = GraphBuilder("g")
    x = builder.input(f32(2, 3))
    weight = builder.constant(np.full((3, 2), 0.5, np.float32))
    builder.output(*builder.apply(REGISTRY["matmul"](), [x, weight]))
    path = tmp_path / "blob"
    path.write_bytes(backend.compile_segment(builder.build()).serialize())
    code = (
        "import sys, numpy as np; from treadle.backends.openvino import backend;"
        "made = backend.load_segment(open(sys.argv[1], 'rb').read());"
        "print(made.run([np.ones((2, 3), np.float32)])[0].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[[1.5, 1.5], [1.5, 1.5]]"
