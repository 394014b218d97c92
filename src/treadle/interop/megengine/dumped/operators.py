"""Operators of dumped models: computed by type, from their parameters, on tensors.

Types are named in files of the second version, and numbered by a hash of the name in those of the
first; either way a name may end in a version, which is left out here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import treadle.functional as F
from treadle.autodiff import GradManager
from treadle.base.errors import CheckpointError, TreadleError, UnsupportedOp
from treadle.base.quantized import BUILTIN, quantized_type
from treadle.interop.megengine.builtin import MEMBERS
from treadle.interop.megengine.dumped.fields import FIELDS, MODES, parameters
from treadle.interop.megengine.dumped.flatbuffer import FlatTable
from treadle.interop.megengine.dumped.shapes import Extents, computed, shape_of, whole
from treadle.module.elemwise import METHODS
from treadle.tensor import Tensor

DTYPES = {
    **{0: "float32", 1: "uint8", 2: "int8", 3: "int16", 4: "int32", 8: "uint8", 9: "float16"},
    **{11: "quint8", 12: "qint32", 13: "qint8", 17: "bfloat16", 18: "bool", 19: "uint16"},
}
"""Element types by number; the others are packed below a byte, or complex."""

_MODES = (
    *("RELU", "ABS", "ACOS", "ASIN", "CEIL", "COS", "EXP", "EXPM1", "FLOOR", "LOG", "LOG1P"),
    *("NEGATE", "SIGMOID", "SIN", "TANH", "ABS_GRAD", "ADD", "FLOOR_DIV", "MAX", "MIN", "MOD"),
    *("MUL", "POW", "SIGMOID_GRAD", "SUB", "SWITCH_GT0", "TANH_GRAD", "TRUE_DIV", "LOG_SUM_EXP"),
    *("LT", "LEQ", "EQ", "SHL", "SHR", "COND_LEQ_MOV", "FUSE_MUL_ADD3", "FUSE_MUL_ADD4"),
    *("FUSE_ADD_RELU", "FUSE_ADD_SIGMOID", "FUSE_ADD_TANH", "FAST_TANH", "FAST_TANH_GRAD"),
    *("ROUND", "RMULH", "ATAN2", "ERF", "ERFINV", "ERFC", "ERFCINV", "H_SWISH", "H_SWISH_GRAD"),
    *("FUSE_ADD_H_SWISH", "NOT", "AND", "OR", "XOR", "SILU", "SILU_GRAD", "GELU", "GELU_GRAD"),
    *("COND_LT_MOV", "NEQ", "ISNAN", "ISINF", "SINH", "COSH", "ASINH", "ACOSH", "ATANH", "TAN"),
    *("ASINH_GRAD", "ACOSH_GRAD", "ATANH_GRAD", "PRELU", "CLIP", "PRELU_GRAD", "SOFTPLUS"),
    *("SOFTPLUS_GRAD", "RELU6", "RELU6_GRAD", "HSIGMOID", "HSIGMOID_GRAD", "LOGSIGMOID", "SQRT"),
    *("SQUARE", "SIGN"),
)
_REDUCTIONS = ("SUM", "SUM_SQR", "PRODUCT", "MIN", "MAX", "MEAN")
_POOLS = ("MAX", "AVERAGE", "AVERAGE_COUNT_EXCLUDE_PADDING")
_BEHIND = (None, "RELU", "SIGMOID", "H_SWISH")
_TARGET = 2**31 - 1  # A Reduce of this axis gets the shape that is wanted as a second operand.
_WIDEST = 1024  # What a border may have.
_ALL = 7  # An axis no tensor of MegEngine has.


@dataclass(frozen=True)
class Operator:
    """An operator of a dumped model.

    Attributes:
        kind: its type, without a version; a number in hexadecimal where the name is not known.
        name: what the program called it; empty where names were not kept.
        inputs: numbers of the values it takes.
        outputs: numbers of the values it makes.
        parameters: its parameters; None where it has none.
        result: the element type that its results are said to have; None where it follows.
    """

    kind: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: FlatTable | None
    result: FlatTable | None = None

    def whole(self, field: int, form: str = "I", default: int = 0) -> int:
        """A whole number among the parameters."""
        return default if self.parameters is None else self.parameters.whole(field, form, default)

    def apply(self, given: Sequence[Any]) -> list[Any]:
        """Return the operator's results on these operands.

        Raises:
            UnsupportedOp: it has no counterpart here.
            CheckpointError: its parameters are none, or it does not take these operands.
        """
        if any(isinstance(x, Extents) for x in given):
            found = computed(self.kind, self._how(), given)
            if found is not None:
                return [found]
            if self.kind not in _OF_SHAPES:
                given = [x.tensor() if isinstance(x, Extents) else x for x in given]
        given = [Tensor(x) if isinstance(x, np.ndarray) else x for x in given]
        function = FUNCTIONS.get(self.kind) or (_defined if self.kind in FIELDS else None)
        if function is None:
            raise UnsupportedOp(
                "DumpedModel",
                f"operator {self.name or self.kind} of type {self.kind} has no counterpart",
                hint="its weights can be read; build the network in Python and load them",
            )
        try:
            found = function(self, *given)
        except TreadleError:
            raise
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                "DumpedModel",
                f"operator {self.name or self.kind} of type {self.kind} does not take what it is "
                f"given: {error}",
                saw=", ".join(str(getattr(x, "type", x)) for x in given),
                hint="the file is damaged, or of an unknown version",
            ) from error
        return list(found) if isinstance(found, list | tuple) else [found]

    def _how(self) -> Any:
        """The parameter by which extents are computed: a mode, an axis, ranges."""
        table = self.parameters
        if self.kind == "Elemwise":
            return _MODES[self.whole(0)]
        if self.kind == "Reduce":
            return _REDUCTIONS[self.whole(0)]
        if self.kind == "Subtensor":
            return [] if table is None else table.vector(0, "b????")
        if self.kind == "AxisAddRemove":
            return [] if table is None else table.vector(0, "b3xi")
        return self.whole(0, "i")

    def results(self) -> int:
        """Number of its results in files of the first version, which do not say so."""
        training = self.kind == "BatchNorm" and len(self.inputs) == 5 and not self.whole(1)
        counts = {
            "BatchNorm": 6 if training else 4,
            "Split": len(self.inputs) - 1,
            "SVD": 1 if self.parameters and not self.whole(1, "?", 1) else 3,
            "TopK": 2 if self.whole(0) else 1,
        }
        return counts.get(self.kind) or _RESULTS.get(self.kind, 1)

    def assign(self, found: Sequence[Any], values: dict[int, Any]) -> None:
        """Give results their numbers. Those of a normalization stand before it."""
        behind = self.kind == "BatchNorm" or len(found) < len(self.outputs) == 1
        pairs = zip(self.outputs, found, strict=False)
        values.update(dict(pairs) if not behind else zip(self.outputs, found[:-1], strict=False))
        if behind:
            values[self.outputs[-1]] = found[-1]


def dtype_of(table: FlatTable | None) -> Any:
    """An element type of a file; None for none.

    Raises:
        UnsupportedOp: there is none of that number here.
    """
    if table is None:
        return None
    number = table.whole(0, "b")
    name = DTYPES.get(number)
    if name is None:
        raise UnsupportedOp("DumpedModel", f"element type {number} has no counterpart")
    if name not in BUILTIN:
        return name
    family, given = BUILTIN[name], table.table(2)
    scale = 1.0 if given is None else given.number(0, "f", 1.0)
    zero = None if given is None or not family.is_unsigned else given.whole(1, "B")
    return quantized_type(family, scale, zero).numpy


def _defined(op: Operator, *given: Any) -> Any:
    """Compute by the definition of the operator's name, with its parameters."""
    return _made(op.kind, given, **parameters(op.kind, op.parameters))


