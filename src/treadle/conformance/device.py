"""Device: memory is given out, taken back, aligned, apart, and its end is an error one survives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from treadle.backends.api import Availability
from treadle.base.errors import OutOfMemory
from treadle.conformance.check import (
    Check,
    CheckFailed,
    Measured,
    NotOffered,
    from_functions,
    require,
    require_bytes,
)
from treadle.conformance.subject import AddressedDevice, Subject
from treadle.runtime.opened import MemoryBlock

SIZES = (1, 2, 3, 31, 63, 64, 65, 255, 4095, 4096, 4097, 1 << 20)
_SMALL = 1 << 28
"""Devices with less memory than this are filled up in earnest."""


def checks(subject: Subject) -> Iterator[Check]:
    """The group's checks."""
    return from_functions("Device", subject, _FUNCTIONS)


def probe_is_stable(subject: Subject) -> None:
    """Probing twice gives the same answer, since device names depend on it."""
    first, again = subject.backend.probe(), subject.backend.probe()
    require(isinstance(first, Availability), f"probe() returned {first!r}")
    require(first == again, f"probe() answered {first}, then {again}")
    require(first.count >= 0, f"probe() found {first.count} devices")
    require(first.ok or bool(first.reason), "probe() says not available without a reason")


def every_device_opens(subject: Subject) -> Measured:
    """Devices that probing counted can be opened, and compute."""
    for index in range(subject.count):
        given = np.arange(5, dtype=np.int32)
        got = subject.resident(given, index).host()
        require(bool((got == given).all()), f"{subject.kind}{index} does not keep an array")
    return {"devices": float(subject.count)}


def info(subject: Subject) -> Measured:
    """`info` has a name; its figures are numbers; its features are words."""
    found: Any = subject.raw.info
    require(isinstance(found.name, str) and bool(found.name), "info.name is empty")
    for figure in (found.memory, found.bandwidth, found.flops):
        require(isinstance(figure, (int, float)) and figure >= 0, f"info has the figure {figure!r}")
    words = isinstance(found.features, tuple) and all(isinstance(f, str) for f in found.features)
    require(words, f"info.features is {found.features!r}; it must be a tuple of words")
    return {"name": found.name, "memory": float(found.memory)}


def memory_of_any_size(subject: Subject) -> None:
    """Check that every byte of a block can be written and read, whatever its size."""
    for nbytes in SIZES:
        block = subject.alloc(nbytes)
        given = pattern(nbytes, nbytes)
        subject.write(block, given)
        require_bytes(subject.read(block, nbytes), given, f"a block of {nbytes} bytes")
        subject.free(block)


def blocks_lie_apart(subject: Subject) -> None:
    """Live blocks share no byte, also after others were freed and memory was given out again."""
    rng = subject.rng(1)
    live: dict[int, tuple[MemoryBlock, bytes]] = {}
    for number in range(200):
        nbytes = int(rng.choice(SIZES[:-1]))
        block, given = subject.alloc(nbytes), pattern(nbytes, number)
        subject.write(block, given)
        live[number] = block, given
        if len(live) > 40:
            gone = int(rng.choice(list(live)))
            _check_block(subject, gone, *live[gone])
            subject.free(live.pop(gone)[0])
    for number, (block, given) in live.items():
        _check_block(subject, number, block, given)
        subject.free(block)


def _check_block(subject: Subject, number: int, block: MemoryBlock, given: bytes) -> None:
    got = subject.read(block, len(given))
    require_bytes(got, given, f"block {number}, which nobody wrote to since")


def alignment(subject: Subject) -> None:
    """Check that blocks start at multiples of 64 bytes."""
    raw = subject.raw
    if not isinstance(raw, AddressedDevice):
        raise NotOffered("the device has no address(block) to check alignment with")
    held = [(nbytes, subject.alloc(nbytes)) for nbytes in SIZES]
    places = [(nbytes, raw.address(block.buffer)) for nbytes, block in held]
    for _, block in held:
        subject.free(block)
    for nbytes, where in places:
        require(where % 64 == 0, f"alloc({nbytes}) gave address {where:#x}, no multiple of 64")


def memory_figures(subject: Subject) -> Measured:
    """`memory()` is (total, free), total is the whole memory, and free goes up and down."""
    raw = subject.raw
    subject.stream.synchronize()
    total, free = raw.memory()
    require(0 <= free <= total, f"memory() says {free} of {total} bytes are free")
    if raw.info.memory:
        require(total <= raw.info.memory, f"memory() says {total}, info says {raw.info.memory}")
    if not free:
        raise NotOffered("memory() knows no free bytes")
    held = [subject.alloc(1 << 16) for _ in range(16)]
    _, less = raw.memory()
    require(less <= free, f"16 blocks of 64 KiB were taken and free bytes grew to {less}")
    for block in held:
        subject.free(block)
    _figures_fall(subject)
    return {"total": float(total), "free": float(free)}


