"""The backend: graphs of PyTorch, forward and backward, as programs of the engine.

AOTAutograd gives functional graphs of ATen operators. What has a counterpart is gathered into as
few parts as possible, each of which becomes one native program; the rest stays with PyTorch.
"""

from __future__ import annotations

import operator
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._higher_order_ops.effects import with_effects
from torch._ops import HigherOrderOperator
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from treadle.base.errors import GraphError
from treadle.base.guards import deciding
from treadle.base.log import get_logger
from treadle.interop.torch import caches
from treadle.interop.torch.calls import boxed, direct, drop_stream, note_what_is_around
from treadle.interop.torch.control import ControlFlowCall, take_over
from treadle.interop.torch.donations import donated_to, donated_to_backward, note_donated
from treadle.interop.torch.drawing import DRAWING
from treadle.interop.torch.flex import write_out
from treadle.interop.torch.nodes import decompositions, note_what_is_read, refusal
from treadle.interop.torch.parts import CompiledPart, add_sizes
from treadle.interop.torch.placements import devices_of
from treadle.interop.torch.strides import look_at_bases, note_who_sees
from treadle.interop.torch.symbols import Range, is_number, knowing, ranges
from treadle.interop.torch.table import name_of
from treadle.interop.torch.views import is_apart, set_apart


@dataclass(frozen=True, slots=True)
class Left:
    """Operators that PyTorch ran itself: the name, how many nodes, and why."""

    operator: str
    nodes: int
    reason: str


_LEFT: Counter[tuple[str, str]] = Counter()
_LOCK = threading.Lock()


def left_to_torch() -> list[Left]:
    """Return the nodes left to PyTorch by all compilations so far, most nodes first.

    An entry "(not captured)" is code that PyTorch's tracer gave up on, for whatever backend: it
    never reached this one. Recurrent layers are such code unless `torch._dynamo.config.allow_rnn`
    is set.
    """
    breaks = [Left("(not captured)", n, why) for why, n in _breaks().items()]
    with _LOCK:
        return [Left(name, n, why) for (name, why), n in _LEFT.most_common()] + breaks


def _breaks() -> Counter[str]:
    """Count why the tracer gave up, in one line each."""
    found: Counter[str] = Counter()
    for reason, count in counters["graph_break"].items():
        first, _, rest = str(reason).partition("\n")
        rnn = "; torch._dynamo.config.allow_rnn = True captures it" if "allow_rnn" in rest else ""
        found[first.strip() + rnn] += count
    return found


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """Options of `torch.compile(model, backend="treadle", options={...})`.

    Attributes:
        fallback_random: PyTorch draws random numbers, as without compilation; by default programs
            draw their own, under keys of PyTorch's generator.
        recompute: backward computes again what is cheap, in place of keeping it: PyTorch's
            partition by minimum cut, within `torch._functorch.config.activation_memory_budget`.
    """

    fallback_random: bool = False
    recompute: bool = False


def _settings(options: Mapping[str, Any] | None) -> BackendSettings:
    """Options that the backend has.

    Raises:
        GraphError: another name, or another type of value.
    """
    given = dict(options or {})
    for entry in fields(BackendSettings):
        value = given.get(entry.name, entry.default)
        if type(value) is not type(entry.default):
            wanted = type(entry.default).__name__
            raise GraphError("torch.compile", f"{entry.name}={value!r} is not of type {wanted}")
    known = [entry.name for entry in fields(BackendSettings)]
    for name in given:
        if name not in known:
            raise GraphError(
                "torch.compile",
                f"the backend has no option {name!r}",
                hint=f"it has {', '.join(known)}",
            )
    return BackendSettings(**given)


def backend(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str = "",
) -> Callable[..., Any]:
    """A backend for `torch.compile`: `torch.compile(model, backend="treadle")`.

    Training and inference, sizes that change; tensors of the CPU, and of Treadle's devices where
    `treadle.torch` is imported. Operators that have no
    counterpart are run by PyTorch (see `left_to_torch`).

    Args:
        module, inputs: what PyTorch's tracer captured.
        options: see `BackendSettings`.
        mode: of PyTorch's own backend; there is none here.

    Raises:
        GraphError: an option, or a mode, that the backend does not have.
    """
    if mode:
        raise GraphError("torch.compile", f"the backend has no mode {mode!r}", hint="leave it out")
    settings = _settings(options)
    compiled: Any = aot_autograd(
        fw_compiler=_compiler(settings, _results_of_program),
        bw_compiler=_compiler(settings, _all_results, donated_to_backward),
        inference_compiler=_compiler(settings, _all_results),
        decompositions=decompositions(draws=not settings.fallback_random),
        partition_fn=_minimum_cut if settings.recompute else default_partition,
    )
    with caches.named():
        made: Callable[..., Any] = compiled(module, inputs)
    drop_stream(module)
    # Dynamo keeps its tracer away from what a backend returns; once per call is enough.
    return direct(getattr(made, "_torchdynamo_orig_callable", made), module, inputs)


