"""Control flow that a program can hold: `cond`, `while_loop` and `scan` over tensors.

Outside of a capture they run Python; inside one their branches and bodies become regions of the
graph, with every outer tensor they use as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from itertools import count
from typing import Any, cast

import numpy as np

from treadle.base import dtype as dt
from treadle.base import tree
from treadle.base.errors import ShapeError, TraceError
from treadle.base.guards import data_decide, is_equal
from treadle.base.modes import LOCAL
from treadle.base.symbol import Dim, is_identical, symbol, symbols_of
from treadle.base.types import TensorType
from treadle.engine.devices.names import resolve
from treadle.engine.eager.dispatch import EagerType, eager_type
from treadle.graph.analysis import found_in
from treadle.graph.builder import reordered
from treadle.graph.gradient import differentiable
from treadle.graph.ir import Graph, Value, symbols_in
from treadle.jit.capture import Capture, Symbol, capture, recording
from treadle.jit.captured import Argument
from treadle.jit.streams import RegionStreams
from treadle.ops.control import Cond, FindingCond, FindingWhile, Scan, While
from treadle.ops.creation import Extent, Iota
from treadle.ops.gather import Take, numbering
from treadle.ops.movement import Concat
from treadle.ops.op import Op
from treadle.tensor import Tensor, wrap


def cond(
    predicate: Tensor,
    then: Callable[..., Any],
    otherwise: Callable[..., Any],
    *operands: Any,
) -> Any:
    """`then(*operands)` where the predicate is true, else `otherwise(*operands)`.

    Args:
        predicate: one bool.
        then, otherwise: take the operands and return equal structures of tensors of equal types,
            but for extents that data decide in one of them. They may use tensors from outside, and
            must not rebind them.
        operands: tensors, or structures of them.

    Raises:
        TraceError: in a compiled function: the branches differ in what they return.

    Example:
        >>> import treadle as mge
        >>> x = mge.tensor([1.0, -3.0])
        >>> print(mge.jit.cond(x.sum() > 0, lambda x: x, lambda x: -x, x))
        Tensor([-1.  3.], device=xpux:0)
    """
    outer = _capture()
    if outer is None:
        return then(*operands) if bool(predicate) else otherwise(*operands)
    first = _Region(outer, "then", [])
    second = _Region(outer, "otherwise", [])
    first.run(then, operands)
    second.run(otherwise, operands)
    found = _found_extents(first, second)
    if first.shape != second.shape or not _are_equal(first.types, second.types, found):
        raise TraceError(
            "jit.cond",
            "the branches return different things",
            saw=f"{_listed(first.types)} against {_listed(second.types)}",
            hint="return tensors of equal shapes and element types from both",
        )
    drawn = {**first.streams.kinds, **second.streams.kinds}
    for branch in (first, second):
        branch.leave_states(drawn)
    extra = {**first.extra, **second.extra}
    graphs = first.graph(list(extra)), second.graph(list(extra))
    op = FindingCond(*graphs, found) if found else Cond(*graphs)
    given = predicate if predicate.dtype == bool else predicate.astype(bool)
    results = _apply(op, [given, *extra.values()])
    outer.streams.now.update(dict(zip(drawn, results[len(first.types) :], strict=True)))
    return first.rebuilt(results[: len(first.types)])


def while_loop(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    state: Sequence[Tensor],
    most: int | None = None,
) -> tuple[Tensor, ...]:
    """`state = body(*state)` as long as `condition(*state)` is true.

    A state may grow: the extents of its tensors may be others in every turn. A compiled function
    then runs turn by turn. It holds the states of two turns at a time; for a gradient, of all.

    Args:
        condition: takes the state, returns one bool.
        body: takes the state, returns the next one, of the same element types and numbers of axes.
        state: tensors.
        most: turns after which it ends in any case. Where the state keeps its extents, gradients in
            compiled functions then need no Python between turns, and have gradients themselves.
            They keep the states of so many turns: choose it no larger than needed.

    Raises:
        ValueError: `most` is negative.

    Example:
        >>> import treadle as mge
        >>> n, x = mge.jit.while_loop(
        ...     lambda n, x: n < 3, lambda n, x: (n + 1, x * 2), (mge.tensor(0), mge.tensor(1.0))
        ... )
        >>> print(x.item())
        8.0
    """
    if most is not None and most < 0:
        raise ValueError(f"while_loop: most should be 0 or more, got {most}")
    outer = _capture()
    held = tuple(state)
    if outer is None:
        for _ in count() if most is None else range(most):
            if not bool(condition(*held)):
                break
            held = _tuple(body(*held))
        return held
    if most is not None:
        if not is_growing(body, held):
            return scan(_turn(condition, body), held, (), most)[0]
        zero = Tensor(0, dtype=dt.int32, device=held[0].device)
        return while_loop(*_limited(condition, body, most), (zero, *held))[1:]
    last, rows = collecting_loop(condition, body, held)
    if rows:
        raise ShapeError(
            "jit.while_loop",
            f"the body returns {len(held) + len(rows)} tensors for a state of {len(held)}",
            hint="return the next state; jit.scan also stacks what its turns return",
        )
    return last


def collecting_loop(
    condition: Callable[..., Any], body: Callable[..., Any], state: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A `while_loop` in a capture, whose body may return more than the next state.

    Returns:
        The last state, and the remaining results of all turns, stacked along a new first axis.

    Raises:
        TraceError: data decide an extent of what would be stacked.
    """
    outer, held = _captured(), tuple(state)
    turn, found = _settled(outer, body, held)
    test = _Region(outer, "condition", turn.given)
    test.run(condition, None)
    if test.streams.now:
        # A condition returns no state: each turn computes the next one, and this the first.
        last, rows = collecting_loop(
            lambda goes_on, *_: goes_on, _with_condition(condition, body), (condition(*held), *held)
        )
        return last[1:], rows
    n = len(held)
    changing = {s.name for i, axis in found for s in symbols_in(turn.given[i].shape[axis])}
    turn.refuse_found("jit.while_loop", "the turns return rows of several sizes", n, changing)
    used = list({**test.extra, **turn.extra})
    regions = test.graph(used), _carrying(turn, n, used)
    op = FindingWhile(*regions, found) if found or turn.types[n:] else While(*regions)
    results = _apply(op, [*held, *({**test.extra, **turn.extra}.values())])
    after = n + len(used)
    outer.streams.now.update(turn.states(used, results[n:after]))
    return results[:n], results[after:]


