"""Models whose extents the clients choose, within ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from treadle import jit
from treadle.base.array import Array
from treadle.base.errors import LoadError, ShapeError, TreadleError
from treadle.base.log import get_logger
from treadle.engine.extents.cells import among
from treadle.engine.options import Options
from treadle.engine.package.offline import OfflineModel
from treadle.jit.family import Member
from treadle.serve.datatypes import NAMES
from treadle.serve.joining import Arrays, Padded, PaddedRows, Rows
from treadle.serve.models import ends_of, one_extent
from treadle.serve.protocol import RequestRefusal
from treadle.serve.trial import Shapes, are_joinable, made_up, price_of_runs
from treadle.tensor import Tensor

Results = list[tuple[tuple[int, ...], np.dtype[Any]]]
"""Shapes and element types of results."""
Extents = Mapping[str, int]
"""By the name of the axis."""
_MOST_SAMPLES, _MOST_FAILURES = 2048, 16
"""Extents for which programs are made before the port opens, and how many may be refused."""
_TRIED = 4
"""Requests of several lengths that are tried together."""


class ServedAxis(NamedTuple):
    """An extent that clients choose: its name, and its range, both ends inclusive.

    Ranges with programs of their own begin at `edges`.
    """

    name: str
    low: int
    high: int
    edges: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"

    @property
    def extent(self) -> str | jit.Extent:
        """The axis as `jit.compile` takes it."""
        if not self.edges:
            return self.name
        return jit.Extent(self.name, self.low, self.high, edges=self.edges)


class ServedInput(NamedTuple):
    """An input: its name, element type, and extents."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | ServedAxis, ...]

    def at(self, extents: Mapping[str, int]) -> tuple[int, ...]:
        """Return its shape at extents by name."""
        return tuple(extents[d.name] if isinstance(d, ServedAxis) else d for d in self.shape)

    def __str__(self) -> str:
        return f"{self.name} [{', '.join(map(str, self.shape))}]"


class Programs(Protocol):
    """Runs arrays of any extents.

    Attributes:
        are_made: whether there are all programs that there will be.
    """

    are_made: bool

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs.

        Raises:
            Refusal: the model does not take these extents.
        """
        ...

    def prepare(self, shapes: Shapes) -> bool:
        """Make the program for inputs of these shapes; return whether other extents share it.

        Raises:
            TreadleError: the model does not take these extents.
        """
        ...


class RangedFunction:
    """A function of tensors, compiled for all extents of some axes.

    Args:
        name: of the model.
        function: of tensors, as many as there are inputs, to one or several.
        inputs: what it takes; axes of one name have equal extents.
        options: of the compilation.
    """

    are_made = False

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: Sequence[ServedInput],
        options: Options | None = None,
    ) -> None:
        self._name, self._inputs = name, inputs
        names = {
            n: {a: d.extent for a, d in enumerate(i.shape) if isinstance(d, ServedAxis)}
            for n, i in enumerate(inputs)
        }
        dynamic = {n: axes for n, axes in names.items() if axes}
        self._function = jit.compile(dynamic=dynamic, options=options or Options())(function)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs.

        Raises:
            Refusal: an op of the model does not take these extents.
        """
        tensors = [Tensor(a, dtype=a.dtype) for a in arrays]
        try:
            found = self._function(*tensors)
        except ShapeError as error:
            raise _refused(error) from error
        results = found if isinstance(found, tuple) else (found,)
        if not all(isinstance(y, Tensor) for y in results):
            kinds = ", ".join(type(y).__name__ for y in results)
            raise LoadError(self._name, "a result is not a tensor", saw=kinds)
        return [y.numpy() for y in results]

    def prepare(self, shapes: Shapes) -> bool:
        """Make the program for inputs of these shapes; return whether other extents share it."""
        ends = zip(shapes, self._inputs, strict=True)
        zeros = tuple(Tensor(np.zeros(shape, i.dtype), dtype=i.dtype) for shape, i in ends)
        return isinstance(self._function.variant(zeros, {}), Member)


