"""Launches of a stream as one recording: CUDA graphs, and the scratch memory that they name."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from treadle.backends.cuda.device import CudaDevice, CudaStream
from treadle.backends.cuda.driver import Capture, GpuRecording
from treadle.runtime.api import Stream


class CapturingStream(CudaStream):
    """Stream for launches while they are recorded: their scratch memory is that of `stream`."""

    def __init__(self, stream: CudaStream, capture: Capture) -> None:
        super().__init__(stream.device, capture)
        self._origin = stream
        self.lock = stream.lock  # taken before those of libraries, whichever stream is used
        self.used_scratch = False

    def scratch(self, nbytes: int) -> int:
        self.used_scratch = True
        return self._origin.scratch(nbytes)


class CudaRecording:
    """See `treadle.backends.rendering.Recording`.

    Args:
        stream: where it was recorded, and where it can be replayed.
        recording: the driver's.
        moves: how often scratch memory of the stream had moved then; None where none is named.
    """

    def __init__(self, stream: CudaStream, recording: GpuRecording, moves: int | None) -> None:
        self._stream = stream
        self._recording = recording
        self._moves = moves
        # The garbage collector may be anywhere, so nothing is asked of the driver then.
        self._drop = weakref.finalize(self, stream.device.dropped.append, (recording, stream))
        self._drop.atexit = False

    def replay(self, stream: Stream, /) -> bool:
        own = self._stream
        with own.lock:  # so that scratch memory stays where it is until this is submitted
            moved = self._moves is not None and own.moves != self._moves
            if moved or stream is not own or not self._drop.alive:
                return False
            own.device.call(lambda: own.device.gpu.replay(self._recording, own.queue))
        return True

    def close(self) -> None:
        self._drop()


def record(
    device: CudaDevice, stream: CudaStream, submit: Callable[[Stream], None]
) -> CudaRecording:
    """Record what `submit` launches into the stream that it is given.

    Raises:
        DeviceError: the driver does not record it.
    """
    device.let_go()
    moves = stream.moves
    capture = device.call(device.gpu.capture)
    try:
        to = CapturingStream(stream, capture)
        submit(to)
        made = device.call(capture.finish)
    finally:
        device.call(capture.close)
    return CudaRecording(stream, made, moves if to.used_scratch else None)
