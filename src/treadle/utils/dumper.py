"""`Dumper`: the tensors of every layer and op of a network, written down as a tree of folders.

    with Dumper("dump", level="sum"):
        loss = net(x)

    dump/tree.txt                                   every layer and op in order, one line each
    dump/0000_Net/0001_conv1_Conv2d/values.txt      what a layer was given, its ops, its results
    dump/0000_Net/0001_conv1_Conv2d/values.npz      the arrays, with level="all"

Two such folders, from two devices for instance, are compared by `compare_dumps`.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from treadle.base import layers, tree
from treadle.base.array import Array
from treadle.base.difference import Difference, difference, magnitude
from treadle.base.files.numpy_files import load_arrays
from treadle.base.loc import user_location
from treadle.base.modes import capturing
from treadle.base.observer import foreign_array
from treadle.ops.op import Op
from treadle.runtime.array import to_host
from treadle.tensor import Tensor
from treadle.utils.watcher import Watcher

Level = Literal["first", "sum", "all"]
LEVELS = ("first", "sum", "all")
SHOWN = 10


@dataclass(slots=True)
class _Folder:
    """A layer that runs: where it is written, its lines and arrays so far."""

    path: Path
    lines: list[str] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    ops: int = 0


class Dumper(Watcher):
    """Writes down what every layer and eager op in the block is given and makes.

    Args:
        directory: where to; made where it is missing.
        level: "first" for the first ten values of each tensor, "sum" for sums of absolute values
            and counts of what is not finite, "all" for the same and the arrays themselves.
        ops: write single ops, not only layers.

    Raises:
        ValueError: there is no such level.
        RuntimeError: another watcher or profiler is running.
        OSError: the directory cannot be written.
    """

    def __init__(
        self, directory: str | os.PathLike[str], level: Level = "sum", ops: bool = True
    ) -> None:
        if level not in LEVELS:
            raise ValueError(f"Dumper: there is no level {level!r}; use one of {LEVELS}")
        self.directory = Path(directory)
        self._level = level
        self._ops = ops
        self._count = self._arrays = 0
        self._lock = threading.Lock()
        self._local = threading.local()
        self._tree: list[str] = []

    def __enter__(self) -> Dumper:
        self.directory.mkdir(parents=True, exist_ok=True)
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for folder in self._open():  # of this thread, outside of modules
            self._write(folder)
        self._local.open = []
        (self.directory / "tree.txt").write_text("\n".join(self._tree) + "\n", encoding="utf-8")

    def _open(self) -> list[_Folder]:
        """The layers that run on this thread, outermost first; the first is outside of all."""
        found: list[_Folder] | None = getattr(self._local, "open", None)
        if not found:
            found = self._local.open = [_Folder(self.directory)]
        return found

    # -- what happens ----------------------------------------------------------------------

    def entered(self, depth: int, inputs: tuple[Any, ...]) -> None:
        """Make a layer's folder, with what the layer is given."""
        outer = self._open()
        with self._lock:
            number, self._count = self._count, self._count + 1
            self._tree.append(f"{'  ' * (depth - 1)}{self.layer}")
        name = re.sub(r"[^\w.]+", "_", self.layer).strip("_")
        outer.append(_Folder(outer[-1].path / f"{number:04}_{name}"))
        self._note(outer[-1], "input", _arrays(inputs), depth)

    def left(self, depth: int, outputs: Any) -> None:
        """Write what a layer made; its folder is complete."""
        self._note(self._open()[depth], "output", _arrays((outputs,)), depth)

    def module(self, module: Any, inputs: tuple[Any, ...], forward: Any, /) -> Any:
        """Run a module; if it raises, what was seen until then is written."""
        if capturing() is not None:
            return forward()
        level = layers.depth() + 1
        try:
            return super().module(module, inputs, forward)
        finally:
            open_ = self._open()
            while len(open_) > level:
                self._write(open_.pop())

    def ran(self, op: Op, given: Sequence[Any], made: Sequence[Any]) -> None:
        """An op's operands and results."""
        if not self._ops:
            return
        folder, depth = self._open()[-1], len(self._open()) - 1
        name = f"op{folder.ops}_{op.name}_"
        folder.ops += 1
        at = user_location()
        line = f"{op}{f' at {at}' if at else ''}"
        folder.lines.append(line)
        with self._lock:
            self._tree.append(f"{'  ' * depth}{line}")
        self._note(folder, "input", [to_host(p) for p in given], depth + 1, name)
        self._note(folder, "output", [to_host(p) for p in made], depth + 1, name)

    # -- writing ---------------------------------------------------------------------------

    def _note(
        self, folder: _Folder, name: str, arrays: Sequence[Array], depth: int, op: str = ""
    ) -> None:
        for i, array in enumerate(arrays):
            line = f"{name}_{i}: {self._describe(array)}"
            folder.lines.append("  " + line)
            with self._lock:
                self._tree.append(f"{'  ' * depth}{line}")
            if self._level == "all":
                with self._lock:
                    self._arrays += 1
                    folder.arrays[f"{self._arrays:06}_{op}{name}_{i}"] = array

    def _describe(self, array: Array) -> str:
        head = f"{array.dtype.name}{list(array.shape)}"
        if self._level == "first":
            first = array.reshape(-1)[:SHOWN].tolist()
            return f"{head} first {', '.join(f'{v:.6g}' for v in first)}"
        if array.dtype.kind == "c":
            return f"{head} sum {np.abs(array).sum():.9g}"
        wide = array.astype(np.float64)
        finite = np.isfinite(wide)
        odd = int(finite.size - np.count_nonzero(finite))
        total = float(np.abs(wide, where=finite, out=np.zeros_like(wide)).sum())
        return f"{head} sum {total:.9g}{f', {odd} not finite' if odd else ''}"

    def _write(self, folder: _Folder) -> None:
        if not folder.lines:
            return
        folder.path.mkdir(parents=True, exist_ok=True)
        (folder.path / "values.txt").write_text("\n".join(folder.lines) + "\n", encoding="utf-8")
        if folder.arrays:
            plain = {n: _storable(a) for n, a in folder.arrays.items()}
            np.savez(folder.path / "values.npz", **plain)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class DumpDifference:
    """One tensor of two dumps: the layer's folder, the tensor's name there, how far apart."""

    layer: str
    name: str
    difference: Difference


