"""The loader's side of its worker processes: start, feed, wait, bury."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import connection as mp_connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from treadle.base.log import get_logger
from treadle.base.workers import WorkerStart
from treadle.data.channel import Channel, Parcel
from treadle.data.failure import DataLoaderError, describe_exit, find_unpicklable
from treadle.data.messages import (
    Batch,
    BeginEpoch,
    Exhausted,
    Failed,
    Locate,
    Located,
    Ready,
    StopWorker,
    Task,
    Unable,
    Work,
)
from treadle.data.worker import WorkerSpec, describe_work, run_worker

# Workers that were asked to stop may finish the sample at hand; then they are made to.
_GRACE_SECONDS = 1.0
_KILL_SECONDS = 1.0
# A worker whose pipe has closed is about to be dead; this is how long its exit code may take.
_DEATH_SECONDS = 1.0
_LOCATE_SECONDS = 0.5
# Importing the user's modules is not what `timeout` is meant to watch.
_START_SECONDS = 60.0
# Without a timeout nothing ends the wait for a worker that hangs, but it is said where it is.
_NOTICE_SECONDS = 60.0

Outcome = Batch | Exhausted | Failed


class _ForkServer:
    """The process that has started the fork server which this one would ask for workers."""

    owner: int | None = None

    @classmethod
    def is_inherited(cls) -> bool:
        """Return whether it is another process's child, so that this one cannot ask it."""
        return cls.owner not in (None, os.getpid())


@dataclass(slots=True)
class _Worker:
    """A worker process as the loader sees it."""

    index: int
    process: BaseProcess
    channel: Channel
    is_ready: bool = False
    tasks: dict[int, Task] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"worker {self.index} (pid {self.process.pid})"


def start_context(context: str | BaseContext | None) -> BaseContext:
    """Return the way workers are started.

    The default is a fork server where there is one, else spawn: forking this process would copy
    the locks of its threads (kernels, BLAS, the user's) in whatever state they are in. Forking
    shares the dataset without pickling it and allows classes of an interactive session, so it
    can be asked for.
    """
    if isinstance(context, BaseContext):
        return context
    if context is None:
        methods = multiprocessing.get_all_start_methods()
        wanted = (WorkerStart.method, "forkserver", "spawn")
        context = next(method for method in wanted if method in methods)
    if context == "forkserver":
        # Imported once in the server, so that a worker costs a fork and no import.
        multiprocessing.set_forkserver_preload(["treadle.data.worker"])
    return multiprocessing.get_context(context)


