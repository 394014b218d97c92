"""Networks in files: load, search, edit, and write again.

    net = Network.load("model.mge")
    x = net.data_providers_filter.as_unique().outputs[0]
    net.replace_vars({y: F.relu(y)})
    net.dump("edited.mge")

A network is a graph that can be changed: operators (`OpNode`) and variables (`VarNode`), found by
name, type or place, and replaced by what functions make of variables.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import IO, Any

from treadle.base.errors import DTypeError, GraphError
from treadle.base.files.source import PathLike
from treadle.base.guards import recording_guards
from treadle.engine.package.models import Model, read_models
from treadle.graph.ir import Graph, Node, Value
from treadle.jit.dump import CompGraphDumpResult, DumpOptions, checked_options, write
from treadle.tensor import Tensor
from treadle.utils.network_extents import OpenOperators, model_of, refit
from treadle.utils.network_filter import (
    NodeFilter,
    NodeFilterCheckType,
    NodeFilterHasInput,
    NodeFilterName,
    NodeFilterNotType,
    NodeFilterType,
    as_oprnode,
    as_varnode,
)
from treadle.utils.network_node import (
    OpNode,
    SymbolicShape,
    VarNode,
    const_var,
    input_var,
    node_of,
)
from treadle.utils.network_order import as_made, order_of, variables_of


def set_symbolic_shape(option: bool) -> bool:
    """Make `VarNode.shape` a variable that follows the shape, or not; return the setting before.

    Otherwise it is a tuple of whole numbers, as `VarNode.partial_shape` is in any case. Functions
    that take a shape compute with the numbers that it has where they are called. Files in which
    such variables are hold the model for its own sizes.
    """
    previous, SymbolicShape.on = SymbolicShape.on, bool(option)
    return previous


def _metadata(model: Model) -> dict[str, Any] | None:
    options = dict(model.options)
    usual = {"graph_modified": False, "optimized_for_inference": True}
    said = {"user_info": model.info} | usual | options
    return said if options.get("enable_metadata", True) else None


class Network:
    """Operators and variables that can be changed."""

    def __init__(self) -> None:
        self._outputs: list[VarNode] = []
        self._extra: list[VarNode] = []
        self._declared: set[int] = set()
        self._beside: list[VarNode] = []
        self._model: Model | None = None
        self._known: dict[Value, VarNode] = {}

    # -- files -----------------------------------------------------------------------------

    @classmethod
    def load(cls, model_path: PathLike | IO[Any], outspec: Sequence[str] | None = None) -> Network:
        """A network out of a file that `trace.dump` or `Network.dump` wrote.

        Args:
            model_path: a path, or a file object opened in binary mode.
            outspec: names of variables that become the outputs.

        Raises:
            CheckpointError: the file is damaged, or holds no model.
            ValueError: no variable has such a name.
        """
        return cls._from(read_models(model_path)[0], outspec)

    @classmethod
    def _from(cls, model: Model, outspec: Sequence[str] | None) -> Network:
        self = cls()
        self._model, self._known = model, variables_of(model)
        self._outputs = [self._known[v] for v in model.graph.outputs]
        for var, name in zip(self._outputs, model.outputs, strict=True):
            var.name = name
        self._extra = [self._known[v] for v in model.graph.inputs]
        self._declared = {v.key for v in self._extra} if outspec is None else set()
        if outspec is not None:
            self._outputs = [self.get_var_by_name(name) for name in outspec]
        return self

    @cached_property
    def _open(self) -> OpenOperators | None:
        """Facts of the file about other sizes; reading them takes as long as all else."""
        return None if self._model is None else OpenOperators.of(self._model, self._known)

    @property
    def metadata(self) -> dict[str, Any] | None:
        """The file's facts about itself: `user_info`, and the options of `dump`.

        None where the file was written without (`enable_metadata=False`).
        """
        return {} if self._model is None else _metadata(self._model)

    def graph(self) -> Graph:
        """The network as a graph, with what its outputs depend on."""
        values: dict[int, Value] = {}
        nodes: list[Node] = []
        inputs: list[Value] = []
        with recording_guards() as guards:
            for opr in self._ordered():
                if opr.op is None:
                    var = opr.outputs[0]
                    values[var.key] = Value(var.type, None, len(inputs), var.name)
                    inputs.append(values[var.key])
                    continue
                nodes.append(node_of(opr.op, opr, values))
        outputs = tuple(values[v.key] for v in self._outputs)
        return Graph("network", tuple(inputs), tuple(nodes), outputs, tuple(guards))

    def model(self) -> Model:
        """The network as a model, for the sizes that it is at and those that it can be at."""
        found = None if self._open is None else self._open.graph(self._ordered(), self._outputs)
        return model_of(self.graph(), _named(self._outputs), found, self._model)

    def _ordered(self) -> list[OpNode]:
        """Operators in order: inputs, those of the file in any case, then what outputs need.

        An operator may mention an extent that data decide in another one without taking its result,
        so they stay in the order in which they were made.
        """
        needed = order_of(self._outputs)
        inputs = {v.owner.key: v.owner for v in self._extra if v.owner.op is None}
        wanted = {n.key for n in needed}
        wanted |= {v.owner.key for v in self._extra if v.key in self._declared}
        kept = [n for n in inputs.values() if n.key in wanted]
        needed = as_made([*kept, *(n for n in needed if n.key not in inputs)])
        return kept + [n for n in needed if n.key not in inputs]

    def dump(
        self,
        file: PathLike | IO[Any],
        *,
        keep_var_name: int = 1,
        keep_opr_name: bool = False,
        keep_param_name: bool = False,
        keep_opr_priority: bool = False,
        no_change_graph: bool = False,
        strip_info_file: Any = None,
        append_json: bool = False,
        optimize_for_inference: bool = True,
        append: bool = False,
        user_info: Any = None,
        enable_metadata: bool = True,
        dump_format: str | None = None,
        **options: bool,
    ) -> CompGraphDumpResult:
        """Write the network; arguments are those of `trace.dump`.

        Raises:
            GraphError: there are no outputs, or operators depend on themselves.
            ValueError: there is no such option.
            OSError: the file cannot be written.
        """
        if not self._outputs:
            raise GraphError("network", "there is nothing to dump", hint="add_output() first")
        model = self.model()
        chosen = checked_options(options, optimize_for_inference) | {"graph_modified": True}
        rest = (chosen, None, None, 1, True, 1e-4, False)
        return write(file, model, DumpOptions(append, user_info, enable_metadata, *rest))

    def optimize_for_inference(
        self, dest_vars: Sequence[VarNode], **options: bool
    ) -> list[VarNode]:
        """The variables as they are; a model is optimized when it is loaded to run."""
        checked_options(options)
        return list(dest_vars)

    # -- making ----------------------------------------------------------------------------

    def make_const(self, data: Any, name: str | None = None, device: Any = None) -> VarNode:
        """A constant with this value."""
        return const_var(Tensor(_array(data)).numpy(), name or "").put(device)

    def make_input_node(
        self, shape: Sequence[int], dtype: Any, name: str | None = None, device: Any = None
    ) -> VarNode:
        """A new input; it is one of the network's once an output depends on it."""
        var = input_var(tuple(shape), dtype, name or "").put(device)
        self._extra.append(var)
        return var

    # -- outputs ---------------------------------------------------------------------------

    @property
    def dest_vars(self) -> list[VarNode]:
        """The outputs."""
        return list(self._outputs)

    output_vars = dest_vars

    @property
    def input_vars(self) -> list[VarNode]:
        """The variables that get data from outside."""
        return self._inputs()

    def add_output(self, *vars: VarNode) -> None:
        """Make variables outputs, too."""
        known = {v.key for v in self._outputs}
        self._outputs += [v for v in map(as_varnode, vars) if v.key not in known]

    def remove_output(self, *vars: VarNode) -> None:
        """Remove variables from the outputs."""
        gone = {as_varnode(v).key for v in vars}
        self._outputs = [v for v in self._outputs if v.key not in gone]

    def add_dep_oprs(self, *vars: VarNode) -> list[VarNode]:
        """Edit variables too, with what they need; filters find them once an output needs them."""
        self._beside += map(as_varnode, vars)
        return self._beside[len(self._beside) - len(vars) :]

    # -- editing ---------------------------------------------------------------------------

    def replace_vars(self, repl_dict: Mapping[VarNode, VarNode]) -> None:
        """Replace variables by others for all that uses them.

        What the new variable is computed from keeps using the old one, so `{y: F.relu(y)}`
        inserts an operator behind y.

        Raises:
            TypeError: something is not a variable.
            TreadleError: an operator does not take the new variable.
        """
        by_id = {as_varnode(old).key: as_varnode(new) for old, new in repl_dict.items()}
        fresh = {n.key for new in by_id.values() for n in order_of([new])}
        fresh -= {n.key for n in self.all_oprs}
        for var in self._outputs:
            by_id.get(var.key, var).name = var.name
        self._outputs = [by_id.get(v.key, v) for v in self._outputs]
        self._declared = {by_id[i].key if i in by_id else i for i in self._declared}
        self._extra = [v for v in self._extra if v.key not in by_id]
        for opr in order_of([*self._outputs, *self._extra, *self._beside]):
            if not opr.inputs:
                continue
            known = {} if opr.key in fresh else by_id
            given = [known.get(x.key, x) for x in opr.inputs]
            try:
                opr.set_inputs(given)
            except DTypeError:  # The operator was made for the element types it had.
                pairs = zip(given, opr.inputs, strict=True)
                opr.set_inputs([as_varnode(new.astype(old.dtype)) for new, old in pairs])

    def replace_oprs(self, repl_dict: Mapping[OpNode, OpNode]) -> None:
        """Replace the outputs of operators by those of others for all that uses them.

        Raises:
            ValueError: the operators have different numbers of outputs.
        """
        pairs: dict[VarNode, VarNode] = {}
        for old, new in repl_dict.items():
            first, second = as_oprnode(old), as_oprnode(new)
            has, gets = len(first.outputs), len(second.outputs)
            if has != gets:
                raise ValueError(f"replace_oprs: {has} outputs cannot be replaced by {gets}")
            pairs.update(zip(first.outputs, second.outputs, strict=True))
        self.replace_vars(pairs)
        for before, after in pairs.items():
            if before.owner.key not in {n.key for n in order_of([after])}:
                before.become(after)

    def modify_opr_names(self, modifier: str | Callable[[str], str]) -> None:
        """Change names of operators and their variables: a prefix, or a function of the name.

        Raises:
            TypeError: the modifier is neither.
        """
        if isinstance(modifier, str):
            prefix = modifier
            change: Callable[[str], str] = lambda name: f"{prefix}.{name}"  # noqa: E731
        elif callable(modifier):
            change = modifier
        else:
            raise TypeError("modify_opr_names: give a prefix, or a function of the name")
        for opr in self.all_oprs:
            opr.name = change(opr.name or f"{opr.type}_{opr.id}")
            for var in opr.outputs:
                if var.name:
                    var.name = change(var.name)

    def reset_batch_size(
        self, batchsize: int, *, blacklist: Iterable[Any] = (), opr_filter: Any = None
    ) -> None:
        """Give the first axis of the inputs another extent, and all that follows from it.

        Args:
            batchsize: the new extent.
            blacklist: inputs (variables, operators or names) that keep theirs.
            opr_filter: names of the inputs that change, None for all.

        Raises:
            TreadleError: an operator cannot be given the new shape.
        """
        names = {getattr(x, "name", x) for x in blacklist}
        inputs = [v for v in self._inputs() if v.name not in names and v.ndim]
        if opr_filter is not None:
            inputs = [v for v in inputs if v.name in set(opr_filter)]
        before = {v.shape[0] for v in inputs}
        if len(before) > 1:
            raise GraphError("network", f"inputs have different batch sizes: {sorted(before)}")
        for var in inputs:
            var._data.shape = (batchsize, *var.shape[1:])
        every = order_of([*self._outputs, *self._extra, *self._beside])
        refit(every, self._open, {v.key for v in inputs})

    def _inputs(self) -> list[VarNode]:
        return [n.outputs[0] for n in self.all_oprs if n.op is None]

    # -- searching -------------------------------------------------------------------------

    @property
    def all_oprs(self) -> list[OpNode]:
        """All operators, each after those that make its inputs, else as they were made."""
        return as_made(order_of([*self._extra, *self._outputs]))

    @property
    def all_vars(self) -> list[VarNode]:
        """All variables, in order."""
        return [v for n in self.all_oprs for v in n.outputs]

    @property
    def all_oprs_dict(self) -> OrderedDict[str, OpNode]:
        """All operators by name."""
        return self.opr_filter.as_dict()

    @property
    def all_vars_dict(self) -> OrderedDict[str, VarNode]:
        """All variables by name."""
        return self.var_filter.as_dict()

    @property
    def opr_filter(self) -> NodeFilter:
        """All operators, to be narrowed down."""
        return NodeFilter(self.all_oprs)

    @property
    def var_filter(self) -> NodeFilter:
        """All variables, to be narrowed down."""
        return NodeFilter(self.all_vars)

    @property
    def params_filter(self) -> NodeFilter:
        """Constants and parameters."""
        return self.opr_filter.param_provider()

    @property
    def data_providers_filter(self) -> NodeFilter:
        """Filter of the inputs."""
        return self.opr_filter.data_provider()

    def get_opr_by_type(self, oprcls: type[OpNode], unique: bool = True) -> Any:
        """The operator of a type (`unique`), or a list of all.

        Raises:
            ValueError: `unique`, and there is not exactly one.
        """
        found = self.opr_filter.type(oprcls)
        return found.as_unique() if unique else found.as_list()

    def get_opr_by_name(self, name: str, unique: bool = True) -> Any:
        """The operator of a name, in which `*` and `?` stand for anything; see above."""
        found = self.opr_filter.name(name)
        return found.as_unique() if unique else found.as_list()

    def get_var_by_name(self, name: str, unique: bool = True) -> Any:
        """The variable of a name; see above."""
        found = self.var_filter.name(name)
        return found.as_unique() if unique else found.as_list()

    def get_var_receive_oprs(self, var: VarNode) -> list[OpNode]:
        """Operators that take a variable."""
        return self.opr_filter.has_input(var).as_list()

    def get_dep_oprs(self, var: VarNode | Sequence[VarNode]) -> list[OpNode]:
        """Operators that variables depend on, in order."""
        return order_of([var] if isinstance(var, VarNode) else var)


def _named(variables: Sequence[VarNode]) -> list[str]:
    found: list[str] = []
    for number, var in enumerate(variables):
        name = var.name or f"{var.owner.type}_{number}"
        found.append(name if name not in found else f"{name}[{number}]")
    return found


def _array(data: Any) -> Any:
    return data.numpy() if callable(getattr(data, "numpy", None)) else data


__all__ = [
    "Network",
    "NodeFilter",
    "NodeFilterCheckType",
    "NodeFilterHasInput",
    "NodeFilterName",
    "NodeFilterNotType",
    "NodeFilterType",
    "as_oprnode",
    "as_varnode",
    "order_of",
    "set_symbolic_shape",
]