def compare_dumps(
    first: str | os.PathLike[str], second: str | os.PathLike[str], rtol: float | None = None
) -> list[DumpDifference]:
    """Compare what two runs wrote with level="all", tensor by tensor, in the order of the run.

    Args:
        first, second: the directories; what differs is measured against `first`.
        rtol: largest difference over the largest magnitude of the tensor; None: as `CompareOps`.

    Returns:
        Every tensor of both. `next(d for d in found if d.difference.differs)` is the first at
        fault.

    Raises:
        ValueError: the runs were not alike: layers, ops or shapes differ.
    """
    wanted, found = _stored(Path(first)), _stored(Path(second))
    if [key for key, _ in wanted] != [key for key, _ in found]:
        pairs = zip(wanted, found, strict=False)
        odd = next((f"{a[0]} and {b[0]}" for a, b in pairs if a[0] != b[0]), "their lengths")
        raise ValueError(f"compare_dumps: the two runs differ in what they did: {odd}")
    made = []
    for ((layer, name), x), (_, y) in zip(wanted, found, strict=True):
        if x.shape != y.shape or x.dtype != y.dtype:
            seen = f"{x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)}"
            raise ValueError(f"compare_dumps: {layer} {name}: {seen}")
        apart = difference(y, x, scale=magnitude(x), rtol=rtol)
        made.append(DumpDifference(layer, name, apart))
    return made


def _stored(folder: Path) -> list[tuple[tuple[str, str], Array]]:
    """All arrays of a dump, by layer and name, in the order in which they were made."""
    found: list[tuple[str, str, Array]] = []
    for path in folder.rglob("values.npz"):
        layer = path.parent.relative_to(folder).as_posix()
        found += [(name, layer, array) for name, array in load_arrays(path).items()]
    return [((layer, name), array) for name, layer, array in sorted(found, key=lambda f: f[0])]


def _arrays(values: Any) -> list[Array]:
    """The tensors among what a layer is given or returns."""
    leaves = tree.flatten(values)[0]
    found = [to_host(x._data) if isinstance(x, Tensor) else foreign_array(x) for x in leaves]
    return [array for array in found if array is not None]


def _storable(array: Array) -> Array:
    """The array, in float32 where NumPy's file format does not know its element type."""
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


__all__ = ["DumpDifference", "Dumper", "compare_dumps"]
