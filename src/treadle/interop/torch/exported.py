"""Programs of `torch.export` as modules: parameters to train, a forward of Treadle's ops.

A program is a graph of ATen operators with its weights. It is written in ops through the same table
that the backend of `torch.compile` uses, with symbols for extents that vary, and the ops are
applied to tensors: so the module records gradients, and is captured, compiled and dumped as any
other.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from treadle.base.errors import LoadError, TreadleError
from treadle.base.files.source import PathLike
from treadle.base.modes import pop_casting, push_casting
from treadle.interop.torch.arrays import to_array
from treadle.interop.torch.nodes import decompositions
from treadle.interop.torch.program import TorchProgram
from treadle.interop.torch.quantizing import zero_points
from treadle.interop.torch.recurrent import RECURRENT
from treadle.interop.torch.strides import look_at_bases
from treadle.interop.torch.written import OutputPlace
from treadle.module.module import Module
from treadle.tensor import Parameter, Tensor


def from_exported(program: ExportedProgram) -> ExportedModel:
    """A program of `torch.export` as a module of Treadle, with copies of its weights.

    They are on the default device of Treadle, wherever the program was exported.

    Args:
        program: what `torch.export.export` gave. Inputs may have dynamic extents, within the
            bounds that it declares.

    Raises:
        UnsupportedOp: operators have no counterpart; all are listed, with the user's lines.
        LoadError: the program writes into its inputs, has inputs that are neither tensors nor plain
            values, or PyTorch cannot write it in fewer operators, as it disagrees with itself.
    """
    return ExportedModel(program)


def load_exported(path: PathLike, *, allow_native: bool = False) -> ExportedModel:
    """The module of a `.pt2` file, which `torch.export.save` wrote.

    Args:
        path: of the file.
        allow_native: that whoever made the file may run code here. PyTorch reads it, and runs what
            it names: functions, pickles, libraries. Nothing in it tells who made it.

    Raises:
        LoadError: that is not allowed, or PyTorch cannot read the file.
        UnsupportedOp, LoadError: as `from_exported`.
    """
    return from_exported(read_exported(path, allow_native=allow_native))


def read_exported(path: PathLike, *, allow_native: bool = False) -> ExportedProgram:
    """The program of a `.pt2` file, as PyTorch reads it; see `load_exported`."""
    name = os.fsdecode(path)
    if not allow_native:
        raise LoadError(
            name,
            "PyTorch reads it, and runs what it names: it is a program",
            hint="if you trust whoever made it: allow_native=True (--allow-native)",
        )
    try:
        with quiet_torch():
            return torch.export.load(name)
    except Exception as error:  # PyTorch raises whatever its parsers do
        raise LoadError(
            name,
            f"PyTorch cannot read it as an exported program: {_said(error)}",
            hint="write it with torch.export.save, and read it with the same version of PyTorch",
        ) from error


def _reduced(program: ExportedProgram) -> ExportedProgram:
    """The program in fewer operators; one that disagrees with itself cannot be written so."""
    try:
        with quiet_torch():
            core: ExportedProgram = program.run_decompositions(decompositions(*RECURRENT))
            return core
    except TreadleError:
        raise
    except Exception as error:  # PyTorch runs the program on shapes, which raises anything
        raise LoadError(
            "torch.export",
            f"PyTorch cannot write the program in fewer operators: {_said(error)}",
            hint="export the model again; a file may be damaged",
        ) from error


def _said(error: Exception) -> str:
    """The first line of an error of PyTorch's, or its kind where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Silence PyTorch's exporter in the block about changes of its own parts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


