"""Runs a model by Treadle and by ONNX Runtime, and finds the nodes that differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from tests.interop.onnx.fuzz.growing import (
    Array,
    Misfit,
    by_reference,
    by_runtime,
    computed,
    single,
)

import treadle as mge
from treadle.base.errors import TreadleError
from treadle.interop.onnx import load

BY_DATA = frozenset(("NonZero", "Unique", "Compress", "NonMaxSuppression"))
"""Operators whose results have extents that data decide, of which no other node gets a number."""
ASKED = "data decide it", "known only at run time"
"""In errors of nodes that ask for one."""
CANCELS = "MeanVarianceNormalization"
"""Subtracts squares of means from means of squares: of equal values a root of -1e-8 or of 1e-8."""
SUMS = frozenset(("DFT", "STFT", "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "ReduceSum"))
"""Operators whose results are off by the last digits of their terms, which may cancel."""
_RELATIVE = {2: 2e-2, 4: 1e-3, 8: 1e-5}
"""Tolerance by bytes of an element; of the largest number, a tenth of it counts as well."""


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        op: the operator, or "" for the whole model.
        what: "eager" or "compiled", and "differs", "refuses" or "fails".
        detail: numbers or a message.
    """

    op: str
    what: str
    detail: str

    @property
    def key(self) -> str:
        """What known differences are listed by."""
        return f"{self.op or 'model'} {self.what}"


def judged(
    model: onnx.ModelProto, given: dict[str, Array], values: dict[str, Array]
) -> list[Finding]:
    """What is wrong with Treadle's results of a model.

    Args:
        model: the model.
        given: its inputs.
        values: every value of it, computed node by node by somebody else.
    """
    names = [o.name for o in model.graph.output]
    wanted = {n: values[n] for n in names}
    narrowest = min((a.dtype.itemsize for a in values.values() if a.dtype.kind == "f"), default=8)
    found: list[Finding] = []
    results: dict[str, Any] = {}
    for how in ("eager", "compiled"):
        try:
            results[how] = by_treadle(model, given, how)
        except Exception as error:
            found += _refused(model, values, how, error)
            continue
        pairs = zip(names, results[how], strict=True)
        bad = {n: r for n, r in pairs if not close(r, wanted[n], narrowest)}
        if bad:
            found += _located(model, given, values, how, bad)
    return found


def by_treadle(model: onnx.ModelProto, given: dict[str, Array], how: str) -> list[Any]:
    """The results of a model, eagerly or compiled; raises what it raises."""
    network = load(model)
    inputs = [mge.tensor(given[n], dtype=given[n].dtype) for n in network.input_names]
    if how == "eager":
        made = network(*inputs)
    else:
        made = mge.jit.compile(lambda *xs: network(*xs))(*inputs)
    listed = made if isinstance(made, tuple) else (made,)
    return [np.asarray(v.numpy() if isinstance(v, mge.Tensor) else v) for v in listed]


def close(mine: Any, other: Array, narrowest: int = 8) -> bool:
    """Whether two results are the same but for rounding, to so many bytes at the narrowest."""
    if mine.shape != other.shape or mine.dtype != other.dtype:
        return False
    if mine.dtype.kind != "f":
        return bool((mine == other).all())
    if not other.size:
        return True
    share = _RELATIVE[min(other.dtype.itemsize, narrowest)]
    wide, reference = mine.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(reference)
    scale = np.abs(reference[finite]).max() if finite.any() else 0.0
    return bool(
        np.allclose(wide, reference, rtol=share, atol=share * (0.1 * scale + 0.01), equal_nan=True)
    )


def _refused(
    model: onnx.ModelProto, values: dict[str, Array], how: str, error: Exception
) -> list[Finding]:
    """Whose fault an error is: of the nodes that raise one alone."""
    if _by_data(error, how) and any(n.op_type in BY_DATA for n in model.graph.node):
        return _alone(model, values, how)
    found = _alone(model, values, how)
    if any("differs" not in f.what for f in found):
        return found
    if not found and any(_excused(node, values, how, model) for node in model.graph.node):
        return []
    return [*found, Finding("", f"{how} {_verdict(error)}", _said(error))]


