"""Movement: copies and fills touch what they should, in order, and events mean what they say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from treadle.backends.api import PartDevice, PeerDevice, Stream
from treadle.base import dtype as dt
from treadle.conformance.check import Check, NotOffered, from_functions, require, require_bytes
from treadle.conformance.device import pattern
from treadle.conformance.subject import Subject
from treadle.runtime.opened import MemoryBlock

LONG = 48
"""Submissions in a row, so that a device that works in the background lags behind."""
_GUARD = 0xA5


def checks(subject: Subject) -> Iterator[Check]:
    """The group's checks."""
    return from_functions("Movement", subject, _FUNCTIONS)


def every_element_type(subject: Subject) -> None:
    """Arrays of every element type and rank come back as they were."""
    for kind in dt.ALL:
        for shape in ((), (1,), (3, 5), (2, 1, 3, 1, 2, 1, 2)):
            size = int(np.prod(shape)) * kind.itemsize
            given = np.frombuffer(pattern(size, size), np.uint8)
            if kind.kind == "bool":
                given = (given & 1).astype(np.uint8)
            array = given.view(kind.numpy).reshape(shape)
            got = subject.resident(array).host()
            require(got.dtype == array.dtype and got.shape == shape, f"{kind}{shape} changed type")
            require_bytes(
                np.ascontiguousarray(got).reshape(-1).view(np.uint8).data,
                given.data,
                f"{kind}{list(shape)}",
            )


def _guarded(subject: Subject, nbytes: int) -> MemoryBlock:
    block = subject.alloc(nbytes)
    subject.write(block, bytes([_GUARD]) * nbytes)
    return block


def copy_in_writes_its_bytes_only(subject: Subject) -> None:
    """All bytes of the source arrive, and not one beside them changes."""
    for nbytes in (1, 3, 4, 7, 63, 64, 65, 130, 1021, 4095):
        block = _guarded(subject, 4096)
        given = pattern(nbytes, nbytes)
        subject.write(block, given)
        expected = given + bytes([_GUARD]) * (4096 - nbytes)
        require_bytes(subject.read(block, 4096), expected, f"a copy of {nbytes} bytes into 4096")
        subject.free(block)


def copy_out_fills_its_memory_only(subject: Subject) -> None:
    """`copy_out` fills `dst`, all of it and nothing else."""
    block, given = subject.alloc(4096), pattern(4096, 9)
    subject.write(block, given)
    for nbytes in (1, 3, 5, 64, 127, 1000, 4095):
        around = np.full(nbytes + 64, _GUARD, np.uint8)
        subject.raw.copy_out(around[32 : 32 + nbytes].data, block.buffer, subject.stream)
        expected = bytes([_GUARD]) * 32 + given[:nbytes] + bytes([_GUARD]) * 32
        require_bytes(around.data, expected, f"host memory around a copy of {nbytes} bytes")
    subject.free(block)


def fill(subject: Subject) -> None:
    """`fill` writes its value, so many times and no more."""
    for value in (0, 1, 0x7F, 0xFF):
        for nbytes in (1, 3, 64, 65, 1000):
            block = _guarded(subject, 1024)
            subject.raw.fill(block.buffer, value, nbytes, subject.stream)
            expected = bytes([value]) * nbytes + bytes([_GUARD]) * (1024 - nbytes)
            what = f"fill with {value} of {nbytes} bytes"
            require_bytes(subject.read(block, 1024), expected, what)
            subject.free(block)