def _made(kind: str, given: Sequence[Any], **parameters: Any) -> Any:
    return MEMBERS[kind](**parameters)(*given)


def _plain(op: Operator, field: int) -> None:
    """Refuse formats of maps other than N, C, H, W."""
    if op.whole(field):
        raise UnsupportedOp(
            "DumpedModel",
            f"operator {op.name or op.kind} has its maps in format {op.whole(field)}",
            hint="dump the model without enable_nchw4, enable_nchw44 and the like",
        )


def _window(op: Operator, first: int) -> dict[str, int]:
    names = ("pad_h", "pad_w", "stride_h", "stride_w", "dilate_h", "dilate_w")
    found = {n: op.whole(first + i, "I", int(i > 1)) for i, n in enumerate(names)}
    return _bounded(found)


def _bounded(sizes: dict[str, int]) -> dict[str, int]:
    """Refuse borders that no network has: a damaged one of 2^29 columns takes minutes and GB."""
    wide = {n: size for n, size in sizes.items() if n.startswith("pad") and size > _WIDEST}
    if wide:
        raise ValueError(f"{wide} are wider than {_WIDEST}")
    return sizes


def _convolution(op: Operator, *given: Any) -> Any:
    return _convolved(op, given[:2], mode=0, window=1, sparse=7, form=8)