class PartWeights(Module):
    """Holds the weights of a part of an exported program, under PyTorch's names."""

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Refuse: the program is one whole.

        Raises:
            LoadError: always.
        """
        raise LoadError("torch.export", "a part of an exported program cannot be called alone")


class ExportedModel(Module):
    """An exported program as a module; `state_dict()` has PyTorch's names.

    Whether layers such as BatchNorm and Dropout train was decided when the program was exported;
    `train()` and `eval()` change nothing, and autocasting does not reach inside. Buffers that the
    program updates are updated at each call.

    Attributes:
        input_names: of the tensors it takes, in the order in which arguments are flattened.
        input_types: element type and shape of each by name; extents that may vary are "?".
        output_names: keys of the results where they have some, else their numbers.
    """

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__()
        core = _reduced(program)
        look_at_bases(core.graph_module.graph)
        self._paths: dict[str, tuple[str, ...]] = {}
        self._targets: list[str] = []
        self._program = TorchProgram(core, *self._take(core))
        self.input_names = self._program.names
        self.input_types = self._program.types
        self.output_names = self._program.output_names

    def _take(self, program: ExportedProgram) -> tuple[list[str], dict[str, Any]]:
        """Keep weights under their names; the placeholders of weights, and constants by theirs."""
        shared: dict[int, Tensor] = {}
        held: list[str] = []
        constants: dict[str, Any] = {}
        updated = set(program.graph_signature.buffers_to_mutate.values())
        zeros = zero_points(program.graph_module.graph)
        for spec in program.graph_signature.input_specs:
            name, target = spec.arg.name, str(spec.target)
            if spec.kind is InputKind.USER_INPUT:
                if isinstance(spec.arg, ConstantArgument):
                    constants[name] = spec.arg.value
            elif name in zeros and spec.kind is InputKind.BUFFER and target not in updated:
                held_as = program.state_dict.get(target, program.constants.get(target))
                constants[name] = to_array(held_as.cpu())
            elif target in program.state_dict or target in updated:
                given = program.state_dict.get(target, program.constants.get(target))
                trained = spec.kind is InputKind.PARAMETER and given.requires_grad
                made = shared.setdefault(id(given), _tensor(given, trained))
                self._paths[target] = _put(self, target.split("."), made)
                self._targets.append(target)
                held.append(name)
            else:
                given = program.constants.get(target)
                tensor = isinstance(given, torch.Tensor)
                constants[name] = to_array(given.cpu()) if tensor else None
        return held, constants

    def _at(self, target: str) -> Tensor:
        """The parameter or buffer of PyTorch's name, as it is now."""
        found: Any = self
        for part in self._paths[target]:
            found = getattr(found, part)
        tensor: Tensor = found
        return tensor

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the program.

        Args:
            inputs, named: as the exported model takes them, with tensors of Treadle or arrays; or
                its tensors alone, in order.

        Returns:
            What the exported model returns.

        Raises:
            LoadError: the arguments are not nested as those it was exported with, or a plain value
                is another one.
            ShapeError: a tensor has another shape, and the program did not declare it to vary.
            DTypeError: a tensor is of another kind of element type.
        """
        return self._program.nested(self.results(*inputs, **named))

    def results(self, *inputs: Any, **named: Any) -> list[Any]:
        """Return the results of `forward` as a flat list in the order of `output_names`."""
        given = self._program.tensors(inputs, named)
        written = self._program.written_for(tuple(x.shape for x in given))
        push_casting(None)
        try:
            made = written.apply([*map(self._at, self._targets), *given])
        finally:
            pop_casting()
        for target, place in written.updates:
            self._at(target)._reset(made[place.index])
        return [made[r.index] if isinstance(r, OutputPlace) else r for r in written.results]


# -- weights -----------------------------------------------------------------------------------


def _tensor(given: torch.Tensor, trained: bool) -> Tensor:
    array = to_array(given.cpu())
    return (Parameter if trained else Tensor)(array, dtype=array.dtype)


def _put(module: Module, path: Sequence[str], tensor: Tensor) -> tuple[str, ...]:
    """Keep a tensor under a path of names; the path in the names it got."""
    *rooms, last = path
    taken: list[str] = []
    for room in rooms:
        name = _attribute(module, room, PartWeights)
        if name not in vars(module):
            setattr(module, name, PartWeights())
        module = getattr(module, name)
        taken.append(name)
    name = _attribute(module, last, type(None))
    setattr(module, name, tensor)
    return (*taken, name)


def _attribute(module: Module, name: str, kind: type) -> str:
    """The name, with `_` behind it where a module has something else of that name."""
    while name in dir(module) and not isinstance(getattr(module, name), kind):
        name += "_"
    return name
