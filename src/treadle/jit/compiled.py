"""`jit.compile`: a function whose body runs once per signature, and afterwards is one program."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from itertools import chain
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

import numpy as np

from treadle.autodiff.tape import Tape
from treadle.base import tree
from treadle.base.errors import TraceError
from treadle.base.modes import ACTIVE, LOCAL
from treadle.base.spelling import refuse
from treadle.engine.execute import ProgramInstance, Runner, Timeline
from treadle.engine.execute.counters import Counters
from treadle.engine.options import Options
from treadle.engine.phases import PhasedRunner, Phases
from treadle.graph.ir import Graph
from treadle.inspect import Inspected
from treadle.jit.binding import StateChanged
from treadle.jit.capture import ManagerInside
from treadle.jit.choosing import CAST, RECORDED, Captures, name_of
from treadle.jit.dynamic import Dynamic, checked_axes
from treadle.jit.order import agree_on_order
from treadle.jit.ranges import ranges_of, to_text
from treadle.jit.recaptures import MANY, tell_of_many
from treadle.jit.recorded import call_recorded
from treadle.jit.variants import Variant
from treadle.tensor import Tensor

if TYPE_CHECKING:
    from treadle.inspect.profile import Profile

P = ParamSpec("P")
R = TypeVar("R")

MOST_VARIANTS = 64
"""Captured signatures that one function keeps; the oldest goes first."""


class Compiled(Generic[P, R]):
    """A function that runs as a native program; made by `jit.compile`."""

    def __init__(self, function: Callable[P, R], options: Options, dynamic: Dynamic = None) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._options = options
        self._dynamic = checked_axes(dynamic)
        self._captures = Captures(function, options, self._dynamic)
        self._variants: dict[Any, list[Variant]] = {}
        self._kept = 0
        self._lock = threading.RLock()
        self._runs = False
        self._latest: Any = None
        self._told = False

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the program of these arguments, which is made first where there is none."""
        tape = None
        if ACTIVE.count:
            if LOCAL.capture is not None:  # The ops become part of the outer program.
                return self._function(*args, **kwargs)
            tape = LOCAL.hook if isinstance(LOCAL.hook, Tape) else None
        key, leaves = signature(args, kwargs)
        if ACTIVE.count:
            key, leaves = under_casting(key, leaves)
        if tape is not None:
            recorded: R = self._recorded(tape, key, leaves, args, kwargs)
            return recorded
        for variant in self._variants.get(key, ()):
            if variant.holds(leaves):
                break
        else:
            variant = self._capture(key, leaves, args, kwargs, runs=True)
        if not self._runs:
            self._agree(variant)
        try:
            result: R = variant.binding()(leaves)
        except StateChanged:  # Found out here, so that the usual call need not look for it.
            result = self._capture(key, leaves, args, kwargs).binding()(leaves)
        return result

    def _recorded(self, tape: Tape, key: Any, leaves: list[Any], args: Any, kwargs: Any) -> Any:
        """A call that a tape has to differentiate."""
        if tape.watch is not None:  # Somebody looks at every op.
            return self._function(*args, **kwargs)
        key = (RECORDED, key)
        for variant in self._variants.get(key, ()):
            if variant.valid(leaves):
                break
        else:
            try:
                variant = self._capture(key, leaves, args, kwargs)
            except ManagerInside:
                return self._function(*args, **kwargs)
        if variant.captured.places:  # The gradient of a graph knows nothing of devices.
            return self._function(*args, **kwargs)
        if not self._runs:
            self._agree(variant)
        return call_recorded(variant.binding(), variant.rule, variant.extents, tape, leaves)

    def _agree(self, variant: Variant) -> None:
        """Agree on the order of messages with the groups' other processes, before the first run."""
        agree_on_order(variant.captured.graph)
        self._runs = True

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the compiled method of an instance; one program per instance, kept with it."""
        if instance is None:
            return self
        name = f"_compiled_{name_of(self._function)}"
        bound = instance.__dict__.get(name)
        if bound is None:
            method = MethodType(self._function, instance)
            bound = instance.__dict__[name] = Compiled(method, self._options, self._dynamic)
        return bound

    def _capture(
        self, key: Any, leaves: list[Any], args: Any, kwargs: Any, *, runs: bool = False
    ) -> Variant:
        with self._lock:
            for variant in self._variants.get(key, ()):
                if variant.valid(leaves):  # Another thread was quicker.
                    return variant
            variant = self._captures.variant(key, leaves, args, kwargs, runs=runs)
            if self._captures.count > MANY and not self._told:
                self._told = True
                tell_of_many(name_of(self._function), self._latest, key, self._captures.pins)
            self._latest = key
            kept = self._variants.setdefault(key, [])
            kept.append(variant)
            self._kept += 1
            self._trim()
            return variant

    def _trim(self) -> None:
        while self._kept > MOST_VARIANTS:
            oldest = next(iter(self._variants))
            self._variants[oldest].pop(0)
            self._kept -= 1
            if not self._variants[oldest]:
                del self._variants[oldest]

    # -- looking inside --------------------------------------------------------------------

    def graph(self, *args: P.args, **kwargs: P.kwargs) -> Graph:
        """The captured graph: all types are inferred; nothing is rewritten, compiled or run.

        Dynamic axes are symbolic in it. `engine.graph_json` writes it for other tools.
        """
        return self.variant(args, kwargs).graph

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Inspected:
        """The program for these arguments, captured and optimized but not compiled; nothing runs.

        The result's `captured`, `prepared` and `optimized` are graphs, which print as text.
        """
        program = self.variant(args, kwargs).inspected
        program.lower()
        return program

    def compile(self, *args: P.args, **kwargs: P.kwargs) -> Inspected:
        """The program for these arguments, compiled and ready; nothing runs."""
        variant = self.variant(args, kwargs)
        variant.binding()
        return variant.inspected

    @overload
    def explain(
        self, *args: Any, form: Literal["text"] = "text", full: bool = False, **kwargs: Any
    ) -> str: ...
    @overload
    def explain(
        self, *args: Any, form: Literal["json"], full: bool = False, **kwargs: Any
    ) -> dict[str, Any]: ...

    def explain(
        self,
        *args: Any,
        form: Literal["text", "json"] = "text",
        full: bool = False,
        **kwargs: Any,
    ) -> str | dict[str, Any]:
        """Explain the program: stages, groups, kernels, memory, streams.

        Measured times are there once the program has been profiled. Programs that serve many
        extents are listed behind it: their ranges, guards, and the extents that they have met.

        Args:
            args: of the function; without any, the program of the signature captured last.
            form: "text" for people; "json" for the same and more as plain data.
            full: in the text, every group, op and pass in a row of its own.
            kwargs: of the function.

        Raises:
            TypeError: arguments are missing, and the function has not been called before.
        """
        program = self._known(args, kwargs).inspected
        families = chain.from_iterable(self._captures.families.values())
        ranges = ranges_of(families, self.variants)
        if form == "json":
            return {**program.data(), "ranges": ranges} if ranges else program.data()
        return "\n\n".join(filter(None, (program.explained(full=full), to_text(ranges))))

    def profile(
        self,
        *args: Any,
        path: str | os.PathLike[str] | None = None,
        repeats: int = 10,
        **kwargs: Any,
    ) -> Profile | Timeline:
        """Run the program a few times and measure every kernel; state stays as it is.

        Args:
            args: of the function; they may be left out if it takes none.
            path: where to write the typical run as a trace, which https://ui.perfetto.dev opens.
            repeats: how many runs are measured; one more comes first.
            kwargs: of the function.

        Returns:
            Median times by kernel, which print as a table. For programs of devices without a
            compiler, or of several devices: the quickest run, with the time of every part and copy.

        Raises:
            EngineError: there is nothing to repeat.
            OSError: the file cannot be written.
        """
        variant = self.variant(args, kwargs)
        _, leaves = under_casting(*signature(args, kwargs))
        found = variant.inspected.profile(variant.binding().payloads(leaves).arrays, repeats)
        if path is not None:
            found.save(path)
        return found

    def _known(self, args: Any, kwargs: Any) -> Variant:
        """The program for these arguments; without any, the one captured last."""
        if args or kwargs or not self._variants:
            return self.variant(args, kwargs)
        return self.variants[-1]

    def variant(self, args: Any, kwargs: Any) -> Variant:
        """The program for these arguments, captured if it is not known."""
        key, leaves = under_casting(*signature(args, kwargs))
        for variant in self._variants.get(key, ()):
            if variant.valid(leaves):
                return variant
        return self._capture(key, leaves, args, kwargs)

    @property
    def counters(self) -> Counters:
        """Counters of all runs of the programs that are kept, at their border.

        Sink mode counts here as well; gradients that a manager outside takes do not.
        """
        runners = [v.runner for v in self.variants]
        return sum((r.counters for r in {_shared(r) for r in runners if r is not None}), Counters())

    @property
    def captures(self) -> int:
        """Number of times that the body ran to be captured."""
        return self._captures.count

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Every signature captured so far that is still kept."""
        return tuple(v for kept in self._variants.values() for v in kept)


