"""Every exception Treadle raises on purpose, and the one format of their messages.

A message reads, in this order: the op (or file, or stage), what went wrong, what was seen, one
thing to try, and the user's line. Each class has an anchor of its own name in `docs/errors.md`.
"""

from __future__ import annotations

from typing import ClassVar, Self

from treadle.base.chinese import explanation, is_chinese
from treadle.base.loc import Loc, user_location


class TreadleError(Exception):
    """Base of all errors raised by Treadle.

    Args:
        where: the op, file, stage or object the error is about.
        problem: what is wrong, in one clause.
        saw: the types or values that were found.
        hint: one thing the user can try.
        at: the user's line; found from the call stack when left out.

    Attributes:
        code: of the class, for search; `docs/errors.md` lists them. Tracebacks end with it.
        translation: the problem and the hint in Chinese where that is the system's language.
        needs_run: True if only a run knows what was asked for, so that a function which asks can
            run op by op.
    """

    code: ClassVar[str] = "T00"
    needs_run = False

    def __init__(
        self, where: str, problem: str, *, saw: str = "", hint: str = "", at: Loc | None = None
    ) -> None:
        self.where = where
        self.problem = problem
        self.saw = saw
        self.hint = hint
        self.at = user_location() if at is None else at
        super().__init__(self._text())
        self.translation = explanation(self.code, problem, hint) if is_chinese() else ""
        # Notes, so that the message itself stays what it is about.
        for note in filter(None, (self.translation, f"  help: treadle help {self.code}")):
            self.add_note(note)

    def rename(self, where: str) -> None:
        """Name the function the user called, in place of the op that it ran."""
        self.where = where
        self.args = (self._text(),)

    def doubt(self, why: str) -> None:
        """Say that the problem cannot be ruled out, and why."""
        self.problem += f" ({why})"
        self.args = (self._text(),)

    def tell(self, what: str) -> None:
        """Say what was seen besides."""
        if what:
            self.saw = "; ".join(filter(None, (self.saw, what)))
            self.args = (self._text(),)

    def of_run(self) -> Self:
        """The same error, marked as one about what only a run knows."""
        self.needs_run = True
        return self

    def locate(self, at: Loc) -> None:
        """Point to the line where the op was captured, not to the one that runs the program."""
        self.at = at
        self.args = (self._text(),)

    def _text(self) -> str:
        lines = [f"{self.where}: {self.problem}"]
        lines += [f"  saw:  {self.saw}"] if self.saw else []
        lines += [f"  hint: {self.hint}"] if self.hint else []
        lines += [f"  at:   {self.at}"] if self.at else []
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        fields = type(self), self.where, self.problem, self.saw, self.hint, self.at
        return _rebuild, fields, self.__dict__


def _rebuild(
    cls: type[TreadleError], where: str, problem: str, saw: str, hint: str, at: Loc
) -> TreadleError:
    """Unpickle an error (keyword-only arguments need a function of their own)."""
    return cls(where, problem, saw=saw, hint=hint, at=at)


class ShapeError(TreadleError, ValueError, RuntimeError):
    """Shapes, axes or sizes do not fit the op."""

    code = "T01"


class DTypeError(TreadleError, TypeError):
    """A dtype does not fit the op, or a value does not fit a dtype."""

    code = "T02"


class DeviceError(TreadleError, ValueError, RuntimeError):
    """A device name is malformed, a device is missing, or devices are mixed."""

    code = "T03"


class DeviceLost(DeviceError):
    """A device is gone in the middle of work: reset, unplugged, its driver or process ended."""

    code = "T23"


class IndexRangeError(TreadleError, IndexError):
    """An index lies outside the axis it selects from."""

    code = "T04"


def out_of_range(op: str, index: int, low: int, high: int, saw: str = "") -> IndexRangeError:
    """Return the error for an index of an op that is not in low <= i < high, the extent."""
    problem = f"index {index} is out of range for an extent of {high}"
    return IndexRangeError(op, problem, saw=saw, hint=allowed_range(low, high))


def allowed_range(low: int, high: int) -> str:
    """The hint for an index that is not in low <= i < high."""
    return f"use {low} to {high - 1}" if high else "there are no elements"


class NumericError(TreadleError, ArithmeticError):
    """The numbers admit no result: a singular matrix, an iteration that does not converge."""

    code = "T05"


class NoGradient(TreadleError, RuntimeError):
    """A gradient was asked of an op that has none."""

    code = "T06"


class AutodiffError(TreadleError, RuntimeError):
    """A gradient manager was used out of order, or found a NaN in anomaly mode."""

    code = "T07"


class GraphError(TreadleError, ValueError):
    """A graph breaks the rules of the intermediate representation."""

    code = "T08"


class EditError(GraphError, AssertionError):
    """A traced module was edited or used in a way its graph does not allow."""

    code = "T16"


class EngineError(TreadleError, RuntimeError):
    """The engine or a session was used in a way it does not allow."""

    code = "T09"


class TraceError(TreadleError, RuntimeError):
    """A function cannot be captured, or a call differs from what was captured."""

    code = "T10"


class UnsupportedOp(TreadleError, NotImplementedError):
    """No engine can run this op on these types."""

    code = "T11"


class CompileError(TreadleError, RuntimeError):
    """A stage of the engine could not finish."""

    code = "T12"


class LoadError(TreadleError, RuntimeError):
    """An artifact or plug-in does not fit this machine or version."""

    code = "T13"


class CheckpointError(TreadleError, ValueError):
    """A saved file is damaged, hostile, newer than this version, or of another kind."""

    code = "T14"


class OutOfMemory(TreadleError, MemoryError):
    """A device could not provide the memory that was asked for."""

    code = "T15"


class Divergence(TreadleError, ArithmeticError):
    """An op's or layer's result on one device differs from another's, or is not finite."""

    code = "T24"
