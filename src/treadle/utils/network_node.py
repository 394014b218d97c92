"""Nodes of a loaded network: variables, and operators by the names MegEngine gives them.

`VarNode` is a tensor without a value: functions and operators applied to one append an operator to
its network. There is one class per kind of operator, so that networks can be searched by type.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from treadle.base.dtype import DType, as_dtype, int32
from treadle.base.errors import GraphError
from treadle.base.guards import recording_guards
from treadle.base.shape import format_shape
from treadle.base.types import TensorType
from treadle.engine.devices.names import CompNode, default_device, resolve
from treadle.engine.eager.dispatch import EagerType, common_device
from treadle.graph.flop_count import flops
from treadle.graph.ir import Node, Value, differ_in_new_symbols, with_types
from treadle.jit.naming import mode_of
from treadle.jit.ops_table import BY_OP, NAMES
from treadle.ops.abstract import constant_array
from treadle.ops.constant import ArrayData, Constant
from treadle.ops.conv import Convolution
from treadle.ops.families import Elementwise, Reduce
from treadle.ops.op import Op, as_tuple
from treadle.ops.operators import Operators
from treadle.ops.transfer import Transfer
from treadle.tensor import Tensor
from treadle.utils.module_stats_rules import register_flops, register_receptive_field
from treadle.utils.receptive_field import Field, preprocess_receptive_field, through

_KEYS = itertools.count()
_LOOSE = itertools.count(1_000_000)
"""Numbers of what is made outside of a file: beyond those of any network."""
UNNAMED = "const<"
"""Prefix of the names of constants that a file gives no name."""


class SymbolicShape:
    """True if `VarNode.shape` is a variable for programs; see `network.set_symbolic_shape`."""

    on = False


class _Absent:
    """In place of an array: shape and type of a value that a network computes."""

    __slots__ = ("dtype", "shape", "type", "var")

    def __init__(self, type_: TensorType, var: VarNode) -> None:
        self.shape = type_.shape
        self.dtype = type_.dtype.numpy
        self.type = type_
        self.var = var

    @property
    def nbytes(self) -> int:
        """Bytes of an array of this type; extents that data decides have no number."""
        return self.type.nbytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = value_of(self.var)
        return array if dtype is None else array.astype(dtype)


class NetworkNode:
    """An operator or a variable of a network."""


class VarNode(NetworkNode, Tensor):
    """One value of a network: a result of its `owner`.

    It is a tensor, whose value is known where it depends on constants alone.

    Args:
        owner: the `OpNode` that makes it; or another variable, which this one is then.
        index: which of the owner's outputs it is.
        type_: its shape and element type.
        name: of the variable.

    Attributes:
        id: its number in the network, which counts operators and variables as they are made.
        key: unique in the process.
        owner, index: as above.
        users: operators that were made of it.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A handle without a value."""
        return object.__new__(cls)

    def __init__(
        self,
        owner: OpNode | VarNode,
        index: int = 0,
        type_: TensorType | None = None,
        name: str = "",
    ) -> None:
        self._trace = None
        self._place: CompNode | None = None
        self.users: list[OpNode] = []
        if isinstance(owner, VarNode):
            self.name = name or owner.name
            self._reset(owner)
            return
        self.key, self.id = next(_KEYS), next(owner.numbers)
        self.owner = owner
        self.index = index
        self.name = name
        self.take_type(owner.outputs[index].type if type_ is None else type_)

    def take_type(self, type_: TensorType) -> None:
        """Change shape and element type from here on."""
        self._data = _Absent(type_, self)
        # One of its own: tables of launches, which go by identity, must not know it.
        self._kind = EagerType(type_.dtype, self._place or default_device())

    @property
    def shape(self) -> Any:
        """Extents as a tuple, or as a variable for programs that `set_symbolic_shape(True)`."""
        if SymbolicShape.on:
            asking = str(sys._getframe(1).f_globals.get("__name__"))
            if asking.partition(".")[0] != "treadle":  # Functions go on to work with tuples.
                return GetVarShape(self).outputs[0]
        return self._data.shape

    def put(self, place: CompNode | str | None) -> VarNode:
        """Move to a device from here on, or stay with None; returns itself."""
        if place is not None:
            self._place = resolve(str(place))
            self._kind = EagerType(self._kind.dtype, self._place)
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        with recording_guards():  # As types of operators: how many data choose shows when it runs.
            super().__setitem__(index, value)

    def _reset(self, other: Tensor) -> None:
        """Stand for another variable; a tensor becomes a constant.

        Operators that take this one go on with what it was.
        """
        found = other if isinstance(other, VarNode) else const_var(other.numpy())
        if "owner" in self.__dict__:
            self._leave_behind()
        self.key, self.id = found.key, found.id
        self.owner, self.index = found.owner, found.index
        self._place = found._place
        self.take_type(found.type)

    def _leave_behind(self) -> None:
        """Put another handle in this one's place in the network."""
        before = VarNode(self.owner, self.index, self.type, self.name)
        before.key, before.id = self.key, self.id
        before.users, self.users = self.users, []
        if self.owner.outputs[self.index] is self:
            self.owner.outputs[self.index] = before
        for user in before.users:
            user.inputs = [before if x is self else x for x in user.inputs]

    def become(self, other: VarNode) -> None:
        """Become what another variable was, which stands for this one from here on."""
        for user in other.users:
            user.inputs = [self if x.key == other.key else x for x in user.inputs]
        self.key, self.id = other.key, other.id
        self.owner, self.index = other.owner, other.index
        self.users += other.users
        self.take_type(other.type)
        self.owner.outputs[self.index] = self

    @property
    def var(self) -> VarNode:
        """The variable itself; MegEngine's programs ask for what stands behind it."""
        return self

    _node = var

    @property
    def op(self) -> OpNode:
        """The owner, by another of MegEngine's names."""
        return self.owner

    @property
    def comp_node(self) -> CompNode:
        """The device, by MegEngine's name."""
        return self._kind.device

    @property
    def partial_shape(self) -> tuple[int, ...]:
        """The shape as a tuple, by MegEngine's name."""
        shape: tuple[int, ...] = self._data.shape
        return shape

    def apply(self, op: Op, inputs: tuple[Tensor, ...], /) -> tuple[VarNode, ...]:
        """Append an operator to the network; tensors among the inputs become constants."""
        operands = [x if isinstance(x, VarNode) else const_var(x.numpy()) for x in inputs]
        results = op_node(op, operands).outputs
        placed = tuple([x._kind for x in inputs if isinstance(x, VarNode) and x._place])
        if isinstance(op, Transfer) and op.device:
            return (results[0].put(op.device),)
        place = common_device(op, placed) if placed else None
        return tuple([v.put(place) for v in results])

    def constant(self, value: Any, dtype: DType | None = None) -> VarNode:
        """A constant of the network."""
        return const_var(constant_array(value, dtype, self._kind.dtype))

    def numpy(self) -> np.ndarray[Any, Any]:
        """The value.

        Raises:
            GraphError: it depends on inputs of the network.
        """
        return np.array(value_of(self))

    def set_value(self, value: Any) -> None:
        """Give a constant another value of the same shape.

        Raises:
            GraphError: it is not a constant, or the shape differs.
        """
        array = np.asarray(value, self.dtype)
        if not isinstance(self.owner.op, Constant) or array.shape != self.shape:
            raise GraphError(
                "network",
                "only a constant can be given a value, of its own shape",
                saw=f"{array.shape} for {self!r}",
                hint="replace_vars puts another variable in its place",
            )
        self.owner.op = Constant(ArrayData(array), self.owner.op.device)

    def __repr__(self) -> str:
        return f"VarNode({self.name or self.id}: {self.type})"

    __str__ = __repr__
    __hash__ = Tensor.__hash__