def _convolved(op: Operator, given: Any, *, mode: int, window: int, sparse: int, form: int) -> Any:
    _plain(op, form)
    parameters: dict[str, Any] = _window(op, window)
    x, weight = given
    if op.whole(mode):
        weight = weight[..., ::-1, ::-1]
    kind = "GROUP" if op.whole(sparse) else "DENSE"
    return _made("Convolution", (x, weight), sparse=kind, **parameters)


def _convolution_bias(op: Operator, x: Any, weight: Any, *more: Any) -> Any:
    plain = [_real(v) for v in (x, weight, *more)]
    (found,) = _convolved(op, plain[:2], mode=1, window=4, sparse=2, form=3)
    for addend in plain[2:]:
        found = found + addend
    return _finished(op, found)


def _real(x: Any) -> Any:
    """The numbers that a quantized tensor stands for; any other tensor itself."""
    return x.astype("float32") if isinstance(x, Tensor) and x._kind.quantized is not None else x


def _transposed(op: Operator, weight: Any, diff: Any, *_: Any) -> Any:
    _plain(op, 8)
    kind = "GROUP" if op.whole(7) else "DENSE"
    return _made("ConvolutionBackwardData", (weight, diff), sparse=kind, **_window(op, 1))


def _weight_gradient(op: Operator, x: Tensor, diff: Tensor, weight: Tensor) -> Any:
    weight = Tensor(weight)
    with GradManager().attach([weight]) as tape:
        (found,) = _convolved(op, (x, weight), mode=0, window=1, sparse=7, form=8)
        tape.backward(found, diff)
    return weight.grad


def _pooling(op: Operator, x: Any) -> Any:
    _plain(op, 7)
    names = ("pad_h", "pad_w", "stride_h", "stride_w", "window_h", "window_w")
    sizes = {n: op.whole(1 + i, "I", 2 if i > 1 else 0) for i, n in enumerate(names)}
    return _made("Pooling", [x], mode=_POOLS[op.whole(0)], **_bounded(sizes))


def _reduce(op: Operator, x: Tensor, *target: Any) -> Any:
    mode, axis = _REDUCTIONS[op.whole(0)], op.whole(1, "i", _TARGET)
    if axis != _TARGET and not target:
        return _made("Reduce", [x], mode=mode, axis=axis, keepdim=True)
    wanted = whole(target[0])
    spare = len(x.shape) - len(wanted)
    for i, (n, m) in enumerate(zip(x.shape[spare:], wanted, strict=True)):
        if n != m:
            (x,) = _made("Reduce", [x], mode=mode, axis=spare + i, keepdim=True)
    for _ in range(spare):
        (x,) = _made("Reduce", [x], mode=mode, axis=0, keepdim=True)
        x = F.squeeze(x, 0)
    return x


def _normalized(op: Operator, x: Any, *rest: Any) -> Any:
    names = ("DIM_11HW", "DIM_1CHW", "DIM_1C11", "DIM_111C")
    p = op.parameters
    return _made(
        "BatchNorm",
        (x, *rest),
        param_dim=names[op.whole(0)],
        fwd_mode="INFERENCE" if op.whole(1) else "TRAINING",
        epsilon=1e-4 if p is None else p.number(2, "d", 1e-4),
        avg_factor=1.0 if p is None else p.number(3, "d", 1.0),
    )


def _shape(op: Operator, x: Any) -> Any:
    axis = op.whole(0, "i", _ALL)
    found = shape_of(x)
    return found if axis == _ALL else Extents(found.array[axis : axis + 1], x)