def _verdict(error: Exception) -> str:
    return "refuses" if isinstance(error, TreadleError) else "fails"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def _by_data(error: Exception, how: str) -> bool:
    told = isinstance(error, TreadleError) and any(part in str(error) for part in ASKED)
    return told and how == "compiled"


def _alone(model: onnx.ModelProto, values: dict[str, Array], how: str) -> list[Finding]:
    """What is wrong with nodes alone: others agree on something else."""
    found = []
    for node, inputs, made, known in _nodes(model, values):
        alone = single(node, inputs, _opset(model), made, known)
        try:
            mine = by_treadle(alone, _only(inputs, known), how)
        except Exception as error:
            found.append(Finding(node.op_type, f"{how} {_verdict(error)}", _said(error)))
            continue
        others = [made[o] for o in node.output if o]
        if all(close(m, o) for m, o in zip(mine, others, strict=True)):
            continue
        if any(_agrees(c, alone, inputs, known, mine) for c in (by_reference, by_runtime)):
            continue
        if node.op_type == CANCELS and _trembles(alone, _only(inputs, known), [*made]):
            continue
        detail = _difference(node, inputs, mine, others)
        found.append(Finding(node.op_type, f"{how} differs", detail))
    return found


def _located(
    model: onnx.ModelProto,
    given: dict[str, Array],
    values: dict[str, Array],
    how: str,
    bad: dict[str, Array],
) -> list[Finding]:
    """The nodes that differ, or the whole model if none does alone."""
    found = _alone(model, values, how)
    if found or any(_excused(node, values, how, model) for node in model.graph.node):
        return found
    names = list(bad)
    if _trembles(model, given, names) or _rounds(model, given, values, names):
        return []
    if _follows(model, given, values, how, bad):
        return []
    return [Finding("", f"{how} differs", f"{names} of {[n.op_type for n in model.graph.node]}")]


def _excused(
    node: onnx.NodeProto, values: dict[str, Array], how: str, model: onnx.ModelProto
) -> bool:
    """Whether Treadle and the reference agree on a node against ONNX Runtime: all else follows."""
    for other, inputs, made, known in _nodes(model, values):
        if other is node:
            alone = single(node, inputs, _opset(model), made, known)
            mine = by_treadle(alone, _only(inputs, known), how)
            return not all(
                close(m, made[o]) for m, o in zip(mine, [o for o in node.output if o], strict=True)
            )
    return False


def _agrees(compute: Any, model: onnx.ModelProto, inputs: Any, known: Any, mine: list[Any]) -> bool:
    try:
        theirs = [np.asarray(v) for v in compute(model, _only(inputs, known))]
    except Exception:
        return False
    return all(close(m, t) for m, t in zip(mine, theirs, strict=True))


def _trembles(model: onnx.ModelProto, given: dict[str, Array], bad: list[str]) -> bool:
    """Whether the results change as much when all numbers change in their last digits."""
    names = [o.name for o in model.graph.output]
    try:
        before = by_runtime(model, given)
        for turn in range(3):
            rng = np.random.default_rng(turn)
            other = onnx.ModelProto()
            other.CopyFrom(model)
            for weight in other.graph.initializer:
                array = _shaken(numpy_helper.to_array(weight), rng)
                weight.CopyFrom(numpy_helper.from_array(array, weight.name))
            after = by_runtime(other, {n: _shaken(a, rng) for n, a in given.items()})
            pairs = zip(names, after, before, strict=True)
            if any(n in bad and not close(b, a) for n, b, a in pairs):
                return True
    except Exception:
        return True
    return False


