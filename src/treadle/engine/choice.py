"""Who runs an op: engines on the host, kernels on a device, and the reasons of those who do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from treadle.backends import registry
from treadle.backends.api import Kernel, Support, no
from treadle.base.errors import TreadleError, UnsupportedOp
from treadle.base.types import TensorType
from treadle.ops.op import Op

Launch = Callable[..., Any]
Refusal = tuple[str, Support]
"""Who was asked, and its answer."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Who runs an op on operands of some types, and why those asked before do not.

    `runner` is an engine's name on the host, and on a device `"kernel"` or `"host"`.
    """

    op: Op
    types: tuple[TensorType, ...]
    device: str
    runner: str
    refusals: tuple[Refusal, ...] = ()


def choose_engine(op: Op, types: tuple[TensorType, ...], device: str) -> tuple[Launch, Decision]:
    """The launch of the best engine on the host that takes the op.

    Raises:
        UnsupportedOp: all engines refuse; the message has every reason.
    """
    refusals: list[Refusal] = []
    for engine in registry.engines("cpu"):
        try:
            found = engine.prepare(op, types)
        except TreadleError:
            raise
        except Exception as error:  # a plug-in's defect must not take working engines away
            found = no("policy", f"prepare() failed: {type(error).__name__}: {error}")
        if not isinstance(found, Support):
            return found, Decision(op, types, device, engine.name, tuple(refusals))
        refusals.append((engine.name, found))
    reasons = "; ".join(f"{name} says no ({why.reason}): {why.message}" for name, why in refusals)
    raise UnsupportedOp(
        op.name,
        f"no engine on the host runs it on {op.saw(types)}",
        saw=reasons or "there are no engines",
        hint="unset TREADLE_BACKENDS, or cast to a type that an engine takes",
    )


def choose_kernel(
    op: Op, types: tuple[TensorType, ...], results: tuple[TensorType, ...], kind: str
) -> Kernel | Support:
    """The first kernel of a device that takes the op, or the last reason against it."""
    if not all(t.is_static for t in results):
        return no("dynamic-shape", "the result's shape depends on data")
    entry = registry.for_kind(kind)
    kernels = [k for k in entry.kernels() if k.op == op.name] if entry is not None else []
    why = no("op", f"{kind} has no kernel for {op.name}")
    for kernel in sorted(kernels, key=lambda k: -k.priority):
        why = _ask(kernel, op, types)
        if why:
            return kernel
    return why


def _ask(kernel: Kernel, op: Op, types: tuple[TensorType, ...]) -> Support:
    try:
        answer: Any = kernel.supports(op, types)
    except Exception as error:  # the host can do it: a defect here need not stop the program
        return no("policy", f"supports() failed: {type(error).__name__}: {error}")
    if not isinstance(answer, Support):
        return no("policy", f"supports() returned {answer!r}, neither yes() nor no(...)")
    return answer