def _reshaped(op: Operator, x: Tensor, shape: Any) -> Any:
    wanted, free = whole(shape), op.whole(0, "i", _ALL)
    if free != _ALL:
        wanted[free] = -1
    return F.reshape(x, wanted)


def _axes(op: Operator, x: Any) -> Any:
    for removes, axis in [] if op.parameters is None else op.parameters.vector(0, "b3xi"):
        x = F.squeeze(x, int(axis)) if removes else F.expand_dims(x, int(axis))
    return x


def _permuted(op: Operator, x: Any) -> Any:
    order = [] if op.parameters is None else op.parameters.numbers(0, "i")
    return _made("Dimshuffle", [x], pattern=order)


def _part(op: Operator, *given: Any) -> Any:
    items = [] if op.parameters is None else op.parameters.vector(0, "b????")
    return _made(op.kind, given, items=[(int(a), *flags) for a, *flags in items])


def _cast(op: Operator, x: Tensor) -> Any:
    return x.astype(dtype_of(op.parameters) or "float32")


def _mixed(op: Operator, *given: Any) -> Any:
    return _made("ElemwiseMultiType", given, mode=MODES[op.whole(0)], dtype=dtype_of(op.result))


def _parts(op: Operator, x: Tensor, *sizes: Any) -> Any:
    """The parts of an array, whose extents come as arrays of one number."""
    ends = np.cumsum([int(Tensor(n).item()) for n in sizes])
    return F.split(x, [int(n) for n in ends[:-1]], op.whole(0, "i"))


def _batched_convolution(op: Operator, x: Tensor, weight: Tensor, *more: Any) -> Any:
    """A convolution of each image with weights of its own."""
    each = [
        _convolved(op, (x[i : i + 1], weight[i]), mode=1, window=2, sparse=8, form=9)[0]
        for i in range(x.shape[0])
    ]
    found = F.concat(each, 0)
    for addend in more:
        found = found + addend
    return _finished(op, found)


def _finished(op: Operator, found: Tensor) -> Tensor:
    """A sum after the function behind it, in the element type that was asked for."""
    behind = _BEHIND[op.whole(0)]
    found = found if behind is None else METHODS[behind](found)
    wanted = dtype_of(op.result)
    return found if wanted is None else found.astype(wanted)


def _product(op: Operator, a: Any, b: Any) -> Any:
    flags = bool(op.whole(0, "?")), bool(op.whole(1, "?"))
    return _made("MatrixMul", (a, b), transposeA=flags[0], transposeB=flags[1])


def _power(op: Operator, x: Any) -> Any:
    return F.pow(x, 0.0 if op.parameters is None else op.parameters.number(0, "f"))


def _same(op: Operator, x: Any, *_: Any) -> Any:
    return x


