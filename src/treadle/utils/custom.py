"""Ops from outside of Treadle: classes in Python, and libraries built from C and C++.

MegEngine's `core.ops.custom`: `load` makes the ops of a library attributes of this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from treadle.backends.c_loaders import INIT, open_loaders
from treadle.backends.foreign import LISTING, ForeignOp, open_library
from treadle.base.errors import LoadError, NoGradient, ShapeError, UnsupportedOp
from treadle.base.types import TensorType
from treadle.ops.custom import (
    CudaKernel,
    Custom,
    custom_op,
    custom_op_in_onnx,
    forget_custom_op,
)
from treadle.ops.op import Pullback
from treadle.tensor import Tensor

__all__ = [
    "LISTING",
    "CudaKernel",
    "CustomOp",
    "load",
    "load_engines",
    "loaded",
    "unload",
    "written_to_onnx",
]


class CustomOp:
    """An op in Python: derive a class, give it a name, say what it computes, and call instances.

    The class of an instance and its attributes are what programs keep: in files the op stands under
    `name`, so a program runs wherever the module with the class has been imported.

    Args:
        attributes: numbers, texts and tuples of them; members of the instance.

    Attributes:
        name: unique; by convention with the package's name in front.
        n_outputs: number of results.
        onnx: the operator that it is in ONNX, "domain::Name"; "page.cube" is "page::cube" if empty.
    """

    name: ClassVar[str] = ""
    n_outputs: ClassVar[int] = 1
    onnx: ClassVar[str] = ""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def infer(self, *inputs: TensorType) -> TensorType | Sequence[TensorType]:
        """Types of the results from those of the operands; the first operand's if left out.

        Raises:
            TreadleError: of your choice, where the op does not take such operands.
        """
        return inputs[0] if self.n_outputs == 1 else [inputs[0]] * self.n_outputs

    def forward(self, *inputs: Any) -> Any:
        """The results, one NumPy array or a tuple, from arrays that must not be written to."""
        raise NotImplementedError(f"{type(self).__name__}.forward is missing")

    def backward(
        self, inputs: tuple[Any, ...], outputs: tuple[Any, ...], grads: tuple[Any, ...]
    ) -> Any:
        """The gradient of each operand, or None, from those of the results, None where one lacks.

        Written with operators and methods of tensors, it is differentiated again and captured.
        """
        raise NoGradient(self.name, "has no gradient", hint="define backward in the class")

    def expand(self, *inputs: Any) -> Any:
        """The results as tensors of Treadle's own functions, for ONNX files; optional."""
        raise UnsupportedOp(self.name, "has no expand")

    def cuda(self, *inputs: TensorType) -> CudaKernel:
        """The kernel that runs it on NVIDIA's GPUs, from the operands' types; optional.

        Raises:
            UnsupportedOp: there is none for these types: the host runs it.
        """
        raise UnsupportedOp(self.name, "has no kernel in CUDA")

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            _register_class(cls)

    def __call__(self, *inputs: Any) -> Any:
        """The results for tensors (or what tensors are made of): one, or a tuple of several."""
        made = Custom(self.name, tuple(sorted(self.__dict__.items())), self.n_outputs)
        return run(made, inputs)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({inside})"


def _register_class(cls: type[CustomOp]) -> None:
    """Tell graphs what stands behind the name of a class."""

    def infer(attributes: dict[str, Any], *types: TensorType) -> tuple[TensorType, ...]:
        found = cls(**attributes).infer(*types)
        return (found,) if isinstance(found, TensorType) else tuple(found)

    def reference(attributes: dict[str, Any], *arrays: Any) -> Any:
        return cls(**attributes).forward(*arrays)

    def vjp(attributes: dict[str, Any], at: Pullback[Any]) -> tuple[Any, ...]:
        found = cls(**attributes).backward(at.inputs, at.outputs, at.dys)
        every = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        if len(every) != len(at.inputs):
            raise NoGradient(
                cls.name,
                f"backward returned {len(every)} gradients for {len(at.inputs)} operands",
                hint="return None for an operand without a gradient",
            )
        return tuple(g if need else None for g, need in zip(every, at.needs, strict=True))

    infer.__module__ = cls.__module__  # which is how a name taken twice is noticed
    expand = None if cls.expand is CustomOp.expand else _expansion_of(cls)
    cuda = None if cls.cuda is CustomOp.cuda else _kernel_of(cls)
    custom_op(cls.name, infer, reference, vjp, cls.n_outputs, cls.onnx, expand, cuda)


def _kernel_of(cls: type[CustomOp]) -> Callable[..., CudaKernel]:
    return lambda attributes, types, results: cls(**attributes).cuda(*types)


def _expansion_of(cls: type[CustomOp]) -> Callable[..., Any]:
    return lambda attributes, *inputs: cls(**attributes).expand(*inputs)


def run(op: Custom, inputs: Sequence[Any]) -> Any:
    """An op applied to tensors: one result, or a tuple of several."""
    if not inputs:
        raise ShapeError(op.kernel, "takes one operand at least", hint="call it on tensors")
    first = next((x for x in inputs if isinstance(x, Tensor)), None)
    like = Tensor(inputs[0]) if first is None else first
    tensors = [x if isinstance(x, Tensor) else like.constant(x) for x in inputs]
    results = like.apply(op, tuple(tensors))
    return results[0] if len(results) == 1 else results


# -- libraries -------------------------------------------------------------------------------------

_LIBRARIES: dict[str, dict[str, ForeignOp]] = {}