def _rounds(
    model: onnx.ModelProto, given: dict[str, Array], values: dict[str, Array], bad: list[str]
) -> bool:
    """Whether results change as much when sums are off by the last digits of their largest terms.

    ONNX Runtime's Fourier transform of real numbers has 2e-6 where the sum is 0, and `Ceil` of that
    is 1: shaken inputs do not show it, since what cancels goes on to cancel.
    """
    for turn in range(3):
        rng = np.random.default_rng(turn)
        found = {n: a for n, a in values.items() if n in given}
        found |= {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
        try:
            for node in model.graph.node:
                made = computed(node, {n: found[n] for n in node.input if n}, _opset(model))
                if node.op_type in SUMS:
                    made = [_blurred(a, rng) for a in made]
                found.update(zip((o for o in node.output if o), made, strict=True))
        except (Misfit, KeyError):  # Nobody computes what follows, or a branch reads from outside.
            return False
        if any(not close(found[n], values[n]) for n in bad):
            return True
    return False


def _follows(
    model: onnx.ModelProto,
    given: dict[str, Array],
    values: dict[str, Array],
    how: str,
    bad: dict[str, Array],
) -> bool:
    """Whether the whole is what its nodes give, each of which is right about what Treadle gives it.

    ONNX Runtime's sigmoid of -20 is 0 and not 2e-9, and whether that exceeds 0 is another answer:
    no shaken input shows it, and the two numbers are equal by any tolerance.
    """
    found = dict(given) | {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    for node, read, made, known in _nodes(model, values):
        try:
            inputs = {n: found[n] for n in read}
            alone = single(node, inputs, _opset(model), made, known)
            mine = by_treadle(alone, _only(inputs, known), how)
            theirs = computed(node, inputs, _opset(model))
        except Exception:  # It reads what an outer graph has, or one of them refuses these numbers.
            return False
        if not all(close(m, t) for m, t in zip(mine, theirs, strict=True)):
            return False
        found.update(zip(made, mine, strict=True))
    return all(close(array, found[name]) for name, array in bad.items())


def _blurred(array: Array, rng: np.random.Generator) -> Array:
    """Numbers off by a unit or so in the last place of the largest."""
    if array.dtype.kind != "f" or not array.size:
        return array
    step = max(float(np.finfo(array.dtype).eps), 1e-6) * float(np.abs(array).max())
    return (array + step * rng.choice([-1.0, 1.0], array.shape)).astype(array.dtype)


def _shaken(array: Array, rng: np.random.Generator) -> Array:
    """Each number off by a unit or so in its last place, in a direction of its own."""
    if array.dtype.kind != "f":
        return array
    step = max(float(np.finfo(array.dtype).eps), 1e-6)
    return (array * (1 + step * rng.choice([-1.0, 1.0], array.shape))).astype(array.dtype)


def _nodes(model: onnx.ModelProto, values: dict[str, Array]) -> Any:
    """Each node with its operands, its results, and which operands a reader of the model knows."""
    known = {i.name for i in model.graph.initializer}
    for node in model.graph.node:
        names = {n for n in node.input if n}
        for attribute in node.attribute:
            names |= {n for inner in attribute.g.node for n in inner.input if n in values}
        made = {o: values[o] for o in node.output if o}
        yield node, {n: values[n] for n in names}, made, frozenset(names & known)
        if names <= known or node.op_type in ("Shape", "Size"):
            known |= set(made)


def _only(inputs: dict[str, Array], known: frozenset[str]) -> dict[str, Array]:
    return {n: a for n, a in inputs.items() if n not in known}


def _opset(model: onnx.ModelProto) -> int:
    return next(o.version for o in model.opset_import if not o.domain)


def _difference(
    node: onnx.NodeProto, inputs: dict[str, Array], mine: list[Any], others: list[Array]
) -> str:
    """What a node is, and the first of its results that differs."""
    attrs = {
        a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if not a.HasField("g")
    }
    shown = {
        k: numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v
        for k, v in attrs.items()
    }
    told = [f"{inputs[n].dtype}{list(inputs[n].shape)}" if n else "-" for n in node.input]
    for m, o in zip(mine, others, strict=True):
        if close(m, o):
            continue
        if m.shape != o.shape or m.dtype != o.dtype:
            return f"{told} {shown}: {m.dtype}{list(m.shape)} against {o.dtype}{list(o.shape)}"
        wrong = np.flatnonzero(~np.isclose(m.astype(float), o.astype(float), equal_nan=True))[:4]
        return (
            f"{told} {shown}: at {wrong.tolist()} {m.reshape(-1)[wrong].tolist()} against "
            f"{o.reshape(-1)[wrong].tolist()}"
        )
    return ""
