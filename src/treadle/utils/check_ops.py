"""Eager ops, one by one: beside the host's result, and looked through for what is not finite.

with CompareOps():
    loss = net(x)          # stops at the first op whose result on the device is wrong

with CheckFinite():
    loss = net(x)          # stops at the first op that makes an inf or a NaN
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from treadle.base.array import Array
from treadle.base.difference import Difference, difference, magnitude
from treadle.base.env import COMPARE
from treadle.base.errors import Divergence
from treadle.base.loc import user_location
from treadle.base.log import get_logger
from treadle.base.observer import observe
from treadle.base.table import lines
from treadle.engine.eager.choice import choose_engine
from treadle.graph.replay import graph_of, write_if_asked
from treadle.ops.op import Op, as_tuple
from treadle.runtime.array import DeviceArray, to_host
from treadle.utils.watcher import Watcher, type_of

Otherwise = Literal["raise", "record"]


@dataclass(frozen=True, slots=True)
class Checked:
    """One result of one op.

    Attributes:
        op: with its attributes.
        layer: path and class of the module that ran it, "" outside of modules.
        at: the user's line.
        type: of the result.
        difference: from the host's result.
    """

    op: str
    layer: str
    at: str
    type: str
    difference: Difference


class CompareOps(Watcher):
    """Runs every eager op of the block a second time on the host, on the same operands.

    An op on a device is compared with the host's engine, an op on the host with its NumPy
    reference. Each op is given the operands that the device computed, so that a difference belongs
    to the op itself. Slow: operands and results are copied to the host.

    Args:
        otherwise: "raise" at the first result that differs, or "record" it in `rows`.
        rtol: largest difference over the largest magnitude among operands and result; None: 1e-9
            for float64, 1e-4 for float32, 1e-2 for float16, 4e-2 for bfloat16. Integers and bools
            must be equal.
        replay: directory of scripts that run again what differs; TREADLE_REPLAY if left out.

    Attributes:
        rows: every result that was compared, in order.

    Raises:
        Divergence: a result differs; the message names op, layer and line, measures the errors and
            shows the values around the first.

    Example:
        >>> with CompareOps() as compared:
        ...     _ = mge.tensor([1.0, 2.0], device="cpux") * 3
        >>> [row.op for row in compared.rows], compared.first
        (['mul'], None)
    """

    def __init__(
        self, otherwise: Otherwise = "raise", rtol: float | None = None, replay: str = ""
    ) -> None:
        self.rows: list[Checked] = []
        self._otherwise = otherwise
        self._rtol = rtol
        self._replay = replay
        self._hosts: dict[Any, Callable[..., Any]] = {}

    @property
    def first(self) -> Checked | None:
        """The first result that differs, None where all agree."""
        return next((row for row in self.rows if row.difference.differs), None)

    def __str__(self) -> str:
        header = ("op", "layer", "line", "result", "difference")
        rows = [(r.op, r.layer, r.at, r.type, str(r.difference)) for r in self.rows]
        wrong = sum(r.difference.differs for r in self.rows)
        return "\n".join((f"{len(rows)} results, {wrong} differ", *lines(header, rows)))

    def ran(self, op: Op, given: Sequence[Any], made: Sequence[Any]) -> None:
        """Run an op again, and compare its results."""
        if not given:
            return
        arrays = [to_host(p) for p in given]
        wanted = as_tuple(self._host(op, given)(*arrays))
        scale = max(map(magnitude, arrays))
        for found, expected in zip(made, wanted, strict=True):
            self._compare(op, given, arrays, to_host(found), expected, scale)

    def _host(self, op: Op, given: Sequence[Any]) -> Callable[..., Any]:
        if not any(isinstance(p, DeviceArray) for p in given):
            return op.reference
        types = tuple(type_of(p) for p in given)
        found = self._hosts.get((op, types))
        if found is None:
            found, _ = choose_engine(op, types, types[0].device, fallen=True)
            self._hosts[op, types] = found
        return found

    def _compare(
        self,
        op: Op,
        given: Sequence[Any],
        arrays: Sequence[Array],
        found: Array,
        wanted: Array,
        scale: float,
    ) -> None:
        types = tuple(type_of(p) for p in given)
        told = f"{wanted.dtype.name}{list(wanted.shape)}"
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            seen = f"{found.dtype.name}{list(found.shape)} instead of {told}"
            raise Divergence(op.name, "has another type than the host's result", saw=seen)
        apart = difference(found, wanted, scale=scale, rtol=self._rtol)
        at = user_location()
        self.rows.append(Checked(str(op), self.layer, str(at) if at else "", told, apart))
        if not apart.differs or self._otherwise == "record":
            return
        device = types[0].device or "cpux"
        hint = write_if_asked(graph_of(op, types), arrays, device, str(apart), folder=self._replay)
        error = Divergence(
            op.name,
            f"its result on {device} differs from the host's{_inside(self.layer)}",
            saw=f"{op.saw(types)}; {apart}",
            hint=hint or "TREADLE_REPLAY=DIR writes a script that runs it again",
            at=at,
        )
        error.add_note(f"  {apart.around}")
        raise error


class CheckFinite(Watcher):
    """Stops the block at the first eager op that makes an inf or a NaN of finite operands.

    Args:
        otherwise: "raise", or "record" in `rows` as (op, layer, line).

    Raises:
        Divergence: at that op; the message names layer and line, and how many elements there are.

    Example:
        >>> with CheckFinite("record") as check:
        ...     _ = mge.tensor([1e30], device="cpux") * 1e30
        >>> check.rows[0][0]
        'mul'
    """

    def __init__(self, otherwise: Otherwise = "raise") -> None:
        self.rows: list[tuple[str, str, str]] = []
        self._otherwise = otherwise

    def ran(self, op: Op, given: Sequence[Any], made: Sequence[Any]) -> None:
        """Check the results of an op."""
        if not given:  # Infinities that somebody asks for by name.
            return
        for result in map(to_host, made):
            bad = _not_finite(result)
            if bad and not any(_not_finite(to_host(p)) for p in given):
                self._found(op, given, result, bad)

    def _found(self, op: Op, given: Sequence[Any], result: Array, bad: int) -> None:
        at = user_location()
        self.rows.append((str(op), self.layer, str(at) if at else ""))
        if self._otherwise == "record":
            return
        wide = result.astype(np.float64)
        nans = int(np.count_nonzero(np.isnan(wide)))
        first = np.unravel_index(int(np.argmin(np.isfinite(wide))), wide.shape)
        ranges = ", ".join(filter(None, [_range(to_host(p)) for p in given]))
        raise Divergence(
            op.name,
            f"made {bad - nans} infinities and {nans} NaNs of finite operands{_inside(self.layer)}",
            saw=f"{op.saw(tuple(map(type_of, given)))}; operands from {ranges}; "
            f"first at {[int(i) for i in first]}",
            hint="look for overflow, 0/0, log or sqrt of what is not positive; scale the loss down",
            at=at,
        )


def _not_finite(array: Array) -> int:
    """Count the elements that are not finite numbers."""
    if array.dtype.kind in "iubc":
        return 0
    return int(np.count_nonzero(~np.isfinite(array.astype(np.float64))))


def _range(array: Array) -> str:
    """The least and the largest element of a real array; "" of others."""
    if array.dtype.kind in "bc" or not array.size:
        return ""
    return f"{float(np.min(array)):.4g} to {float(np.max(array)):.4g}"


def _inside(layer: str) -> str:
    return f", in {layer}" if layer else ""


def install() -> None:
    """Compare every eager op of the process from now on, as TREADLE_COMPARE asks."""
    if COMPARE.get() != "cpu":
        get_logger().warning("%s=%r: only 'cpu' is known", COMPARE.source(), COMPARE.get())
        return
    observe(CompareOps())


__all__ = ["CheckFinite", "Checked", "CompareOps", "install"]