def is_growing(body: Callable[..., Any], state: Sequence[Tensor]) -> bool:
    """Return whether a loop's body, in a capture, changes extents of the state."""
    return bool(_settled(_captured(), body, tuple(state))[1])


def run_apart(function: Callable[[], None]) -> None:
    """Run a function in a region of the capture that nothing is made of, to see what it gives."""

    def run() -> tuple[Tensor, ...]:
        function()
        return ()

    _Region(_captured(), "trial", []).run(run, ())


def _settled(
    outer: Capture,
    body: Callable[..., Any],
    held: Sequence[Tensor],
    entries: Sequence[TensorType] = (),
) -> tuple[_Region, tuple[tuple[int, int], ...]]:
    """A loop's body with symbols for the extents of the state that it changes, and their places.

    It is captured until it changes no others. Axes share a symbol as long as they begin and go on
    alike, so that the keys and values of a cache stay equal.
    """
    types = [t.type for t in held]
    named: dict[tuple[int, int], Dim] = {}
    while True:
        turn = _Region(outer, "body", [*types, *entries])
        turn.run(body, None)
        pairs = {
            (i, axis): (d, e)
            for i, (before, after) in enumerate(zip(types, turn.types, strict=False))
            for axis, (d, e) in enumerate(zip(before.shape, after.shape, strict=False))
            if (i, axis) in named or not is_equal(d, e)
        }
        kinds = dict.fromkeys(pairs.values())
        if len(pairs) == len(named) and len(kinds) == len(set(named.values())):
            return turn, tuple(pairs)
        made = {pair: symbol(f"loop{numbering().fresh()}", 0) for pair in kinds}
        named = {place: made[pair] for place, pair in pairs.items()}
        types = [
            t.type.with_shape(tuple(named.get((i, axis), d) for axis, d in enumerate(t.shape)))
            for i, t in enumerate(held)
        ]


