"""Parts of PyTorch's graphs as programs, for all sizes that PyTorch leaves open.

A part is written in ops with symbols for its sizes. What a lowering asks of them is answered at the
sizes of the call, and guards the graph; the engine has plans for many extents where it can, and a
program for each where it must.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from treadle.base.array import Array
from treadle.base.errors import GraphError, OutOfMemory
from treadle.base.guards import deciding
from treadle.base.symbol import evaluate
from treadle.base.types import TensorType
from treadle.engine.execute import Runner
from treadle.engine.extents.plans import Plans
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.graph.builder import GraphBuilder
from treadle.graph.evaluate import specialize
from treadle.graph.ir import Graph
from treadle.interop.torch.nodes import input_of, lowered, output_of, plain_of
from treadle.interop.torch.placements import CPU, Placement, placement_of
from treadle.interop.torch.straight import Run, straight
from treadle.interop.torch.strides import Placed, is_seen, placed
from treadle.interop.torch.symbols import (
    LEAST,
    Described,
    Range,
    described,
    is_number,
    knowing,
    number_at,
    ranges,
)

Extents = tuple[int, ...]
MOST_INSTANCES = 64
"""Programs at certain extents that a part keeps."""


@dataclass(frozen=True, slots=True)
class PartResult:
    """A part's result at one place.

    Attributes:
        value: a number, or how PyTorch describes the tensor.
        dtype: of a tensor; None for numbers.
        is_seen: whether someone sees how it lies in memory.
        place: how it lies there, at the extents that it was written for; None: row-major.
    """

    value: Any
    dtype: torch.dtype | None
    is_seen: bool
    place: Placed | None

    def at(self, extents: Mapping[str, int]) -> PartResult:
        """The same at extents."""
        if self.dtype is None:
            return PartResult(number_at(self.value, extents), *_NUMBER)
        if not isinstance(self.value, Described):
            return self
        value = self.value.at(extents)
        return PartResult(value, self.dtype, self.is_seen, placed(value) if self.is_seen else None)

    def fits(self, other: PartResult) -> bool:
        """Return whether a graph that was written for the other writes this."""
        if self.place is None or other.place is None:
            return self.place is other.place
        same = [not s for s in self.place.strides] == [not s for s in other.place.strides]
        return self.place.axes == other.place.axes and same


_NUMBER = None, False, None


class Variant:
    """A part written in ops for the extents that answer alike.

    Args:
        graph: with symbols for extents.
        results: of the part.
        fixed: extents that are numbers in it.
        draws: how many of its inputs, the last ones, are states of random ops.
        is_plain: whether it takes nothing but tensors of real numbers.
        home: where it runs.
        donated: numbers of inputs that it may overwrite.
    """

    def __init__(
        self,
        graph: Graph,
        results: Sequence[PartResult],
        fixed: Mapping[str, int],
        draws: int,
        is_plain: bool,
        home: Placement,
        donated: tuple[int, ...] = (),
    ) -> None:
        self.graph = graph
        self.results = results
        self.draws = draws
        self._options = Options()
        self._interface = Interface(donated=donated)
        self.plans = Plans(graph, self._options, self._interface, home.node)
        self._home = home
        self._fixed = fixed
        self._is_plain = is_plain

    def at(self, extents: Mapping[str, int]) -> PartInstance | None:
        """The program at extents; None where the part has to be written anew for them."""
        small = (n for n, extent in extents.items() if extent < LEAST)
        if any(n not in self._fixed for n in small):
            return None
        if any(extents[n] != extent for n, extent in self._fixed.items()):
            return None
        if not all(guard.holds(extents) for guard in self.graph.guards):
            return None
        results = [r.at(extents) for r in self.results]
        if not all(r.fits(s) for r, s in zip(results, self.results, strict=True)):
            return None
        shared = self.plans.at(extents)
        runner: Runner = shared[1] if shared else self._alone(extents)
        inputs = [_nbytes(t, extents) for t in self.graph.input_types]
        return PartInstance(runner, inputs, results, self.draws, self._is_plain, self._home)

    def _alone(self, extents: Mapping[str, int]) -> Runner:
        """A program for these extents alone."""
        graph = specialize(self.graph, extents)
        return Stages(graph, self._interface, self._options, self._home.node).compile()


def _nbytes(type_: TensorType, extents: Mapping[str, int]) -> int:
    """Bytes of a tensor at extents."""
    shape = [d if isinstance(d, int) else int(evaluate(d, extents)) for d in type_.shape]
    return math.prod(shape) * int(type_.dtype.numpy.itemsize)


class PartInstance:
    """A part's program at certain extents.

    Args:
        runner: of the program.
        inputs: bytes of its inputs.
        results: of the part.
        draws: how many states of random ops it takes, behind its tensors.
        is_plain: whether it takes nothing but tensors of real numbers.
        home: where it runs.
    """

    def __init__(
        self,
        runner: Runner,
        inputs: Sequence[int],
        results: Sequence[PartResult],
        draws: int,
        is_plain: bool,
        home: Placement,
    ) -> None:
        self.runner = runner
        self._home = home
        self._run = runner.run
        self.draws = draws
        self.straight: Run | None = None
        if is_plain and home.dlpack is not None:
            self.straight = straight(runner, inputs, results, home.dlpack, self.by_arrays)
        self._dtypes = [r.dtype for r in results if r.dtype is not None]
        self._places = [r.place for r in results if r.dtype is not None]
        self._numbers = [(i, r.value) for i, r in enumerate(results) if r.dtype is None]

    def __call__(self, tensors: list[torch.Tensor]) -> list[Any]:
        """Run on tensors, whose memory is read where it lies."""
        return (self.straight or self.by_arrays)(tensors)

    def by_arrays(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Run on arrays over tensors' memory."""
        arrays = self._home.arrays(tensors)
        if self.draws:
            arrays += self._home.keys(self.draws)
        try:
            made = self._run(arrays)
        except OutOfMemory as error:
            raise torch.OutOfMemoryError(str(error)) from error
        return self.results(made)

    def results(self, arrays: Sequence[Array]) -> list[Any]:
        """The results of a run as PyTorch expects them."""
        made: list[Any] = list(map(self._home.tensor, arrays, self._dtypes, self._places))
        for number, value in self._numbers:
            made.insert(number, value)
        return made


