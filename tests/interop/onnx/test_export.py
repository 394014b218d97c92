"""Ops and modules written as ONNX compute the same in ONNX Runtime."""

import collections
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
runtime = pytest.importorskip("onnxruntime", reason="needs ONNX Runtime to compare with")

import treadle as mge  # noqa: E402
import treadle.functional as F  # noqa: E402
import treadle.module as M  # noqa: E402
from treadle import jit  # noqa: E402
from treadle.base import dtype as dt  # noqa: E402
from treadle.base.dtype import DType, as_dtype  # noqa: E402
from treadle.base.errors import TraceError, UnsupportedOp  # noqa: E402
from treadle.base.types import TensorType  # noqa: E402
from treadle.graph.builder import GraphBuilder, trace_body  # noqa: E402
from treadle.interop.onnx import export, exports, load  # noqa: E402
from treadle.interop.onnx.export import graph_to_onnx  # noqa: E402
from treadle.interop.onnx.writer import EXPORTERS  # noqa: E402
from treadle.ops import REGISTRY  # noqa: E402
from treadle.ops.control import Scan  # noqa: E402
from treadle.ops.op import Sample  # noqa: E402

TRIED = tuple(map(as_dtype, ("float32", "int32", "int64", "uint8", "bool")))
NEVER = {
    "what people look at, which files leave out": ("pause", "print"),
    "gradients and algorithms of training": (
        "adaptive_avg_pool_grad",
        "adaptive_max_pool_gather",
        "adaptive_max_pool_grad",
        "avg_pool_grad",
        "check_indices",
        "column_moments",
        "conv_grad_weight",
        "max_pool_gather",
        "max_pool_grad",
        "remap_grad",
        "resize_grad",
        "sliding_window_transpose",
        "winograd_conv",
        "winograd_conv_grad_weight",
    ),
    "ONNX has no such operator in opset 21": (
        "cholesky",
        "cum_prod",
        "imag_part",
        "linear_recurrence",
        "lu",
        "make_complex",
        "mat_inv",
        "kept_boxes",
        "nonzero_places",
        "qr",
        "real_part",
        "region_argmax",
        "remap",
        "sliding_window",
        "svd",
    ),
    "there is no such operator, and signs of zeros cannot be seen by others": ("copysign",),
    "ONNX's random numbers are others": (
        "random_bits",
        "random_gamma",
        "random_normal",
        "random_permutation",
        "random_poisson",
        "random_uniform",
    ),
    "programs of several processes, users' code, other engines' models": (
        "all_gather",
        "all_reduce",
        "all_reduce_bucket",
        "all_to_all",
        "broadcast_rank",
        "custom",
        "gather_to",
        "recv",
        "reduce_scatter",
        "reduce_to",
        "runtime_blob",
        "scatter_from",
        "send",
    ),
    "blocks of several numbers are no type of ONNX": (
        "block_experts",
        "block_experts_grad",
        "block_matmul",
        "block_matmul_grad",
        "block_values",
    ),
    "samples have regions that are Python functions": (
        "cond",
        "finding_cond",
        "finding_while",
        "finding_while_gradient",
        "fused",
        "scan",
        "while",
    ),
}
CANNOT = {name for names in NEVER.values() for name in names}


@pytest.fixture(autouse=True)
def _on_the_cpu() -> None:
    mge.set_default_device("cpux")


def session(model: Any) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data = model.SerializeToString()
    return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def run(model: Any, *arrays: Any) -> list[Any]:
    made = session(model)
    names = [i.name for i in made.get_inputs()]
    return list(made.run(None, dict(zip(names, arrays, strict=True))))


def written(sample: Sample, arrays: tuple[Any, ...]) -> Any:
    builder = GraphBuilder("sample")
    operands = [builder.input(TensorType(as_dtype(a.dtype), a.shape)) for a in arrays]
    results = builder.apply(sample.op, tuple(operands))
    builder.output(*results)
    names = ([f"x{i}" for i in range(len(arrays))], [f"y{i}" for i in range(len(results))])
    return graph_to_onnx(builder.build(), *names)