def _use_general_operators() -> None:
    """Arithmetic by way of `apply`; a tensor's own is a shortcut to launches."""
    for name, member in vars(Operators).items():
        if name.startswith("__") and name.endswith("__") and callable(member):
            setattr(VarNode, name, member)


_use_general_operators()


class OpNode(NetworkNode):
    """One operator of a network.

    Attributes:
        type: name of the operator's class, as MegEngine has it.
        op: the op it stands for; None for an input.
        inputs, outputs: variables.
        name: what it is called; the name of its first output where that has one.
        priority: for MegEngine's programs; order is planned by the engine.
        id: its number in the network, which counts operators and variables as they are made.
        key: unique in the process.
        numbers: where numbers come from, for what is made of its results, too.
    """

    type = "OpNode"

    def __init__(
        self,
        op: Op | None,
        inputs: list[VarNode],
        name: str = "",
        numbers: Iterator[int] | None = None,
    ) -> None:
        around = inputs[0].owner.numbers if inputs else _LOOSE
        self.numbers: Iterator[int] = around if numbers is None else numbers
        self.key, self.id = next(_KEYS), next(self.numbers)
        self.op = op
        self.inputs = list(inputs)
        for var in self.inputs:
            var.users.append(self)
        self.outputs: list[VarNode] = []
        self.name = name
        self.priority = 0
        self._rf: tuple[int, int] = (1, 1)
        self._stride: tuple[int, int] = (1, 1)

    @property
    def _node(self) -> OpNode:
        """The operator itself; see `VarNode.var`."""
        return self

    @property
    def params(self) -> Mapping[str, Any]:
        """The op's attributes by name; an elementwise function's `mode`, as MegEngine spells it."""
        if self.op is None:
            return {}
        moded = isinstance(self.op, (Elementwise, Reduce))
        return {**({"mode": mode_of(self.op)} if moded else {}), **dict(self.op.attributes)}

    @property
    def operands(self) -> list[VarNode]:
        """The inputs whose values the op takes."""
        return self.inputs

    def set_inputs(self, inputs: list[VarNode]) -> None:
        """Put other variables in the place of the inputs; types of results follow.

        Raises:
            TreadleError: the op does not take them.
        """
        if self.op is None:
            raise GraphError("network", "an input of the network takes no operands")
        types = _inferred(self.op, [x.type for x in inputs])
        known = tuple(v.type for v in self.outputs)
        values = tuple(Value(x.type, None, i) for i, x in enumerate(inputs))
        placed = tuple(replace(t, device=k.device) for t, k in zip(types, known, strict=True))
        if differ_in_new_symbols(self.op, values, placed, known):
            types = known  # Other operators refer to extents that data decide by these names.
        self.inputs = list(inputs)
        for x in self.inputs:
            x.users.append(self)
        for var, type_ in zip(self.outputs, types, strict=True):
            var.take_type(type_)

    def __repr__(self) -> str:
        return f"{self.type}({self.name or self.id}: {self.inputs} -> {self.outputs})"


