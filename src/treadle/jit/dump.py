"""`trace.dump`: a traced function as a model file, its parameters inside as constants."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import numpy as np

from treadle import graph as graphs
from treadle.base import tree
from treadle.base.dialect import Dialect
from treadle.base.errors import TraceError
from treadle.base.files.numpy_files import load_array
from treadle.base.files.source import PathLike
from treadle.base.guards import recording_guards
from treadle.base.shape import size_of
from treadle.engine.package import models
from treadle.engine.package.models import Case, Model, Runner
from treadle.engine.phases import finds_extents, renumbered
from treadle.graph.analysis import live_nodes
from treadle.graph.halves import with_halves
from treadle.graph.ir import Graph, Node, Value, remake, with_types
from treadle.jit.captured import Argument, CapturedCall, HostValue, Output, State
from treadle.jit.naming import numbered
from treadle.jit.printing import without_prints
from treadle.ops.batch_norm import BatchNormTrain
from treadle.ops.constant import ArrayData, Constant
from treadle.runtime.array import to_host
from treadle.tensor import Tensor

LAYOUT_OPTIONS = (
    "enable_io16xc32",
    "enable_ioc16",
    "enable_hwcd4",
    "enable_nchw88",
    "enable_nchw44",
    "enable_nchw44_dot",
    "enable_nchw4",
    "enable_nchw32",
    "enable_nchw64",
    "enable_chwn4",
    "enable_fuse_conv_bias_nonlinearity",
    "enable_fuse_conv_bias_with_z",
    "enable_fuse_preprocess",
    "enable_fuse_grain",
)
"""MegEngine's options of optimization. They are written into the file. The first two make values
float16; the others change nothing else: layouts and fusion are decided when a model is loaded, for
the machine it is loaded on."""


class CompGraphDumpResult(NamedTuple):
    """Result of `dump`.

    Attributes:
        nr_opr: number of ops.
        tot_bytes: size of the file.
        tensor_value_bytes: size of the tensors in it.
        content_hash: SHA-256 of the program, weights included.
        inputs, outputs: names of the model's ends.
        params: names of its parameters.
    """

    nr_opr: int
    tot_bytes: int
    tensor_value_bytes: int
    content_hash: str
    inputs: list[str]
    outputs: list[str]
    params: list[str]


@dataclass(frozen=True, slots=True)
class Ends:
    """Names for the arguments and results of a traced call, None where nobody gave any."""

    arguments: Sequence[str] | None = None
    outputs: Sequence[str] | None = None


def argument_names(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Names of tensors, or `arg_0`, `arg_1`, ..., `kwarg_name`, as arguments are flattened.

    Only tensors are inputs of a model: what else is passed, a module above all, is part of it.
    """
    named = {
        name: given.name or f"kwarg_{name}"
        for name, given in kwargs.items()
        if isinstance(given, Tensor)
    }
    found = [getattr(given, "name", "") or f"arg_{i}" for i, given in enumerate(args)]
    return list(tree.flatten((found, named))[0])


class Weights:
    """Data of constants by the arrays that they are copies of: two graphs share them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, ArrayData]] = {}

    def of(self, payload: object) -> ArrayData:
        """The data of a tensor's array, which is copied when it is first asked for."""
        if id(payload) not in self._known:
            self._known[id(payload)] = payload, ArrayData(to_host(payload))
        return self._known[id(payload)][1]


def model_of(
    name: str,
    captured: CapturedCall,
    arguments: Sequence[str],
    ends: Ends,
    fast: bool = False,
    weights: Weights | None = None,
) -> Model:
    """A captured call as a model: state becomes constants, whose data `weights` may have.

    With `fast`, rewrites that hold in real arithmetic only are applied before it is written.

    Raises:
        TraceError: the function does more than compute its results from arguments and state.
        ValueError: there are more or fewer names than arguments or results.
    """
    _refuse(name, captured)
    inputs = list(ends.arguments) if ends.arguments is not None else list(arguments)
    if len(inputs) != len(arguments):
        raise ValueError(
            f"dump: {len(arguments)} arguments were traced, arg_names has {len(inputs)}"
        )
    results, _ = tree.flatten(captured.results)
    wanted = [r.index for r in results if isinstance(r, Output)]
    graph = inference_graph(name, captured, wanted, weights)
    graph = rewritten(graph) if fast else graph
    # The capture of a call numbers found extents by marks that no text can have.
    graph = renumbered(graph) if finds_extents(graph) else graph
    # Names of arguments are taken.
    called = [captured.named.get(i, "") for i in wanted]
    called = ["" if name in inputs else name for name in called]
    outputs = list(_output_names(captured, graph, called) if ends.outputs is None else ends.outputs)
    if len(outputs) != len(wanted):
        raise ValueError(
            f"dump: the function has {len(wanted)} results, output_names has {len(outputs)}"
        )
    return Model(graph, tuple(inputs), tuple(outputs))


def rewritten(graph: Graph) -> Graph:
    """The graph after rewrites that hold in real arithmetic only."""
    return graphs.cleanup.DeadCode()(graphs.simplify.Simplify("fast")(graph))


