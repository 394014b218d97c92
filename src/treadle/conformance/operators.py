"""Operators: every op gives the reference's results on the device, whoever runs it there.

One check per op and element type. Kernels, generated code and fallback are all looked at: operands
are in device memory only, and results are read back.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType
from treadle.base.errors import NoGradient
from treadle.conformance.check import Check, CheckFailed, NotOffered, require
from treadle.conformance.samples import (
    SampleCall,
    calls,
    differing,
    element_types,
    main_type,
    op_names,
    quick_types,
    require_close,
    types_of,
)
from treadle.conformance.subject import Subject
from treadle.conformance.tolerance_table import tolerance
from treadle.engine.eager.dispatch import decision
from treadle.ops import REGISTRY
from treadle.ops.op import Op, Pullback, Sample
from treadle.ops.transfer import Transfer
from treadle.tensor import Tensor


def checks(subject: Subject) -> Iterator[Check]:
    """One check per op and element type, or quickly of those that tell most and a third of the
    gradients; determinism.
    """
    for name in op_names():
        op = REGISTRY[name]
        for dtype in quick_types(op) if subject.quick else element_types(op):
            run = partial(results, subject, op, dtype)
            yield Check("Operators", f"{name}/{dtype.name}", run)
        found = None if op.no_gradient else _differentiable(op)
        if found is not None and (not subject.quick or zlib.crc32(name.encode()) % 3 == 0):
            yield Check("Operators", f"{name}/gradient", partial(gradient, subject, found))
    yield Check("Operators", "determinism", partial(determinism, subject))
    yield Check("Operators", "large_arrays", partial(large_arrays, subject))


def results(subject: Subject, op: type[Op], dtype: DType) -> None:
    """All calls of one op with one element type."""
    failures: list[str] = []
    tried = 0
    for call in calls(op, dtype, quick=subject.quick):
        expected = call.expected()
        if expected is None:
            continue  # The reference refuses the data itself, or needs other processes.
        tried += 1
        _note(subject, call, dtype)
        try:
            require_close(subject.run(call.op, call.arrays), expected, call)
        except CheckFailed as failure:
            failures.append(str(failure))
        except Exception as error:
            failures.append(f"{call}: {type(error).__name__}: {error}")
    if failures:
        raise CheckFailed(f"{len(failures)} of {tried} calls fail; {failures[0]}")
    if not tried:
        raise NotOffered("the reference runs none of the samples in one process")


def _note(subject: Subject, call: SampleCall, dtype: DType) -> None:
    """Keep who runs an op, for the page of what is covered."""
    row = subject.coverage.setdefault(call.op.name, {})
    if dtype.name not in row or row[dtype.name].startswith("host"):
        row[dtype.name] = runner(subject, call)


def runner(subject: Subject, call: SampleCall) -> str:
    """Return who runs a call on the device: "kernel", an engine, or "host" with the code of the
    reason.
    """
    if isinstance(call.op, Transfer):
        return "copy"
    found = decision(call.op, call.types, subject.place())
    if found.runner != "host":
        return found.runner
    return f"host ({found.refusals[-1][1].reason})" if found.refusals else "host"


# -- gradients ---------------------------------------------------------------------------------


def _differentiable(op: type[Op]) -> Sample | None:
    """The first sample with float32 operands that has a gradient."""
    for sample in op.samples():
        if not sample.gradient or dt.float32 not in sample.element_types() or not sample.args:
            continue
        arrays = sample.arrays(dt.float32)
        kinds = {t.dtype for t in sample.op.infer(*types_of(arrays)) if t.dtype.is_float}
        if kinds == {dt.float32} and any(a.dtype == np.float32 for a in arrays):
            return sample
    return None


def gradient(subject: Subject, sample: Sample) -> None:
    """The op's own rule, evaluated on the device and on the host."""
    arrays = sample.arrays(dt.float32)
    call = SampleCall(sample.op, arrays, "gradient")
    if call.expected() is None:
        raise NotOffered("the reference refuses the sample")
    try:
        expected = pullback(sample.op, [Tensor(a, dtype=a.dtype, device="cpu0") for a in arrays])
    except NoGradient as why:
        raise NotOffered(str(why)) from None
    got = pullback(sample.op, [subject.tensor(a) for a in arrays])
    for i, (x, y) in enumerate(zip(got, expected, strict=True)):
        require((x is None) == (y is None), f"{call}: gradient {i} is {x}, expected {y}")
        if x is None or y is None:
            continue
        allowed = 4 * tolerance(sample.op.name, y.dtype.name)
        require(x.shape == y.shape, f"{call}: gradient {i} has shape {x.shape}")
        wrong = differing(x, y, allowed)
        require(not wrong.size, f"{call}: {wrong.size} elements of gradient {i} are wrong")


def pullback(op: Op, inputs: list[Tensor]) -> list[Array | None]:
    """Cotangents of the inputs for ones in place of all cotangents of float results."""
    outputs = op.outputs(*inputs)
    needs = tuple([x.type.dtype.is_float for x in inputs])
    dys = tuple([y * 0.0 + 1.0 if y.type.dtype.is_float else None for y in outputs])
    found = op.vjp(Pullback(dys, tuple(inputs), tuple(outputs), needs))
    return [None if g is None else np.array(g.numpy()) for g in found]


# -- the same again ----------------------------------------------------------------------------


_TELLING = ("add", "add_along_axis", "conv", "conv_grad_weight", "matmul", "softmax", "sum")
"""Ops in which threads add to one another's results."""


def determinism(subject: Subject) -> None:
    """Ops that the device runs itself give the same bits at every call."""
    tried = 0
    for name in op_names():
        op = REGISTRY[name]
        if subject.quick and name not in _TELLING:
            continue
        call = max(calls(op, main_type(op)), key=lambda c: sum(a.size for a in c.arrays))
        if call.expected() is None or runner(subject, call).startswith(("host", "copy")):
            continue
        tried += 1
        first = subject.run(call.op, call.arrays)
        for _ in range(3):
            again = subject.run(call.op, call.arrays)
            same = all(x.tobytes() == y.tobytes() for x, y in zip(first, again, strict=True))
            require(same, f"{call}: other bits at another call")
    if not tried:
        raise NotOffered("the device runs no op itself")


def large_arrays(subject: Subject) -> None:
    """Arrays of more elements than 16 bits count: positions are not cut off."""
    size = 70_001
    x = np.arange(size, dtype=np.int32)
    for name in ("add", "flip", "sum", "take"):
        call = _large(name, x)
        expected = call.expected()
        if expected is not None:
            require_close(subject.run(call.op, call.arrays), expected, call)


def _large(name: str, x: Array) -> SampleCall:
    sample = REGISTRY[name].samples()[0].op
    if name == "add":
        return SampleCall(sample, (x, x * 3), "70001 elements")
    if name == "flip":
        return SampleCall(sample.replace(axes=(0,)), (x,), "70001 elements")
    if name == "sum":
        return SampleCall(sample.replace(axes=(0,)), (x,), "70001 elements")
    return SampleCall(sample.replace(axis=0), (x, x[-50:].copy()), "the last of 70001 elements")
