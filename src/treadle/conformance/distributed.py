"""Distributed: collectives of tensors on the device, between processes."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from treadle import distributed as dist
from treadle.backends import registry
from treadle.backends.api import Carrying
from treadle.base.array import Array
from treadle.conformance.check import Check, Measured, NotOffered, require
from treadle.conformance.subject import Subject
from treadle.distributed import carrying
from treadle.distributed import functional as collectives
from treadle.engine.eager.fallback import Policy, fallback
from treadle.tensor import Tensor

RANKS = 2
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "uint8")


def checks(subject: Subject) -> Iterator[Check]:
    """The group's checks."""
    yield Check("Distributed", "by_way_of_the_host", partial(by_way_of_the_host, subject))
    yield Check("Distributed", "collectives", partial(own_collectives, subject), 3)


def own_collectives(subject: Subject) -> Measured:
    """Two processes, each with a device of its own, whose arrays the backend's library carries."""
    entry = registry.for_kind(subject.kind)
    if entry is None or not isinstance(entry.backend, Carrying):
        raise NotOffered("the backend has no collectives of its own: values travel by the host")
    if entry.count < RANKS:
        raise NotOffered(f"its library wants a device per process, and there are {entry.count}")
    dtypes = DTYPES[:3] if subject.quick else DTYPES
    told = _on_ranks(subject, carried, subject.kind, dtypes)
    for rank, (how, found) in enumerate(told):
        if found is None:
            raise NotOffered(f"arrays travel {how}")
        for dtype in dtypes:
            _compare(rank, dtype, f"{subject.kind}{rank}", found[dtype])
    return {"processes": float(RANKS), "element types": float(len(dtypes))}


def carried(kind: str, dtypes: tuple[str, ...]) -> tuple[str, Any]:
    """Return how arrays travel, and results of every collective where that is not through
    the host.
    """
    rank = dist.get_rank()
    carrying.meet(dist.WORLD.communicator(), kind, rank)
    if not carrying.carries(dist.WORLD.name):
        return carrying.described(dist.WORLD.name), None
    return "", exchange(f"{kind}{rank}", dtypes, "error")


def by_way_of_the_host(subject: Subject) -> Measured:
    """Two processes with tensors on the device get the reference's results on the device."""
    dtypes = DTYPES[:3] if subject.quick else DTYPES
    device = f"{subject.kind}0"
    results = _on_ranks(subject, exchange, device, dtypes)
    for rank, found in enumerate(results):
        for dtype in dtypes:
            _compare(rank, dtype, device, found[dtype])
    return {"processes": float(RANKS), "element types": float(len(dtypes))}


def _on_ranks(subject: Subject, function: Callable[..., Any], *given: Any) -> list[Any]:
    """Run a function on each of two ranks."""
    missing = [m for m in ("mpi4py", "cloudpickle") if importlib.util.find_spec(m) is None]
    if missing:
        raise NotOffered(f"processes need {' and '.join(missing)}: pip install 'treadle[mpi]'")
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = subject.environment["PYTHONPATH"]  # of the processes to start
    try:
        return list(dist.launcher(n_gpus=RANKS)(function)(*given))
    finally:
        os.environ["PYTHONPATH"] = before


def operand(rank: int) -> Array:
    """Return a rank's operand: small whole numbers, exact in every type."""
    return (np.arange(8).reshape(4, 2) + rank).astype(np.float32)


def exchange(
    device: str, dtypes: tuple[str, ...], policy: Policy = "silent"
) -> dict[str, dict[str, tuple[Any, str]]]:
    """Results of every collective on this rank, by element type: their elements and device."""
    found = {}
    for dtype in dtypes:
        x = Tensor(operand(dist.get_rank()), dtype=dtype, device=device)
        with fallback(policy):
            made = {
                "all_reduce_sum": collectives.all_reduce_sum(x),
                "all_reduce_max": collectives.all_reduce_max(x),
                "broadcast": collectives.broadcast(x),
                "all_gather": collectives.all_gather(x),
                "reduce_scatter_sum": collectives.reduce_scatter_sum(x),
                "all_to_all": collectives.all_to_all(x),
            }
        found[dtype] = {name: (y.tolist(), str(y.device)) for name, y in made.items()}
    return found


def _compare(rank: int, dtype: str, device: str, found: dict[str, tuple[Any, str]]) -> None:
    each = [operand(r) for r in range(RANKS)]
    rows = slice(rank * 2, rank * 2 + 2)
    expected = {
        "all_reduce_sum": each[0] + each[1],
        "all_reduce_max": np.maximum(each[0], each[1]),
        "broadcast": each[0],
        "all_gather": np.concatenate(each),
        "reduce_scatter_sum": (each[0] + each[1])[rows],
        "all_to_all": np.concatenate([x[rows] for x in each]),
    }
    for name, array in expected.items():
        got, place = found[name]
        same = np.array_equal(np.asarray(got, np.float32), array)
        require(same, f"{name} of {dtype} on rank {rank} is {got}, expected {array.tolist()}")
        require(place.partition(":")[0] == device, f"{name} of {dtype} is on {place}")