def _refuse(name: str, captured: CapturedCall) -> None:
    problem = ""
    if captured.updates or any(r() is not None for _, r in captured.escaped):
        problem = "it changes tensors besides computing results"
    if Dialect.megengine and any(isinstance(n.op, BatchNormTrain) for n in captured.graph.nodes):
        problem = "it normalizes by statistics of its batch"
    if any(isinstance(s, HostValue) for s in captured.sources):
        problem = "it reads learning rates or random states at each call"
    if problem:
        raise TraceError(
            f"trace {name}",
            f"the function cannot be dumped: {problem}",
            hint="call eval() on the module, and trace what is needed for inference only",
        )


def inference_graph(
    name: str, captured: CapturedCall, wanted: Sequence[int], weights: Weights | None = None
) -> Graph:
    """The graph of some outputs, as a function of the arguments alone."""
    weights = Weights() if weights is None else weights
    old = without_prints(captured.graph, f"dump {name}")
    inputs: dict[int, Value] = {}
    values: dict[Value, Value] = {}
    nodes: list[Node] = []
    for source, value in zip(captured.sources, old.inputs, strict=True):
        if isinstance(source, Argument):
            made = inputs[source.index] = Value(value.type, None, source.index, value.name)
        elif isinstance(source, State):
            op = Constant(weights.of(source.tensor._data), value.type.device)
            node = Node(op, (), names=(value.name,))
            nodes.append(node)
            made = node.outputs[0]
        else:
            raise TypeError(f"{source!r} is not an input of a model")
        values[value] = made
    live = live_nodes(old, deciding=True)
    kept = [node for node in old.nodes if node in live]
    with recording_guards():  # Those of the capture stay.
        for node, names in zip(kept, _names(kept), strict=True):
            made_node = remake(node, node.op, tuple(values[v] for v in node.inputs))
            made_node = with_types(
                Node(node.op, made_node.inputs, node.loc, names, node.group),
                tuple(v.type for v in made_node.outputs),
            )
            nodes.append(made_node)
            values.update(zip(node.outputs, made_node.outputs, strict=True))
    outputs = tuple(values[old.outputs[i]] for i in wanted)
    given = tuple(inputs[i] for i in sorted(inputs))
    return Graph(name, given, tuple(nodes), outputs, old.guards)


def _names(nodes: Sequence[Node]) -> list[tuple[str, ...]]:
    """Names of the results of nodes, no two alike."""
    firsts = numbered([next(iter(n.names), "") for n in nodes])
    return [
        tuple(f"{name}:o{i}" if name and i else name for i in range(len(n.outputs)))
        for n, name in zip(nodes, firsts, strict=True)
    ]


def _output_names(captured: CapturedCall, graph: Graph, called: Sequence[str]) -> list[str]:
    """Keys of a dict that was returned, else what the tensors, ops and values are called."""
    if isinstance(captured.results, dict):
        return [str(key) for key in captured.results]
    taken: list[str] = []
    for number, (value, given) in enumerate(zip(graph.outputs, called, strict=True)):
        producer = value.producer
        name = given or value.name or (f"{producer.op.name}" if producer else f"output_{number}")
        taken.append(name if name not in taken else f"{name}[{number}]")
    return taken


# -- options, cases, files -----------------------------------------------------------------


def checked_options(given: Mapping[str, Any], optimized: bool = True) -> dict[str, Any]:
    """Options of optimization by MegEngine's names, and whether optimization was declined.

    Raises:
        ValueError: there is no such option.
    """
    for name in given:
        if name not in LAYOUT_OPTIONS:
            raise ValueError(
                f"dump: unknown option {name!r}; there are {', '.join(LAYOUT_OPTIONS)}"
            )
    declined = {} if optimized else {"optimized_for_inference": False}
    return {name: bool(value) for name, value in given.items() if value} | declined


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """Options of a file to be written; the fields are `dump`'s arguments."""

    append: bool
    user_info: Any
    enable_metadata: bool
    options: Mapping[str, Any]
    input_data: Sequence[Any] | None
    input_transform: Any
    repeat: int
    no_assert: bool
    maxerr: float
    resize_input: bool
    engines: tuple[str, ...] = ()


def without_names(model: Model) -> Model:
    """The model without the names of operators; parameters, inputs and outputs keep theirs."""
    return model.changed(_unnamed(model.graph), _unnamed)


def _unnamed(old: Graph) -> Graph:
    values: dict[Value, Value] = dict(zip(old.inputs, old.inputs, strict=True))
    nodes = []
    for node in old.nodes:
        given = tuple(values[v] for v in node.inputs)
        names = node.names if isinstance(node.op, Constant) else ()
        made = with_types(
            Node(node.op, given, node.loc, names, node.group), tuple(v.type for v in node.outputs)
        )
        nodes.append(made)
        values.update(zip(node.outputs, made.outputs, strict=True))
    outputs = tuple(values[v] for v in old.outputs)
    return Graph(old.name, old.inputs, tuple(nodes), outputs, old.guards)