class Filed:
    """A file that was compiled for ranges.

    Args:
        model: of the file, with native code that runs here.
    """

    are_made = True

    def __init__(self, model: OfflineModel) -> None:
        self._model = model

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs.

        Raises:
            Refusal: the file has no program for these extents.
        """
        try:
            return list(self._model.run(arrays).values())
        except ShapeError as error:
            raise _refused(error) from error

    def prepare(self, shapes: Shapes) -> bool:
        """Return whether the file has a program for inputs of these shapes."""
        return self._model.results(shapes) is not None


def _refused(error: ShapeError) -> RequestRefusal:
    return RequestRefusal(400, f"the model does not take these extents: {error.problem}")


class RangedModel:
    """A model that serves all extents of some ranges, by a handful of programs.

    Programs are made when it is loaded, for all extents where these are few, else for some of each
    cell (`engine.extents.cells`).

    Args:
        name, version: in its address.
        programs: run it.
        inputs: what it takes; axes of one name have equal extents.
        outputs: names of its results.
        most: rows of requests that are joined.
        pads: by the name of an input that says what is padding, what it holds there; the other
            inputs hold 0. It is a mask along the extents that may differ, or has the lengths of
            rows. Requests of several lengths are joined.

    Attributes:
        inputs, outputs: as clients see them; extents that differ are open.
        notes: what whoever starts the server should know.
        joining: makes one run of several requests.

    Raises:
        LoadError: an element type is none of the protocol's, the ends of ranges have no program,
            or what says what is padding has no extent that may differ.
    """

    def __init__(
        self,
        name: str,
        version: str,
        programs: Programs,
        inputs: Sequence[ServedInput],
        outputs: Sequence[str],
        most: int = 1,
        pads: Mapping[str, float] | None = None,
    ) -> None:
        self.name, self.version, self.notes = name, version, list[str]()
        self._given = tuple(inputs)
        self._axes = {d.name: d for i in inputs for d in i.shape if isinstance(d, ServedAxis)}
        self._pads = pads or {}
        padded = self._padded()
        self._programs = programs
        extents, made = self._ready()
        self.inputs = ends_of(
            [(i.name, i.dtype) for i in inputs], [self._shapes(e) for e in extents]
        )
        types = [dtype for _, dtype in made[0]]
        shapes = [tuple(shape for shape, _ in results) for results in made]
        self.outputs = ends_of(list(zip(outputs, types, strict=True)), shapes)
        for end in (*self.inputs, *self.outputs):
            if end.dtype not in NAMES:
                raise LoadError(name, f"{end.name} is {end.dtype}, which the protocol lacks")
        seen = dict(zip(map(self._shapes, extents), shapes, strict=True))
        self._most = self._join(most, seen, padded)
        self.joining = self._joining(padded) if self._most > 1 and padded else Rows()

    @property
    def most(self) -> int:
        """The most rows of one run; 1 where requests are not joined."""
        return self._most

    def rows(self, arrays: Sequence[Array]) -> int:
        """Return the number of rows of a request; 0 if it runs alone.

        Raises:
            Refusal: its extents are outside of the ranges, or differ where they should be equal.
        """
        found: dict[str, int] = {}
        for given, array in zip(self._given, arrays, strict=True):
            fits = len(given.shape) == array.ndim
            for wanted, extent in zip(given.shape, array.shape, strict=False):
                if isinstance(wanted, ServedAxis):
                    fits = fits and wanted.low <= extent <= wanted.high
                    fits = fits and found.setdefault(wanted.name, extent) == extent
                else:
                    fits = fits and wanted == extent
            if not fits:
                known = "; ".join(map(str, self._given))
                saw = " ".join(str(list(array.shape)) for array in arrays)
                raise RequestRefusal(400, f"there is no program for {saw}, but for {known}")
        rows = int(arrays[0].shape[0]) if self._most > 1 else 0
        return rows if rows <= self._most else 0

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs.

        Raises:
            Refusal: an op of the model does not take these extents.
        """
        return self._programs.run(arrays)

    # -- before the port opens -----------------------------------------------------------------

    def _shapes(self, extents: Extents) -> Shapes:
        return tuple(i.at(extents) for i in self._given)

    def _ready(self) -> tuple[list[Extents], list[Results]]:
        """Run zeros at both ends of the ranges, and return these, and the results' descriptions."""
        axes = self._axes.items()
        both: list[Extents] = [{n: a.low for n, a in axes}, {n: a.high for n, a in axes}]
        made = []
        for extents in both:
            try:
                made.append(self._described(extents))
            except (TreadleError, RequestRefusal) as error:
                problem = getattr(error, "problem", str(error))
                saw = ", ".join(f"{n} = {x}" for n, x in extents.items())
                raise LoadError(self.name, f"it cannot be run: {problem}", saw=saw) from error
        if self._axes and not self._programs.are_made and not self._has_programs():
            self.notes.append("some extents may need programs that are made at their first request")
        return both, made

    def _has_programs(self) -> bool:
        """Make programs for what lies between the ends, and return whether they serve all of it."""
        failures, each = 0, int(_MOST_SAMPLES ** (1 / len(self._axes)))
        if prod(axis.high - axis.low + 1 for axis in self._axes.values()) <= _MOST_SAMPLES:
            each = _MOST_SAMPLES
        between = [among(axis.low, axis.high, each) for axis in self._axes.values()]
        for numbers in product(*between):
            extents = dict(zip(self._axes, numbers, strict=True))
            try:
                shared = self._programs.prepare(self._shapes(extents))
            except TreadleError:  # Multiples of 32, for one, may be all that it takes.
                get_logger("serve").debug("%s takes no %s", self.name, extents, exc_info=True)
                failures += 1
                if failures > _MOST_FAILURES:
                    return False
                continue
            if max(numbers) > 1 and not shared:
                return False  # Each extents have a program of their own.
        return all(
            len(b) > a.high - a.low for a, b in zip(self._axes.values(), between, strict=True)
        )

    def _described(self, extents: Extents) -> Results:
        shapes = zip(self._shapes(extents), self._given, strict=True)
        return [(y.shape, y.dtype) for y in self.run([np.zeros(s, i.dtype) for s, i in shapes])]

    def _join(self, most: int, seen: Mapping[Shapes, Shapes], padded: Sequence[str]) -> int:
        """The most rows that are joined: 1 where it may not be."""
        axes = {i.shape[0] if i.shape else 0 for i in self._given}
        axis = axes.pop()
        if most == 1 or axes or not isinstance(axis, ServedAxis) or axis.low != 1 or axis.high == 1:
            return 1
        rows = min(most, axis.high)
        if all(one_extent((*given, *made)) for given, made in seen.items()):
            generator = np.random.default_rng(0)
            requests = [self._made_up(generator, padded) for _ in range(rows)]
            if are_joinable(self.run, Rows(), requests):
                return rows
        self.notes.append("rows of a batch are not independent: requests are not joined")
        return 1

    # -- several lengths -----------------------------------------------------------------------

    def _padded(self) -> list[str]:
        """Names of the axes along which requests are padded.

        Raises:
            LoadError: there is none.
        """
        known = {
            i.name: [d.name for d in i.shape[1:] if isinstance(d, ServedAxis)] for i in self._given
        }
        unknown = self._pads.keys() - known.keys()
        if unknown:
            problem = f"there is no input {', '.join(sorted(unknown))}"
            raise LoadError(self.name, problem, hint=f"it has {', '.join(known)}")
        own = [axis for name in self._pads for axis in known[name]]
        found = own or [axis for axes in known.values() for axis in axes]
        if self._pads and not found:
            raise LoadError(
                self.name,
                f"{', '.join(self._pads)} pads nothing: no extent behind axis 0 may differ",
                hint="give it a range: --shape x=1..8,1..512",
            )
        return list(dict.fromkeys(found)) if self._pads else []

    def _joining(self, axes: Sequence[str]) -> Rows:
        """Joins requests of several lengths where that leaves their results alone."""
        try:
            outputs = self._padded_outputs(axes)
        except (TreadleError, RequestRefusal) as error:
            self.notes.append(f"lengths do not differ by themselves, so they are apart: {error}")
            return Rows()
        if outputs is None:
            return Rows()
        inputs = [Padded(_along(i.shape, axes), self._pads.get(i.name, 0)) for i in self._given]
        joining = PaddedRows(inputs, outputs)
        generator, count = np.random.default_rng(0), min(self._most, _TRIED)
        requests = [self._made_up(generator, axes, i / (count - 1)) for i in range(count)]
        if are_joinable(self.run, joining, requests):
            joining.price = price_of_runs(self.run, requests[0], requests[-1])
            return joining
        self.notes.append(
            f"padding that {', '.join(self._pads)} tells of changes results: requests of several "
            "lengths are not joined"
        )
        return Rows()

    def _padded_outputs(self, axes: Sequence[str]) -> list[Padded] | None:
        """The outputs with the axes that are as long as the inputs; None where one is not."""
        low = {n: a.low for n, a in self._axes.items()}
        least = [shape for shape, _ in self._described(low)]
        found: list[dict[int, str]] = [{} for _ in least]
        for name in axes:
            high = self._axes[name].high
            longer = [shape for shape, _ in self._described({**low, name: high})]
            for place, (short, long) in enumerate(zip(least, longer, strict=True)):
                for axis, (one, other) in enumerate(zip(short, long, strict=True)):
                    if one == other:
                        continue
                    if (one, other) != (low[name], high):
                        self.notes.append(
                            f"a result has {one} and {other} elements on axis {axis} for lengths "
                            f"of {low[name]} and {high}: those are not joined"
                        )
                        return None
                    found[place][axis] = name
        return [Padded(along) for along in found]

    def _made_up(
        self, generator: np.random.Generator, axes: Sequence[str], along: float = 0
    ) -> Arrays:
        """A request of one row; its lengths lie between the least, 0, and the largest, 1."""
        extents = {n: a.low for n, a in self._axes.items()}
        for name in axes:
            low, high = self._axes[name].low, self._axes[name].high
            extents[name] = low + round((high - low) * along)
        lengths = [extents[name] for name in axes]
        made = made_up(generator, self._shapes(extents), [i.dtype for i in self._given])
        for given, array in zip(self._given, made, strict=True):
            if given.name not in self._pads:
                continue
            if _along(given.shape, axes):
                array[...] = 0 if self._pads[given.name] else 1
            else:
                array[...] = lengths if array.shape[-1] == len(lengths) > 1 else lengths[0]
        return made