class CompiledPart(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # torch may be missing
    """A part of a graph, run by programs of the engine that are compiled when they are needed.

    Args:
        part: a graph of ATen operators that have counterparts.
        symbols: of PyTorch, with their ranges.
        device: of its tensors.
        donated: numbers of arguments that nobody reads after the part.

    Attributes:
        count: of results.
        unread: symbols that no argument gives: they are further arguments, behind the others.
        variants: the part in ops, for the extents that came.
    """

    def __init__(
        self,
        part: fx.GraphModule,
        symbols: Mapping[str, Range],
        device: torch.device = CPU,
        donated: Collection[int] = (),
    ) -> None:
        super().__init__()
        self._part = part
        self._home = placement_of(device)
        given = [n.meta["val"] for n in part.graph.find_nodes(op="placeholder")]
        self._tensors = [i for i, v in enumerate(given) if isinstance(v, torch.Tensor)]
        self._takes_numbers = len(self._tensors) < len(given)
        self._has_complex = any(given[i].is_complex() for i in self._tensors)
        # Inputs of a program are the tensors, in order; pairs of complex numbers are not.
        may = not self._has_complex and self._home.node is None
        self._donated = tuple(n for n, i in enumerate(self._tensors) if may and i in donated)
        needed = ranges(part.graph)
        self._symbols = {n: known for n, known in symbols.items() if n in needed}
        self._reads = _reads(given, self._symbols)
        self.unread = [n for n in self._symbols if n not in self._reads]
        for number, name in enumerate(self.unread):
            self._reads[name] = (len(given) + number, None)
        self.count = len(_listed(part.graph))
        self._is_single = isinstance(part.graph.find_nodes(op="output")[0].args[0], fx.Node)
        self.variants: list[Variant] = []
        self._known: dict[Extents, PartInstance] = {}
        self._lock = threading.RLock()

    def forward(self, *arguments: Any) -> Any:
        """Run the part.

        Args:
            arguments: tensors and sizes as the part takes them, then those of `unread`.
        """
        made = self.run(arguments)
        return made[0] if self._is_single else made

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        """All results of the part; see `forward`."""
        if not self._reads:
            instance = self._known.get(()) or self._at(())
            return instance(
                [arguments[i] for i in self._tensors] if self._takes_numbers else list(arguments)
            )
        extents = tuple(
            [
                arguments[i] if axis is None else arguments[i].shape[axis]
                for i, axis in self._reads.values()
            ]
        )
        instance = self._known.get(extents) or self._at(extents)
        return instance([arguments[i] for i in self._tensors])

    def _at(self, extents: Extents) -> PartInstance:
        """The program at extents."""
        named = dict(zip(self._reads, extents, strict=True))
        with self._lock:
            for variant in self.variants:
                found = variant.at(named)
                if found is not None:
                    break
            else:
                self.variants.append(self._written(named))
                found = self.variants[-1].at(named)
            if found is None:
                raise GraphError("torch.compile", f"a part does not serve {named}, made for it")
            self._known[extents] = found
            while len(self._known) > MOST_INSTANCES:
                del self._known[next(iter(self._known))]
        return found

    def _written(self, extents: Mapping[str, int]) -> Variant:
        """The part in ops, for these extents and those that answer alike."""
        dims = {n: known.dim(n, extents[n]) for n, known in self._symbols.items()}
        fixed = {n: d for n, d in dims.items() if isinstance(d, int)}
        asked = {n: extents[n] for n in dims}
        with knowing(dims), deciding(asked) as decisions:
            graph, results = _graph_of(self._part, extents, decisions)
        draws = len(graph.inputs) - len(self._tensors)
        is_plain = not draws and not self._has_complex
        rest = draws, is_plain, self._home, self._donated
        return Variant(graph, results, fixed, *rest)


def _graph_of(
    part: fx.GraphModule, extents: Mapping[str, int], decisions: Any
) -> tuple[Graph, list[PartResult]]:
    """A part as a graph, and what it returns."""
    builder = GraphBuilder("torch")
    operands: dict[fx.Node, Any] = {}
    for node in part.graph.find_nodes(op="placeholder"):  # they may stand behind other nodes
        value = node.meta["val"]
        is_tensor = isinstance(value, torch.Tensor)
        operands[node] = (
            input_of(builder, value, str(node.name)) if is_tensor else plain_of(builder, value)
        )
    for node in part.graph.nodes:
        if node.op == "call_function":
            operands[node] = lowered(builder, node, operands)
    listed = _listed(part.graph)
    results = [_result(node, extents) for node in listed]
    for node, result in zip(listed, results, strict=True):
        if result.dtype is not None:
            made = output_of(operands[node])
            builder.output(result.place.in_order_of_memory(made) if result.place else made)
    builder.guard(decisions.guards)
    return builder.build(), results


def _listed(graph: fx.Graph) -> list[fx.Node]:
    """The results of a part, which may be one alone."""
    (output,) = graph.find_nodes(op="output")
    found = output.args[0]
    return [found] if isinstance(found, fx.Node) else list(found)


def _result(node: fx.Node, extents: Mapping[str, int]) -> PartResult:
    if is_number(node.meta["val"]):
        return PartResult(node.meta["val"], *_NUMBER)
    value = described(node.meta["val"])
    seen = is_seen(node)
    at = value.at(extents) if isinstance(value, Described) else value
    return PartResult(value, value.dtype, seen, placed(at) if seen else None)


# -- sizes -------------------------------------------------------------------------------------


def _reads(given: Sequence[Any], symbols: Mapping[str, Range]) -> dict[str, tuple[int, int | None]]:
    """Return for symbols the argument that says their extents, and its axis."""
    found: dict[str, tuple[int, int | None]] = {}
    for number, value in enumerate(given):
        if isinstance(value, torch.SymInt):
            _note(found, symbols, value, number, None)
    for number, value in enumerate(given):
        if isinstance(value, torch.Tensor):
            for axis, size in enumerate(value.shape):
                _note(found, symbols, size, number, axis)
    return found


def _note(
    found: dict[str, tuple[int, int | None]],
    symbols: Mapping[str, Range],
    size: Any,
    number: int,
    axis: int | None,
) -> None:
    name = str(size.node.expr) if isinstance(size, torch.SymInt) else ""
    if name in symbols:
        found.setdefault(name, (number, axis))


def add_sizes(module: fx.GraphModule, call: fx.Node, names: Sequence[str]) -> None:
    """Pass sizes to the call of a part as well, from whoever has them in front of it."""
    for name in names:
        call.args = (*call.args, _giver(module.graph, call, name))


def _giver(graph: fx.Graph, call: fx.Node, name: str) -> fx.Node:
    """A node in front of the call that gives a size."""
    for node in graph.nodes:
        if node is call:
            break
        value = node.meta.get("val")
        if _is_size(value, name):
            found: fx.Node = node
            return found
        for axis, size in enumerate(getattr(value, "shape", ())):
            if _is_size(size, name):
                with graph.inserting_before(call):
                    return graph.call_function(torch.ops.aten.sym_size.int, (node, axis))
    raise NotImplementedError(f"no argument says the size {name}")


def _is_size(value: Any, name: str) -> bool:
    """Return whether a value is the symbol of this name itself."""
    return isinstance(value, torch.SymInt) and str(value.node.expr) == name
