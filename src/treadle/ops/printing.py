"""Looking at values while a program runs: prints, and places where a debugger opens.

Both run on the host, in program order, once for each time the program passes them. Nobody reads
their result; like collectives and checks they count as effects, so no pass drops, shares or
reorders them (`graph/analysis.py`).
"""

from __future__ import annotations

import ast
import string
import sys
from collections.abc import Iterator

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.types import TensorType
from treadle.ops.arg import Arg
from treadle.ops.op import BadSample, Op, Sample, op

_CONVERSIONS = {"r": repr, "a": ascii}


class PrintingOp(Op):
    """An op that shows values to people and has no result but `True`, which nobody reads."""

    operands = ("*xs",)
    dtypes = dt.ALL
    no_gradient = "shows values and computes nothing"

    def infer(self, *xs: TensorType) -> tuple[TensorType, ...]:
        return (TensorType(dt.bool_, (), xs[0].device if xs else ""),)


@op
class Print(PrintingOp):
    """Writes a line to standard output: `template` with one replacement field per operand.

    A format such as `{:.3f}` applies to every element of an array.
    """

    template: str

    name = "print"

    def infer(self, *xs: TensorType) -> tuple[TensorType, ...]:
        fields = [part for part in string.Formatter().parse(self.template) if part[1] is not None]
        if len(fields) != len(xs):
            problem = f"the template has {len(fields)} fields for {len(xs)} values"
            raise ShapeError(self.name, problem, saw=self.saw(xs), hint="write one {} per value")
        for (_, _, spec, conversion), x in zip(fields, xs, strict=True):
            try:
                _shown(np.ones((), x.dtype.numpy), spec or "", conversion)
            except (ValueError, TypeError) as error:
                raise DTypeError(
                    self.name,
                    f"the format {spec!r} does not fit {x.dtype.name}: {error}",
                    saw=self.saw(xs),
                    hint="use {} or a format of its kind of number, such as {:.3f} for floats",
                ) from error
        return super().infer(*xs)

    def text(self, xs: tuple[Array, ...]) -> str:
        """The line."""
        return "".join(self._parts(iter(xs)))

    def _parts(self, xs: Iterator[Array]) -> Iterator[str]:
        for literal, field, spec, conversion in string.Formatter().parse(self.template):
            yield literal
            if field is not None:
                yield _shown(next(xs), spec or "", conversion)

    def reference(self, *xs: Array) -> Array:
        # In one piece, since other threads and processes may write to the same terminal.
        sys.stdout.write(self.text(xs) + "\n")
        sys.stdout.flush()
        return np.asarray(True)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        x, n = Arg((2, 3), dt.float32), Arg((), dt.int32)
        return (
            Sample(cls("x = {}"), (Arg((2, 3)),), gradient=False),
            Sample(cls("{:.2f} of {!r}"), (x, n), gradient=False),
        )

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x = Arg((2,), dt.float32)
        return (
            BadSample(lambda: cls("{} {}"), (x,), ShapeError, "2 fields for 1 values"),
            BadSample(lambda: cls("{:d}"), (x,), DTypeError, "the format 'd' does not fit"),
        )


def _shown(x: Array, spec: str, conversion: str | None) -> str:
    """An array, or one number, as text."""
    one = x.ndim == 0
    if conversion is not None and conversion != "s":
        return format(str(x[()]) if one else _CONVERSIONS[conversion](x), spec)
    if one:
        return format(x[()], spec)
    return np.array2string(x, formatter={"all": lambda v: format(v, spec)}) if spec else str(x)


@op
class Pause(PrintingOp):
    """Opens Python's debugger at a line of the user's, where `names` stand for the operands.

    Attributes:
        names: of the operands, divided by commas.
        file, line: what the debugger shows.
        opens: whether it does; not where every op is run for a check of all of them.
    """

    names: str
    file: str = ""
    line: int = 1
    opens: bool = True

    name = "pause"

    def reference(self, *xs: Array) -> Array:
        if not self.opens:
            return np.asarray(True)
        # Copies: the program goes on with what it has.
        values = {n: x.copy()[()] for n, x in zip(self.names.split(","), xs, strict=False)}
        # Compiled as if it stood in the user's file, so that the debugger lists that place.
        body = ast.parse("breakpoint()\npass")
        ast.increment_lineno(body, self.line - 1)
        exec(compile(body, self.file or "<program>", "exec"), {"np": np, **values})
        return np.asarray(True)

    def infer(self, *xs: TensorType) -> tuple[TensorType, ...]:
        names = [n for n in self.names.split(",") if n]
        if len(names) != len(xs) or not all(n.isidentifier() for n in names):
            problem = f"{len(names)} names for {len(xs)} values"
            raise ShapeError(self.name, problem, saw=self.saw(xs), hint="name every value")
        return super().infer(*xs)

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        return (Sample(cls("x", opens=False), (Arg((2, 3)),), gradient=False),)

    @classmethod
    def bad_samples(cls) -> tuple[BadSample, ...]:
        x = Arg((2,), dt.float32)
        return (BadSample(lambda: cls("x,y"), (x,), ShapeError, "2 names for 1 values"),)
