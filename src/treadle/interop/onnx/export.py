"""Functions and modules as ONNX models."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import onnx
from onnx import helper

from treadle.base.errors import UnsupportedOp
from treadle.base.files.atomic import write_atomically
from treadle.base.version import VERSION
from treadle.graph.ir import Graph
from treadle.interop.onnx import exporters  # noqa: F401  (registers them)
from treadle.interop.onnx.writer import IR_VERSION, OPSET, GraphWriter, OnnxOperand
from treadle.jit.capture import capture
from treadle.jit.dump import Ends, argument_names, model_of


def export(
    function: Callable[..., Any],
    *args: Any,
    path: str | os.PathLike[str] | None = None,
    arg_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> onnx.ModelProto:
    """Write what a function or module computes as an ONNX model (opset 21).

    The function is called once with `args`; parameters become initializers. Modules in training
    mode are traced as they are: call `eval()` first for what is needed for inference only.

    Args:
        function: computes tensors from tensors.
        args: inputs with the shapes and element types that the model is to have.
        path: of a file to write, replaced atomically; None writes none.
        arg_names: names of the inputs; `arg_0`, ... unless given.
        output_names: names of the results; those of the last ops unless given.

    Returns:
        The model, accepted by ONNX's checker.

    Raises:
        UnsupportedOp: an op cannot be written; the error names it.
        TraceError: the function does more than compute results from arguments and state.
    """
    name = str(getattr(function, "__name__", type(function).__name__))
    captured = capture(function, args, {}, name)
    model = model_of(name, captured, argument_names(args, {}), Ends(arg_names, output_names))
    made = graph_to_onnx(model.graph, model.inputs, model.outputs, name)
    if path is not None:
        data = made.SerializeToString()
        write_atomically(os.fspath(path), [data], len(data))
    return made


def graph_to_onnx(
    graph: Graph, inputs: Sequence[str], outputs: Sequence[str], name: str = "model"
) -> onnx.ModelProto:
    """A graph as an ONNX model; see `export`.

    Args:
        graph: constants become initializers.
        inputs, outputs: names of its ends.
        name: of the ONNX graph.
    """
    writer = GraphWriter()
    ends = [writer.input(v.type, n) for v, n in zip(graph.inputs, inputs, strict=True)]
    made = writer.body(graph, ends)
    results = [_named(writer, v, n) for v, n in zip(made, outputs, strict=True)]
    proto = writer.proto(name, ends, results)
    proto.initializer.extend(writer.initializers)
    model = helper.make_model(
        proto,
        opset_imports=[
            helper.make_opsetid(*pair) for pair in (("", OPSET), *writer.domains.items())
        ],
        ir_version=IR_VERSION,
        producer_name="treadle",
        producer_version=VERSION,
    )
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise UnsupportedOp("onnx", f"the model is not valid ONNX: {error}") from error
    return model


def _named(writer: GraphWriter, value: OnnxOperand, name: str) -> OnnxOperand:
    """The value under the name of a result."""
    with writer.naming([name]):
        return writer.copied(value)
