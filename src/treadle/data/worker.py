"""A worker process: what runs in it."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection as mp_connection
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import numpy as np

from treadle.data.channel import Channel
from treadle.data.failure import (
    DataLoaderError,
    RemoteException,
    abbreviate,
    find_unpicklable,
)
from treadle.data.messages import (
    Batch,
    BeginEpoch,
    Exhausted,
    Failed,
    LoadIndices,
    Locate,
    Located,
    MergeSamples,
    ReadStream,
    Ready,
    StopWorker,
    Task,
    Unable,
)
from treadle.data.pipeline import Pipeline, StreamReader
from treadle.data.worker_info import WorkerInfo, set_worker_info

# How often a worker looks whether its parent lives, where the closing pipe does not tell (forked
# siblings keep it open).
_PARENT_CHECK_SECONDS = 1.0
_STACK_LINES = 6


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Settings that all workers of a loader share."""

    pipeline: Pipeline
    init: Callable[[int], object] | None
    workers: int


class OrphanedError(Exception):
    """The parent process has gone: there is nobody to work for."""


def run_worker(pipe: Connection[Any, Any], index: int, spec: WorkerSpec | None) -> None:
    """Serve a loader until it says stop or dies.

    Args:
        pipe: the worker's end of the pipe to the loader.
        index: number of this worker.
        spec: what to do; None if it comes as the first message.
    """
    # Ctrl-C reaches the whole process group; the parent decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    channel = Channel(pipe)
    try:
        spec = _first_message(channel) if spec is None else spec
        channel.send(Ready())
        _Worker(channel, index, spec).serve()
    except (OrphanedError, BrokenPipeError, ConnectionResetError, EOFError):
        return


def _first_message(channel: Channel) -> WorkerSpec:
    try:
        spec: WorkerSpec = channel.receive()
    except (OSError, EOFError):
        raise
    except Exception as error:
        error.add_note(
            "the dataset, transform or collator could not be rebuilt in a worker: define their "
            'classes in a module that can be imported, or use DataLoader(context="fork")'
        )
        channel.send(Unable(RemoteException.capture(error)))
        raise OrphanedError from error
    return spec


class _Inbox:
    """Receives in a thread of its own, so that the loader never waits for a busy worker.

    The thread also answers `Locate` while the main thread hangs, and ends the process when the
    parent has died, whatever the main thread is doing.
    """

    def __init__(self, channel: Channel) -> None:
        self.queue: SimpleQueue[BeginEpoch | Task | StopWorker] = SimpleQueue()
        self.epoch = 0
        self._channel = channel
        self._parent_id = os.getppid()
        threading.Thread(target=self._run, name="treadle-inbox", daemon=True).start()

    def _run(self) -> None:
        try:
            while self._handle(self._next()):
                pass
        except (OrphanedError, OSError, EOFError):
            # No cleanup: the main thread may be stuck in user code, and nobody is left to care.
            os._exit(1)
        except Exception as error:
            # A task that cannot be unpickled here.
            self._channel.send(Unable(RemoteException.capture(error)))

    def _next(self) -> object:
        parent = parent_process()
        waited_for: list[Any] = [self._channel.connection]
        waited_for += [] if parent is None else [parent.sentinel]
        while True:
            ready = mp_connection.wait(waited_for, _PARENT_CHECK_SECONDS)
            if self._channel.connection in ready:
                return self._channel.receive()
            if ready or os.getppid() != self._parent_id:
                raise OrphanedError

    def _handle(self, message: object) -> bool:
        """Deal with a message; False after the last one."""
        match message:
            case Locate():
                self._channel.send(Located(_main_stack()))
            case BeginEpoch():
                self.epoch = message.epoch
                self.queue.put(message)
            case Task():
                self.queue.put(message)
            case StopWorker():
                self.queue.put(message)
                return False
        return True


def _main_stack() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)[-_STACK_LINES:])


class _Worker:
    """Works through the tasks of its inbox."""

    def __init__(self, channel: Channel, index: int, spec: WorkerSpec) -> None:
        self._channel = channel
        self._index = index
        self._spec = spec
        self._stream: StreamReader | None = None
        self._is_started = False

    def serve(self) -> None:
        """Run until told to stop."""
        inbox = _Inbox(self._channel)
        while True:
            match inbox.queue.get():
                case BeginEpoch() as begin:
                    self._begin(begin)
                case Task() as task if task.epoch == inbox.epoch:
                    self._send_result(task, self._perform(task))
                case StopWorker():
                    return

    def _begin(self, begin: BeginEpoch) -> None:
        seed = begin.seed + self._index
        random.seed(seed)
        np.random.seed(seed)
        set_worker_info(WorkerInfo(self._index, self._spec.workers, seed))
        self._stream = None
        try:
            if self._spec.init is not None and not self._is_started:
                self._spec.init(self._index)
            self._is_started = True
        except Exception as error:
            error.add_note("raised by worker_init_fn")
            self._channel.send(Unable(RemoteException.capture(error)))

    def _perform(self, task: Task) -> Batch | Exhausted | Failed:
        try:
            return self._do(task)
        except Exception as error:
            return Failed(task.epoch, task.batch, RemoteException.capture(error))

    def _do(self, task: Task) -> Batch | Exhausted:
        pipeline = self._spec.pipeline
        match task.work:
            case LoadIndices(indices):
                content = pipeline.load(indices)
            case MergeSamples(samples, start):
                content = pipeline.merge_stream(samples, start)
            case ReadStream(size):
                stream = self._own_stream()
                start = stream.position
                samples = stream.take(size)
                if not samples:
                    return Exhausted(task.epoch, task.batch)
                content = pipeline.merge_stream(samples, start)
        return Batch(task.epoch, task.batch, content)

    def _own_stream(self) -> StreamReader:
        if self._stream is None:
            self._stream = StreamReader(self._spec.pipeline.dataset)
        return self._stream

    def _send_result(self, task: Task, result: Batch | Exhausted | Failed) -> None:
        try:
            self._channel.send(result)
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            failure = _unsendable(task, result, error)
            self._channel.send(Failed(task.epoch, task.batch, RemoteException.capture(failure)))


def _unsendable(task: Task, result: object, error: Exception) -> Exception:
    batch = describe_work(task)
    if isinstance(error, OSError | MemoryError):
        return DataLoaderError(
            "DataLoader",
            f"no memory to hand over {batch}",
            saw=str(error),
            hint="use fewer workers, a smaller prefetch_factor or smaller batches",
        )
    content = result.content if isinstance(result, Batch) else result
    path, reason = find_unpicklable(content, "batch") or ("batch", error)
    return DataLoaderError(
        "DataLoader",
        f"{path} cannot be pickled, so {batch} cannot leave its worker",
        saw=f"{type(reason).__name__}: {reason}",
        hint="return arrays, numbers, strings and containers of them, or use num_workers=0",
    )


def describe_work(task: Task) -> str:
    """Name a task's batch and samples."""
    match task.work:
        case LoadIndices(indices):
            return f"batch {task.batch} (dataset indices {abbreviate(indices)})"
        case MergeSamples(samples, start):
            return f"batch {task.batch} (stream samples {start} to {start + len(samples) - 1})"
        case ReadStream():
            return f"batch {task.batch} of the worker's stream"
