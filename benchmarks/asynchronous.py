"""What a call on a device with a queue takes until it returns, and until its result is there.

    python benchmarks/asynchronous.py [--device opencl0] [--size 512] [--calls 20]

Matrix products follow one another, each of the result of the one before. A call only puts its work
on the device's queue; where returning takes a small part of the whole, Python runs ahead.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

import treadle as mge
import treadle.functional as F


def main() -> int:
    """Print both times; the exit status says whether most of the work was waited for at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="opencl0")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--calls", type=int, default=20)
    options = parser.parse_args()
    shape = (options.size, options.size)
    x = mge.tensor(np.full(shape, 1 / options.size, np.float32), device=options.device)
    y = F.matmul(x, x)
    y.numpy()  # Kernels are compiled.
    rows = []
    for _ in range(5):
        y, start = x, time.perf_counter()
        for _ in range(options.calls):
            y = F.matmul(y, x)
        returned = time.perf_counter() - start
        y.numpy()
        rows.append((time.perf_counter() - start, returned))
    whole, returned = min(rows)
    print(f"{options.calls} products of {options.size} x {options.size} on {options.device}:")
    print(f"  calls returned after  {returned * 1e3:9.2f} ms")
    print(f"  result was there after{whole * 1e3:9.2f} ms")
    return int(returned > whole / 2)


if __name__ == "__main__":
    sys.exit(main())