class _SourceNode(OpNode):
    """An operator without operands, and with one result."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of what it gives."""
        return self.outputs[0].partial_shape

    @property
    def dtype(self) -> Any:
        """Element type of the output."""
        return self.outputs[0].dtype


class Host2DeviceCopy(_SourceNode):
    """An input of the network; data comes from the host."""

    type = "Host2DeviceCopy"

    def __init__(
        self, type_: TensorType, name: str = "", numbers: Iterator[int] | None = None
    ) -> None:
        super().__init__(None, [], name, numbers)
        self.outputs = [VarNode(self, 0, type_, name)]


class GetVarShape(OpNode):
    """The shape of a variable, which follows it; a constant for those who run the network."""

    type = "GetVarShape"

    def __init__(self, var: VarNode) -> None:
        super().__init__(_extents_of(var), [var])
        self.outputs = [VarNode(self, 0, _of_extents(var))]

    @property
    def operands(self) -> list[VarNode]:
        """None: the op holds the extents."""
        return []

    def set_inputs(self, inputs: list[VarNode]) -> None:
        """Follow another variable, or this one where its extents have changed."""
        self.op = _extents_of(inputs[0])
        self.inputs = list(inputs)
        inputs[0].users.append(self)
        self.outputs[0].take_type(_of_extents(inputs[0]))


