"""Captured programs in files: the graph as text, beside the arrays it reads.

A program is saved as what it was captured as, before any stage: it can be read, compiled for any
machine, and loaded where the source of the function is not. Nothing in a file can run code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from treadle.base import tree
from treadle.base.errors import CheckpointError, TraceError
from treadle.base.quantized import quantized_type_of
from treadle.engine.devices.names import default_device
from treadle.engine.eager.dispatch import EagerType, eager_type
from treadle.engine.options import Options
from treadle.graph.parser import parse
from treadle.graph.printer import to_text
from treadle.jit.capture import capture
from treadle.jit.captured import Argument, CapturedCall, HostValue, Output, State
from treadle.jit.compiled import Compiled
from treadle.jit.printing import without_prints
from treadle.jit.trace import trace
from treadle.jit.variants import Single
from treadle.ops.constant import ArrayData
from treadle.serialization.checkpoint import load, save
from treadle.tensor import Tensor

PathLike = str | bytes | os.PathLike[str]
FORMAT = "treadle program 1"


def save_program(
    function: Callable[..., Any], f: PathLike | IO[Any], *args: Any, **kwargs: Any
) -> None:
    """Write the program that a function becomes for these arguments.

    Parameters and buffers that it reads are saved with it, with the values they have now, and so
    are numbers such as learning rates. What it updates, a model's running statistics or all of a
    training step, goes on from there in the loaded program.

    Args:
        function: what `jit.compile` or `jit.trace` made, or what they could be given.
        f: a path, which is replaced atomically, or a file object opened in binary mode.
        args, kwargs: example arguments. Tensors stand for their shape and type; the loaded program
            takes others like them. Everything else must be the same there.

    Raises:
        TraceError: the program leaves gradients in tensors, draws random numbers, or keeps tensors
            that are neither results nor state.
        TypeError: an argument or result is of a type that is not saved.
        OSError: the file cannot be written.

    Example:
        >>> import io
        >>> scaled = mge.jit.compile(lambda x: x * mge.tensor([1., 10.]))
        >>> file = io.BytesIO()
        >>> save_program(scaled, file, F.ones((3, 2)))
        >>> load_program(io.BytesIO(file.getvalue()))(F.ones((3, 2)))[0].tolist()
        [1.0, 10.0]
    """
    leaves, shape = tree.flatten((args, kwargs))
    leaves = [Tensor(x) if isinstance(x, np.ndarray) else x for x in leaves]
    # Of what others wrap around a function (mixed precision, no gradients) all counts.
    ours = isinstance(function, (Compiled, trace))
    body = vars(function)["__wrapped__"] if ours else function
    given_args, given_names = tree.unflatten(shape, leaves)
    captured = capture(body, given_args, given_names, "program")
    graph = without_prints(captured.graph, "save_program")
    _refuse(captured)
    constants: dict[str, ArrayData] = {}
    given = [None if isinstance(x, Tensor) else [x] for x in leaves]
    results, made = tree.flatten(captured.results)
    content = {
        "format": FORMAT,
        "graph": to_text(graph, locs=True, constants=constants),
        "constants": {name: data.array for name, data in constants.items()},
        "sources": [_saved(source) for source in captured.sources],
        "arguments": tree.unflatten(shape, list(range(len(leaves)))),
        "given": given,
        "results": tree.unflatten(made, list(range(len(results)))),
        "values": [x.index if isinstance(x, Output) else [x] for x in results],
        "updates": [list(pair) for pair in captured.updates],
        "quantized": {
            "arguments": [_quantized(x._kind) if isinstance(x, Tensor) else None for x in leaves],
            "outputs": [_quantized(kind) for kind in captured.kinds],
        },
    }
    save(content, f)


def _quantized(kind: EagerType) -> np.dtype[Any] | None:
    """The dtype of a quantized tensor, of which the graph knows the integers only."""
    return None if kind.quantized is None else kind.surface


def _refuse(captured: CapturedCall) -> None:
    """Raise for what a file cannot hold."""
    problem = ""
    # Slots that were empty when it began, and are again at the end, need no handles.
    if captured.gradients or captured.cleared or not all(empty for _, empty in captured.slots):
        problem = "it leaves gradients in tensors, which a file does not know"
    if any(ref() is not None for _, ref in captured.escaped):
        problem = "it keeps a tensor that is neither a result nor state"
    for source in captured.sources:
        if isinstance(source, HostValue) and np.dtype(source.dtype).kind != "f":
            problem = "it reads the state of a random generator at each call"
    if problem:
        raise TraceError(
            "save_program",
            f"the program cannot be saved: {problem}",
            hint="save a function of arguments, results, parameters and buffers; call eval() first",
        )


def _saved(source: Any) -> Any:
    """An input: the number of an argument, or the array that it is now."""
    if isinstance(source, Argument):
        return source.index
    if isinstance(source, State):
        return source.tensor.numpy()
    return np.asarray(source.read(), source.dtype).reshape(source.shape)


class Program:
    """A loaded program: call it with arguments like those it was saved with.

    Attributes:
        graph: what it computes, as captured.
        state: the tensors it reads by itself, in the order of the graph's inputs.
    """

    def __init__(self, content: dict[str, Any], options: Options) -> None:
        graph = parse(content["graph"], {k: ArrayData(v) for k, v in content["constants"].items()})
        device = default_device()
        sources = [
            Argument(x) if isinstance(x, int) else State(Tensor(x, dtype=x.dtype))
            for x in content["sources"]
        ]
        values = [Output(x) if isinstance(x, int) else x[0] for x in content["values"]]
        _, made = tree.flatten(content["results"])
        self._given = content["given"]
        nothing = {"arguments": [None] * len(self._given), "outputs": [None] * len(graph.outputs)}
        quantized = content.get("quantized", nothing)  # Files of older versions have none.
        self._quantized = [quantized_type_of(dtype) for dtype in quantized["arguments"]]
        outputs = quantized["outputs"]
        captured = CapturedCall(
            graph=graph,
            sources=tuple(sources),
            kinds=tuple(
                eager_type(v.type.dtype, device, quantized_type_of(dtype))
                for v, dtype in zip(graph.outputs, outputs, strict=True)
            ),
            results=tree.unflatten(made, values),
            updates=tuple((o, i) for o, i in content["updates"]),
            gradients=(),
            cleared=(),
            escaped=(),
            streams=(),
            guards=(),
            slots=(),
            home=device,
            at=(device,) * len(sources),
        )
        self.graph = graph
        self.state = [s.tensor for s in sources if isinstance(s, State)]
        self._types = {
            s.index: t
            for s, t in zip(sources, graph.input_types, strict=True)
            if isinstance(s, Argument)
        }
        _, self._shape = tree.flatten(content["arguments"])
        self._variant = Single(captured, options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it.

        Raises:
            TraceError: the arguments are not like those it was saved with.
        """
        leaves, shape = tree.flatten((args, kwargs))
        if shape != self._shape:
            raise _unlike("other arguments, or others nested in them", saw=f"{len(leaves)} values")
        for i, (leaf, given) in enumerate(zip(leaves, self._given, strict=True)):
            leaves[i] = self._checked(i, leaf, given)
        return self._variant.binding()(leaves)

    def _checked(self, i: int, leaf: Any, given: Any) -> Any:
        """An argument as the program takes it."""
        if given is not None:
            if type(leaf) is not type(given[0]) or leaf != given[0]:
                raise _unlike(f"value {i} must be {given[0]!r}", saw=repr(leaf))
            return leaf
        tensor = leaf if isinstance(leaf, Tensor) else Tensor(leaf)
        wanted = self._types.get(i)
        if wanted is not None and (
            tensor.type.dtype is not wanted.dtype or tensor.type.shape != wanted.shape
        ):
            raise _unlike(f"tensor {i} must be {wanted}", saw=str(tensor.type))
        if tensor._kind.quantized is not self._quantized[i]:
            seen = tensor._kind.quantized or "no quantized tensor"
            raise _unlike(f"tensor {i} must stand for {self._quantized[i]}", saw=str(seen))
        return tensor


def _unlike(problem: str, saw: str) -> TraceError:
    return TraceError(
        "program",
        f"the arguments are not those it was saved for: {problem}",
        saw=saw,
        hint="save a program for these arguments, too",
    )


def load_program(f: PathLike | IO[Any], *, options: Options | None = None) -> Program:
    """The program in a file; it is compiled at its first call.

    Args:
        f: a path, or a file object opened in binary mode.
        options: of the compilation.

    Raises:
        CheckpointError: the file is damaged, or holds no program.
    """
    content = load(f)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(
            "load_program",
            "the file holds no program",
            hint="files of `save` are read by `load`",
        )
    try:
        return Program(content, options or Options())
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError("load_program", f"the program is damaged: {error}") from error
