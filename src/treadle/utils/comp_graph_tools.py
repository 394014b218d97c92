"""Looking into graphs of variables, and running model files (`cgtools`)."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

import numpy as np

from treadle.base.files.source import PathLike
from treadle.base.shape import size_of
from treadle.engine.execute import Timeline
from treadle.engine.package.models import Runner
from treadle.inspect import Inspected
from treadle.jit.inspection import profile_data
from treadle.utils.network import Network, as_varnode
from treadle.utils.network_node import (
    ConstOpBase,
    Host2DeviceCopy,
    OpNode,
    VarNode,
    const_var,
    input_var,
)
from treadle.utils.network_order import order_of

Variables = VarNode | Sequence[VarNode]


def _listed(var: Variables) -> list[VarNode]:
    return [var] if isinstance(var, VarNode) else [as_varnode(v) for v in var]


def get_owner_opr_inputs(var: VarNode) -> list[VarNode]:
    """Inputs of the operator that makes a variable."""
    return list(var.owner.inputs)


def get_owner_opr_type(var: VarNode) -> str:
    """Type of the operator that makes a variable."""
    return var.owner.type


def get_opr_type(opr: OpNode) -> str:
    """Type of an operator.

    Raises:
        TypeError: it is not an operator.
    """
    if not isinstance(opr, OpNode):
        raise TypeError(f"get_opr_type: {type(opr).__name__} is not an operator")
    return opr.type


def get_dep_vars(var: Variables, var_type: str | Iterable[str] | None = None) -> list[VarNode]:
    """Variables that others depend on, of operators of some types (all for None), in order."""
    wanted = None if var_type is None else _types(var_type)
    return [
        v
        for opr in order_of(_listed(var))
        for v in opr.outputs
        if wanted is None or opr.type in wanted
    ]


def _types(given: str | Iterable[str]) -> set[str]:
    return {given} if isinstance(given, str) else set(given)


def get_oprs_seq(
    outputs: Variables, prune_reshape: bool = False, prune_immtensor: bool = True
) -> list[OpNode]:
    """Operators in the order in which they can run, without constants (`prune_immtensor`).

    Args:
        outputs: variables that are wanted.
        prune_reshape: leave out shapes that are computed for reshaping; ours are attributes.
        prune_immtensor: leave out constants.
    """
    return [
        opr
        for opr in order_of(_listed(outputs))
        if not (prune_immtensor and isinstance(opr, ConstOpBase))
    ]


def graph_traversal(
    outputs: Variables,
) -> tuple[
    dict[int, OpNode],
    dict[int, VarNode],
    dict[int, list[tuple[int, int]]],
    dict[int, list[int]],
    dict[int, set[int]],
    dict[int, int],
]:
    """Return the dependencies of operators and variables, by number.

    Returns:
        Operators; the variables that they take; for each variable, who takes it, as (operator,
        which of its inputs); for each operator, those that take its results, once for each input;
        for each count of inputs, the operators that have as many; for each operator, that count.
    """
    oprs = {opr.id: opr for opr in order_of(_listed(outputs))}
    variables: dict[int, VarNode] = {}
    takers: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    receivers: defaultdict[int, list[int]] = defaultdict(list)
    by_count: defaultdict[int, set[int]] = defaultdict(set)
    for opr in oprs.values():
        by_count[len(opr.inputs)].add(opr.id)
        for place, var in enumerate(opr.inputs):
            variables[var.id] = var
            takers[var.id].append((opr.id, place))
            receivers[var.owner.id].append(opr.id)
    return oprs, variables, takers, receivers, by_count, {i: len(o.inputs) for i, o in oprs.items()}


def replace_vars(dst: Sequence[VarNode], varmap: Mapping[VarNode, VarNode]) -> list[VarNode]:
    """The variables, computed from others in place of some; see `Network.replace_vars`."""
    net = Network()
    net.add_output(*dst)
    net.replace_vars(varmap)
    return net.dest_vars


def replace_oprs(dst: Sequence[VarNode], oprmap: Mapping[OpNode, OpNode]) -> list[VarNode]:
    """The variables, computed by other operators in place of some."""
    net = Network()
    net.add_output(*dst)
    net.replace_oprs(oprmap)
    return net.dest_vars


def find_vars_by_name(dst: Sequence[VarNode], names: Sequence[str]) -> list[VarNode]:
    """Variables of these names among those that others depend on.

    Raises:
        ValueError: there is none of a name, or there are several.
    """
    net = Network()
    net.add_output(*dst)
    return [net.get_var_by_name(name) for name in names]


def convert_inputs(
    dst: Sequence[VarNode], inputs: Sequence[VarNode] | None = None
) -> tuple[list[VarNode], list[VarNode]]:
    """Return variables with new inputs in place of `inputs` (None: all), and these inputs."""
    found = list(inputs) if inputs is not None else _inputs(dst)
    fresh = {v: input_var(v.shape, v.dtype, v.name) for v in found}
    return replace_vars(dst, fresh), list(fresh.values())


def convert_outputs(dst: Sequence[VarNode]) -> tuple[list[VarNode], list[VarNode]]:
    """Return the variables twice: outputs need no node of their own."""
    return list(dst), list(dst)


def embed_inputs(
    dst: Sequence[VarNode],
    data: Sequence[Any],
    inputs: Sequence[VarNode] | None = None,
) -> tuple[list[VarNode], list[VarNode]]:
    """Return variables with constants in place of inputs, and these constants.

    Raises:
        ValueError: there are more or fewer arrays than inputs.
    """
    found = list(inputs) if inputs is not None else _inputs(dst)
    if len(found) != len(data):
        raise ValueError(f"embed_inputs: {len(found)} inputs, {len(data)} arrays")
    made = {v: const_var(np.asarray(a, v.dtype), v.name) for v, a in zip(found, data, strict=True)}
    return replace_vars(dst, made), list(made.values())


def _inputs(dst: Sequence[VarNode]) -> list[VarNode]:
    return [n.outputs[0] for n in order_of(dst) if isinstance(n, Host2DeviceCopy)]


class GraphInference:
    """A model file that runs on arrays.

    Args:
        file: a path, or a file object opened in binary mode.
        outputs: names of variables to compute; the model's outputs unless given.
        profiling: measure kernels at each run; see `get_profile`.
        optimize_for_inference: accepted; the engine always does.

    Raises:
        CheckpointError: the file is damaged, or holds no model.

    Example:
        >>> run = mge.utils.comp_graph_tools.GraphInference(path)          # doctest: +SKIP
        >>> run.run(image)["logits"]                                       # doctest: +SKIP
    """

    def __init__(
        self,
        file: PathLike | IO[Any],
        outputs: Sequence[str] | None = None,
        profiling: bool = False,
        optimize_for_inference: bool = False,
        **options: bool,
    ) -> None:
        net = Network.load(file, outputs)
        self._model = net.model()
        graph = self._model.graph
        self._names = [v.name for v in graph.inputs]
        self._outputs = [v.name or f"output_{i}" for i, v in enumerate(net.dest_vars)]
        results = [v for n in graph.nodes for v in n.outputs]
        # Extents that data decides have no program yet; such a model runs op by op.
        self._open = not all(v.type.is_static for v in results)
        self._runner = Runner(graph)
        self._shaped = {tuple(v.type.shape for v in graph.inputs): self._runner}
        self._profiling = profiling
        self._profile: dict[str, Any] | None = None

    def run(
        self, *inp_args: Any, inp_dict: Mapping[str, Any] | None = None
    ) -> OrderedDict[str, np.ndarray[Any, Any]]:
        """Run the model.

        Args:
            inp_args: arrays for the inputs, in order.
            inp_dict: arrays for inputs by name.

        Returns:
            The outputs by name.

        Raises:
            ValueError: inputs are missing, unknown or given twice.
            ShapeError: an array does not fit.
        """
        given = dict(zip(self._names, inp_args, strict=False))
        extra = dict(inp_dict or {})
        twice, unknown = given.keys() & extra.keys(), extra.keys() - set(self._names)
        given |= extra
        if len(inp_args) > len(self._names) or twice or unknown or len(given) != len(self._names):
            raise ValueError(
                f"run: the model's inputs are {self._names}, given are "
                f"{len(inp_args)} arrays and {list(extra)}"
            )
        arrays = [np.asarray(given[name]) for name in self._names]
        self._runner = self._for(arrays)
        results = self._runner(arrays)
        if self._profiling:
            types = [v.type.dtype.numpy for v in self._runner.graph.inputs]
            ready = [np.ascontiguousarray(a, t) for a, t in zip(arrays, types, strict=True)]
            profile = Inspected(self._runner.stages).profile(ready, repeats=1)
            if not isinstance(profile, Timeline):  # which programs of other devices have
                self._profile = profile_data(profile)
        return OrderedDict(zip(self._outputs, results, strict=True))

    def _for(self, arrays: Sequence[Any]) -> Runner:
        """Return the runner of the model at these shapes; it is compiled when they first come."""
        inputs = self._model.graph.inputs
        shapes = tuple(
            v.type.shape if a.size == 1 and size_of(v.type.shape) == 1 else a.shape
            for a, v in zip(arrays, inputs, strict=True)
        )
        if shapes not in self._shaped:
            self._shaped[shapes] = Runner(self._model.at(shapes))
        return self._shaped[shapes]

    def get_profile(self) -> dict[str, Any]:
        """Kernels of the last run and their seconds; see `trace.get_profile`.

        Raises:
            ValueError: nothing was measured.
        """
        if self._profile is None:
            raise ValueError("get_profile: make it with profiling=True, and run it")
        return self._profile


__all__ = [
    "GraphInference",
    "convert_inputs",
    "convert_outputs",
    "embed_inputs",
    "find_vars_by_name",
    "get_dep_vars",
    "get_opr_type",
    "get_oprs_seq",
    "get_owner_opr_inputs",
    "get_owner_opr_type",
    "graph_traversal",
    "replace_oprs",
    "replace_vars",
]
