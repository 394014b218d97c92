"""What programs carry besides arithmetic: strategies, foreign models, in-place updates, checks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle import config, jit
from treadle.autodiff import GradManager
from treadle.base.errors import NumericError, ShapeError, UnsupportedOp
from treadle.functional import debug_param
from treadle.ops.custom import blob_engine


@pytest.fixture
def switches() -> Iterator[None]:
    before = config.benchmark_kernel, config.deterministic_kernel
    yield
    config.benchmark_kernel, config.deterministic_kernel = before


@pytest.mark.parametrize(
    ("name", "benchmark", "deterministic"),
    [
        ("HEURISTIC", False, False),
        ("PROFILE", True, False),
        ("HEURISTIC_REPRODUCIBLE", False, True),
        ("PROFILE_REPRODUCIBLE", True, True),
    ],
)
def test_strategies_are_two_switches(
    switches: None, name: str, benchmark: bool, deterministic: bool
) -> None:
    debug_param.set_execution_strategy(name)
    assert (config.benchmark_kernel, config.deterministic_kernel) == (benchmark, deterministic)
    assert F.debug_param.get_execution_strategy() == name


def test_strategies_have_old_names_and_refuse_others(switches: None) -> None:
    with pytest.warns(DeprecationWarning, match="use set_execution_strategy"):
        debug_param.set_conv_execution_strategy("PROFILE")
    with pytest.warns(DeprecationWarning, match="use get_execution_strategy"):
        assert debug_param.get_conv_execution_strategy() == "PROFILE"
    for wrong in ("FASTEST", "HEURISTIC_PROFILE", ""):
        with pytest.raises(ValueError, match="is not a strategy"):
            debug_param.set_execution_strategy(wrong)


def test_models_of_registered_loaders_run() -> None:
    blob_engine("tests.scale", lambda blob, arrays: (arrays[0] * blob[0], arrays[1] + 1))
    x, y = mge.tensor([1.0, 2.0]), mge.tensor([3])
    options = [(2,), (1,)], "tests.scale", b"\x05", ["float32", "int32"]
    scaled, more = F.external.extern_opr_subgraph([x, y], *options)
    assert scaled.tolist() == [5, 10] and more.tolist() == [4]
    compiled = jit.compile(lambda a, b: F.external.extern_opr_subgraph([a, b], *options)[0] * 2)
    assert compiled(x, y).tolist() == [10, 20]


def test_models_nobody_can_run_say_so() -> None:
    x = mge.tensor([1.0])
    with pytest.raises(UnsupportedOp, match=r"only the engine 'tests\.nobody'"):
        F.external.extern_opr_subgraph([x], [(1,)], "tests.nobody", b"")
    with pytest.raises(ValueError, match="an element type for each result"):
        F.external.extern_opr_subgraph([x], [(1,)], "tests.nobody", b"", ["int32", "int32"])
    with pytest.raises(UnsupportedOp, match="the runtime of TensorRT"):
        F.external.tensorrt_runtime_opr([x], data=b"")
    with pytest.raises(UnsupportedOp, match="the runtime of Cambricon"):
        F.external.cambricon_runtime_opr([x], b"", "subnet0", True)
    with pytest.raises(UnsupportedOp, match="the runtime of Ascend"):
        F.external.atlas_runtime_opr([x], b"")
    with pytest.raises(UnsupportedOp, match="the runtime of MagicMind"):
        F.external.magicmind_runtime_opr([x], b"")


def test_inplace_add_rebinds_the_handle() -> None:
    p = mge.Parameter([[1.0, 2.0]])
    same = F.inplace._inplace_add_(p, mge.tensor([10.0]), 0.5, mge.tensor(2.0))
    assert same is p and isinstance(p, mge.Parameter) and p.tolist() == [[20.5, 21.0]]
    half = mge.tensor([1.0], dtype="float16")
    F.inplace._inplace_add_(half, mge.tensor([1.0]), alpha=1.0, beta=-0.5)
    assert half.dtype == np.float16 and half.tolist() == [0.5]
    with pytest.raises(ShapeError):
        F.inplace._inplace_add_(p, F.ones((3, 3)), 1.0, 1.0)


@pytest.mark.parametrize("capture", [lambda f: f, jit.compile])
def test_assert_equal_checks_when_the_program_runs(capture: object) -> None:
    run = capture(lambda x, y: F.utils._assert_equal(x, y, maxerr=0.01) * 2)  # type: ignore[operator]
    x = mge.tensor([1.0, 200.0])
    assert run(x, x + mge.tensor([0.005, 1.0])).tolist() == [2, 400]
    with pytest.raises(NumericError, match=r"values differ by 0\.5"):
        run(x, x + mge.tensor([0.5, 0.0]))
    assert run(x, x).tolist() == [2, 400]
    with pytest.raises(ShapeError, match="the shapes differ"):
        F.utils._assert_equal(x, x[:1])


def test_simulated_errors_and_aliases() -> None:
    failed = F.utils._simulate_error()
    with pytest.raises(RuntimeError, match="has failed") as caught:
        failed.numpy()
    assert isinstance(caught.value.__cause__, RuntimeError)
    with mge.config._override(async_level=0), pytest.raises(RuntimeError, match="simulated"):
        F.utils._simulate_error()
    assert F.utils.topk_accuracy is F.topk_accuracy and F.utils.copy is F.copy
    for name in ("sigmoid", "hsigmoid", "relu", "relu6", "hswish"):
        with pytest.warns(DeprecationWarning, match=f"F.nn.{name} now"):
            assert getattr(F.elemwise, name) is getattr(F.nn, name)
    with pytest.raises(AttributeError, match="no attribute 'silu'"):
        F.elemwise.silu


def test_check_non_finite_scales_and_tells() -> None:
    grads = [mge.tensor([2.0, 4.0]), mge.tensor([[1.0]], dtype="float16")]
    flag = F.math._check_non_finite(grads, 0.5)
    assert flag.dtype == np.int32 and flag.tolist() == [0]
    assert grads[0].tolist() == [1, 2] and grads[1].dtype == np.float16
    assert F.math._check_non_finite([grads[0], mge.tensor([np.nan])]).tolist() == [1]
    assert F.math._check_non_finite([mge.tensor([np.inf])]).item() == 1


def test_check_leaves_gradients_alone() -> None:
    x = mge.tensor([1.0, 2.0])
    with GradManager().attach([x]) as gm:
        gm.backward(F.utils._assert_equal(x * 3, x * 3, verbose=True).sum())
    assert x.grad.tolist() == [3, 3]


def test_counts_may_be_tensors_and_modes_may_be_in_capitals() -> None:
    assert F.topk(mge.tensor([1.0, 3.0, 2.0]), k=mge.tensor(2))[0].tolist() == [3, 2]
    x = mge.tensor([1.0, 2.0])
    assert F.nn.pad(x, ((1, 1),), mode="REPLICATE").tolist() == [1, 1, 2, 2]
    assert F.nn.pad(x, ((1, 0),), "CONSTANT", 5.0).tolist() == [5, 1, 2]