def cases(name: str) -> list[tuple[Sample, DType]]:
    samples = REGISTRY[name].samples()[:6]
    return [(s, d) for s in samples for d in s.element_types() if d in TRIED and runs(s, d)]


def runs(sample: Sample, dtype: DType) -> bool:
    """The runtime's Python interface knows no arrays of bfloat16."""
    arrays = sample.arrays(dtype)
    types = sample.op.infer(*(TensorType(as_dtype(a.dtype), a.shape) for a in arrays))
    kinds = {t.dtype.name for t in types} | {str(a.dtype) for a in arrays}
    return "bfloat16" not in kinds


@pytest.mark.parametrize("pool", [F.adaptive_avg_pool2d, F.adaptive_max_pool2d])
@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (2, 7), (5, 3)])
def test_adaptive_pools_of_windows_that_differ(pool: Any, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 7)).astype("float32")
    f = jit.trace(lambda x: pool(x, shape), capture_as_const=True)
    expected = f(mge.tensor(x)).numpy()
    (found,) = run(export(f, mge.tensor(x)), x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.timeout(400)
def test_every_op_that_can_be_written_computes_the_same() -> None:
    same, problems = collections.Counter[str](), []
    for name in sorted(set(REGISTRY) - CANNOT):
        for sample, dtype in cases(name):
            arrays = tuple(np.asarray(a) for a in sample.arrays(dtype))
            if name in ("mean", "nonzero") and (0 in arrays[0].shape or not arrays[0].ndim):
                continue  # ONNX Runtime gives 0 for means of nothing; nonzero takes no scalars
            try:
                results = run(written(sample, arrays), *arrays)
            except (UnsupportedOp, runtime_limits()):
                continue  # named below if nothing of the op could be tried
            except Exception as error:
                problems.append(f"{sample} {dtype.name}: {error}")
                continue
            problem = difference(sample, arrays, results)
            problems += [f"{sample} {dtype.name}: {problem}"] if problem else []
            same[name] += not problem
    assert not problems, "\n".join(problems[:20])
    missing = set(REGISTRY) - CANNOT - set(same)
    # Of the last one, caches may have another type: it casts, and the runtime has no such `Where`.
    assert missing <= {"constant", "int_conv", "add_along_axis", "cached_attention"}, missing
    assert sum(same.values()) > 900


def runtime_limits() -> Any:
    """What the runtime raises for element types that it has no kernel for."""
    return runtime.capi.onnxruntime_pybind11_state.NotImplemented


def difference(sample: Sample, arrays: tuple[Any, ...], results: list[Any]) -> str:
    with np.errstate(all="ignore"):
        found = sample.op.reference(*arrays)
    expected = found if isinstance(found, tuple) else (found,)
    for got, want in zip(results, expected, strict=True):
        want = np.asarray(want)
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            return f"{got.dtype}{got.shape}, not {want.dtype}{want.shape}"
        if not np.allclose(got, want, rtol=1e-4, atol=1e-5, equal_nan=True):
            return f"{got}, not {want}"
    return ""


# -- modules -----------------------------------------------------------------------------------


class SmallCnn(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = M.Conv2d(3, 8, 3, padding=1)
        self.norm = M.BatchNorm2d(8)
        self.conv2 = M.Conv2d(8, 8, 3, stride=2, groups=2)
        self.up = M.ConvTranspose2d(8, 4, 2, stride=2)
        self.fc = M.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.norm(self.conv1(x)))
        x = F.nn.silu(self.conv2(F.max_pool2d(x, 2)))
        x = F.nn.interpolate(self.up(x), scale_factor=2, mode="bilinear")
        return F.softmax(self.fc(F.mean(x, axis=(2, 3))), axis=1)


class Encoder(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = M.Embedding(20, 16)
        self.attention = M.MultiHeadAttention(16, 4)
        self.norm1, self.norm2 = M.LayerNorm(16), M.LayerNorm(16)
        self.up, self.down = M.Linear(16, 32), M.Linear(32, 16)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        y = self.norm1(x)
        x = x + self.attention(y, y, y)[0]
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def sample_image() -> Any:
    return np.random.default_rng(0).standard_normal((2, 3, 12, 12)).astype(np.float32)


MODELS: dict[str, tuple[type[M.Module], Any]] = {
    "cnn": (SmallCnn, sample_image),
    "encoder": (Encoder, lambda: np.arange(12, dtype=np.int32).reshape(2, 6)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_module_computes_the_same_there_and_when_it_comes_back(name: str, tmp_path: Path) -> None:
    cls, make = MODELS[name]
    network = cls()
    network.eval()
    x = make()
    path = tmp_path / "model.onnx"
    model = export(network, mge.tensor(x, dtype=x.dtype), path=path, arg_names=["x"])
    expected = network(mge.tensor(x, dtype=x.dtype)).numpy()
    np.testing.assert_allclose(run(model, x)[0], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(load(path)(x).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert {i.name for i in model.graph.input} == {"x"}
    assert model.producer_name == "treadle"


def test_branches_and_loops_become_graphs_inside_of_nodes() -> None:
    def double(v: Any) -> Any:
        return v * 2.0

    def step(x: Any) -> Any:
        y = jit.cond(F.sum(x) > 0, double, lambda v: v * 3.0 + 6.0, x)
        (z,) = jit.while_loop(lambda v: F.sum(v) < 100.0, lambda v: (double(v),), (y,))
        return z

    made = export(step, mge.tensor([1.0, 2.0]))
    assert {"If", "Loop"} <= {n.op_type for n in made.graph.node}
    for x in ([1.0, 2.0], [-1.0, 0.5]):
        expected = step(mge.tensor(x)).numpy()
        given = np.array(x, np.float32)
        np.testing.assert_allclose(run(made, given)[0], expected, rtol=1e-6)
        np.testing.assert_allclose(load(made)(given).numpy(), expected, rtol=1e-6)


def test_a_scan_that_goes_backwards_is_written() -> None:
    row = TensorType(dt.float32, (2,))
    op = Scan(trace_body(lambda s, r: (s * 0.5 + r, s * r), [row, row]), 1, 4, True)
    s, x = np.ones(2, np.float32), np.arange(8, dtype=np.float32).reshape(4, 2)
    made = written(Sample(op, ()), (s, x))
    for got, again, want in zip(run(made, s, x), load(made)(s, x), op.reference(s, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
        np.testing.assert_allclose(again.numpy(), want, rtol=1e-6)


def test_a_state_that_grows_is_written() -> None:
    def step(x: Any) -> Any:
        def turn(s: Any, row: Any) -> Any:
            return F.concat([s, row.reshape(1, 3)]), s.sum(0)

        (last,), (rows,) = jit.scan(turn, (x[:1],), (x,))
        return last, rows

    x = np.random.default_rng(0).standard_normal((5, 3)).astype("float32")
    made = export(step, mge.tensor(x))
    for got, again, want in zip(run(made, x), load(made)(x), step(mge.tensor(x)), strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(again.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_written_is_named_and_users_register_ways() -> None:
    x = mge.tensor(np.eye(3, dtype=np.float32) * 2)

    def inverse(m: Any) -> Any:
        return F.matinv(m)

    with pytest.raises(UnsupportedOp, match="mat_inv"):
        export(inverse, x)

    def write(w: Any, op: Any, m: Any) -> Any:
        return w.one("Reciprocal", [m], m.type)

    exports("mat_inv")(write)
    try:
        assert [n.op_type for n in export(inverse, x).graph.node] == ["Reciprocal", "Identity"]
    finally:
        del EXPORTERS["mat_inv"]


def test_a_training_step_is_no_model() -> None:
    network = M.BatchNorm2d(3)
    with pytest.raises(TraceError, match="changes tensors"):
        export(network, mge.tensor(sample_image()))