class WorkerPool:
    """Worker processes, alive until `close`, garbage collection or the end of the interpreter.

    Args:
        spec: what the workers do.
        context: how they are started.
        may_fork: fork instead where `spec` cannot be given to a fresh process.

    Raises:
        DataLoaderError: the dataset, transform, collator or init function cannot be pickled.
    """

    def __init__(self, spec: WorkerSpec, context: BaseContext, may_fork: bool = False) -> None:
        self._workers: list[_Worker] = []
        self._epoch = 0
        self._results: dict[int, Outcome] = {}
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _bury, self._workers, self._owner)
        try:
            if may_fork and _ForkServer.is_inherited():
                context = multiprocessing.get_context("fork")
            is_fork = context.get_start_method() == "fork"
            parcel = None if is_fork else _packed(spec, may_fork)
            if parcel is not None:
                with contextlib.closing(parcel):
                    self._start(spec, context, parcel)
            else:
                self._start(spec, context if is_fork else multiprocessing.get_context("fork"), None)
        except BaseException:
            self.close()
            raise

    def _start(self, spec: WorkerSpec, context: BaseContext, parcel: Parcel | None) -> None:
        if context.get_start_method() == "forkserver":
            _ForkServer.owner = os.getpid()
        for index in range(spec.workers):
            ours, theirs = context.Pipe(duplex=True)
            # Typeshed gives each kind of context its own Process, and their base none.
            process = context.Process(  # type: ignore[attr-defined]
                target=run_worker,
                args=(theirs, index, spec if parcel is None else None),
                name=f"treadle-data-{index}",
                daemon=True,
            )
            try:
                process.start()
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            worker = _Worker(index, process, Channel(ours))
            self._workers.append(worker)
            if parcel is not None:
                # A worker that is dead already is reported when it is first waited for.
                with contextlib.suppress(OSError):
                    worker.channel.post(parcel)

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def is_closed(self) -> bool:
        """True if the workers have been ended, or belong to the process this one is a fork of."""
        return not self._finalizer.alive or os.getpid() != self._owner

    def begin_epoch(self, seed: int) -> None:
        """Forget what is under way; seed worker i with `seed + i`."""
        self._epoch += 1
        self._results.clear()
        for worker in self._workers:
            worker.tasks.clear()
            self._send(worker, BeginEpoch(self._epoch, seed))

    def submit(self, index: int, batch: int, work: Work) -> None:
        """Give a batch to worker `index` to make."""
        worker = self._workers[index]
        task = Task(self._epoch, batch, work)
        worker.tasks[batch] = task
        self._send(worker, task)

    def collect(self, index: int, batch: int, timeout: float) -> Batch | Exhausted:
        """Wait for a batch of worker `index`, from when it is ready on.

        Raises:
            DataLoaderError: a worker died, or `timeout` (in seconds, 0 for none) has passed.
            Exception: what the dataset, transform or collator raised in the worker.
        """
        worker = self._workers[index]
        patience = timeout if timeout > 0 else _NOTICE_SECONDS
        deadline: float | None = _deadline(worker, patience)
        while batch not in self._results:
            was_ready = worker.is_ready
            if not self._receive(deadline):
                if timeout > 0:
                    self._give_up_on(worker, batch, timeout)
                self._notice(worker, batch)
                deadline = None
            elif worker.is_ready and not was_ready:
                deadline = _deadline(worker, patience)
        outcome = self._results.pop(batch)
        if isinstance(outcome, Failed):
            where = f"DataLoader worker process {index} (pid {worker.process.pid}), batch {batch}"
            raise outcome.error.restore(where)
        return outcome

    def close(self) -> None:
        """End the workers: politely, then firmly."""
        self._finalizer()

    def kill(self) -> None:
        """End the workers at once; one of them does not listen any more."""
        if not self.is_closed:
            for worker in self._workers:
                worker.process.kill()
        self._finalizer()

    def _send(self, worker: _Worker, message: object) -> None:
        try:
            worker.channel.send(message)
        except (BrokenPipeError, ConnectionResetError):
            while worker.channel.connection.poll():
                self._take(worker)  # why it went, if it said so
            self._report_death(worker)

    def _receive(self, deadline: float | None) -> bool:
        """Take what the workers have sent, waiting for something to come; False if nothing did."""
        waited_for: list[Any] = []
        for worker in self._workers:
            waited_for += (worker.channel.connection, worker.process.sentinel)
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = set(mp_connection.wait(waited_for, remaining))
        for worker in self._workers:
            # What a worker sent before it died still counts.
            # What a worker wrote last may arrive between the looks at its pipe and at its end.
            ended = worker.process.sentinel in ready and worker.channel.connection.poll()
            if worker.channel.connection in ready or ended:
                self._take(worker)
            elif worker.process.sentinel in ready:
                self._report_death(worker)
        return bool(ready)

    def _take(self, worker: _Worker) -> None:
        try:
            message = worker.channel.receive()
        except (EOFError, OSError):
            self._report_death(worker)
        except Exception as error:
            error.add_note(f"while unpickling what DataLoader {worker} has sent")
            raise
        match message:
            case Ready():
                worker.is_ready = True
            case Located():
                get_logger("data").warning("DataLoader: %s is at:\n%s", worker, message.stack)
            case Unable():
                pid = worker.process.pid
                raise message.error.restore(f"DataLoader worker process {worker.index} (pid {pid})")
            case Batch() | Exhausted() | Failed() if message.epoch == self._epoch:
                worker.tasks.pop(message.batch, None)
                self._results[message.batch] = message

    def _report_death(self, worker: _Worker) -> NoReturn:
        worker.process.join(_DEATH_SECONDS)
        how, hint = describe_exit(worker.process.exitcode)
        if not worker.is_ready:
            how += " before it was ready"
            hint = hint or (
                "a script that uses workers must guard its entry with "
                '`if __name__ == "__main__":`, or use DataLoader(context="fork")'
            )
        error = DataLoaderError("DataLoader", f"{worker} {how}", saw=_current(worker), hint=hint)
        error.add_note(f"DataLoader {worker} exited unexpectedly")  # MegEngine's words
        raise error

    def _give_up_on(self, worker: _Worker, batch: int, timeout: float) -> NoReturn:
        stack = self._locate(worker)
        error = DataLoaderError(
            "dataloader timeout",
            f"{worker} has not delivered {describe_work(worker.tasks[batch])} within {timeout:g} s",
            hint="raise timeout, or look at what its dataset and transform wait for",
        )
        error.add_note(f"the worker is at:\n{stack}" if stack else "the worker does not answer")
        raise error

    def _notice(self, worker: _Worker, batch: int) -> None:
        """Say what is being waited for, and ask the worker where it is."""
        get_logger("data").warning(
            "DataLoader: %s has not delivered %s in %g s; set timeout= to make this an error",
            worker,
            describe_work(worker.tasks[batch]),
            _NOTICE_SECONDS,
        )
        self._send(worker, Locate())

    def _locate(self, worker: _Worker) -> str:
        """Ask a slow worker where it is; empty if it does not answer."""
        deadline = time.monotonic() + _LOCATE_SECONDS
        try:
            worker.channel.send(Locate())
            while worker.channel.connection.poll(max(0.0, deadline - time.monotonic())):
                message = worker.channel.receive()
                if isinstance(message, Located):
                    return message.stack
        except (EOFError, OSError):
            pass
        return ""


