"""Models as the server has them: compiled ahead for every batch size that it will run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import IndexRangeError, LoadError, TreadleError
from treadle.engine.options import Options
from treadle.engine.package.models import Model
from treadle.engine.package.offline import OfflineModel
from treadle.engine.phases import stages_of
from treadle.graph.ir import Value
from treadle.serve.datatypes import NAMES
from treadle.serve.joining import Rows
from treadle.serve.protocol import End, RequestRefusal
from treadle.serve.rows import programs_by_rows
from treadle.serve.trial import Program, Shapes, are_apart


class Servable(Protocol):
    """A model that requests can be put to.

    Attributes:
        name, version: in its address.
        inputs, outputs: as clients see them; extents that may differ are open.
        notes: what whoever starts the server should know.
        joining: makes one run of several requests.
    """

    name: str
    version: str
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    notes: list[str]
    joining: Rows

    @property
    def most(self) -> int:
        """The most rows of one run; 1 where requests are not joined."""

    def rows(self, arrays: Sequence[Array]) -> int:
        """Return the number of rows of a request that may be joined; 0 if it runs alone.

        Raises:
            Refusal: its shapes are none of the model's.
        """

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs."""


class ServedModel:
    """A model with a program for each of its shapes.

    Args:
        name, version: in its address.
        inputs, outputs: names and element types, in order.
        programs: by the shapes of the inputs, of one shape at least.
        most: rows of requests that are joined.
        notes: what whoever starts the server should know.
        untried: programs for other numbers of rows, each of which shares a plan with one of
            `programs`. These are run once when the model is loaded, and others are not.

    Attributes:
        inputs, outputs: as clients see them; extents that differ between programs are open.
        sizes: numbers of rows (extents of axis 0) that have a program, by what is behind axis 0;
            empty where requests are not joined.
    """

    joining = Rows()

    def __init__(
        self,
        name: str,
        version: str,
        inputs: Sequence[tuple[str, np.dtype[Any]]],
        outputs: Sequence[tuple[str, np.dtype[Any]]],
        programs: Mapping[Shapes, Program],
        most: int = 1,
        notes: Sequence[str] = (),
        untried: Mapping[Shapes, Program] | None = None,
    ) -> None:
        for end, dtype in (*inputs, *outputs):
            if dtype not in NAMES:
                raise LoadError(name, f"{end} is {dtype}, which the protocol does not know")
        self.name, self.version, self.notes = name, version, list(notes)
        self._untried = untried or {}
        self._programs = {**programs, **self._untried}
        self._dtypes = [dtype for _, dtype in inputs]
        results = {shapes: self._results(shapes) for shapes in programs}
        self.inputs = ends_of(inputs, list(self._programs))
        self.outputs = ends_of(outputs, list(results.values()))
        self.sizes = self._batches(results, most)

    @property
    def most(self) -> int:
        """The most rows of one run; 1 where requests are not joined."""
        return max((sizes[-1] for sizes in self.sizes.values()), default=1)

    def rows(self, arrays: Sequence[Array]) -> int:
        """Return the number of rows of a request; 0 if it runs alone.

        Raises:
            Refusal: there is no program for its shapes.
        """
        shapes = tuple(array.shape for array in arrays)
        sizes = self.sizes.get(row_shapes(shapes), ())
        if sizes and one_extent(shapes) and 1 <= shapes[0][0] <= sizes[-1]:
            return int(shapes[0][0])
        if shapes in self._programs:
            return 0
        if sizes:
            raise RequestRefusal(
                400, f"a request has 1 to {sizes[-1]} rows, not {_spelled(shapes)}"
            )
        known = "; ".join(map(_spelled, self._programs))
        raise RequestRefusal(400, f"there is no program for {_spelled(shapes)}, but for {known}")

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs; rows that have no program together are run in several turns."""
        shapes = tuple(array.shape for array in arrays)
        program = self._programs.get(shapes)
        if program is not None:
            return program(arrays)
        behind, rows = row_shapes(shapes), shapes[0][0]
        turns = []
        at = 0
        for size in _split(rows, self.sizes[behind]):
            part = [array[at : at + size] for array in arrays]
            turns.append(self._programs[tuple((size, *s) for s in behind)](part))
            at += size
        return [np.concatenate(parts) for parts in zip(*turns, strict=True)]

    # -- batches -------------------------------------------------------------------------------

    def _results(self, shapes: Shapes) -> Shapes:
        """Shapes of the results, of a run that warms the program up, too.

        Where zeros are not indices of the model's, nothing is known: a result without rows.
        """
        try:
            made = self._programs[shapes](self._zeros(shapes))
        except IndexRangeError:
            return ((),)
        return tuple(array.shape for array in made)

    def _zeros(self, shapes: Shapes) -> list[Array]:
        return [np.zeros(s, d) for s, d in zip(shapes, self._dtypes, strict=True)]

    def _batches(
        self, results: Mapping[Shapes, Shapes], most: int
    ) -> dict[Shapes, tuple[int, ...]]:
        found: dict[Shapes, list[int]] = {}
        for shapes, made in results.items():
            if one_extent((*shapes, *made)) and shapes[0][0] <= most:
                found.setdefault(row_shapes(shapes), []).append(shapes[0][0])
        joined = {}
        for behind, sizes in found.items():
            sizes.sort()
            if sizes[0] != 1 or len(sizes) == 1:
                continue
            if are_apart(self.run, behind, self._dtypes, sizes[-1]):
                more = [shapes[0][0] for shapes in self._untried if row_shapes(shapes) == behind]
                joined[behind] = tuple(sorted({*sizes, *more}))
            else:
                self.notes.append("rows of a batch are not independent: requests are not joined")
        return joined


def load_model(name: str, version: str, model: Model, most: int = 1, level: int = 2) -> ServedModel:
    """Compile a model for 1, 2, 3, ... rows up to a number of them, or as it is.

    Two rows and more share plans. A model that does not take all of these numbers is served for its
    own one alone, and a note says why.

    Args:
        name, version: in its address.
        model: with extents that are numbers.
        most: rows of one run; with 1 requests are not joined.
        level: of optimization.

    Raises:
        LoadError: it has no fixed shapes, or an element type that the protocol lacks.
    """
    ends = (*zip(model.inputs, model.graph.inputs, strict=True),)
    for end, value in ends:
        if not value.type.is_static:
            raise LoadError(
                name, f"input {end} is {value.type}", hint=f"give its shape: --shape {end}=1,3"
            )
    own = tuple(_shape(value) for _, value in ends)
    options, notes = Options(level=level), []
    graphs, shared = {own: model.graph}, dict[Shapes, Program]()
    tried: Collection[int] = ()
    if most > 1 and one_extent(own):
        one = _of_rows(own, 1)
        try:
            by_rows = programs_by_rows(model, most, options)
            graphs = {one: model.at(one)} | (graphs if own[0][0] > most else {})
            shared = {_of_rows(own, rows): found.run for rows, found in by_rows.items()}
            tried = {found.executor: rows for rows, found in by_rows.items()}.values()
        except TreadleError as error:
            rows = f"it takes {own[0][0]} and no other number of rows, so requests are not joined"
            notes.append(f"{rows}: {error.where}: {error.problem}")
    elif most > 1:
        notes.append("its inputs have no extent in common: requests are not joined")
    programs = {s: stages_of(graph, options=options).compile().run for s, graph in graphs.items()}
    warm = {_of_rows(own, rows) for rows in tried}
    return ServedModel(
        name,
        version,
        [(end, value.type.dtype.numpy) for end, value in ends],
        _typed(model.outputs, model.graph.outputs),
        {**{s: program for s, program in shared.items() if s in warm}, **programs},
        most,
        notes,
        {s: program for s, program in shared.items() if s not in warm},
    )


def load_compiled(
    name: str, version: str, model: OfflineModel, most: int | None = None
) -> ServedModel:
    """Take a model that was compiled into its file: its gears are what requests can have.

    Args:
        name, version: in its address.
        model: of a file.
        most: rows of one run; None for as many as the largest gear has.

    Raises:
        LoadError: it has an element type that the protocol lacks.
    """
    gears = [tuple(gear.values()) for gear in model.gears]
    notes = []
    if most is None:
        most = max((shapes[0][0] for shapes in gears if one_extent(shapes)), default=1)
    elif most > 1 and len(gears) == 1:
        notes.append("its file has code for one shape: requests are not joined")

    def program(arrays: Sequence[Array]) -> list[Array]:
        return list(model.run(arrays).values())

    return ServedModel(
        name,
        version,
        [(port.name, port.dtype) for port in model.inputs],
        [(port.name, port.dtype) for port in model.outputs],
        dict.fromkeys(gears, program),
        most,
        notes,
    )


def _typed(names: Sequence[str], values: Sequence[Value]) -> list[tuple[str, np.dtype[Any]]]:
    return [(n, v.type.dtype.numpy) for n, v in zip(names, values, strict=True)]


def _shape(value: Value) -> tuple[int, ...]:
    return tuple(int(d) for d in value.type.shape)


def _of_rows(own: Shapes, rows: int) -> Shapes:
    return tuple((rows, *shape[1:]) for shape in own)


def _split(rows: int, sizes: Sequence[int]) -> list[int]:
    """Rows as a sum of sizes, the largest first; 1 is one of them."""
    parts = []
    for size in reversed(sizes):
        count, rows = divmod(rows, size)
        parts += [size] * count
    return parts


def row_shapes(shapes: Shapes) -> Shapes:
    """Return the shapes of one row, which are behind axis 0."""
    return tuple(shape[1:] for shape in shapes)


def one_extent(shapes: Shapes) -> bool:
    """Return whether all have the same first extent."""
    return all(shapes) and len({shape[0] for shape in shapes}) == 1


def _spelled(shapes: Shapes) -> str:
    return " ".join(str(list(shape)) for shape in shapes)


def ends_of(
    named: Sequence[tuple[str, np.dtype[Any]]], shapes: Sequence[Shapes]
) -> tuple[End, ...]:
    """Ends with the extents that all programs agree on."""
    made = []
    for i, (name, dtype) in enumerate(named):
        own = [s[i] for s in shapes]
        if len(set(map(len, own))) != 1:
            raise LoadError(name, "its programs differ in rank", saw=", ".join(map(str, own)))
        extents = (set(along) for along in zip(*own, strict=True))
        made.append(End(name, dtype, tuple(e.pop() if len(e) == 1 else None for e in extents)))
    return tuple(made)


__all__ = ["Program", "Servable", "ServedModel", "load_compiled", "load_model"]