_SUBTENSORS = (
    *("Subtensor", "SetSubtensor", "IncrSubtensor", "IndexingMultiAxisVec"),
    *("IndexingSetMultiAxisVec", "IndexingIncrMultiAxisVec", "MeshIndexing", "SetMeshIndexing"),
    *("IncrMeshIndexing", "BatchedMeshIndexing", "BatchedSetMeshIndexing"),
    "BatchedIncrMeshIndexing",
)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "AdaptivePooling": lambda op, x, shape: _made(
        "AdaptivePooling", (x, shape), mode=_POOLS[op.whole(0)]
    ),
    "Argmax": lambda op, x: _made("Argmax", [x], axis=op.whole(0, "i")),
    "Argmin": lambda op, x: _made("Argmin", [x], axis=op.whole(0, "i")),
    "AxisAddRemove": _axes,
    "BatchConvBias": _batched_convolution,
    "BatchNorm": _normalized,
    "BatchedMatrixMul": _product,
    "Broadcast": lambda op, x, shape: F.broadcast_to(x, whole(shape)),
    "Concat": lambda op, *given: F.concat(list(given), op.whole(0, "i")),
    "ConvBias": _convolution_bias,
    "Convolution": _convolution,
    "ConvolutionBackwardData": _transposed,
    "ConvolutionBackwardFilter": _weight_gradient,
    "Copy": _same,
    "Dimshuffle": _permuted,
    "ElemwiseMultiType": _mixed,
    "Elemwise": lambda op, *given: METHODS[_MODES[op.whole(0)]](*given),
    "Eye": lambda op, shape: _made(
        "Eye", [shape], k=op.whole(0, "i"), dtype=DTYPES[op.whole(1, "b")]
    ),
    "GetVarShape": _shape,
    "Identity": _same,
    "MarkDynamicVar": _same,
    "MarkNoBroadcastElemwise": _same,
    "MatrixInverse": lambda op, x: F.matinv(x),
    "MatrixMul": _product,
    "Pooling": _pooling,
    "PowC": _power,
    "Reduce": _reduce,
    "Reshape": _reshaped,
    "Softmax": lambda op, x: F.softmax(x, op.whole(0, "i", -1)),
    "Split": _parts,
    "TypeCvt": _cast,
    **dict.fromkeys(_SUBTENSORS, _part),
}
_OF_SHAPES = frozenset({"Broadcast", "Reduce", "Reshape"})
"""Kinds that take extents as they are."""
_RESULTS = {
    **dict.fromkeys(("Argsort", "CondTake", "Dropout", "ROIAlign", "ROIPooling", "ShuffleRNG"), 2),
    **dict.fromkeys(("LayerNorm", "GroupNorm", "InstanceNorm", "GeneralNorm", "RNN"), 3),
    **dict.fromkeys(("LSTM", "LSTMCell", "MultiHeadAttn"), 4),
}
INPUT = "Host2DeviceCopy"
CONSTANTS = frozenset({"ImmutableTensor"})
WEIGHTS = frozenset(
    [
        "SharedDeviceTensor",
        "SharedDeviceTensorWithFormat",
        "VolatileSharedDeviceTensor",
        "MultipleDeviceTensorHolder",
        "MultipleDeviceTensorWithFormatHolder",
    ]
)
_OTHERS = (
    *("AddUpdate", "AffineInt", "Alloc", "AssertEqual", "Flip", "LocalShare", "LSTM"),
    *("MultiHeadAttn", "NonZero", "PSROIPooling", "RNN", "RelayoutFormat", "Where"),
)


def kind_of(name: str, number: int) -> str:
    """The type of an operator by its name, or by the hash of one."""
    return _bare(name) if name else _numbered().get(number, f"{number:#x}")


def _bare(name: str) -> str:
    found = re.sub(r"V\d$", "", name)
    return found.removesuffix("Forward")


@functools.cache
def _numbered() -> dict[int, str]:
    """Types by the number they have in files."""
    found = {}
    for base in (*FUNCTIONS, *FIELDS, INPUT, *CONSTANTS, *WEIGHTS, *_OTHERS):
        for tail in ("", "V0", "V1", "V2", "V3", "V4"):
            for middle in ("", "Forward"):
                text = (base + middle + tail).encode()
                found[xxh64(text + b"\0")] = found[xxh64(text)] = base
    return found


_P1, _P2, _P3, _P4, _P5 = (
    *(11400714785074694791, 14029467366897019727, 1609587929392839161),
    *(9650029242287828579, 2870177450012600261),
)
_MASK = 2**64 - 1


def _turned(x: int, by: int) -> int:
    x &= _MASK
    return (x << by | x >> (64 - by)) & _MASK


def _round(lane: int, word: int) -> int:
    return _turned(lane + word * _P2, 31) * _P1 & _MASK


def xxh64(text: bytes, seed: int = 20160701) -> int:
    """The hash by which MegEngine numbers types: XXH64, with its seed."""
    place, count = 0, len(text)
    if count >= 32:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        while place + 32 <= count:
            for i in range(4):
                at = place + 8 * i
                lanes[i] = _round(lanes[i], int.from_bytes(text[at : at + 8], "little"))
            place += 32
        total = sum(_turned(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            total = ((total ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        total = seed + _P5
    total = (total + count) & _MASK
    for size, by, mul, add in ((8, 27, _P1, _P4), (4, 23, _P2, _P3), (1, 11, _P1, 0)):
        while place + size <= count:
            word = int.from_bytes(text[place : place + size], "little")
            mixed = _round(0, word) if size == 8 else word * (_P1 if size == 4 else _P5)
            total = (_turned(total ^ (mixed & _MASK), by) * mul + add) & _MASK
            place += size
    for shift, mul in ((33, _P2), (29, _P3), (32, 1)):
        total = (total ^ total >> shift) * mul & _MASK
    return total