def in_halves(model: Model, options: Mapping[str, Any]) -> Model:
    """The model with float16 between its ends, where options say so.

    `enable_io16xc32` stores values in 16 bits and computes in 32, `enable_ioc16` does both in 16.
    """
    wide = options.get("enable_io16xc32", False)
    if not wide and not options.get("enable_ioc16"):
        return model

    def narrow(graph: Graph) -> Graph:
        with recording_guards():  # They are known.
            return with_halves(graph, wide)

    return model.changed(with_halves(model.graph, wide), narrow)


def write(f: PathLike | IO[Any], model: Model, asked: DumpOptions) -> CompGraphDumpResult:
    """Write a model with its test cases, behind those that are in the file if so asked."""
    model = in_halves(model, asked.options)
    cases = tuple(_cases(model, asked)) if asked.input_data is not None else ()
    whole = Model(
        model.graph,
        model.inputs,
        model.outputs,
        asked.user_info if asked.enable_metadata else None,
        dict(asked.options) if asked.enable_metadata else {"enable_metadata": False},
        cases,
        opened=model.opened,
    )
    if asked.engines:
        whole = models.with_segments(whole, asked.engines)
    before = models.read_models(f, allow_native=True) if asked.append and _is_there(f) else []
    done = models.write_models(f, [*before, whole], "dump")
    constants = [n for n in model.graph.nodes if isinstance(n.op, Constant)]
    return CompGraphDumpResult(
        len(model.graph.nodes) + len(model.graph.inputs),
        done.nbytes,
        sum(n.outputs[0].type.nbytes for n in constants),
        model.graph.digest,
        list(model.inputs),
        list(model.outputs),
        [n.outputs[0].name for n in constants if n.outputs[0].name],
    )


def _is_there(f: PathLike | IO[Any]) -> bool:
    if isinstance(f, str | bytes | os.PathLike):
        return os.path.exists(os.fsdecode(f)) and os.path.getsize(os.fsdecode(f)) > 0
    raise ValueError("dump: append=True takes a path, not a file object")


def _cases(model: Model, asked: DumpOptions) -> list[Case]:
    """Test cases: inputs as they were asked for, outputs as the model gives them now."""
    found = []
    run = None if asked.no_assert else Runner(model.graph)
    for entry in asked.input_data or ():
        given = _parsed(entry, model, asked)
        arrays = [given[name] for name in model.inputs]
        outputs = {} if run is None else dict(zip(model.outputs, run(arrays), strict=True))
        found += [Case(given, outputs, asked.maxerr)] * asked.repeat
    return found


def _parsed(entry: Any, model: Model, asked: DumpOptions) -> dict[str, Any]:
    """One test case: arrays by name, or text like `data:x.npy;mask:#rand(0,1)`."""
    if isinstance(entry, str):
        parts = [part.partition(":") for part in entry.split(";") if part]
        if len(model.inputs) == 1 and len(parts) == 1 and parts[0][0] not in model.inputs:
            parts = [(model.inputs[0], ":", entry)]
        entry = {name: text for name, _, text in parts}
    elif not isinstance(entry, Mapping):
        entry = {model.inputs[0]: entry}
    if set(entry) != set(model.inputs):
        raise ValueError(
            f"dump: input_data has values for {sorted(entry)}, the inputs are {list(model.inputs)}"
        )
    found = {}
    for value, name in zip(model.graph.inputs, model.inputs, strict=True):
        array = _array(entry[name], value)
        if asked.input_transform is not None:
            array = np.asarray(asked.input_transform(array))
        if asked.resize_input and array.shape != value.type.shape:
            raise ValueError("dump: resize_input needs images; resize them before, with OpenCV")
        shaped = np.ascontiguousarray(array, value.type.dtype.numpy)
        if shaped.size == 1 == size_of(value.type.shape):  # MegEngine keeps 0-d inputs as (1,).
            shaped = shaped.reshape(value.type.shape)
        if shaped.shape != value.type.shape:
            raise ValueError(
                f"dump: input_data for {name!r} has shape {shaped.shape}, not {value.type.shape}"
            )
        found[name] = shaped
    return found


def _array(given: Any, value: Value) -> Any:
    if not isinstance(given, str):
        return given.numpy() if callable(getattr(given, "numpy", None)) else np.asarray(given)
    if not given.startswith("#rand"):
        if not given.endswith(".npy"):
            raise ValueError(f"dump: input_data {given!r} is neither a .npy file nor #rand(a, b)")
        return load_array(given)
    try:
        low, high, *rest = [float(x) for x in given[len("#rand") :].strip(" ()").split(",")]
    except ValueError:
        raise ValueError(f"dump: {given!r} is not of the form #rand(low, high[, shape])") from None
    shape = tuple(int(x) for x in rest) or value.type.shape
    random = np.random.default_rng(0).uniform(low, high, shape)
    return random.astype(value.type.dtype.numpy)


__all__ = [
    "LAYOUT_OPTIONS",
    "CompGraphDumpResult",
    "DumpOptions",
    "Ends",
    "argument_names",
    "model_of",
]