def _busy(subject: Subject, stream: Stream | None = None) -> None:
    """Give a stream work, so that what follows has to wait its turn."""
    block = subject.alloc(1 << 16)
    for number in range(LONG // 2):
        subject.raw.fill(block.buffer, number % 256, 1 << 16, stream or subject.stream)
    subject.free(block)


def source_is_free_after_copy_in(subject: Subject) -> None:
    """Check that the host's memory may be reused as soon as `copy_in` returns."""
    block = subject.alloc(1 << 16)
    given = np.frombuffer(pattern(1 << 16, 4), np.uint8).copy()
    _busy(subject)
    subject.raw.copy_in(block.buffer, given.data, subject.stream)
    expected, given[:] = given.tobytes(), 0
    got = subject.read(block, 1 << 16)
    subject.free(block)
    require_bytes(got, expected, "a copy whose source was overwritten after copy_in returned")


def data_is_there_after_copy_out(subject: Subject) -> None:
    """Data is in the host's memory when `copy_out` returns, however much was submitted."""
    block, given = subject.alloc(1 << 16), pattern(1 << 16, 5)
    for _ in range(3):
        _busy(subject)
        subject.write(block, given)
        require_bytes(subject.read(block, 1 << 16), given, "what copy_out gave when it returned")
    subject.free(block)


def copies_are_fresh(subject: Subject) -> None:
    """Reading again after writing again gives what was written last."""
    block = subject.alloc(512)
    for turn in range(8):
        given = pattern(512, turn)
        subject.write(block, given)
        require_bytes(subject.read(block, 512), given, f"copy number {turn} out of one block")
    subject.free(block)


def order_in_a_stream(subject: Subject) -> None:
    """Work that is submitted later happens later, fills after copies and copies after fills."""
    block = subject.alloc(256)
    for turn in range(LONG):
        subject.raw.fill(block.buffer, turn, 256, subject.stream)
        subject.write(block, bytes([turn + 100]) * 128)
        subject.raw.fill(block.buffer, turn + 50, 64, subject.stream)
    last = LONG - 1
    expected = bytes([last + 50]) * 64 + bytes([last + 100]) * 64 + bytes([last]) * 128
    require_bytes(subject.read(block, 256), expected, f"after {LONG} fills and copies in turns")
    subject.free(block)


def events(subject: Subject) -> None:
    """Check that an event is done once it was waited for, or its stream is empty."""
    stream = subject.stream
    for wait in ("event.wait()", "stream.synchronize()"):
        _busy(subject)
        event = stream.record()
        if wait == "event.wait()":
            event.wait()
        else:
            stream.synchronize()
        require(event.done() is True, f"after {wait} done() says {event.done()!r}")
        event.wait()
    before, after = _around(subject)
    require(not (after and not before), "an event is done before one recorded earlier")


def _around(subject: Subject) -> tuple[bool, bool]:
    first = subject.stream.record()
    _busy(subject)
    second = subject.stream.record()
    after = second.done()  # asked in this order: meanwhile the earlier one may finish
    before = first.done()
    subject.stream.synchronize()
    return before, after


def streams_wait_for_events(subject: Subject) -> None:
    """A stream that waits for an event sees what was submitted before it; so does the host."""
    other = subject.second_stream()
    block = subject.alloc(4096)
    for turn in range(6):
        _busy(subject)
        given = pattern(4096, turn)
        subject.write(block, given)
        event = subject.stream.record()
        if turn % 2:
            event.wait()
        else:
            other.wait(event)
        what = "read by the host" if turn % 2 else "read by another stream"
        require_bytes(subject.read(block, 4096, other), given, f"after an event, {what}")
    other.synchronize()
    subject.free(block)


def parts(subject: Subject) -> None:
    """Check that a part of a block is that part of its memory."""
    raw = subject.raw
    if not isinstance(raw, PartDevice):
        raise NotOffered("the device has no part(block, offset, nbytes)")
    block = _guarded(subject, 1024)
    expected = bytearray(bytes([_GUARD]) * 1024)
    for offset, nbytes in ((0, 64), (128, 100), (512, 1), (960, 64), (4, 8)):
        given = pattern(nbytes, offset)
        subject.write(raw.part(block.buffer, offset, nbytes), given)
        expected[offset : offset + nbytes] = given
        require_bytes(subject.read(raw.part(block.buffer, offset, nbytes), nbytes), given, "a part")
    raw.fill(raw.part(block.buffer, 256, 16), 7, 16, subject.stream)
    expected[256:272] = bytes([7]) * 16
    require_bytes(subject.read(block, 1024), bytes(expected), "a block written in parts")
    subject.free(block)


def between_devices(subject: Subject) -> None:
    """Check that arrays reach another device whole, and after what was submitted before."""
    if subject.count < 2:
        raise NotOffered("there is one device only")
    source, target = subject.device(0), subject.device(1)
    for nbytes in (1, 65, 4097):
        given = pattern(nbytes, nbytes)
        block = source.alloc(nbytes)
        _busy(subject)
        subject.write(block.buffer, given)
        if isinstance(target.raw, PeerDevice):
            made = target.fetch(source, block)
        else:
            into = np.empty(nbytes, np.uint8)
            source.download(block, into)
            made = target.upload(into)
        got = np.empty(nbytes, np.uint8)
        target.download(made, got)
        require_bytes(got.data, given, f"{nbytes} bytes on the way to another device")
        source.release(block)
        target.release(made)


_FUNCTIONS = (
    every_element_type,
    copy_in_writes_its_bytes_only,
    copy_out_fills_its_memory_only,
    fill,
    source_is_free_after_copy_in,
    data_is_there_after_copy_out,
    copies_are_fresh,
    order_in_a_stream,
    events,
    streams_wait_for_events,
    parts,
    between_devices,
)