def load(lib_path: str | os.PathLike[str], listing: str = LISTING) -> list[str]:
    """Open a library of ops; they become attributes of this module, under the names returned.

    Args:
        lib_path: what `custom_op_tools.build` returned.
        listing: the library's function that lists its ops.

    Raises:
        LoadError: the file is not a library of ops, or an op's name is taken by another one.
    """
    path = str(Path(lib_path).resolve())
    if path not in _LIBRARIES:
        found = {op.name: op for op in open_library(path, listing)}
        for name in found:
            owner = next((p for p, ops in _LIBRARIES.items() if name in ops), None)
            if owner is not None:
                raise LoadError("custom op", f"{name!r} is loaded already, from {owner}")
        for op in found.values():
            _register_foreign(op)
        _LIBRARIES[path] = found
    return sorted(_LIBRARIES[path])


def load_engines(lib_path: str | os.PathLike[str], init: str = INIT) -> list[str]:
    """Open a library of C that runs models of other engines; the names of its loaders.

    Its interface is MegEngine's `extern_c_opr.h`: `init` registers loaders, which make runnable
    models of bytes. `functional.external.extern_opr_subgraph` runs these in programs.

    Raises:
        LoadError: it is no such library, or registers no new name.
    """
    return open_loaders(str(Path(lib_path).resolve()), init)


def unload(lib_path: str | os.PathLike[str]) -> None:
    """Forget a library's ops; `ValueError` where it is not loaded."""
    path = str(Path(lib_path).resolve())
    if path not in _LIBRARIES:
        raise ValueError(f"{path} is not loaded")
    for name in _LIBRARIES.pop(path):
        forget_custom_op(name)
        forget_custom_op(_gradient_of(name))


def loaded() -> list[str]:
    """Names of all ops of all libraries."""
    return sorted(name for ops in _LIBRARIES.values() for name in ops)


def written_to_onnx(
    name: str, operator: str = "", expand: Callable[..., Any] | None = None
) -> None:
    """Say how a loaded op is written to ONNX files, and found in them.

    Args:
        name: of the op.
        operator: "domain::Name" of the operator that it is; made of its name if left out.
        expand: the results from the op's parameters as keywords and tensors, in functions of
            Treadle's; files then hold these in place of the operator.

    Raises:
        UnsupportedOp: no op has the name.
    """
    own = None if expand is None else lambda given, *inputs: expand(*inputs, **given)
    custom_op_in_onnx(name, operator, own)


def _gradient_of(name: str) -> str:
    return f"{name}.backward"


def _register_foreign(op: ForeignOp) -> None:
    """Tell graphs what stands behind the name of a library's op, and of its gradient."""
    n_in, n_out = op.n_inputs, op.n_outputs

    def backward(attributes: dict[str, Any], *arrays: Any) -> tuple[Any, ...]:
        parts = arrays[:n_out], arrays[n_out : n_out + n_in], arrays[n_out + n_in :]
        return op.backward(*parts, attributes)

    gradient = custom_op(
        _gradient_of(op.name),
        infer=lambda attributes, *types: tuple(types[n_out : n_out + n_in]),
        reference=backward,
        n_outputs=n_in,
        cuda=_on_gpus(op, "backward", (n_out, n_in, n_out, n_in)),
    )

    def vjp(attributes: dict[str, Any], at: Pullback[Any]) -> tuple[Any, ...]:
        if not op.has_gradient:
            raise NoGradient(op.name, "has no gradient", hint="give its code a backward function")
        dys = [y * 0 if dy is None else dy for dy, y in zip(at.dys, at.outputs, strict=True)]
        found = gradient(**attributes).outputs(*dys, *at.inputs, *at.outputs)
        return tuple(g if need else None for g, need in zip(found, at.needs, strict=True))

    custom_op(
        op.name,
        infer=lambda attributes, *types: tuple(op.infer(types, attributes)),
        reference=lambda attributes, *arrays: op.forward(arrays, attributes),
        vjp=vjp,
        n_outputs=n_out,
        cuda=_on_gpus(op, "forward", (n_in, n_out)),
    )


def _on_gpus(op: ForeignOp, which: str, counts: tuple[int, ...]) -> Callable[..., Any] | None:
    """Return the function by which a library's op is called for a GPU, whose tensors come in
    groups; None where it cannot be.
    """
    if which not in op.on_gpus:
        return None

    def rule(
        attributes: dict[str, Any], types: Sequence[TensorType], results: Sequence[TensorType]
    ) -> Callable[..., None]:
        every = [*types, *results]

        def call(ins: Sequence[int], outs: Sequence[int], stream: int) -> None:
            pairs = iter(list(zip((*ins, *outs), every, strict=True)))
            groups = [[next(pairs) for _ in range(count)] for count in counts]
            op.on_gpu(which, groups, attributes, stream)

        return call

    return rule


def __getattr__(name: str) -> Callable[..., Any]:
    """The constructor of a loaded op: `custom.my_op(scale=2.0)(x)`."""
    for ops in _LIBRARIES.values():
        if name in ops:
            return _constructor(ops[name])
    raise AttributeError(f"no loaded library has an op {name!r}; loaded: {loaded()}", name=name)


def _constructor(op: ForeignOp) -> Callable[..., Any]:
    defaults = {name: param.default for name, param in op.params.items()}

    def make(**params: Any) -> Callable[..., Any]:
        unknown = sorted(set(params) - set(defaults))
        if unknown:
            raise TypeError(f"{op.name} takes {list(defaults) or 'no parameters'}, not {unknown}")
        own = {name: op.params[name].checked(value) for name, value in params.items()}
        made = Custom(op.name, tuple(sorted({**defaults, **own}.items())), op.n_outputs)
        return lambda *inputs: run(made, inputs)

    make.__name__ = op.name
    make.__doc__ = f"The op {op.name}; parameters and their defaults: {defaults}."
    return make