def _minimum_cut(joint: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """PyTorch's partition of a joint graph, for compilers that fuse what is computed again."""
    return min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **options)


def _results_of_program() -> int | None:
    """Return how many results of a forward graph are the program's; others are for the gradient."""
    context = torch._guards.TracingContext.try_get()
    known = None if context is None else context.fw_metadata
    return None if known is None else len(known.tokens) + int(known.num_forward)


def _all_results() -> None:
    return None


def _compiler(
    settings: BackendSettings,
    results: Callable[[], int | None],
    donated: Callable[[], Sequence[int]] = tuple,
) -> Any:
    """Return the function that AOTAutograd calls for a graph; `results`: see
    `note_what_is_read`, `donated`: see `note_donated`.
    """

    def compiles(module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        given = results(), settings, tuple(donated())
        if caches.are_asked_for():
            return caches.kept(_boxed, module, *given)
        return note_what_is_around(_boxed(module, *given))

    return caches.cacheable(compiles) if caches.are_asked_for() else compiles


def _boxed(
    module: fx.GraphModule,
    results: int | None,
    settings: BackendSettings,
    donated: Sequence[int] = (),
) -> Callable[[list[Any]], Any]:
    """Compile one graph of ATen operators."""
    note_donated(module.graph, donated)
    set_apart(module.graph, results)
    return boxed(_compiled(module, results, settings))


_BODIES = ("cond", "invoke_subgraph", "map_impl", "scan", "strict_mode", "while_loop")
"""Operators that PyTorch runs by calling graphs, as often as data say."""


def _compiled(
    module: fx.GraphModule, results: int | None, settings: BackendSettings
) -> fx.GraphModule:
    """A graph with programs in it, and those that it calls."""
    if not settings.fallback_random and not caches.are_asked_for():
        take_over(module)
    for name in _bodies(module.graph):
        body = module.get_submodule(name)
        if isinstance(body, fx.GraphModule):
            module.set_submodule(name, _compiled(body, None, settings))
    write_out(module, decompositions(draws=not settings.fallback_random))
    _drop_checks(module.graph)
    _drop_assertions(module.graph)
    look_at_bases(module.graph)
    note_what_is_read(module.graph, results)
    return _partitioned(module, results, settings)


def _bodies(graph: fx.Graph) -> list[str]:
    """Names of graphs that are called as branches, turns of loops or regions of their own."""
    found: dict[str, None] = {}
    for node in graph.nodes:
        higher = isinstance(node.target, HigherOrderOperator)
        is_body = higher and str(node.target) in _BODIES
        for given in node.all_input_nodes if is_body else ():
            if given.op == "get_attr":
                found[str(given.target)] = None
    return list(found)


def _drop_checks(graph: fx.Graph) -> None:
    """Take out PyTorch's looks at what its factors of matrices reported: ours raise themselves."""
    for node in list(graph.nodes):
        if node.target is not with_effects or "_linalg_check_errors" not in str(node.args[1]):
            continue
        for user in list(node.users):
            user.replace_all_uses_with(node.args[0])
            graph.erase_node(user)
        graph.erase_node(node)


_ASSERTIONS = ("_assert_tensor_metadata.default", "sym_constrain_range", "_assert_scalar.default")


_ASSERTED = "treadle_asserted"
"""Key of nodes' `meta`: PyTorch computes this number and looks at it in each call."""


def _drop_assertions(graph: fx.Graph) -> None:
    """Take out what PyTorch checked while it captured: types, layouts and ranges of extents.

    What is asserted of numbers that data decide stays, since programs rely on it.
    """
    for node in reversed(list(graph.nodes)):
        asserts = name_of(node.target).startswith(_ASSERTIONS)
        asked = node.op == "call_function" and is_number(node.meta.get("val"))
        if not (asserts or asked) or node.users:
            continue
        if numbers := _numbers_of_data(node):
            for kept in (node, *numbers):
                kept.meta[_ASSERTED] = True
        else:
            graph.erase_node(node)


def _numbers_of_data(node: fx.Node) -> list[fx.Node]:
    """Return the numbers that a node asserts something of, if data of a tensor decide them."""
    if "_assert_scalar" not in name_of(node.target):
        return []
    found = dict.fromkeys(node.all_input_nodes)
    waiting, is_of_data = list(found), False
    while waiting:
        number = waiting.pop()
        if number.op == "placeholder" or isinstance(number.meta.get("val"), torch.Tensor):
            is_of_data |= number.op != "placeholder"
            del found[number]
            continue
        waiting += [n for n in number.all_input_nodes if n not in found]
        found |= dict.fromkeys(number.all_input_nodes)
    return list(found) if is_of_data else []


# -- what is taken over ------------------------------------------------------------------------


class _Support(OperatorSupportBase):  # type: ignore[misc, unused-ignore]  # torch may be missing
    """Finds nodes that have a counterpart, by writing each one on its own."""

    def __init__(
        self, settings: BackendSettings, symbols: Mapping[str, Range], device: torch.device
    ) -> None:
        self.reasons: dict[fx.Node, str] = {}
        self.symbols, self.device = symbols, device
        self._settings = settings
        self._hints = {name: known.hint for name, known in symbols.items()}
        self._dims = {name: known.dim(name, known.hint) for name, known in symbols.items()}

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        if node.op != "call_function" or is_apart(node) or node.meta.get(_ASSERTED):
            return False
        if node.target is operator.getitem:
            source = node.args[0]
            return isinstance(source, fx.Node) and self.is_node_supported(submodules, source)
        if node not in self.reasons:
            self.reasons[node] = self._refusal(node)
        return not self.reasons[node]

    def _refusal(self, node: fx.Node) -> str:
        if isinstance(node.target, ControlFlowCall):
            here = node.target.device == self.device
            return "" if here else f"a tensor is not on {self.device}"
        if self._settings.fallback_random and name_of(node.target) in DRAWING:
            return "PyTorch draws random numbers (fallback_random)"
        with knowing(self._dims), deciding(self._hints):
            return refusal(node, self.device)


# -- parts -------------------------------------------------------------------------------------


def _partitioned(
    module: fx.GraphModule, results: int | None, settings: BackendSettings
) -> fx.GraphModule:
    """The graph with every part that is taken over as one call of a program, device by device."""
    symbols = ranges(module.graph)
    reasons: dict[fx.Node, str] = {}
    for number, device in enumerate(devices_of(module.graph)):
        support = _Support(settings, symbols, device)
        module = _with_parts(module, results, support, f"fused_{number}_")
        reasons |= {n: why for n, why in support.reasons.items() if reasons.get(n, why)}
    _tell(reasons)
    _state_types(module, results)
    return module


def _state_types(module: fx.GraphModule, results: int | None) -> None:
    """Convert results of PyTorch's own kernels to the element types that the graph says.

    Its kernels give others in places (statistics of 16 bits), and programs read memory by the type;
    so do those of the gradient. The user gets what the kernels give.

    Args:
        module: the graph, whose parts are calls of programs.
        results: how many of its results are the user's; None: all.
    """
    given: dict[fx.Node, fx.Node] = {}
    for node in list(module.graph.nodes):
        value = node.meta.get("val")
        source = node.args[0] if node.target is operator.getitem else node
        left = isinstance(source, fx.Node) and isinstance(source.target, torch._ops.OpOverload)
        if not left or not isinstance(value, torch.Tensor):
            continue
        with module.graph.inserting_after(node):
            made = module.graph.call_function(_of_type, (node, value.dtype))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made, delete_user_cb=lambda user, made=made: user is not made)
        given[made] = node
    (end,) = module.graph.find_nodes(op="output")
    listed = end.args[0]
    if isinstance(listed, fx.Node):
        end.args = (given.get(listed, listed),)
    elif isinstance(listed, (tuple, list)):
        count = len(listed) if results is None else results
        users = [given.get(x, x) if isinstance(x, fx.Node) else x for x in listed[:count]]
        end.args = ((*users, *listed[count:]),)
    module.recompile()


