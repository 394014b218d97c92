"""Isolation: device memory is the device's, and nobody assumes that its work is finished."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from treadle.conformance.check import (
    Check,
    CheckFailed,
    NotOffered,
    from_functions,
    require,
    require_bytes,
)
from treadle.conformance.device import pattern
from treadle.conformance.subject import Subject
from treadle.engine.eager.dispatch import decision
from treadle.ops.elementwise import Add, Mul
from treadle.ops.op import Op
from treadle.runtime.array import to_device


def checks(subject: Subject) -> Iterator[Check]:
    """The group's checks."""
    return from_functions("Isolation", subject, _FUNCTIONS)


def buffers_are_opaque(subject: Subject) -> None:
    """Check that buffers are no arrays: host code that reads one must fail, not get bytes."""
    block = subject.alloc(64)
    try:
        memoryview(block.buffer)
    except Exception:
        readable = False
    else:
        readable = True
    named = [
        name for name in ("__array_interface__", "__array__") if _has(type(block.buffer), name)
    ]
    if named:
        readable = readable or _converts(block.buffer)
    subject.free(block)
    require(
        not readable,
        "NumPy can read a buffer as if it were host memory, so a mistake anywhere would go "
        "unnoticed; wrap it in an object of your own",
    )


def _has(kind: type, name: str) -> bool:
    return any(name in vars(base) for base in kind.__mro__)


def _converts(buffer: object) -> bool:
    try:
        return np.asarray(buffer).dtype != np.dtype(object)
    except Exception:
        return False


def copies_share_nothing(subject: Subject) -> None:
    """Check that neither the uploaded array nor the downloaded one is the device's memory."""
    source = np.arange(16, dtype=np.int32)
    array = subject.resident(source)
    source[:] = -1
    first = np.empty(16, np.int32)
    array.device.download(array.block, first)
    require(bool((first == np.arange(16)).all()), "writing to the source changed the device")
    first[:] = -2
    again = np.empty(16, np.int32)
    array.device.download(array.block, again)
    require(bool((again == np.arange(16)).all()), "writing to a copy changed the device")


def freed_memory_waits_for_work(subject: Subject) -> None:
    """Memory that is freed while work on it is queued stays until that work is done.

    Chains of ops free their operands at once, so sums over many turns notice.
    """
    x = np.asarray(subject.rng(2).integers(-4, 5, 4096), np.float32)
    expected, value = x.copy(), subject.tensor(x)
    one, two = (subject.tensor(np.array([v], np.float32)) for v in (1.0, 0.5))
    for _ in range(30):
        expected = (expected + np.float32(1.0)) * np.float32(0.5)
        value = (value + one) * two
        filler = subject.alloc(4096 * 4)  # may well be what was just freed
        subject.write(filler, bytes([0xEE]) * 4096 * 4)
        subject.free(filler)
    got = value.numpy()
    require_bytes(got.tobytes(), expected.tobytes(), "a chain of 60 ops")


def results_own_their_memory(subject: Subject) -> None:
    """Check that results of ops share memory with nothing that is alive."""
    for op in (Add(), Mul()):
        _check_apart(subject, op)


def _check_apart(subject: Subject, op: Op) -> None:
    x = np.asarray(subject.rng(3).integers(1, 9, 1024), np.float32)
    a, b = subject.tensor(x), subject.tensor(x + 1)
    made = [op(a, b) for _ in range(5)]
    expected = made[0].numpy().copy()
    later = [op(m, b) for m in made]
    del later
    for m in made:
        require_bytes(m.numpy().tobytes(), expected.tobytes(), f"a result of {op.name}")
    require_bytes(a.numpy().tobytes(), x.tobytes(), f"an operand of {op.name} after it ran")
    if decision(op, (a.type, b.type), subject.place()).runner == "host":
        return
    blocks = {id(m._data.block) for m in made}
    if len(blocks) != len(made):
        raise CheckFailed(f"two results of {op.name} have one block of memory")


def work_is_not_assumed_done(subject: Subject) -> None:
    """Many submissions without a wait between them give what they give with one after each."""
    results = []
    for wait in (False, True):
        block = subject.alloc(1 << 14)
        total = b""
        for turn in range(24):
            subject.write(block, pattern(1 << 14, turn))
            subject.raw.fill(block.buffer, turn, 100 + turn, subject.stream)
            if wait:
                subject.stream.synchronize()
            if turn % 8 == 7:
                total += subject.read(block, 1 << 14)
        subject.free(block)
        results.append(total)
    require_bytes(results[0], results[1], "submissions without waiting")


def freed_memory_waits_for_peers(subject: Subject) -> None:
    """Memory that is freed after a copy to another device stays until that copy is done."""
    if subject.count < 2:
        raise NotOffered("there is one device only")
    other = subject.device(1)
    for turn in range(8):
        x = np.asarray(subject.rng(turn).integers(0, 99, 1 << 12), np.int32)
        behind = [other.filled(turn, 1 << 16) for _ in range(8)]  # the copy has to wait its turn
        moved = to_device(subject.resident(x), other)
        filler = subject.alloc(x.nbytes)  # may well be what the source was
        subject.write(filler, bytes([0xEE]) * x.nbytes)
        subject.free(filler)
        subject.stream.synchronize()
        require_bytes(moved.host().tobytes(), x.tobytes(), "an array copied to another device")
        for block in behind:
            other.release(block)


_FUNCTIONS = (
    buffers_are_opaque,
    copies_share_nothing,
    freed_memory_waits_for_work,
    freed_memory_waits_for_peers,
    results_own_their_memory,
    work_is_not_assumed_done,
)
