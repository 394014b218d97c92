"""Compiled functions inside a recording: one node on the tape, whose gradient is a program, too.

The backward program computes the forward values it needs once more, so nothing is kept between the
two but inputs. Where an outer manager watches the gradient's own computation, it runs op by op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from treadle.autodiff.tape import Tape
from treadle.base import tree
from treadle.base.dtype import as_dtype
from treadle.base.modes import LOCAL
from treadle.engine.devices.names import CompNode
from treadle.engine.eager.dispatch import eager_type
from treadle.engine.execute import Runner
from treadle.engine.extents.plans import Plans
from treadle.engine.options import Options
from treadle.engine.phases import stages_of
from treadle.engine.plan import Interface
from treadle.graph.evaluate import specialize
from treadle.graph.gradient import is_differentiable, pullback
from treadle.graph.ir import Graph, Value
from treadle.jit.binding import Binding
from treadle.jit.capture import payload
from treadle.jit.captured import Argument, CapturedCall, Output, State
from treadle.ops.constant import Constant
from treadle.ops.op import Pullback
from treadle.runtime.array import DeviceArray, to_host
from treadle.tensor import Tensor, create, wrap


class GraphRule:
    """The gradient of a captured function: see `autodiff.tape.Rule`.

    Args:
        captured: the function; with symbols, if it serves many extents.
        options: of its compilation, and of its gradient's.
    """

    name = "compiled function"

    def __init__(self, captured: CapturedCall, options: Options) -> None:
        leaves = [x for x in tree.flatten(captured.results)[0] if isinstance(x, Output)]
        graph = captured.graph
        self.results = [x.index for x in leaves]
        self.graph = graph.with_nodes(graph.nodes, [graph.outputs[i] for i in self.results])
        self._sources = captured.sources
        self._options = options
        self.home = captured.home
        self._programs: dict[tuple[bool, ...], _Gradient] = {}

    @property
    def on_host(self) -> bool:
        """True if the function runs there."""
        return self.home.on_host

    def constant(self, array: Any) -> Tensor:
        """A tensor of an array, or of what the program has in its place, where the function is."""
        if type(array) is DeviceArray:
            return wrap(array, eager_type(as_dtype(array.dtype), self.home))
        return Tensor(array, dtype=array.dtype, device=self.home)

    def handles(self, leaves: Sequence[Any]) -> list[tuple[int, Tensor]]:
        """Inputs that are tensors somebody holds, by number."""
        found: list[tuple[int, Tensor]] = []
        for i, source in enumerate(self._sources):
            if isinstance(source, Argument):
                found.append((i, leaves[source.index]))
            elif isinstance(source, State):
                found.append((i, source.tensor))
        return found

    def program(self, needs: tuple[bool, ...]) -> _Gradient:
        """The gradient with respect to some of the inputs."""
        if needs not in self._programs:
            graph = pullback(self.graph, needs)
            self._programs[needs] = _Gradient(graph, self._options, self.home)
        return self._programs[needs]


MOST_ALONE = 64
"""Programs of a gradient at certain extents that are kept where no plan serves many."""


class _Gradient:
    """The programs of a gradient.

    Args:
        graph: of the gradient.
        options: of its compilation.
        home: where it runs.
    """

    def __init__(self, graph: Graph, options: Options, home: CompNode) -> None:
        self._graph, self._options, self._home = graph, options, home
        self._plans = Plans(graph, options, Interface(), home)
        self._alone: dict[tuple[int, ...], Runner] = {}

    def graph(self, extents: Mapping[str, int]) -> Graph:
        """Return the graph at certain extents."""
        return specialize(self._graph, extents) if extents else self._graph

    def runner(self, extents: Mapping[str, int]) -> Runner:
        """Return its runner at certain extents."""
        shared = self._plans.at(extents) if extents else None
        if shared is not None:
            return shared[1]
        key = tuple(extents.values())
        if key not in self._alone:
            stages = stages_of(self.graph(extents), options=self._options, home=self._home)
            self._alone[key] = stages.compile()
            while len(self._alone) > MOST_ALONE:
                del self._alone[next(iter(self._alone))]
        return self._alone[key]


class RecordedCall:
    """One call on the tape.

    Args:
        rule: of the function.
        extents: of the call, by symbol.
        numbers: which inputs of the graph the recorded inputs are.
        arrays: all inputs of the call, as the program saw them.
    """

    def __init__(
        self,
        rule: GraphRule,
        extents: Mapping[str, int],
        numbers: Sequence[int],
        arrays: Sequence[Any],
    ) -> None:
        self.name = rule.name
        self._rule = rule
        self._extents = extents
        self._numbers = list(numbers)
        self._arrays = list(arrays)

    def vjp(self, at: Pullback[Tensor], /) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs that need one."""
        wanted = dict(zip(self._numbers, at.needs, strict=True))
        graph = self._rule.graph
        needs = tuple(
            wanted.get(i, False) and is_differentiable(t) for i, t in enumerate(graph.input_types)
        )
        gradient = self._rule.program(needs)
        dys = [
            y.constant(np.zeros(y.shape, y.dtype), y._kind.dtype) if dy is None else dy
            for dy, y in zip(at.dys, at.outputs, strict=True)
            if y._kind.dtype.is_float
        ]
        if isinstance(LOCAL.hook, Tape):
            made = self._replayed(gradient.graph(self._extents), at.inputs, dys)
        else:
            given = _dense if self._rule.on_host else payload
            arrays = [*self._arrays, *map(given, dys)]
            # Gradients have the element types and places of what they are gradients of.
            kinds = [x._kind for n, x in zip(self._numbers, at.inputs, strict=True) if needs[n]]
            results = gradient.runner(self._extents).run(arrays)
            made = [wrap(r, k) for r, k in zip(results, kinds, strict=True)]
        found = iter(made)
        return tuple([next(found) if needs[n] else None for n in self._numbers])

    def _replayed(
        self, graph: Graph, inputs: Sequence[Tensor], dys: Sequence[Tensor]
    ) -> list[Tensor]:
        """The gradient op by op, so that it can be recorded."""
        held = dict(zip(self._numbers, inputs, strict=True))
        count = len(graph.inputs) - len(dys)
        known: dict[Value, Tensor] = {}
        constant, home = self._rule.constant, self._rule.home
        for i, value in enumerate(graph.inputs):
            if i >= count:
                known[value] = dys[i - count]
            else:
                known[value] = held[i] if i in held else constant(self._arrays[i])
        for node in graph.nodes:
            if isinstance(node.op, Constant):
                known[node.output] = constant(node.op.data.array)
                continue
            operands = tuple(known[v] for v in node.inputs)
            results = operands[0].apply(node.op, operands) if operands else create(node.op, home)
            known.update(zip(node.outputs, results, strict=True))
        return [known[v] for v in graph.outputs]


def call_recorded(
    binding: Binding,
    rule: GraphRule,
    extents: Mapping[str, int],
    tape: Tape,
    leaves: Sequence[Any],
) -> Any:
    """Run a compiled function and put it on the tape as one node.

    Args:
        binding: its program.
        rule: its gradient.
        extents: of the call, by symbol.
        tape: the tape.
        leaves: the arguments, flattened.
    """
    handles = rule.handles(leaves)
    numbers = [n for n, _ in handles]
    inputs = [wrap(t._data, t._kind, t._trace) for _, t in handles]
    payloads = binding.payloads(leaves)
    made = binding.run(payloads, leaves)
    results = [x for x in tree.flatten(made)[0] if isinstance(x, Tensor)]
    if any(x._trace is not None for x in inputs):
        tape.record(RecordedCall(rule, extents, numbers, payloads.arrays), inputs, results)
    return made


def _dense(x: Tensor) -> Any:
    return np.ascontiguousarray(to_host(x._data))
