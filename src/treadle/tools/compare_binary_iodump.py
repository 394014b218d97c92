"""`compare_binary_iodump DIR DIR`: values of two runs of `load_and_run --bin-io-dump`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from treadle.base.files.numpy_files import load_array


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status: 0 where all values agree."""
    parser = argparse.ArgumentParser("compare_binary_iodump", description=__doc__)
    parser.add_argument("input0", help="a .npy file, or a directory of them")
    parser.add_argument("input1")
    parser.add_argument("-e", "--max-err", type=float, default=1e-3, help="relative, 1e-3")
    parser.add_argument("-s", "--stop-on-error", action="store_true")
    args = parser.parse_args(arguments)
    first, second = _files(args.input0), _files(args.input1)
    bad = 0
    for name in dict.fromkeys((*first, *second)):
        if name not in first or name not in second:
            problem = f"only in {args.input0 if name in first else args.input1}"
        else:
            problem = _difference(first[name], second[name], args.max_err)
        if problem:
            bad += 1
            print(f"{name}: {problem}")
            if args.stop_on_error:
                break
    print(f"{len(first)} values, {bad} differ")
    return int(bad > 0)


def _files(given: str) -> dict[str, Path]:
    path = Path(given)
    if path.is_file():
        return {"value": path}
    return {p.name: p for p in sorted(path.glob("*.npy"))}


def _difference(first: Path, second: Path, allowed: float) -> str:
    """Return what is wrong, or nothing."""
    a, b = load_array(first), load_array(second)
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
    if not a.size:
        return ""
    x, y = a.astype(np.float64), b.astype(np.float64)
    error = np.abs(x - y) / np.maximum(1.0, np.minimum(np.abs(x), np.abs(y)))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    worst = np.where(same, 0.0, error)
    place = tuple(int(i) for i in np.unravel_index(np.nanargmax(worst), a.shape))
    largest = worst[place]
    if np.isnan(worst).any():
        return "one is NaN where the other is not"
    return (
        f"differs by {largest:.3g} at {place}: {a[place]} and {b[place]}"
        if largest > allowed
        else ""
    )


if __name__ == "__main__":
    sys.exit(main())
