"""`core.tensor.megbrain_graph`: graphs that are built by hand, compiled, fed and read.

A graph here is what its variables depend on; a variable whose input has no shape yet has none
either, and is computed from the tensors that inputs are given.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import IO, Any, NamedTuple

from treadle.base.dtype import as_dtype
from treadle.base.errors import EngineError
from treadle.base.files.source import PathLike
from treadle.base.types import TensorType
from treadle.graph.evaluate import evaluate
from treadle.jit.dump import CompGraphDumpResult
from treadle.tensor import Tensor
from treadle.utils.network import Network
from treadle.utils.network_node import Host2DeviceCopy, const_var, input_var
from treadle.utils.network_node import OpNode as NetworkOp
from treadle.utils.network_node import VarNode as NetworkVar
from treadle.utils.network_order import order_of


class Graph:
    """Graph of variables; `options` are taken and have no effect."""

    def __init__(self) -> None:
        self.options = SimpleNamespace(graph_opt=SimpleNamespace())

    def make_const(
        self, data: Any, dtype: Any = None, device: Any = None, name: str = ""
    ) -> NetworkVar:
        """A constant."""
        return _marked(const_var(Tensor(data, dtype=dtype).numpy(), name or ""), self)

    def make_h2d(
        self, *, dtype: Any, device: Any, shape: Sequence[int] | None = None, name: str = ""
    ) -> NetworkVar:
        """An input."""
        if shape is None:
            return InputNode(device=device, dtype=dtype, graph=self).outputs[0]
        return _marked(input_var(tuple(shape), dtype, name or ""), self)

    def compile(self, *args: Any) -> Function:
        """Return a function that computes variables."""
        listed = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        return Function(listed)


class Function:
    """A compiled graph, as `Graph.compile` makes it: callbacks and nodes get values when it is
    executed.
    """

    def __init__(self, variables: Sequence[NetworkVar]) -> None:
        self._owners = [v.owner for v in variables]

    def execute(self) -> None:
        """Call the callbacks of outputs; output nodes are computed when they are read."""
        for owner in self._owners:
            if isinstance(owner, _Callback):
                owner.call()

    __call__ = execute

    def wait(self) -> None:
        """Return at once: results are there."""


def _marked(var: NetworkVar, graph: Graph) -> NetworkVar:
    var.owner.graph = graph  # type: ignore[attr-defined]
    return var


def graph_of(var: NetworkVar) -> Graph:
    """The graph a variable was made in, or a new one."""
    found = [n.graph for n in order_of([var]) if hasattr(n, "graph")]
    return found[0] if found else Graph()


# MegEngine's variables know their graph; a network's own have no use for one.
NetworkVar.graph = property(graph_of)  # type: ignore[attr-defined]


class _Open(NetworkOp):
    """An operator by its definition, whose results have shapes only when they are computed."""

    type = "OpNode"

    def __init__(self, compute: Callable[..., Sequence[Any]], inputs: Sequence[Any]) -> None:
        super().__init__(None, list(inputs))
        self.compute = compute
        self.outputs = [NetworkVar(self, 0, TensorType(as_dtype("float32"), ()))]

    def set_inputs(self, inputs: list[NetworkVar]) -> None:
        """Put other variables in the place of the inputs."""
        self.inputs = list(inputs)


class InputNode(_Open):
    """An input that `set_value` feeds.

    Args:
        args: variables to wait for; there is nothing to wait for here.
        device, dtype, shape: of what it will be given.
        graph: where it belongs.
    """

    def __init__(
        self,
        *args: Any,
        device: Any = None,
        dtype: Any = None,
        shape: Any = None,
        graph: Graph | None = None,
        use_static_shape: bool = False,
    ) -> None:
        super().__init__(self._next, [])
        self.device, self.dtype = device, dtype
        self.graph = graph or Graph()
        self._value: Tensor | None = None

    def set_value(self, value: Any) -> None:
        """Set the value that the graph is computed from, from here on."""
        self._value = value if isinstance(value, Tensor) else Tensor(value)

    def reset(self) -> None:
        """Forget the value."""
        self._value = None

    def _next(self) -> list[Tensor]:
        if self._value is None:
            raise EngineError("graph", "an input has no value", hint="set_value() it first")
        return [self._value]


def compute(var: NetworkVar) -> Tensor:
    """The value of a variable, computed from what inputs were given."""
    ordered = order_of([var])
    if not any(isinstance(opr, (_Open, Host2DeviceCopy)) for opr in ordered):
        net = Network()
        net.add_output(var)
        return Tensor(evaluate(net.graph(), [])[0])  # Data may decide extents of constants.
    known: dict[int, Sequence[Any]] = {}
    for opr in ordered:
        given = [known[x.owner.key][x.index] for x in opr.inputs]
        if isinstance(opr, _Open):
            known[opr.key] = opr.compute(*given)
        elif opr.op is None or not opr.inputs:
            known[opr.key] = [Tensor(v.numpy()) for v in opr.outputs]
        else:
            known[opr.key] = given[0].apply(opr.op, tuple(given))
    found: Tensor = known[var.owner.key][var.index]
    return found


class OutputNode(NetworkOp):
    """Reads a variable."""

    type = "OutputNode"

    def __init__(self, var: NetworkVar, *args: Any) -> None:
        super().__init__(None, [var])
        self.outputs = [var]
        self.graph = graph_of(var)

    def get_value(self) -> Any:
        """The value, as a tensor.

        Raises:
            EngineError: an input has none.
            GraphError: the variable depends on an input of a network.
        """
        return compute(self.outputs[0])

    def drop_value(self) -> None:
        """Do nothing: no value is kept."""

    reset = drop_value


ValueOutputNode = OutputNode


class AttrOutputNode(OutputNode):
    """Reads shape, element type and device of a variable."""

    def get_value(self) -> Any:
        """An object with `shape`, `dtype` and `device`."""
        found = super().get_value()
        return TensorAttr(found.shape, found.dtype, found.device)


class TensorAttr(NamedTuple):
    """The values that an `AttrOutputNode` reads."""

    shape: tuple[int, ...]
    dtype: Any
    device: Any


class _Callback(_Open):
    """Gives a variable's value to a function."""

    def __init__(self, callback: Callable[[Any], Any], var: NetworkVar) -> None:
        super().__init__(lambda x: [x], [var])
        self._callback = callback

    def call(self) -> None:
        """Compute, and give."""
        self._callback(compute(self.inputs[0]))


