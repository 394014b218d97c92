"""Every op that PyTorch has gives PyTorch's value and gradient."""

from typing import Any

import numpy as np
import pytest
from tests.ops import harness

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.ops import REGISTRY
from treadle.ops.op import Op, Pullback, Sample

pytestmark = pytest.mark.oracle

COMPARED = (dt.float64, dt.float32, dt.int32, dt.bool_, dt.complex64)
# PyTorch keeps some constants (1/6 in hardsigmoid) in float32 even for float64.
TOLERANCE = {"float64": (1e-7, 1e-8), "float32": (2e-4, 2e-5), "complex64": (2e-4, 2e-5)}
# Inputs that PyTorch's operator treats as constants though ours has a gradient for them, which the
# central differences check.
CONSTANT_IN_TORCH = {"batch_norm_infer": ("mean", "var")}
IN_TORCH = [n for n in harness.OPS if REGISTRY[n].torch]

each_op = pytest.mark.parametrize("cls", [REGISTRY[n] for n in IN_TORCH], ids=IN_TORCH)


def call_torch(op: Op, tensors: list[Any]) -> tuple[Any, ...]:
    """The op's PyTorch expression applied to tensors."""
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "op": op}
    for i, operand in enumerate(op.operands):
        if operand.startswith("*"):
            names[operand[1:]] = tensors[i:]
        elif i < len(tensors):
            names[operand] = tensors[i]
    results = eval(op.torch, names)
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def as_tensors(arrays: tuple[Array, ...], needs: tuple[bool, ...]) -> list[Any]:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    made = [torch.from_numpy(np.array(a)) for a in arrays]
    return [t.requires_grad_(n) for t, n in zip(made, needs, strict=True)]


def as_array(tensor: Any) -> Array:
    """NumPy's view of a result; bfloat16 widened, which is exact."""
    name = str(tensor.dtype).removeprefix("torch.")
    return np.asarray((tensor.float() if name == "bfloat16" else tensor).numpy())


def assert_agree(ours: Array, theirs: Array, dtype: DType, what: str) -> None:
    ours = ours.astype(theirs.dtype)
    assert ours.shape == theirs.shape, f"{what}: {ours.shape}, PyTorch {theirs.shape}"
    rtol, atol = TOLERANCE.get(dtype.name, (0, 0))
    np.testing.assert_allclose(ours, theirs, rtol, atol, err_msg=what)


def compared(cls: type[Op]) -> list[tuple[Sample, DType]]:
    return [(s, d) for s, d in harness.all_pairs(cls) if d in COMPARED]


@each_op
def test_values(cls: type[Op]) -> None:
    for sample, dtype in compared(cls):
        arrays = sample.arrays(dtype)
        ours = harness.run(sample.op, arrays)
        theirs = call_torch(sample.op, as_tensors(arrays, (False,) * len(arrays)))
        for mine, other in zip(ours, theirs, strict=True):
            assert_agree(mine, as_array(other), dtype, f"{sample} with {dtype}")


@each_op
def test_gradients(cls: type[Op]) -> None:
    for sample, dtype in compared(cls):
        if dtype.is_float and harness.is_differentiable(sample):
            _compare_gradients(sample, dtype)


def _names(op: Op, count: int) -> list[str]:
    """The operands' names; every further input has the last one's."""
    last = op.operands[-1:] * count
    return [*op.operands, *last][:count]


def _compare_gradients(sample: Sample, dtype: DType) -> None:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    arrays = sample.arrays(dtype)
    constant = CONSTANT_IN_TORCH.get(sample.op.name, ())
    needs = tuple(
        a.dtype == dtype.numpy and name not in constant
        for name, a in zip(_names(sample.op, len(arrays)), arrays, strict=True)
    )
    xs = tuple(harness.TapeOperand(a, []) for a in arrays)
    outputs = sample.op.outputs(*xs)
    rng = np.random.default_rng(11)
    dys = tuple(
        y.constant(rng.normal(size=y.shape), y.type.dtype) if y.type.dtype.is_float else None
        for y in outputs
    )
    ours = sample.op.vjp(Pullback(dys, xs, outputs, needs))
    tensors = as_tensors(arrays, needs)
    results = call_torch(sample.op, tensors)
    chosen = [
        (r, torch.from_numpy(dy.array.astype("float64")).to(r.dtype))
        for r, dy in zip(results, dys, strict=True)
        if dy is not None
    ]
    real = [t for t, n in zip(tensors, needs, strict=True) if n]
    heads, cotangents = zip(*chosen, strict=True)
    theirs = iter(torch.autograd.grad(heads, real, cotangents, allow_unused=True))
    for i, need in enumerate(needs):
        if need:
            other, mine = next(theirs), ours[i]
            expected = np.zeros_like(arrays[i]) if other is None else as_array(other)
            got = np.zeros_like(arrays[i]) if mine is None else mine.array
            assert_agree(got, expected, dtype, f"{sample} with {dtype}: gradient {i}")
