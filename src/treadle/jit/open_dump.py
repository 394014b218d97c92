"""Dumped models for other sizes: the traced function once more, with symbols for its extents.

MegEngine's graphs infer shapes when they run, so a model that was dumped with one size of picture
takes others. Ours are made of types; what serves other extents is a second capture, in which every
extent of an argument is a symbol. What the function decides by them are guards, and those that it
asks the number of are that number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from treadle.base import tree
from treadle.base.errors import CompileError, TreadleError
from treadle.base.extent import Symbol
from treadle.base.guards import recording_guards
from treadle.base.log import get_logger
from treadle.base.shape import Shape
from treadle.base.symbol import Dim, Relation, evaluate, symbol
from treadle.engine.package.models import Model
from treadle.engine.package.open_graph import OpenGraph, fault_of_ones
from treadle.graph.evaluate import bound_extents, broken_guard, specialize
from treadle.graph.ir import Graph, lone_symbol
from treadle.graph.silent import silent
from treadle.jit.capture import capture
from treadle.jit.captured import CapturedCall, Output
from treadle.jit.dump import Weights, inference_graph, rewritten
from treadle.jit.naming import scoped
from treadle.ops.constant import Constant
from treadle.ops.control import Scan
from treadle.ops.creation import Creation
from treadle.ops.families import Elementwise, Movement
from treadle.tensor import Tensor, wrap


class ExampleCall(NamedTuple):
    """A call that a model was recorded from: how its arguments are nested, and what they were."""

    shape: tree.Tree
    leaves: tuple[Any, ...]


class _Given(NamedTuple):
    """A tensor that was passed, without its data."""

    kind: Any
    extents: tuple[int, ...]
    name: str

    def tensor(self) -> Tensor:
        """One like it."""
        made = wrap(np.zeros(self.extents, self.kind.dtype.numpy), self.kind)
        made.name = self.name
        return made


def asked(args: Any, kwargs: Any) -> ExampleCall:
    """Keep of a call all that recording it again takes."""
    leaves, shape = tree.flatten((args, kwargs))
    kept = [
        _Given(x._kind, tuple(x._data.shape), x.name) if isinstance(x, Tensor) else x
        for x in leaves
    ]
    return ExampleCall(shape, tuple(kept))


def _open_capture(
    function: Callable[..., Any],
    call: ExampleCall,
    captured: CapturedCall,
    name: str,
    inputs: Sequence[str],
) -> CapturedCall | None:
    """The same program with symbols for extents of the arguments; None where there is none.

    Args:
        function: runs once more, or twice where an extent of 1 has to be one.
        call: what the program was recorded from.
        captured: the program of that call, which the one with symbols is at its extents.
        name: of the program.
        inputs: names of the tensors among the arguments, after which symbols are called.
    """
    for ones in (True, False):
        shapes, extents = _opened(call, inputs, ones)
        if not extents or (not ones and _opened(call, inputs, True)[1] == extents):
            break
        with suppress(TreadleError, ValueError, TypeError, IndexError, AssertionError):
            found = _captured(function, call, name, shapes, extents)
            if _same(found, captured, _actual(call, shapes)):
                return found
    get_logger("jit").info("dump: %s has no program for other extents", name)
    return None


def _captured(
    function: Callable[..., Any],
    call: ExampleCall,
    name: str,
    shapes: dict[int, Shape],
    extents: dict[str, int],
) -> CapturedCall:
    leaves = [x.tensor() if isinstance(x, _Given) else x for x in call.leaves]
    args, kwargs = tree.unflatten(call.shape, leaves)
    with scoped() as kind:
        return capture(function, args, kwargs, name, shapes, kind, extents, every=True)


def _opened(
    call: ExampleCall, inputs: Sequence[str], ones: bool
) -> tuple[dict[int, Shape], dict[str, int]]:
    """Symbolic shapes of arguments, and extents for which the function is asked.

    Symbols begin at 2, since an extent of 1 may broadcast; if `ones`, those of 1 are symbols, too,
    and the function meets 2 in their place.
    """
    shapes: dict[int, Shape] = {}
    extents: dict[str, int] = {}
    tensors = [(i, leaf) for i, leaf in enumerate(call.leaves) if isinstance(leaf, _Given)]
    for (number, leaf), name in zip(tensors, inputs, strict=True):
        shape: list[Any] = []
        for axis, extent in enumerate(leaf.extents):
            if extent > 1 or (ones and extent == 1):
                made = f"{_word(name) or f'arg{number}'}_{axis}"
                extents[made] = max(extent, 2)
                shape.append(symbol(made, 2))
            else:
                shape.append(extent)
        shapes[number] = tuple(shape)
    return shapes, extents


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name) if name[:1].isalpha() else ""


def _actual(call: ExampleCall, shapes: dict[int, Shape]) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, shape in shapes.items():
        for extent, actual in zip(shape, call.leaves[number].extents, strict=True):
            if (named := lone_symbol(extent)) is not None:
                found[named.name] = actual
    return found


def _same(found: CapturedCall, captured: CapturedCall, extents: dict[str, int]) -> bool:
    """Return whether a program with symbols is another one at the extents of a call.

    Its guards hold there.

    Numbers that are constants in the one may be computed of extents in the other.
    """
    if found.sources != captured.sources or len(found.kinds) != len(captured.kinds):
        return False
    # One that met 2 in place of 1 may hold for 2 alone, beside an operand with as many elements.
    if broken_guard(found.graph.guards, extents) is not None:
        return False
    closed = specialize(found.graph, extents)
    if min(extents.values(), default=2) < 2 and fault_of_ones(closed, found.graph):
        return False
    return closed == captured.graph or _course(closed) == _course(captured.graph)


def _course(graph: Graph) -> list[Any]:
    """Ops that do more than arithmetic and movement, in order, and the types of the results.

    Extents that data decide have names of their own in each capture. A loop over an open axis may
    be one turn after the other where its extent is a number.
    """
    ends = [
        (v.type.dtype, tuple(d if isinstance(d, int) else None for d in v.type.shape))
        for v in graph.outputs
    ]
    return [*_named(graph), *map(str, ends)]


def _named(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        op = node.op
        if isinstance(op, Scan) and isinstance(op.length, int):
            for _ in range(op.length):
                yield from _named(cast(Graph, op.body))
        elif not isinstance(op, Constant | Creation | Elementwise | Movement):
            yield op.name


def _settled(graph: Graph) -> Graph | None:
    """The graph with numbers for the extents that can be one number only; None if all are."""
    numbers: dict[str, int] = {}
    for guard in graph.guards:
        known = _number(guard) if guard.kind == "==0" else None
        if known is not None:
            numbers[known[0].name] = known[1]
    made = specialize(graph, numbers) if numbers else graph
    if all(v.type.is_static for v in made.inputs):
        return None
    asked = [g for g in made.guards if g.truth() is None]
    kept = tuple(dict.fromkeys((*asked, *_told(graph, numbers))))
    return Graph(made.name, made.inputs, made.nodes, made.outputs, kept)


def _told(graph: Graph, numbers: dict[str, int]) -> Iterator[Relation]:
    """Yield guards that ranges decide and that do not hold for all extents below them."""
    own = [d for v in graph.inputs for d in v.type.shape]
    named: dict[str, Dim] = {s.name: d for d in own if (s := lone_symbol(d)) is not None}
    named |= numbers
    below = {name: d if isinstance(d, int) else symbol(name, 0) for name, d in named.items()}
    for guard in graph.guards:
        if guard.truth() and not Relation(guard.kind, evaluate(guard.expr, below)).truth():
            yield Relation(guard.kind, evaluate(guard.expr, named))


def _number(guard: Any) -> tuple[Symbol, int] | None:
    """The symbol that a guard of the form n - 3 == 0 is about, and its number."""
    terms = getattr(guard.expr, "terms", ())
    if len(terms) != 2 or any(len(m) > 1 for m, _ in terms):
        return None
    constant = next((c for m, c in terms if not m), None)
    others = [(m[0], c) for m, c in terms if m]
    if constant is None or len(others) != 1 or not isinstance(others[0][0], Symbol):
        return None
    atom, coefficient = others[0]
    return atom, -constant // coefficient


def _opened_model(
    model: Model, name: str, found: CapturedCall, fast: bool, weights: Weights | None = None
) -> Model:
    """The model with the graph for other extents out of a capture with symbols, if there is one."""
    results, _ = tree.flatten(found.results)
    wanted = [r.index for r in results if isinstance(r, Output)]
    try:
        with recording_guards():  # They are known: those of the capture.
            quiet = replace(found, graph=silent(found.graph))  # The first capture told of prints.
            graph = _settled(inference_graph(name, quiet, wanted, weights))
            graph = rewritten(graph) if fast and graph is not None else graph
        if graph is None:
            return model.fixed()
        own = [v.type.shape for v in model.graph.inputs]
        extents = bound_extents(zip([v.type.shape for v in graph.inputs], own, strict=True))
        closed = specialize(graph, extents or {})  # Node by node the same: networks know both.
    except TreadleError as error:  # An op needs to know more than the guards say.
        get_logger("jit").info("dump: %s has no program for other extents: %s", name, error)
        return model.fixed()
    return replace(model, graph=closed, opened=OpenGraph(closed, lambda: graph))


def model_for_extents(
    function: Callable[..., Any],
    model: Model,
    call: ExampleCall,
    captured: CapturedCall,
    fast: bool,
    weights: Weights | None = None,
) -> Model:
    """A model that takes other extents than those of the call that it was recorded from.

    Args:
        function: runs once more, or twice where an extent of 1 has to be one.
        model: of the call alone.
        call: what it was recorded from.
        captured: the program of that call, which the one with symbols is at its extents.
        fast: whether rewrites that hold in real arithmetic only are applied.
        weights: data of the model's constants.
    """
    name = model.graph.name
    found = _open_capture(function, call, captured, name, model.inputs)
    if found is None:
        return model.fixed()
    return _opened_model(model, name, found, fast, weights)


def model_for_axes(
    function: Callable[..., Any],
    model: Model,
    call: ExampleCall,
    captured: CapturedCall,
    axes: Mapping[int, Mapping[int, str]],
) -> Model:
    """Return `model_for_extents` with symbols for some axes of arguments, which are all tensors.

    Args:
        function: runs once more.
        model: of the call alone.
        call: what it was recorded from, with extents of 2 and more on these axes.
        captured: the program of that call, which the one with symbols is at its extents.
        axes: names of extents, by argument and axis; equal ones have one name.

    Raises:
        CompileError: with symbols the function is another program.
        TreadleError: it does not run with symbols.
    """
    shapes: dict[int, Shape] = {}
    extents: dict[str, int] = {}
    for number, leaf in enumerate(call.leaves):
        names = axes.get(number, {})
        extents |= {names[axis]: leaf.extents[axis] for axis in names}
        shapes[number] = tuple(
            symbol(names[axis], 2) if axis in names else extent
            for axis, extent in enumerate(leaf.extents)
        )
    found = _captured(function, call, model.graph.name, shapes, extents)
    if not _same(found, captured, extents):
        raise CompileError("model", "with open extents it takes another course than with numbers")
    return _opened_model(model, model.graph.name, found, fast=False)


__all__ = ["ExampleCall", "asked", "model_for_axes", "model_for_extents"]