def _extents_of(var: VarNode) -> Constant:
    shape = var._data.shape
    if not all(isinstance(d, int) for d in shape):
        raise GraphError(
            "network",
            "data decide the extents of this variable, so its shape is not a constant",
            saw=format_shape(shape),
            hint="read it as a tuple, `partial_shape`",
        )
    return Constant(ArrayData(np.array(shape, np.int32)))


def _of_extents(var: VarNode) -> TensorType:
    return TensorType(int32, (var.ndim,))


class ConstOpBase(_SourceNode):
    """A constant."""

    def get_value(self) -> np.ndarray[Any, Any]:
        """The array."""
        return self.outputs[0].numpy()

    def set_value(self, data: Any) -> None:
        """Replace the array by another one of its shape."""
        self.outputs[0].set_value(data)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The array, by another name."""
        return self.get_value()


class ReadOnlyOpNode(OpNode):
    """An operator of a kind that has no class of its own; its type is the op's name."""


class IndexingBase(OpNode):
    """An operator that chooses elements."""


class RNGOpr(OpNode):
    """An operator that draws numbers."""


class ImmutableTensor(ConstOpBase):
    """A constant without a name: a number that the program was traced with."""

    type = "ImmutableTensor"


class SharedDeviceTensor(ConstOpBase):
    """A parameter."""

    type = "SharedDeviceTensor"


def _made(name: str, doc: str) -> type[OpNode]:
    base = IndexingBase if "Indexing" in name or name.endswith("Subtensor") else OpNode
    base = RNGOpr if name.endswith("RNG") else base
    return type(name, (base,), {"type": name, "__doc__": doc, "__module__": __name__})


CLASSES: dict[str, type[OpNode]] = {
    "Host2DeviceCopy": Host2DeviceCopy,
    "ImmutableTensor": ImmutableTensor,
    "SharedDeviceTensor": SharedDeviceTensor,
    **{name: _made(name, doc) for name, doc in NAMES.items()},
    "GetVarShape": GetVarShape,
}
globals().update(CLASSES)


def str_to_mge_class(name: str) -> type[OpNode]:
    """The class of operators of a type, by name; `ReadOnlyOpNode` where it has none of its own."""
    return CLASSES.get(name, ReadOnlyOpNode)


def class_of(op: Op, inputs: list[VarNode]) -> type[OpNode]:
    """The class of an op."""
    if op.name in BY_OP:
        name = BY_OP[op.name]
        if isinstance(op, Convolution) and inputs[0].ndim == 5:
            name = name.replace("Convolution", "Convolution3D")
        if name == "MatrixMul" and max(x.ndim for x in inputs) > 2:
            name = "BatchedMatrixMul"
        return CLASSES[name]
    if isinstance(op, Reduce):
        return CLASSES["Reduce"]
    return CLASSES["Elemwise"] if isinstance(op, Elementwise) else ReadOnlyOpNode