def _figures_fall(subject: Subject) -> None:
    """Take more than a device may have in reserve: less is free then."""
    raw, taken, less = subject.raw, 0, 0
    _, free = raw.memory()
    for _ in range(3):  # Others may use the device, too, and let go of memory just then.
        held = [subject.alloc(max(min(free // 16, 1 << 24), 1)) for _ in range(8)]
        for block in held:
            subject.write(block, pattern(min(block.nbytes, 1 << 16), 1))
        subject.stream.synchronize()
        taken, (_, less) = sum(block.nbytes for block in held), raw.memory()
        for block in held:
            subject.free(block)
        if less < free:
            return
        _, free = raw.memory()
    problem = f"memory() says that {less} bytes are free, as many as before {taken} were taken"
    raise CheckFailed(problem)


def no_leak(subject: Subject) -> None:
    """Memory that was freed can be used again."""
    raw = subject.raw
    subject.stream.synchronize()
    _, before = raw.memory()
    if not before:
        raise NotOffered("memory() knows no free bytes")
    nbytes = min(1 << 20, max(before // 8, 1))
    for _ in range(40):
        block = subject.alloc(nbytes)
        subject.write(block, pattern(64, 1)[:nbytes])
        subject.free(block)
    subject.stream.synchronize()
    _, after = raw.memory()
    # Others may use the device too; 40 blocks of ours are beyond what is left over by chance.
    lost = before - after
    require(lost < 20 * nbytes, f"{lost} bytes are gone after 40 blocks of {nbytes} were freed")


def out_of_memory(subject: Subject) -> Measured:
    """A request that cannot be met raises MemoryError or OutOfMemory, and harms nothing."""
    kept = subject.alloc(64)
    subject.write(kept, pattern(64, 3))
    _refused(subject, 1 << 60)
    blocks = _fill_up(subject) if 0 < subject.raw.info.memory <= _SMALL else 0
    require_bytes(subject.read(kept, 64), pattern(64, 3), "a block that was there before")
    subject.free(kept)
    memory_of_any_size(subject)
    return {"blocks until full": float(blocks)}


def _refused(subject: Subject, nbytes: int) -> None:
    try:
        block = subject.alloc(nbytes)
    except OutOfMemory as error:
        require(subject.device().name in str(error), f"the message names no device: {error}")
        return
    except Exception as error:
        raise CheckFailed(
            f"alloc({nbytes}) must raise MemoryError or OutOfMemory, and did not: {error}"
        ) from error
    subject.free(block)
    raise CheckFailed(f"alloc({nbytes}) gave memory that cannot be there")


def _fill_up(subject: Subject) -> int:
    """Take all memory, give it back, take as much again."""
    memory = subject.raw.info.memory
    nbytes = max(memory // 32, 64)
    counts = []
    for _ in range(2):
        held: list[MemoryBlock] = []
        try:
            while len(held) < 100:
                held.append(subject.alloc(nbytes))
        except MemoryError:
            pass
        for block in held:
            subject.free(block)
        subject.stream.synchronize()
        counts.append(len(held))
    require(counts[0] < 100, f"100 blocks of {nbytes} bytes fit into {memory}")
    require(counts[1] >= counts[0], f"{counts[0]} blocks fit at first, then {counts[1]}")
    return counts[0]


def several_threads(subject: Subject) -> None:
    """Copies of several threads at once do not mix; alloc and free come one at a time."""
    failures: list[str] = []
    blocks = [subject.alloc(4096) for _ in range(4)]

    def work(number: int) -> None:
        try:
            for turn in range(20):
                given = pattern(4096, 100 * number + turn)
                subject.write(blocks[number], given)
                require_bytes(subject.read(blocks[number], 4096), given, f"thread {number}")
        except Exception as error:
            failures.append(str(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for block in blocks:
        subject.free(block)
    require(not failures, "; ".join(failures[:1]))


def empty_arrays(subject: Subject) -> None:
    """Arrays without elements travel like others."""
    for shape in ((0,), (0, 3), (2, 0, 4)):
        got = subject.resident(np.zeros(shape, np.float32)).host()
        require(got.shape == shape, f"an array {shape} came back as {got.shape}")


def pattern(nbytes: int, seed: int) -> bytes:
    """Bytes that are different at every place and for every seed."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8).tobytes()


_FUNCTIONS = (
    probe_is_stable,
    every_device_opens,
    info,
    memory_of_any_size,
    blocks_lie_apart,
    alignment,
    memory_figures,
    no_leak,
    out_of_memory,
    several_threads,
    empty_arrays,
)
