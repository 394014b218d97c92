"""Findings of `treadle run`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import typer

from treadle.base.array import Array
from treadle.cli.console import printable, show_json, show_table
from treadle.cli.models.comparison import Comparison
from treadle.cli.models.measure import Figures, Throughput
from treadle.cli.models.programs import Opened
from treadle.cli.run.trial import rows_of
from treadle.inspect.profile import Profile

SHOWN = 5
"""Elements of an output that are printed."""


@dataclass(slots=True)
class Findings:
    """Findings that were asked for; the rest is empty.

    Attributes:
        program: what ran.
        outputs: by name.
        figures: times of one caller.
        throughput: of several.
        tried: options and seconds, the fastest first.
        profile: time by kernel.
        compared: outputs beside those that were expected.
        dumped: how many values were written.
    """

    program: Opened
    outputs: Mapping[str, Array] = field(default_factory=dict)
    figures: Figures | None = None
    throughput: Throughput | None = None
    tried: list[tuple[str, float]] = field(default_factory=list)
    profile: Profile | None = None
    compared: list[Comparison] = field(default_factory=list)
    dumped: int = 0

    @property
    def agrees(self) -> bool:
        """True if all that was compared is as expected."""
        return all(c.equal for c in self.compared)

    def show(self, as_json: bool) -> None:
        """Print all of it."""
        if as_json:
            show_json(self.as_dict())
        else:
            self._show_text()

    def as_dict(self) -> dict[str, Any]:
        """Return all findings as JSON holds them."""
        made: dict[str, Any] = {"code": self.program.code, "outputs": {}}
        for name, value in self.outputs.items():
            made["outputs"][name] = {"shape": list(value.shape), "dtype": str(value.dtype)}
        made["times"] = self.figures.as_dict() if self.figures else {}
        made["differences"] = [str(c) for c in self.compared if not c.equal]
        made["compared"] = [c.as_dict() for c in self.compared]
        if self.program.precision is not None:
            made["precision"] = self.program.precision.as_json()
        if self.throughput is not None:
            made["throughput"] = {**asdict(self.throughput), "rate": self.throughput.rate}
        if self.tried:
            made["tried"] = [{"options": name, "seconds": s} for name, s in self.tried]
        if self.profile is not None:
            kernels = [asdict(k) for k in self.profile.kernels]
            made["profile"] = {"seconds": self.profile.seconds, "kernels": kernels}
        if self.dumped:
            made["dumped"] = self.dumped
        return made

    def _show_text(self) -> None:
        for name, value in self.outputs.items():
            typer.echo(f"{printable(name)} {value.dtype}{list(value.shape)}: {_beginning(value)}")
        if self.program.precision is not None:
            typer.echo(str(self.program.precision))
        typer.echo(self.program.code)
        for line in self.figures.lines() if self.figures else ():
            typer.echo(line)
        if self.throughput is not None:
            typer.echo(str(self.throughput))
        for comparison in self.compared:
            typer.echo(printable(str(comparison)))
        if self.dumped:
            typer.echo(f"{self.dumped} values written")
        header = ("options", "best run", "speed")
        show_table("options that were tried", header, rows_of(self.tried))
        if self.profile is not None:
            typer.echo(str(self.profile))


def _beginning(value: Array) -> str:
    flat = value.reshape(-1)
    wide = flat if value.dtype.kind == "c" else np.asarray(flat[:SHOWN], np.float64)
    shown = ", ".join(f"{v:.6g}" for v in wide[:SHOWN])
    return f"{shown}, ..." if flat.size > SHOWN else shown