def _deadline(worker: _Worker, timeout: float) -> float:
    return time.monotonic() + timeout + (0 if worker.is_ready else _START_SECONDS)


def _current(worker: _Worker) -> str:
    """Return in words the oldest task that a dead worker had not answered."""
    return f"it was at {describe_work(next(iter(worker.tasks.values())))}" if worker.tasks else ""


def _packed(spec: WorkerSpec, may_fork: bool) -> Parcel | None:
    """Return the parcel for fresh processes; None where that cannot be and they may be forked."""
    may_fork = may_fork and "fork" in multiprocessing.get_all_start_methods()
    try:
        if may_fork and _is_interactive(spec):
            raise TypeError("classes of an interactive session cannot be imported elsewhere")
        return _pack(spec)
    except Exception as error:
        if not may_fork:
            raise
        reason = error.problem if isinstance(error, DataLoaderError) else str(error)
        get_logger("data").warning("DataLoader: workers are forked, as %s", reason)
        return None


def _is_interactive(spec: WorkerSpec) -> bool:
    """Return whether a fresh process lacks what is named, because this one runs no file."""
    if getattr(sys.modules["__main__"], "__file__", None) is not None:
        return False
    try:
        raw = pickle.dumps(spec, protocol=5, buffer_callback=lambda buffer: None)
    except Exception:
        return False  # Packing says why.
    return b"__main__" in raw


def _pack(spec: WorkerSpec) -> Parcel:
    try:
        return Parcel.pack(spec)
    except Exception as error:
        parts = {
            "dataset": spec.pipeline.dataset,
            "transform": spec.pipeline.transform,
            "collator": spec.pipeline.collator,
            "worker_init_fn": spec.init,
        }
        for name, part in parts.items():
            found = find_unpicklable(part, name)
            if found is not None:
                path, reason = found
                raise DataLoaderError(
                    "DataLoader",
                    f"{path} cannot be pickled, so it cannot be given to workers",
                    saw=f"{type(reason).__name__}: {reason}",
                    hint="use functions and classes defined at the top of a module, open files in "
                    'the worker, or use DataLoader(context="fork")',
                ) from reason
        raise error


def _bury(workers: Sequence[_Worker], owner: int) -> None:
    """End processes and wait until they are gone."""
    if os.getpid() != owner:
        # A fork of the owner inherits the objects, not the children.
        return
    for worker in workers:
        with contextlib.suppress(OSError):
            worker.channel.send(StopWorker())
        # Wakes a worker that is just sending, too.
        worker.channel.close()
    _wait(workers, _GRACE_SECONDS)
    for worker in workers:
        worker.process.terminate()
    _wait(workers, _KILL_SECONDS)
    for worker in workers:
        worker.process.kill()
        worker.process.join()
        worker.process.close()


def _wait(workers: Sequence[_Worker], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
