"""Checks of ops of users: gradients against differences, and all that an op promises."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from treadle import jit
from treadle.autodiff import GradManager
from treadle.backends.foreign import guarded
from treadle.base import dtype as dt
from treadle.base.errors import NoGradient, NumericError, TreadleError
from treadle.functional import broadcast_to
from treadle.serialization.program import load_program, save_program
from treadle.tensor import Tensor

__all__ = ["check_gradient", "check_op"]

_STEPS = {dt.float64: (1e-5, 1e-5), dt.float32: (1e-2, 2e-2)}
"""Steps by which operands are moved, and tolerances of slopes, by element type."""
_COARSE = (6e-2, 2e-1)
_MOST = 1000
_LEVELS = (0, 1, 2, 3)
_THREADS = 4
_ROUNDINGS = {"float64": 1e-12, "complex128": 1e-12, "float32": 1e-5, "complex64": 1e-5}
_FILLS = (0x00, 0xFF, 0x5A)
"""Contents of memory before results are written: zeros, NaNs, numbers."""


def check_gradient(
    function: Callable[..., Any],
    *inputs: Any,
    step: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    order: int = 1,
    most: int = _MOST,
) -> None:
    """Compare the gradients of a function with central differences, and raise where they differ.

    Floating-point operands are converted to float64, unless the function refuses that. The results
    are projected on random numbers, so that one pass covers them all. Gradients are computed a
    second time from operands that are not contiguous, which must change nothing.

    Args:
        function: gives one tensor or several, and the same again for equal operands.
        inputs: what tensors are made of; those with floating-point elements are differentiated.
        step: by how much elements are moved; 1e-5 in float64, 1e-2 in float32.
        tolerance: the largest difference, as a part of the largest gradient (or of 1); 1e-5 in
            float64, 2e-2 in float32.
        seed: of the projection.
        order: 2 checks the gradients of the gradients, too, of functions whose backward can be
            differentiated.
        most: elements of each operand that are moved; random ones where there are more.

    Raises:
        NumericError: they differ, and where; an operand has no gradient; the function is not a
            function of its operands.
        NoGradient: the function cannot be differentiated as often as `order` says.
        ValueError: no operand or result has floating-point elements, or `order` is not 1 or 2.
    """
    if order not in (1, 2):
        raise ValueError(f"order is 1 or 2, not {order}")
    given = [x.detach() if isinstance(x, Tensor) else Tensor(x) for x in inputs]
    tensors = _widest(function, given)
    moved = [i for i, t in enumerate(tensors) if _is_float(t)]
    if not moved:
        raise ValueError("check_gradient takes an operand with floating-point elements")
    check = _Differences(function, tensors, moved, seed, most)
    coarsest = max((_scale(tensors[i]) for i in moved), key=lambda s: s[0])
    own_step, own_tolerance = step or coarsest[0], tolerance or coarsest[1]
    check.run(own_step, own_tolerance)
    if order == 2:
        slopes = _Differences(check.gradients, tensors, moved, seed + 1, most, "second gradient")
        slopes.run(own_step, 10 * own_tolerance)


def _is_float(x: Tensor) -> bool:
    return dt.as_dtype(x.dtype).kind == "float"


def _scale(x: Tensor) -> tuple[float, float]:
    return _STEPS.get(dt.as_dtype(x.dtype), _COARSE)


def _widest(function: Callable[..., Any], given: list[Tensor]) -> list[Tensor]:
    """The operands in float64 if the function takes them so, else as they are."""
    wide = [x.astype("float64") if _is_float(x) else x for x in given]
    try:
        function(*wide)
    except (TreadleError, TypeError):
        return given
    return wide


def _results(function: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    found = function(*inputs)
    return list(found) if isinstance(found, (tuple, list)) else [found]


class _Differences:
    """The slopes of a function's projected results, by its gradient and by differences."""

    def __init__(
        self,
        function: Callable[..., Any],
        tensors: list[Tensor],
        moved: list[int],
        seed: int,
        most: int,
        what: str = "gradient",
    ) -> None:
        self.function = function
        self.tensors = tensors
        self.moved = moved
        self.what = what
        self._most = most
        self._rng = np.random.default_rng(seed)
        self._weights: list[Any] = []
        for y in _results(function, tensors):
            is_float = _is_float(y)
            self._weights.append(self._rng.standard_normal(y.shape) if is_float else None)
        if all(w is None for w in self._weights):
            raise ValueError("check_gradient takes a function with floating-point results")

    def project(self, *inputs: Tensor) -> Tensor:
        """One number for all results."""
        pairs = zip(_results(self.function, inputs), self._weights, strict=True)
        terms = [(y * y.constant(np.asarray(w, y.dtype))).sum() for y, w in pairs if w is not None]
        total: Tensor = sum(terms[1:], terms[0])
        return total

    def gradients(self, *inputs: Tensor) -> list[Tensor]:
        """The gradients of that number, by the function's own rule."""
        own = [x * 1 if i in self.moved else x for i, x in enumerate(inputs)]
        with GradManager().attach([own[i] for i in self.moved]) as manager:
            manager.backward(self.project(*own))
        for i in self.moved:
            if own[i].grad is None:
                raise NumericError("check_gradient", f"operand {i} has no {self.what}")
        return [own[i].grad for i in self.moved]

    def run(self, step: float, tolerance: float) -> None:
        """Compare all of them."""
        if float(self.project(*self.tensors)) != float(self.project(*self.tensors)):
            raise NumericError(
                "check_gradient",
                "the function gives other results for equal operands",
                hint="make random numbers an operand; fill in all elements of the results",
            )
        found = [g.numpy().astype(np.float64) for g in self.gradients(*self.tensors)]
        strided = self.gradients(*map(_strided, self.tensors))
        for i, g, again in zip(self.moved, found, strided, strict=True):
            _compare(
                *(f"{self.what} of operand {i}", again.numpy(), g, tolerance),
                *(list(np.ndindex(g.shape)), "where operands are contiguous it is"),
            )
            places = self._places(g.shape)
            slopes = np.zeros(g.shape)
            for place in places:
                slopes[place] = self._slope(i, place, step)
            _compare(f"{self.what} of operand {i}", g, slopes, tolerance, places)

    def _places(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the elements that are moved."""
        every = list(np.ndindex(shape)) if np.prod(shape) <= self._most else []
        if every or not np.prod(shape):
            return every
        flat = self._rng.choice(int(np.prod(shape)), self._most, replace=False)
        return [tuple(map(int, np.unravel_index(i, shape))) for i in sorted(flat)]

    def _slope(self, number: int, place: tuple[int, ...], step: float) -> float:
        x = self.tensors[number].numpy()
        ends, at = [], []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            changed = [*self.tensors]
            changed[number] = Tensor(moved, dtype=x.dtype)
            ends.append(float(self.project(*changed)))
            at.append(float(moved[place]))
        return (ends[0] - ends[1]) / (at[0] - at[1])


def _compare(
    what: str,
    found: Any,
    wanted: Any,
    tolerance: float,
    places: Sequence[tuple[int, ...]],
    others: str = "differences give",
) -> None:
    """Raise where a gradient differs at some of these places, and say where it does most."""
    if not places:
        return
    scale = max(1.0, float(np.nan_to_num(np.abs(found)).max()))
    apart = np.array([abs(float(found[p]) - float(wanted[p])) / scale for p in places])
    apart[np.isnan(apart)] = np.inf
    wrong = int((apart > tolerance).sum())
    if wrong:
        worst = places[int(apart.argmax())]
        raise NumericError(
            "check_gradient",
            f"the {what} at {worst} is {float(found[worst]):g}, {others} {float(wanted[worst]):g}",
            saw=f"{wrong} of {len(places)} elements differ",
            hint="kinks near the inputs spoil differences; else look at the backward rule",
        )


# -- operands of all kinds -----------------------------------------------------------------------


def _strided(x: Tensor) -> Tensor:
    """An equal tensor whose elements lie apart."""
    if not x.ndim:
        return x
    wide = Tensor(np.repeat(x.numpy(), 2, axis=-1), dtype=x.dtype, device=x.device)
    return wide[..., ::2]


def _spread(x: Tensor) -> Tensor:
    """The first row of a tensor in all places."""
    return broadcast_to(x[:1], x.shape) if x.ndim and x.shape[0] else x


def _dense(x: Tensor) -> Tensor:
    return Tensor(np.ascontiguousarray(x.numpy()), dtype=x.dtype, device=x.device)


def _emptied(inputs: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The operands without elements: every extent in turn is 0 wherever it occurs."""
    for extent in dict.fromkeys(d for x in inputs for d in x.shape if d):
        shapes = [tuple(0 if d == extent else d for d in x.shape) for x in inputs]
        pairs = zip(inputs, shapes, strict=True)
        yield [Tensor(np.zeros(s, x.dtype), dtype=x.dtype, device=x.device) for x, s in pairs]


# -- whole ops -----------------------------------------------------------------------------------


def check_op(
    op: Callable[..., Any], *inputs: Any, gradient: bool = True, seed: int = 0
) -> dict[str, str]:
    """Try all that an op promises on some operands, and raise at the first thing that is wrong.

    Its results have the inferred types and are the same again, in threads at once, from operands
    that are not contiguous or broadcast; operands stay as they are; it takes operands without
    elements, or refuses them in words; it gives the same compiled at every level, traced, and out
    of a file; its gradient agrees with differences, compiled, too. Functions in C and C++ must
    fill in all of their results, and write nowhere beside them as far as that can be seen.

    Args:
        op: an instance of a `CustomOp`, what `custom.<name>(...)` gives, or any function of
            tensors alone.
        inputs: what tensors are made of.
        gradient: whether it is to have one; if not, none is asked for.
        seed: of the checks of gradients.

    Returns:
        For each check "passed", or why it does not apply.

    Raises:
        TreadleError: of the op itself.
        NumericError: a promise is broken; the message begins with the check's name.
    """
    tensors = [x.detach() if isinstance(x, Tensor) else Tensor(x) for x in inputs]
    return _Checks(op, tensors, seed).run(gradient)


class _Checks:
    def __init__(self, op: Callable[..., Any], tensors: list[Tensor], seed: int) -> None:
        self.op = op
        self.tensors = tensors
        self.seed = seed
        self.wanted: list[Any] = []

    def run(self, gradient: bool) -> dict[str, str]:
        """All checks, by name."""
        before = [x.numpy().copy() for x in self.tensors]
        with guarded(_FILLS[0]):  # first of all, as what writes elsewhere spoils the process
            self.wanted = self._arrays(self.op, self.tensors)
        for number, (x, was) in enumerate(zip(self.tensors, before, strict=True)):
            if x.numpy().tobytes() != was.tobytes():
                raise NumericError("check_op", f"operands: number {number} was written to")
        report = {"results": self._again()}
        for name, change in (("strided", _strided), ("broadcast", _spread)):
            changed = [change(x) for x in self.tensors]
            dense = self._arrays(self.op, [_dense(x) for x in changed])
            self._same(name, self._arrays(self.op, changed), dense)
            report[name] = "passed"
        report["empty"] = self._empty()
        report["threads"] = self._threads()
        for level in _LEVELS:
            compiled = jit.compile(self.op, level=level)  # type: ignore[call-overload]
            self._same(f"compiled at level {level}", self._arrays(compiled, self.tensors))
        report["compiled"] = "passed"
        traced = jit.trace(lambda *xs: self.op(*xs))
        for _ in range(2):
            self._same("traced", self._arrays(traced, self.tensors))
        report["traced"] = "passed"
        file = io.BytesIO()
        save_program(lambda *xs: self.op(*xs), file, *self.tensors)
        self._same("saved", self._arrays(load_program(io.BytesIO(file.getvalue())), self.tensors))
        report["saved"] = "passed"
        return report | (self._gradients() if gradient else {"gradient": "not asked for"})

    @staticmethod
    def _arrays(function: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Any]:
        return [y.numpy() for y in _results(function, inputs)]

    def _same(
        self, check: str, found: list[Any], wanted: list[Any] | None = None, exact: bool = False
    ) -> None:
        """Return whether results are these, by default those of the plain call; but for
        roundings.
        """
        wanted = self.wanted if wanted is None else wanted
        for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
            if a.dtype != b.dtype or a.shape != b.shape:
                raise NumericError(
                    "check_op",
                    f"{check}: result {number} is {a.dtype}{list(a.shape)}, "
                    f"in a plain call {b.dtype}{list(b.shape)}",
                )
            apart = np.argwhere(~_alike(a, b, exact))
            if len(apart):
                place = tuple(map(int, apart[0]))
                raise NumericError(
                    "check_op",
                    f"{check}: result {number} at {place} is {a[place]}, "
                    f"in a plain call {b[place]}",
                )

    def _again(self) -> str:
        """Equal calls give equal results, whatever was in the results' memory before."""
        for fill in _FILLS:
            with guarded(fill):
                self._same("called again", self._arrays(self.op, self.tensors), exact=True)
        return "passed"

    def _empty(self) -> str:
        refused: list[str] = []
        for emptied in _emptied(self.tensors):
            shapes = ", ".join(str(x.shape) for x in emptied)
            try:
                found = self._arrays(self.op, emptied)
            except TreadleError as error:
                refused.append(f"{shapes}: {error.problem}")
                continue
            except Exception as error:
                raise NumericError(
                    "check_op",
                    f"empty: operands of shapes {shapes} raise {type(error).__name__}: {error}",
                    hint="refuse them in infer, with a TreadleError, or compute what is right",
                ) from error
            compiled = jit.compile(lambda *xs: self.op(*xs))
            self._same(f"empty, of shapes {shapes}", self._arrays(compiled, emptied), found)
        return "refused: " + "; ".join(refused) if refused else "passed"

    def _threads(self) -> str:
        found: list[list[Any] | Exception] = []

        def call() -> None:
            try:
                found.append(self._arrays(self.op, self.tensors))
            except Exception as error:
                found.append(error)

        threads = [threading.Thread(target=call) for _ in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one in found:
            if isinstance(one, Exception):
                problem = f"threads: calls at once raise {type(one).__name__}: {one}"
                raise NumericError("check_op", problem) from one
            self._same("threads", one)
        return "passed"

    def _gradients(self) -> dict[str, str]:
        check_gradient(self.op, *self.tensors, seed=self.seed)
        moved = [i for i, t in enumerate(self.tensors) if _is_float(t)]
        differences = _Differences(self.op, self.tensors, moved, self.seed, _MOST)
        wanted = [g.numpy() for g in differences.gradients(*self.tensors)]
        for fill in _FILLS:
            with guarded(fill):
                again = [g.numpy() for g in differences.gradients(*self.tensors)]
            self._same("gradients computed again", again, wanted, exact=True)
        compiled = jit.compile(lambda *xs: differences.gradients(*xs))
        for i, g, own in zip(moved, compiled(*self.tensors), wanted, strict=True):
            tolerance = _scale(self.tensors[i])[1]
            places = list(np.ndindex(own.shape))
            what = f"gradient of operand {i}, compiled,"
            _compare(what, g.numpy(), own, tolerance, places, "in a plain call it is")
        try:
            check_gradient(self.op, *self.tensors, seed=self.seed, order=2)
        except NoGradient as error:
            return {"gradient": "passed", "second gradient": f"there is none: {error.problem}"}
        return {"gradient": "passed", "second gradient": "passed"}


def _alike(a: Any, b: Any, exact: bool) -> Any:
    """Compare elements: equal, or nearly equal."""
    dtype = dt.as_dtype(a.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        same = (a == b) | ((a != a) & (b != b))
        if exact or not dtype.is_inexact:
            return same
        wide = np.result_type(a.dtype, np.float32) if dtype.name != "bfloat16" else np.float32
        allowed = _ROUNDINGS.get(dtype.name, 2e-2)
        return same | np.isclose(a.astype(wide), b.astype(wide), allowed, allowed)