def _shared(runner: Runner) -> Runner | Phases:
    """Return the part of a runner that programs of other extents have in common."""
    if isinstance(runner, ProgramInstance):
        return runner.executor
    return runner.phases if isinstance(runner, PhasedRunner) else runner


def signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return the key that a program specializes on, and the flattened arguments."""
    if not kwargs:
        try:  # Tensors only, as a rule.
            key = tuple([(a._kind, a._data.shape) for a in args])
            if len(args) > 1 and len(set(map(id, args))) < len(args):
                key = _aliased(key, args)
            return key, [*args]
        except AttributeError:
            pass
    leaves, shape = tree.flatten((args, kwargs))
    parts: list[Any] = []
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, np.ndarray):
            leaves[i] = leaf = Tensor(leaf)
        if isinstance(leaf, Tensor):
            parts.append((leaf._kind, leaf._data.shape))
        else:
            parts.append((type(leaf), _hashable(leaf)))
    key = _aliased(parts, leaves)
    if not kwargs and all(isinstance(a, Tensor | np.ndarray) for a in args):
        return key, leaves  # As above: arrays share the programs of tensors.
    return (shape, key), leaves


def under_casting(key: Any, leaves: list[Any]) -> tuple[Any, list[Any]]:
    """A signature that tells programs of different precisions apart."""
    if ACTIVE.count and LOCAL.casting is not None:
        return (CAST, LOCAL.casting.key, key), leaves
    return key, leaves


def _aliased(parts: Sequence[Any], leaves: Sequence[Any]) -> tuple[Any, ...]:
    """The parts of a signature; a tensor that was passed before has its first place, too."""
    first: dict[int, int] = {}
    found = []
    for i, (part, leaf) in enumerate(zip(parts, leaves, strict=True)):
        known = first.setdefault(id(leaf), i) if isinstance(leaf, Tensor) else i
        found.append(part if known == i else (*part, known))
    return tuple(found)


def _hashable(leaf: Any) -> Any:
    if isinstance(leaf, float | complex):
        return repr(leaf)  # The zeros differ, and NaN is found again.
    try:
        hash(leaf)
    except TypeError:
        raise TraceError(
            "jit.compile",
            f"an argument of type {type(leaf).__name__} is neither a tensor nor hashable",
            hint="pass tensors, arrays, numbers, strings, or lists, tuples and dicts of them",
        ) from None
    return leaf


@overload
def compile(function: Callable[P, R], /) -> Compiled[P, R]: ...
@overload
def compile(
    *,
    level: int = 2,
    fast: bool = False,
    dynamic: Dynamic = None,
    options: Options | None = None,
) -> Callable[[Callable[P, R]], Compiled[P, R]]: ...


def compile(
    function: Callable[P, R] | None = None,
    /,
    *,
    level: int = 2,
    fast: bool = False,
    dynamic: Dynamic = None,
    options: Options | None = None,
    **others: Any,
) -> Any:
    """Make a function run as one native program: forward, backward and update together.

    The body runs when a new signature (structure, shapes, element types and plain values of the
    arguments) is met; afterwards the program alone runs. Tensors that the function reaches without
    being passed them (parameters, buffers, optimizer state) are read at each call and written
    back if the function rebinds them; learning rates and random states are read at each call.
    Python side effects happen at capture only. A gradient slot that the function fills is filled
    at each call.

    Inside another compiled function the ops join its program. While a `GradManager` records, the
    call is one op to it, whose gradient is compiled, too, and computes forward values anew; a step
    that holds its own manager, from record to update, needs no such repetition.

    Args:
        function: what to compile; without it, `compile` returns a decorator.
        level: 0 runs every op as it stands, 2 fuses by modelled cost.
        fast: allow rewrites that hold in real arithmetic only.
        dynamic: axes whose extents may change without the body running again: for arguments by
            number, names of axes by number, as in `{0: {0: "batch"}, 1: {0: "batch"}}`. Inside
            the function such an extent is a symbol. A question about one is answered by the call
            that is captured, and guards the program; its number makes one for each extent.
            None: those that are seen to change, from their second extent on (of an imported model,
            those that it declares to be open). True: all axes of arguments, from the first call
            on. False: none; each shape is captured and compiled by itself.
        options: all options in one value, in place of level and fast.
        others: none are known; a `TypeError` says what stands in the place of PyTorch's.

    Returns:
        A callable with the methods `lower`, `compile` and `explain`.

    Raises:
        TypeError: there is no function, or a keyword is not known.
        ShapeError: `dynamic` is something else.
        TraceError: when called: the function's course depends on values of tensors.

    Example:
        >>> import treadle as mge
        >>> @mge.jit.compile
        ... def scaled(x, y):
        ...     return x * 2 + y
        >>> print(scaled(mge.tensor([1.0, 2.0]), mge.tensor([1.0, 1.0])))
        Tensor([3. 5.], device=xpux:0)
    """
    refuse("compile", others, ("level", "fast", "dynamic", "options"))
    chosen = options or Options(level=level, fast=fast)
    if function is None:
        return lambda wrapped: Compiled(wrapped, chosen, dynamic)
    if not callable(function):
        raise TypeError(f"compile takes a function or a module, got {type(function).__name__}")
    return Compiled(function, chosen, dynamic)


__all__ = ["Compiled", "compile"]