def scan(
    body: Callable[..., Any],
    state: Sequence[Tensor],
    stacked: Sequence[Tensor] = (),
    length: int | None = None,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A loop over the first axis of stacked tensors that carries a state.

    Args:
        body: takes the state and one entry of each stacked tensor; returns the next state
            followed by what is to be stacked.
        state: tensors.
        stacked: tensors of equal first extent, which data may decide.
        length: number of turns; needed where nothing is stacked.

    Returns:
        The last state, and the remaining results of all turns, stacked along a new first axis.

    Raises:
        ShapeError: the first extents differ, or there is no length.
        TraceError: `state` or `stacked` is a tensor, not a sequence of them.

    Example:
        >>> import treadle as mge
        >>> (total,), (sums,) = mge.jit.scan(
        ...     lambda s, x: (s + x, s + x), (mge.tensor(0.0),), (mge.tensor([1.0, 2.0, 3.0]),)
        ... )
        >>> print(total.item(), sums.tolist())
        6.0 [1.0, 3.0, 6.0]
    """
    for name, given in (("state", state), ("stacked", stacked)):
        if isinstance(given, Tensor) or not all(isinstance(x, Tensor) for x in given):
            raise TraceError(
                "jit.scan",
                f"{name} is not a flat sequence of tensors",
                saw=_kinds(given),
                hint="pass sequences of tensors, as in scan(body, (state,), (stacked,))",
            )
    body = _flat(body)
    held, n = tuple(state), len(state)
    outer = _capture()
    turns = _length(stacked, length)
    # Where the call has made extents equal that are written otherwise, one of them is all.
    stacked = [
        x if is_identical(x.shape[0], turns) else x.reshape((turns, *x.shape[1:])) for x in stacked
    ]
    if outer is None:
        rows: list[tuple[Tensor, ...]] = []
        for i in range(int(turns)):
            made = _tuple(body(*held, *[x[i] for x in stacked]))
            held = made[:n]
            rows.append(made[n:])
        if not rows:
            return held, _no_rows(body, held, stacked)
        return held, tuple(_stacked(column) for column in zip(*rows, strict=True))
    entries = [x.type.with_shape(x.type.shape[1:]) for x in stacked]
    turn, found = _settled(outer, body, held, entries)
    if found:
        return _growing_scan(body, held, stacked, turns)
    turn.refuse_found("jit.scan", "data decide an extent of what the body returns")
    # What a turn uses from outside is carried, and returned as it came.
    op = Scan(_carrying(turn, n, list(turn.extra)), n + len(turn.extra), turns)
    results = _apply(op, [*held, *turn.extra.values(), *stacked])
    after = n + len(turn.extra)
    outer.streams.now.update(turn.states(list(turn.extra), results[n:after]))
    return tuple(results[:n]), tuple(results[after:])


def _growing_scan(
    body: Callable[..., Any], held: Sequence[Tensor], stacked: Sequence[Tensor], turns: Dim
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A scan in a capture whose state has other extents in every turn."""
    device = held[0].device
    zero, end = Tensor(0, dtype=dt.int32, device=device), held[0].apply(Extent(turns, dt.int32), ())

    def turn(i: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        return (i + 1, *body(*state, *[x[i] for x in stacked]))

    last, rows = collecting_loop(lambda i, *_: i < end[0], turn, (zero, *held))
    # The loop does not tell that it takes so many turns.
    every = held[0].apply(Iota(0, 1, turns, dt.int32), ())[0]
    return last[1:], tuple(r.apply(Take(0), (r, every))[0] for r in rows)


def _no_rows(
    body: Callable[..., Any], held: Sequence[Tensor], stacked: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return what a scan without turns stacks: no rows, of types that a capture tells."""

    def rows(*given: Tensor) -> tuple[Tensor, ...]:
        return scan(body, given[: len(held)], given[len(held) :], 0)[1]

    captured = capture(rows, (*held, *stacked), {}, "scan")
    types = [captured.graph.outputs[at.index].type for at in tree.flatten(captured.results)[0]]
    device = (*held, *stacked)[0].device if (*held, *stacked) else None
    empty = (np.empty(t.shape, t.dtype.numpy) for t in types)
    return tuple(Tensor(x, dtype=x.dtype, device=device) for x in empty)


def _turn(condition: Callable[..., Any], body: Callable[..., Any]) -> Callable[..., Any]:
    """A turn of a loop that stands still once its condition is false."""

    def turn(*held: Tensor) -> Any:
        return cond(condition(*held), lambda *x: _tuple(body(*x)), lambda *x: x, *held)

    return turn


def _limited(
    condition: Callable[..., Any], body: Callable[..., Any], most: int
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The condition and body of a loop that counts its turns, and ends after so many."""

    def goes_on(turn: Tensor, *held: Tensor) -> Any:
        return condition(*held) & (turn < most)

    return goes_on, lambda turn, *held: (turn + 1, *_tuple(body(*held)))


def _with_condition(condition: Callable[..., Any], body: Callable[..., Any]) -> Callable[..., Any]:
    """A turn that returns, in front of the next state, whether there is another turn."""

    def turn(_: Tensor, *held: Tensor) -> tuple[Tensor, ...]:
        made = _tuple(body(*held))
        return condition(*made[: len(held)]), *made

    return turn


def _flat(body: Callable[..., Any]) -> Callable[..., Any]:
    """The body of a scan, held to returning tensors."""

    def turn(*given: Tensor) -> tuple[Tensor, ...]:
        made = _tuple(body(*given))
        if not all(isinstance(x, Tensor) for x in made):
            raise TraceError(
                "jit.scan",
                "the body returns something other than tensors",
                saw=_kinds(made),
                hint="return the next state and then what is stacked, all in one flat tuple",
            )
        return made

    return turn


def _kinds(given: Any) -> str:
    alone = isinstance(given, Tensor) or not isinstance(given, (list, tuple))
    return type(given).__name__ if alone else ", ".join(type(x).__name__ for x in given)


def _stacked(column: tuple[Tensor, ...]) -> Tensor:
    """Tensors of one shape along a new first axis."""
    rows = tuple(x.reshape((1, *x.shape)) for x in column)
    return rows[0].apply(Concat(0), rows)[0]


def _length(stacked: Sequence[Tensor], length: int | None) -> Dim:
    """The number of turns; an expression where the call or data decide it."""
    given: list[Dim] = [*(x.shape[0] for x in stacked), *(() if length is None else (length,))]
    if not given or not all(is_equal(given[0], n) for n in given):
        raise ShapeError(
            "jit.scan",
            "the number of turns is unclear",
            saw=f"first extents and length {sorted(map(str, given))}",
            hint="stack tensors of one length, or pass length",
        )
    return given[0]


class _Region(Capture):
    """A capture inside another one, whose outer tensors become further inputs.

    Args:
        outer: the capture it stands in.
        name: the region's name.
        types: of the inputs the function is called with, with their devices.
    """

    def __init__(self, outer: Capture, name: str, types: Sequence[TensorType]) -> None:
        super().__init__(name)
        self._outer = outer
        self.for_file = outer.for_file
        self.extra: dict[Value, Tensor] = {}
        """Values of the outer graph that the region uses, in order of use, and who holds them."""
        self._known: dict[Value, Symbol] = {}
        self.streams: RegionStreams = RegionStreams(self, outer.streams)
        self.given = list(types)
        self._given = [self._input(_unplaced(t), Argument(i)) for i, t in enumerate(types)]
        kinds = [eager_type(t.dtype, resolve(t.device)) for t in types]
        self._tensors = [wrap(Symbol(self, o), k) for o, k in zip(self._given, kinds, strict=True)]
        self.shape = tree.LEAF
        self.types: list[TensorType] = []
        self._results: list[Any] = []

    def run(self, function: Callable[..., Any], operands: Sequence[Any] | None) -> None:
        """Capture the function, called with the operands or else with the region's inputs."""
        with recording(self):
            made = function(*(self._tensors if operands is None else operands))
            leaves, self.shape = tree.flatten(made)
            if not all(isinstance(x, Tensor) for x in leaves):
                raise TraceError(
                    "jit", "a branch or body returns something besides tensors", hint="wrap it"
                )
            self._results = [self.operand(x) for x in leaves]
        self._kinds = [x._kind for x in leaves]
        self.types = [_unplaced(o.type) for o in self._results]

    def found(self) -> frozenset[str]:
        """Return names of extents of the results that data decide inside."""
        returned = {s.name for s in symbols_in(tuple(self.types))}
        return frozenset(returned & found_in(self._builder.build())) if returned else frozenset()

    def refuse_found(
        self, where: str, problem: str, first: int = 0, names: Collection[str] = ()
    ) -> None:
        """Raise where data decide an extent inside that would leave the region.

        Args:
            where, problem: the error.
            first: results in front of it may have such extents.
            names: further extents that only the region has.
        """
        types = self.types[first:]
        if not {s.name for s in symbols_in(tuple(types))}.isdisjoint({*self.found(), *names}):
            raise TraceError(
                where,
                problem,
                saw=_listed(types),
                hint="return what has a known size, such as a sum or a mask, and select behind it",
            ).of_run()

    def operand(self, tensor: Tensor) -> Any:
        """The region's value of a tensor; one from outside becomes an input."""
        data = tensor._data
        if type(data) is Symbol and data.capture is self:
            return data.operand
        value = self._outer.operand(tensor).value
        if value not in self._known:
            self.extra[value] = tensor
            self._add(value)
        return self._known[value].operand

    def _add(self, value: Value) -> None:
        """One more input, for a value of the outer graph."""
        self._known[value] = Symbol(self, self._input(_unplaced(value.type), Argument(-1)))

    def host_value(self, *asked: Any) -> Tensor:
        """Values that Python gives at each call are inputs of the program as a whole."""
        return self._outer.host_value(*asked)

    def leave_states(self, drawn: Mapping[Any, EagerType]) -> None:
        """Return, behind the results, the states of generators that this or another branch uses."""
        self._results += [self.operand(self.streams.begin(s, kind)) for s, kind in drawn.items()]

    def states(self, used: Sequence[Value], left: Sequence[Tensor]) -> dict[Any, Tensor]:
        """The states of generators behind a loop, which left these in place of the outer values."""
        found = dict(zip(used, left, strict=True))
        return {s: found[self._outer.operand(t).value] for s, t in self.streams.taken.items()}

    def watch_grad(self, tensor: Tensor, /) -> None:
        """Hand the slot on to the capture around: slots belong to the program as a whole."""
        self._outer.watch_grad(tensor)

    def rebound(self, tensor: Tensor, value: Tensor, /) -> None:
        """Raise TraceError if a tensor is rebound that the region has not made itself."""
        if type(tensor._data) is not Symbol or tensor._data.capture is not self:
            raise TraceError(
                "jit",
                "a branch or body rebinds a tensor from outside",
                hint="return the new value, and rebind it after the branch or loop",
            )

    def graph(self, extra: Sequence[Value], returned: Sequence[Value] = ()) -> Graph:
        """The region with `extra` values of the outer graph as inputs, after its own."""
        for value in extra:
            if value not in self._known:
                place = self._input(TensorType(value.type.dtype, value.type.shape), Argument(-1))
                self._known[value] = Symbol(self, place)
        moved = {
            self._outer.operand(t).value: self.operand(self.streams.now[s])
            for s, t in self.streams.taken.items()
        }
        after = [moved.get(v, self._known[v].operand) for v in returned]
        self._builder.output(*self._results, *after)
        own = [o.value.index for o in self._given]
        others = [self._known[v].operand.value.index for v in extra]
        return reordered(self._builder.build(), [*own, *others])

    def rebuilt(self, tensors: Sequence[Tensor]) -> Any:
        """The structure the function returned, around other tensors."""
        return tree.unflatten(self.shape, list(tensors))


def _carrying(turn: _Region, n: int, extra: Sequence[Value]) -> Graph:
    """A loop's body whose outer values are carried behind the state, before entries and rows."""
    built = turn.graph(extra, returned=extra)
    if not extra:
        return built
    count, more = len(built.inputs) - len(extra), len(extra)
    moved = reordered(built, [*range(n), *range(count, count + more)])
    results = moved.outputs
    outputs = [*results[:n], *results[-more:], *results[n:-more]]
    return moved.with_nodes(moved.nodes, outputs)


def _capture() -> Capture | None:
    """The capture this thread is in."""
    found = LOCAL.capture
    return found if isinstance(found, Capture) else None


def _captured() -> Capture:
    """The capture this thread is in, of which there is one."""
    return cast(Capture, LOCAL.capture)


def _apply(op: Op, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Apply a control-flow op so that an inner tape can differentiate it."""
    return tensors[0].apply(differentiable(op), tuple(tensors))


def _found_extents(first: _Region, second: _Region) -> tuple[tuple[int, int], ...]:
    """Return results and axes whose extent data decide in one of the branches, or both.

    So it is where the branches return what has extents that data have decided before, but others.
    """
    names = first.found(), second.found()
    return tuple(
        (i, axis)
        for i, pair in enumerate(zip(first.types, second.types, strict=False))
        for axis, (d, e) in enumerate(zip(*(t.shape for t in pair), strict=False))
        if symbols_of(d) & names[0]
        or symbols_of(e) & names[1]
        or (not is_identical(d, e) and (data_decide(d) or data_decide(e)))
    )


def _are_equal(
    types: Sequence[TensorType], others: Sequence[TensorType], found: Container[tuple[int, int]]
) -> bool:
    """Return whether types are equal, as far as the call that is captured tells of extents.

    Args:
        types, others: of two branches.
        found: results and axes whose extents may differ.
    """
    return len(types) == len(others) and all(
        x.dtype is y.dtype
        and x.ndim == y.ndim
        and all(
            (i, axis) in found or is_equal(d, e)
            for axis, (d, e) in enumerate(zip(x.shape, y.shape, strict=True))
        )
        for i, (x, y) in enumerate(zip(types, others, strict=True))
    )


def _unplaced(type_: TensorType) -> TensorType:
    """The type without a device: regions run where their op does."""
    return TensorType(type_.dtype, type_.shape)


def _tuple(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def _listed(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"


__all__ = ["collecting_loop", "cond", "is_growing", "run_apart", "scan", "while_loop"]
