"""Runs a stored segment in a process of its own: `python -P segment_visit.py FOLDER KIND ENGINE`.

The folder has `blob` and `inputs.npz`; `outputs.npz` is written beside them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from treadle.backends import registry
from treadle.backends.segments import SegmentEngine
from treadle.engine.devices.names import resolve
from treadle.runtime.array import from_host, to_host


def main() -> None:
    """Load, run, write."""
    folder, kind, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    (engine,) = [e for e in registry.engines(kind) if e.name == name][:1]
    if not isinstance(engine, SegmentEngine):
        raise TypeError(f"{name} is not a segment engine")
    executable = engine.load_segment((folder / "blob").read_bytes())
    place = resolve(f"{kind}0")
    device = None if place.on_host else place.open()
    with np.load(folder / "inputs.npz") as given:
        arrays = [given[f"arr_{i}"] for i in range(len(given.files))]
    made = executable.run([from_host(a, device) for a in arrays])
    np.savez(folder / "outputs.npz", *[np.asarray(to_host(p)) for p in made])


if __name__ == "__main__":
    main()