def _of_type(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x if x.dtype is dtype else x.to(dtype)


def _with_parts(
    module: fx.GraphModule, results: int | None, support: _Support, name: str
) -> fx.GraphModule:
    """The graph with its parts on one device as calls of programs, whose names begin alike."""
    partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
    partitions = [p for p in partitioner.propose_partitions() if _computes(p)]
    note_who_sees(module.graph, results, partial(support.is_node_supported, {}))
    fused = partitioner.fuse_partitions(partitions, prefix=name)
    calls = fused.graph.find_nodes(op="call_module")
    parts = [n for n in calls if str(n.target).startswith(name)]
    for node in parts:
        part = fused.get_submodule(str(node.target))
        if isinstance(part, fx.GraphModule):
            given = donated_to(node)
            made = CompiledPart(part, support.symbols, support.device, given)
            add_sizes(fused, node, made.unread)
            fused.set_submodule(str(node.target), made)
    fused.recompile()
    return fused


def _computes(part: Any) -> bool:
    """Return whether a part is more than numbers made of sizes, which PyTorch computes as fast."""
    return any(not is_number(node.meta.get("val")) for node in part.nodes)


def _tell(reasons: Mapping[fx.Node, str]) -> None:
    left = Counter(
        (name_of(node.target) or str(node.target), why) for node, why in reasons.items() if why
    )
    with _LOCK:
        _LEFT.update(left)
    for (name, why), count in left.most_common():
        get_logger("torch").info("%s stays with PyTorch (%d nodes): %s", name, count, why)
