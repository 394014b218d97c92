"""Honesty: `supports` says yes only to what works, no only with a reason, and reports add up.

Kernels are launched here without the framework around them, on memory with marks behind its end,
so what they write where they should not is seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np

from treadle.backends import registry
from treadle.backends.api import Engine, Kernel, Operand, Reason, Support
from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.base.types import TensorType
from treadle.conformance.check import (
    Check,
    CheckFailed,
    Measured,
    NotOffered,
    require,
    require_bytes,
)
from treadle.conformance.samples import (
    SampleCall,
    calls,
    element_types,
    main_type,
    op_names,
    require_close,
)
from treadle.conformance.subject import Subject
from treadle.engine.eager.dispatch import decision
from treadle.engine.eager.fallback import fallback_report
from treadle.ops import REGISTRY
from treadle.ops.families import Elementwise
from treadle.ops.op import Op
from treadle.ops.transfer import Transfer
from treadle.runtime.opened import MemoryBlock

REASONS = frozenset(get_args(Reason))
_MARK = 64
"""Bytes behind every result that must stay as they are."""


def checks(subject: Subject) -> Iterator[Check]:
    """One check per op with kernels; per engine; and of the report of what fell back."""
    yield Check("Honesty", "kernels_are_for_ops_that_exist", partial(known_ops, subject), 1)
    for name, kernels in sorted(subject.kernels().items()):
        if name in REGISTRY:
            run = partial(keeps_word, subject, REGISTRY[name], kernels)
            yield Check("Honesty", f"kernel/{name}", run, 1)
    for engine in [e for e in registry.engines(subject.kind) if subject.owns(e)]:
        yield Check("Honesty", f"engine/{engine.name}", partial(answers, subject, engine), 1)
    if not subject.engine_only:
        yield Check("Honesty", "fallbacks_are_counted", partial(fallbacks, subject))


def known_ops(subject: Subject) -> None:
    """Check that no kernel is for an op that does not exist: it would never run."""
    unknown = sorted(set(subject.kernels()) - set(REGISTRY))
    require(not unknown, f"kernels for unknown ops: {', '.join(unknown)}")
    if not subject.kernels():
        raise NotOffered("the backend has no kernels")


def _calls(subject: Subject, op: type[Op]) -> Iterator[SampleCall]:
    """The calls to launch: all, or the first ones of every element type and all of one."""
    for dtype in element_types(op):
        most = 3 if subject.quick and dtype is not main_type(op) else None
        yield from itertools.islice(calls(op, dtype, quick=subject.quick), most)


def keeps_word(subject: Subject, op: type[Op], kernels: Sequence[Kernel]) -> Measured:
    """Check that every answer of `supports` is a proper one, and every yes is kept."""
    asked = taken = 0
    every = [c for d in element_types(op) for c in calls(op, d)]
    for kernel in kernels:
        for call in every:
            asked += 1
            check_answer(partial(kernel.supports, call.op, call.types), call)
        for call in _calls(subject, op):
            expected = call.expected()
            if expected is None or not kernel.supports(call.op, call.types):
                continue
            if sum(a.nbytes for a in expected):
                taken += 1
                check_launch(subject, kernel, call, expected)
    require(taken > 0, f"no kernel of {op.name} takes any sample")
    return {"asked": float(asked), "taken": float(taken)}


def check_answer(ask: Any, call: SampleCall) -> None:
    """Check an answer: yes, or no with a code and a message, and the same when asked again."""
    try:
        answer, again = ask(), ask()
    except Exception as error:
        raise CheckFailed(f"{call}: supports raised {type(error).__name__}: {error}") from error
    if not isinstance(answer, Support):
        raise CheckFailed(f"{call}: supports returned {answer!r}, neither yes() nor no(...)")
    require(answer == again, f"{call}: supports says {answer}, then {again}")
    if not answer:
        require_reason(answer, call)


def require_reason(answer: Support, call: SampleCall) -> None:
    """Require that a refusal has one of the codes, and says more in words."""
    known = ", ".join(sorted(REASONS))
    code, message = answer.reason, answer.message
    require(code in REASONS, f"{call}: no with the code {code!r}; it is one of {known}")
    require(bool(message), f"{call}: no ({code}) without a message")


# -- launches ----------------------------------------------------------------------------------


def check_launch(
    subject: Subject, kernel: Kernel, call: SampleCall, expected: Sequence[Array]
) -> None:
    """Launch a kernel twice, over results of other bytes, and look at all memory around."""
    wide = _broadcast(call, expected)
    found = [_launch(subject, kernel, call, wide, expected, byte) for byte in (0x5A, 0xC3)]
    for i, (x, y) in enumerate(zip(*found, strict=True)):
        same = x.tobytes() == y.tobytes()
        require(same, f"{call}: result {i} is not written, or differs from launch to launch")
    require_close(found[0], expected, call)


def _broadcast(call: SampleCall, expected: Sequence[Array]) -> tuple[Array, ...]:
    """Operands as kernels get them: those of elementwise ops have the result's shape."""
    if not isinstance(call.op, Elementwise):
        return call.arrays
    shape = expected[0].shape
    return tuple([np.array(np.broadcast_to(a, shape), order="C") for a in call.arrays])