def input_callback(
    callback: Callable[[], Any],
    *args: Any,
    device: Any = None,
    dtype: Any = None,
    shape: Any = None,
    graph: Graph | None = None,
) -> tuple[NetworkVar, NetworkVar]:
    """A variable whose value a function gives; twice, where MegEngine's has one to wait for."""
    made = _Open(lambda: [callback()], [])
    _marked(made.outputs[0], graph or Graph())
    return made.outputs[0], made.outputs[0]


def output_callback(callback: Callable[[Any], Any], var: NetworkVar, *args: Any) -> NetworkVar:
    """A variable that gives its value to a function when it is executed."""
    return _Callback(callback, var).outputs[0]


def apply_normal_varnode(op: Any, *args: NetworkVar) -> list[NetworkVar]:
    """Results of an op on variables."""
    if any(isinstance(n, _Open) for n in order_of(args)):
        return list(_Open(op, args).outputs)
    found: list[NetworkVar] = op(*args)
    return found


class CompGraphLoadResult(NamedTuple):
    """Result of `load_graph`."""

    graph: Network
    output_vars_dict: Mapping[str, NetworkVar]
    output_vars_list: list[NetworkVar]


def load_graph(fpath: PathLike | IO[Any]) -> CompGraphLoadResult:
    """The variables of a model file."""
    net = Network.load(fpath)
    named = OrderedDict((v.name, v) for v in net.dest_vars)
    return CompGraphLoadResult(net, named, net.dest_vars)


def dump_graph(
    output_vars: Mapping[str, NetworkVar] | Sequence[NetworkVar], **options: Any
) -> tuple[bytes, CompGraphDumpResult]:
    """A model file, and what is in it; options are those of `Network.dump`."""
    net = Network()
    if isinstance(output_vars, Mapping):
        for name, var in output_vars.items():
            var.name = name
        output_vars = list(output_vars.values())
    net.add_output(*output_vars)
    file = io.BytesIO()
    done = net.dump(file, **options)
    return file.getvalue(), done


def optimize_for_inference(
    dest_vars: Sequence[NetworkVar], **options: bool
) -> Sequence[NetworkVar]:
    """The variables as they are; see `Network.optimize_for_inference`."""
    return Network().optimize_for_inference(dest_vars, **options)


MEMBERS: dict[str, Any] = {
    "AttrOutputNode": AttrOutputNode,
    "CompGraphDumpResult": CompGraphDumpResult,
    "CompGraphLoadResult": CompGraphLoadResult,
    "Graph": Graph,
    "InputNode": InputNode,
    "OpNode": NetworkOp,
    "OutputNode": OutputNode,
    "TensorAttr": TensorAttr,
    "ValueOutputNode": ValueOutputNode,
    "VarNode": NetworkVar,
    "apply_normal_varnode": apply_normal_varnode,
    "dump_graph": dump_graph,
    "input_callback": input_callback,
    "load_graph": load_graph,
    "optimize_for_inference": optimize_for_inference,
    "output_callback": output_callback,
}
"""Members of `core.tensor.megbrain_graph`."""
