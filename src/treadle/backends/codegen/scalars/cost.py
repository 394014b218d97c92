"""The time of scalar code, in vector instructions."""

from __future__ import annotations

from treadle.ops.scalar import Scalar

_INSTRUCTIONS = {
    **dict.fromkeys(("exp", "log", "sin", "cos", "tanh", "erf", "atan", "sinh", "cosh"), 18.0),
    **dict.fromkeys(("expm1", "log1p", "tan", "asin", "acos", "asinh", "acosh", "atanh"), 24.0),
    **dict.fromkeys(("pow", "atan2", "mod", "floor_div"), 45.0),
    **dict.fromkeys(("div", "sqrt"), 5.0),
}
"""Vector instructions that an intrinsic takes, or the time of as many; all others take one."""


def cost_of(expr: Scalar) -> float:
    """Vector instructions that an expression takes; equal parts are computed once."""
    seen: dict[Scalar, None] = {}
    waiting = [expr]
    total = 0.0
    while waiting:
        node = waiting.pop()
        if node in seen or node.code in ("input", "const"):
            continue
        seen[node] = None
        total += _INSTRUCTIONS.get(node.code, 1.0)
        waiting += node.args
    return total