def _launch(
    subject: Subject,
    kernel: Kernel,
    call: SampleCall,
    arrays: Sequence[Array],
    expected: Sequence[Array],
    byte: int,
) -> list[Array]:
    device = subject.device()
    blocks = [device.upload(a) for a in arrays]
    ins = [Operand(b.buffer, _type(a)) for b, a in zip(blocks, arrays, strict=True)]
    made = [device.filled(byte, a.nbytes + _MARK) for a in expected]
    outs = [Operand(b.buffer, _type(a)) for b, a in zip(made, expected, strict=True)]
    try:
        kernel.run(device.raw, outs, ins, call.op.attributes, device.stream)
        device.stream.synchronize()
        for block, array in zip(blocks, arrays, strict=True):
            got = subject.read(block, max(array.nbytes, 1))[: array.nbytes]
            require_bytes(got, array.tobytes(), f"{call}: an operand, which the kernel changed")
        return [_result(subject, b, a, byte, call) for b, a in zip(made, expected, strict=True)]
    except CheckFailed:
        raise
    except Exception as error:
        raise CheckFailed(
            f"{call}: supports said yes, and the kernel raised {type(error).__name__}: {error}"
        ) from error
    finally:
        for block in (*blocks, *made):
            device.release(block)


def _result(
    subject: Subject, block: MemoryBlock, like: Array, byte: int, call: SampleCall
) -> Array:
    data = subject.read(block, like.nbytes + _MARK)
    behind = data[like.nbytes :]
    require_bytes(behind, bytes([byte]) * _MARK, f"{call}: memory behind a result")
    flat = np.frombuffer(data[: like.nbytes], np.uint8)
    return np.asarray(flat.view(like.dtype).reshape(like.shape))


def _type(array: Array) -> TensorType:
    return TensorType(as_dtype(array.dtype), array.shape)


# -- engines and reports -----------------------------------------------------------------------


def answers(subject: Subject, engine: Engine) -> Measured:
    """An engine prepares a launch, or refuses with a reason; an engine of the host's is run."""
    asked = refused = 0
    for name in op_names():
        op = REGISTRY[name]
        for call in calls(op, main_type(op), quick=subject.quick):
            expected = call.expected()
            if not call.arrays or expected is None:
                continue
            asked += 1
            found: Any = engine.prepare(call.op, call.types)
            if isinstance(found, Support):
                refused += 1
                require(not found.ok, f"{call}: prepare() answered yes() in place of a launch")
                require_reason(found, call)
            elif subject.engine_only:  # of devices the group Operators runs every op
                made = found(*call.arrays)
                require_close(made if isinstance(made, tuple) else (made,), expected, call)
    return {"asked": float(asked), "refused": float(refused)}


def fallbacks(subject: Subject) -> Measured:
    """Every call that the device refuses is counted once, under its op; no other is."""
    fallen = ran = 0
    for name in op_names():
        op = REGISTRY[name]
        for call in itertools.islice(calls(op, main_type(op)), 1 if subject.quick else 4):
            if call.expected() is None or isinstance(call.op, Transfer) or not call.arrays:
                continue
            counted = _count(subject, call)
            decided = decision(call.op, call.types, subject.place())
            expected = 1 if decided.runner == "host" else 0
            require(
                counted == expected,
                f"{call}: {decided.runner} runs it, and {counted} calls are in the report",
            )
            if decided.runner == "host":
                fallen += 1
                require_reason(decided.refusals[-1][1], call)
            else:
                ran += 1
    return {"on the device": float(ran), "on the host": float(fallen)}


def _count(subject: Subject, call: SampleCall) -> int:
    def calls_of() -> int:
        place = subject.place().logical_name
        rows = fallback_report()
        return sum(r.calls for r in rows if r.op == call.op.name and r.device == place)

    before = calls_of()
    subject.launch(call.op, call.arrays)
    return calls_of() - before