def _along(shape: Sequence[int | ServedAxis], axes: Sequence[str]) -> dict[int, str]:
    """The padded ones among the axes of an input."""
    named = {a: d.name for a, d in enumerate(shape) if isinstance(d, ServedAxis)}
    return {a: name for a, name in named.items() if name in axes}


def load_ranged(
    name: str,
    version: str,
    function: Callable[..., Any],
    inputs: Sequence[tuple[str, np.dtype[Any], Sequence[Any]]],
    outputs: Sequence[str],
    most: int = 1,
    level: int = 2,
    pads: Mapping[str, float] | None = None,
) -> RangedModel:
    """Compile a function for ranges of extents.

    Args:
        name, version: in its address.
        function: of tensors.
        inputs: name, element type, and for each axis its extent, or (name, least, largest, edges),
            the last of which may be left out.
        outputs: names of its results.
        most: rows of one run; with 1 requests are not joined.
        level: of optimization.
        pads: as `RangedModel` takes them.

    Raises:
        LoadError: as `RangedModel`.
    """
    taken = [
        ServedInput(n, dtype, tuple(d if isinstance(d, int) else ServedAxis(*d) for d in shape))
        for n, dtype, shape in inputs
    ]
    programs = RangedFunction(name, function, taken, Options(level=level))
    return RangedModel(name, version, programs, taken, outputs, most, pads)


def load_filed(
    name: str,
    version: str,
    model: OfflineModel,
    most: int | None = None,
    pads: Mapping[str, float] | None = None,
) -> RangedModel:
    """Take a model that was compiled into its file for ranges, which are those of requests.

    Args:
        name, version: in its address.
        model: of a file, with native code that runs here.
        most: rows of one run; None for as many as the file takes, where its rows are apart.
        pads: as `RangedModel` takes them.

    Raises:
        LoadError: as `RangedModel`.
    """
    inputs = [
        ServedInput(
            port.name,
            port.dtype,
            tuple(
                d if isinstance(d, int) else ServedAxis(d, *model.ranges[d]) for d in port.pattern
            ),
        )
        for port in model.inputs
    ]
    first = inputs[0].shape[0] if inputs and inputs[0].shape else 1
    rows = first.high if most is None and isinstance(first, ServedAxis) else most or 1
    outputs = [port.name for port in model.outputs]
    return RangedModel(name, version, Filed(model), inputs, outputs, rows, pads)


__all__ = ["RangedModel", "ServedAxis", "ServedInput", "load_filed", "load_ranged"]
