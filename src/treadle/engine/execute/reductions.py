"""Reductions that go on behind the steps of a program, in the memory of its buckets."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import CompileError
from treadle.engine.plan import START, HostTask
from treadle.ops.bucket import AllReduceBucket
from treadle.runtime.comm.api import Agreement, CommunicationError, Handle
from treadle.runtime.host import address


class Reductions:
    """Those of one run.

    The first one of a group announces all that are to come, so that ranks are compared once.
    """

    __slots__ = ("_announced", "_going")

    def __init__(self) -> None:
        self._announced: dict[str, Agreement] = {}
        self._going: dict[int, tuple[Handle, Array]] = {}

    def serve(self, task: HostTask, bucket: Array) -> None:
        """Begin what takes place in this memory, or wait for it.

        Raises:
            CommunicationError: ranks do not run the same program, or one does not come in time.
        """
        if not isinstance(task.op, AllReduceBucket):
            raise CompileError("execute", f"{task.op.name} is not run in the background")
        # Between the parts of a bucket lies whatever was there before, NaN and all.
        with np.errstate(all="ignore"):
            if task.phase == START:
                self._start(task.op, bucket)
            else:
                self._finish(bucket)

    def _start(self, op: AllReduceBucket, bucket: Array) -> None:
        comm = op.communicator()
        if not op.number:
            self._settle()
            self._announced[op.group] = comm.announce(f"{op.name} {op.series}")
        for handle, _ in self._going.values():
            handle.done()  # MPI moves messages on while it is being asked.
        begun = comm.start_all_reduce(bucket, op.kind, self._announced[op.group])
        self._going[address(bucket)] = begun, bucket

    def _finish(self, bucket: Array) -> None:
        handle, _ = self._going.pop(address(bucket))
        result = handle.wait()
        if not np.may_share_memory(result, bucket):
            bucket[...] = result

    def _settle(self) -> None:
        """Wait for what a run has left behind that ended early: it writes to the same memory."""
        while self._going:
            handle, _ = self._going.popitem()[1]
            with suppress(CommunicationError):  # It has never begun.
                handle.wait()
