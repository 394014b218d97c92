"""Ops of users: as operators of a domain of their own, or as the ops they say they consist of."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import AttributeProto, helper

from treadle.base.errors import UnsupportedOp
from treadle.interop.onnx.writer import GraphWriter, OnnxOperand, exports
from treadle.jit.capture import capture
from treadle.jit.dump import Ends, argument_names, model_of
from treadle.ops.custom import Custom
from treadle.tensor import Tensor


@exports("custom")
def _custom(w: GraphWriter, op: Custom, *xs: OnnxOperand) -> tuple[OnnxOperand, ...]:
    kernel = op.registered(tuple(x.type for x in xs))
    given = dict(op.settings)
    if kernel.expand is None:
        attributes = [_attribute(op, name, value) for name, value in given.items()]
        return w.foreign(*kernel.operator, xs, op.infer(*(x.type for x in xs)), attributes)
    expand = kernel.expand
    examples = [Tensor(x.type.dtype.numpy.type(0), dtype=x.type.dtype) for x in xs]
    examples = [e.broadcast_to(x.extents) for e, x in zip(examples, xs, strict=True)]
    captured = capture(lambda *tensors: expand(given, *tensors), tuple(examples), {}, kernel.name)
    names = argument_names(tuple(examples), {})
    body = model_of(kernel.name, captured, names, Ends(None, None)).graph
    made = tuple(w.body(body, xs))
    wanted = op.infer(*(x.type for x in xs))
    found = [(y.type.dtype, y.type.shape) for y in made]
    if found != [(t.dtype, t.shape) for t in wanted]:
        raise UnsupportedOp(
            kernel.name,
            "expand gives other types than infer",
            saw=f"{', '.join(str(y.type) for y in made)}; inferred {', '.join(map(str, wanted))}",
        )
    return made


def _attribute(op: Custom, name: str, value: Any) -> onnx.AttributeProto:
    """An attribute in ONNX's type: numbers, texts, lists of one of them.

    Raises:
        UnsupportedOp: ONNX has no type for it.
    """
    several = isinstance(value, (tuple, list))
    kinds = {bool: "INT", int: "INT", float: "FLOAT", str: "STRING"}
    found = {kinds.get(type(v), "") for v in (value if several else (value,))}
    kind = "FLOAT" if found == {"INT", "FLOAT"} else "".join(found) if len(found) == 1 else ""
    kind = "INT" if several and not value else kind
    try:
        if kind not in ("INT", "FLOAT", "STRING"):
            raise ValueError("neither a number nor a text, nor a list of one of them")
        number = getattr(AttributeProto, f"{kind}S" if several else kind)
        plain = {"INT": int, "FLOAT": float, "STRING": str}[kind]
        own: Any = [plain(v) for v in value] if several else plain(value)
        return helper.make_attribute(name, own, attr_type=number)
    except (ValueError, OverflowError) as error:
        raise UnsupportedOp(
            op.kernel,
            f"its attribute {name}={value!r} cannot be written to ONNX: {error}",
            hint="give the op an expand, which is written in its place",
        ) from error