def _inferred(op: Op, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Types of results; what must be true of extents that data decide shows when it runs."""
    with recording_guards():
        return op.infer(*types)


def op_node(
    op: Op,
    inputs: list[VarNode],
    names: tuple[str, ...] = (),
    types: Sequence[TensorType] | None = None,
    numbers: Iterator[int] | None = None,
) -> OpNode:
    """A new operator with its results, whose types a file may have (`types`).

    `numbers` gives it and them their numbers; without, it is where the first input's are from.

    Raises:
        TreadleError: the op does not take these inputs.
    """
    types = _inferred(op, [x.type for x in inputs]) if types is None else types
    if isinstance(op, Constant):
        named = any(n and not n.startswith(UNNAMED) for n in names)
        kind: type[OpNode] = SharedDeviceTensor if named else ImmutableTensor
    else:
        kind = class_of(op, inputs)
    node = kind(op, inputs, next((n for n in names if n), ""), numbers)
    if kind is ReadOnlyOpNode:
        node.type = op.name
    given = names or ("",) * len(types)
    pairs = zip(types, given, strict=True)
    node.outputs = [VarNode(node, i, t, n) for i, (t, n) in enumerate(pairs)]
    return node


def node_of(op: Op, opr: OpNode, values: dict[int, Value]) -> Node:
    """An operator with its op, as a node of values by id of variables; its results are added."""
    names = tuple(v.name for v in opr.outputs)
    node = Node(op, tuple(values[x.key] for x in opr.operands), names=names)
    pairs = zip(opr.outputs, node.outputs, strict=True)
    types = tuple(replace(v.type, device=made.type.device) for v, made in pairs)
    node = with_types(node, types)
    values.update({v.key: made for v, made in zip(opr.outputs, node.outputs, strict=True)})
    return node


def value_of(var: VarNode) -> np.ndarray[Any, Any]:
    """Compute a variable from constants.

    Raises:
        GraphError: it depends on inputs of the network.
    """
    known: dict[int, Any] = {}
    stack = [var.owner]
    while stack:
        opr = stack[-1]
        if opr.op is None:
            raise GraphError(
                "network",
                "a variable of a network has a value only where the network runs",
                saw=f"it depends on the input {opr.name or opr.id}",
                hint="run the network with cgtools.GraphInference, or give its inputs constants",
            )
        waiting = [x.owner for x in opr.operands if x.owner.key not in known]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        if opr.key not in known:
            arrays = [known[x.owner.key][x.index] for x in opr.operands]
            known[opr.key] = as_tuple(opr.op.reference(*arrays))
    return np.asarray(known[var.owner.key][var.index])


def const_var(array: Any, name: str = "") -> VarNode:
    """A constant of a network."""
    return op_node(Constant(ArrayData(np.asarray(array))), [], (name,)).outputs[0]


def input_var(shape: tuple[int, ...], dtype: Any, name: str = "") -> VarNode:
    """An input of a network."""
    return Host2DeviceCopy(TensorType(as_dtype(dtype), tuple(shape)), name).outputs[0]


# -- what operators cost; see `module_stats.get_op_stats` -----------------------------------------


@register_flops(CLASSES["Elemwise"], CLASSES["ElemwiseMultiType"])
def flops_elemwise(opnode: OpNode, inputs: Sequence[VarNode], outputs: Sequence[VarNode]) -> int:
    """Return one operation per element."""
    return outputs[0].size


@register_flops(CLASSES["MatrixMul"], CLASSES["BatchedMatrixMul"])
def flops_matmul(opnode: OpNode, inputs: Sequence[VarNode], outputs: Sequence[VarNode]) -> int:
    """Return the multiply-adds of products of matrices: results times the inner extent."""
    return _multiply_adds(opnode)


flops_batchmatmul = flops_matmul


@register_flops(*(cls for name, cls in CLASSES.items() if name.startswith("Conv")))
def flops_conv(opnode: OpNode, inputs: Sequence[VarNode], outputs: Sequence[VarNode]) -> int:
    """Return the multiply-adds of a convolution, one more per element where it adds a bias."""
    return _multiply_adds(opnode) + outputs[0].size * (opnode.type == "ConvBiasForward")


def _multiply_adds(opr: OpNode) -> int:
    if opr.op is None:
        return 0
    return flops(Node(opr.op, tuple(Value(v.type) for v in opr.inputs))) // 2


@register_receptive_field(CLASSES["ConvolutionForward"], CLASSES["ConvBiasForward"])
def receptive_field(opnode: OpNode, inputs: Sequence[VarNode], outputs: Sequence[VarNode]) -> Field:
    """Return ((height, width), (stride, stride)) in cells of the network's inputs, and keep it."""
    before = preprocess_receptive_field(opnode, inputs, outputs)
    values = tuple(Value(v.type) for v in inputs)
    opnode._rf, opnode._stride = through(Node(opnode.op, values), before)  # type: ignore[arg-type]
    return opnode._rf, opnode._stride
