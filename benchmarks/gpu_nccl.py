"""All-reductions of float32 by NCCL on 1, 2, 4, ... GPUs of this machine; prints a line of JSON.

    python benchmarks/gpu_nccl.py DEVICE [SECONDS]

A process per GPU. Bandwidth is that of the links, as NCCL's own tests count it: each rank sends and
receives 2 (n - 1) / n of the array; on one GPU it is that of a copy within its memory. Calls are
submitted as programs submit them, without the ranks being compared before each.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import treadle.distributed as dist
from treadle.backends.cuda.libraries import channels
from treadle.device import get_device_count
from treadle.engine.devices.names import resolve
from treadle.runtime.comm import groups

SIZES = (("4 KiB", 1 << 12), ("1 MiB", 1 << 20), ("64 MiB", 1 << 26), ("256 MiB", 1 << 28))
BLOCK = 20


def main() -> None:
    """Measure on as many GPUs as there are."""
    device, *rest = sys.argv[1:]
    seconds = float(rest[0]) if rest else 5.0
    kind = resolve(device).kind
    found: dict[str, tuple[float, str]] = {}
    for count in (1, 2, 4, 8, 16):
        if count > get_device_count(kind):
            break
        if count == 1:
            dist.init_process_group()
            found |= measured(kind, seconds)
            dist.group.leave()
        else:
            found |= dist.launcher(measured, n_gpus=count)(kind, seconds)[0]
    print(json.dumps(found))


def measured(kind: str, seconds: float) -> dict[str, tuple[float, str]]:
    """On one rank: microseconds and bandwidth of each size.

    Raises:
        SystemExit: there is no NCCL.
    """
    world = groups.world()
    if world is None:
        raise SystemExit("this process is in no group")
    device: Any = resolve(f"{kind}{dist.get_local_device_id()}").open().raw
    line = channels.line_of(world, device)
    if line.channel is None:
        raise SystemExit("NCCL does not work here; the log says why")
    stream, found = device.stream(), {}
    for name, nbytes in SIZES:
        place = device.alloc(nbytes)
        device.fill(place, 0, nbytes, stream)
        at, count = place.address, nbytes // 4

        def block(at: int = at, count: int = count) -> float:
            began = time.perf_counter()
            for _ in range(BLOCK):
                line.submit(
                    "benchmark",
                    lambda c: c.all_reduce(at, at, count, "float32", "sum", stream.queue.handle),
                    stream,
                )
            stream.synchronize()
            return (time.perf_counter() - began) / BLOCK

        block()
        turns = max(3, int(seconds / len(SIZES) / max(block(), 1e-5) / BLOCK))
        turns = world.broadcast_value(turns, 0)
        best = min(block() for _ in range(turns))
        label = f"all-reduce of {name} by NCCL, {world.size} GPU{'s' * (world.size > 1)}"
        share = 2 * (world.size - 1) / world.size if world.size > 1 else 1.0
        found[label] = best * 1e6, "us"
        found[f"{label}, bandwidth"] = share * nbytes / best / 1e9, "GB/s"
        device.free(place)
    return found


if __name__ == "__main__":
    main()
