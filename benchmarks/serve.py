"""A framework's process: builds one workload and times blocks of calls when asked to.

It needs NumPy and the framework, and nothing else, so that it runs in any interpreter.
"""

from __future__ import annotations

import importlib
import resource
import sys
import time
from multiprocessing.connection import Connection

import numpy as np
from workloads import Task

LEAST = 2
"""Calls in a block; the first one meets the caches of another process."""


def serve(pipe: Connection) -> None:
    peer, *fields = pipe.recv()
    task = Task(*fields)
    try:
        module = importlib.import_module(f"peer_{peer}")
        call = module.make(task)
        start = time.perf_counter()
        results = [call()]
        first = time.perf_counter() - start
        results += [call(), call()]
    except ModuleNotFoundError as error:
        pipe.send({"missing": str(error)})
        return
    except Exception as error:
        pipe.send({"failed": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"})
        return
    kept = results if task.work.kind == "train" else results[2:]
    array = np.asarray(kept, "float32")
    pipe.send({"first": first, "results": array.tobytes(), "version": module.version()})
    while (block := pipe.recv()) is not None:
        times: list[float] = []
        end = time.perf_counter() + block
        while len(times) < LEAST or time.perf_counter() < end:
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        pipe.send(times)
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
