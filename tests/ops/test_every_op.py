"""Every op keeps what its declaration claims; generated from its samples."""

import re

import numpy as np
import pytest
from tests.ops import harness

from treadle.base.errors import DTypeError, NoGradient, TreadleError
from treadle.ops import REGISTRY
from treadle.ops.families import Elementwise
from treadle.ops.op import BadSample, Op, Pullback

every_op = pytest.mark.parametrize("cls", [REGISTRY[n] for n in harness.OPS], ids=harness.OPS)


@every_op
def test_infer_agrees_with_the_oracle(cls: type[Op]) -> None:
    for sample, dtype in harness.all_pairs(cls):
        harness.check_types(sample, dtype)


@every_op
def test_infer_takes_symbolic_extents(cls: type[Op]) -> None:
    # Whether it may refuse them is the completeness table's question.
    for sample in cls.samples():
        harness.symbolic_refusal(sample, sample.element_types()[-1])


@every_op
def test_scalar_code_agrees_with_the_oracle(cls: type[Op]) -> None:
    if not issubclass(cls, Elementwise) or cls.scalar is Elementwise.scalar:
        return
    for sample, dtype in harness.all_pairs(cls):
        harness.check_scalar(sample.op, sample.arrays(dtype), f"{sample} with {dtype}")
        special = harness.special_arrays(sample, dtype)
        if special is not None:
            harness.check_scalar(sample.op, special, f"{sample}, special values of {dtype}")


@every_op
def test_numbers_of_16_bits_are_rounded_once(cls: type[Op]) -> None:
    """Compiled code computes one op in float32; so do calls op by op, to the bit."""
    if not issubclass(cls, Elementwise):
        return
    for sample, dtype in harness.all_pairs(cls):
        if dtype.is_float and dtype.itemsize == 2:
            harness.check_rounded_once(sample, dtype)


@every_op
def test_gradient_agrees_with_differences(cls: type[Op]) -> None:
    for sample in cls.samples():
        if harness.is_differentiable(sample):
            harness.check_gradient(sample)


@every_op
def test_gradients_have_the_types_of_inputs(cls: type[Op]) -> None:
    for sample, dtype in harness.all_pairs(cls):
        if harness.is_differentiable(sample) and dtype.is_float:
            harness.check_gradient_contract(sample, dtype)


@every_op
def test_ops_without_gradient_say_why(cls: type[Op]) -> None:
    """Such a rule raises its reason, or lets nothing through where the result is a float."""
    if not cls.no_gradient:
        return
    sample, dtype = harness.all_pairs(cls)[0]
    xs = tuple(harness.TapeOperand(a, []) for a in sample.arrays(dtype))
    if not xs:
        return
    outputs = sample.op.outputs(*xs)
    at = Pullback((outputs[0], *(None for _ in outputs[1:])), xs, outputs, tuple(True for _ in xs))
    try:
        assert all(g is None for g in sample.op.vjp(at))
    except NoGradient as error:
        assert cls.name in str(error) and cls.no_gradient in str(error)


@every_op
def test_bad_input_is_explained(cls: type[Op]) -> None:
    for bad in cls.bad_samples():
        _check_message(cls, bad)


def _check_message(cls: type[Op], bad: BadSample) -> None:
    made = False
    with pytest.raises(bad.error) as caught:
        op = bad.make()
        made = True
        rng = np.random.default_rng(0)
        arrays = [a.make(bad.dtype, rng) for a in bad.args]
        op.infer(*harness.types_of(arrays))
        harness.run(op, arrays)
    text = str(caught.value)
    assert text.startswith(f"{cls.name}: ") and bad.message in text
    assert "\n  hint: " in text, text
    assert re.search(r"\n  at:   tests/ops/(test_every_op|harness)\.py:\d+ in ", text), text
    if made:  # An attribute error knows no operands yet.
        assert "\n  saw:  " in text, text


@every_op
def test_unsupported_element_types_are_refused(cls: type[Op]) -> None:
    for op, types in harness.wrong_dtype_calls(cls):
        with pytest.raises(DTypeError, match=f"^{cls.name}: ") as caught:
            op.infer(*types)
        assert "saw:" in str(caught.value) and "hint:" in str(caught.value)


@every_op
def test_declaration_is_complete_in_form(cls: type[Op]) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", cls.name)
    assert cls.__name__.lower() == cls.name.replace("_", ""), "class and op are named alike"
    assert cls.__doc__ and cls.__doc__.strip().splitlines()[0].endswith((".", ":", ";", ","))
    samples = cls.samples()
    assert samples
    for sample in samples:
        assert type(sample.op) is cls
        hash(sample.op)
        assert sample.op == sample.op and isinstance(sample.op.attributes, dict)
        if not cls.operands[-1:] or not cls.operands[-1].startswith("*"):
            assert len(sample.args) == len(cls.operands), f"{sample}"
    if issubclass(cls, Elementwise):
        shapes = [a.shape for s in samples for a in s.args]
        assert () in shapes and any(0 in s for s in shapes)
        assert any(np.prod(s) == 1 for s in shapes)


@every_op
def test_onnx_entry_is_well_formed(cls: type[Op]) -> None:
    entry = cls.onnx
    if entry is None:
        return
    assert re.fullmatch(r"[A-Z][A-Za-z0-9]*", entry.op_type) and 1 <= entry.since <= 25
    ours = [a for a, _ in entry.attributes]
    assert set(ours) <= set(cls._fields) and len(set(ours)) == len(ours)


def test_errors_are_ours() -> None:
    """What bad samples raise derives from one base class, so that callers can catch it."""
    for name in harness.OPS:
        for bad in REGISTRY[name].bad_samples():
            assert issubclass(bad.error, TreadleError)
