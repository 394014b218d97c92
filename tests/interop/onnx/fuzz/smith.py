"""Models of NNSmith, a generator that others wrote: it solves for shapes that fit."""

from __future__ import annotations

import functools
import io
import logging
import random
import warnings
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import onnx
from onnx import numpy_helper
from tests.interop.onnx.fuzz.growing import Array, Growing, Misfit, computed

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

import torch  # noqa: E402
from nnsmith.graph_gen import model_gen  # noqa: E402
from nnsmith.materialize import Model  # noqa: E402

# The exporter that NNSmith was written for.
torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)
KIND = Model.init("onnx")
OPERATORS = list(KIND.operators())
LARGEST = 1 << 18
"""Elements of a value."""


def grown(number: int) -> Growing | None:
    """The model of a number; None where it cannot be exported."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
    quiet = io.StringIO()
    try:
        with redirect_stdout(quiet), redirect_stderr(quiet):
            count = 2 + number % 9
            made = model_gen(
                OPERATORS, method="symbolic-cinit", seed=number, max_nodes=count, timeout_ms=5000
            )
            model = KIND.from_gir(made.make_concrete()).native_model
        return _known(model, random.Random(number))
    except Exception:
        # Complex numbers, or types that PyTorch's exporter does not write.
        return None


def _sound(array: Array | None) -> bool:
    return array is not None and (array.dtype.kind != "f" or bool(np.isfinite(array).all()))


def _known(model: onnx.ModelProto, rng: random.Random) -> Growing | None:
    """A model with every value computed node by node."""
    opset = next(o.version for o in model.opset_import if not o.domain)
    grown = Growing(rng, opset)
    for weight in model.graph.initializer:
        grown.weights[weight.name] = grown.values[weight.name] = numpy_helper.to_array(weight)
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [d.dim_value for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        array = grown.numbers(np.dtype(dtype).type, shape)
        grown.inputs[value.name] = grown.values[value.name] = array
    for i, node in enumerate(model.graph.node):
        node.name = f"n{i}_{node.op_type}"
        if any(n and not _sound(grown.values.get(n)) for n in node.input):
            continue  # What comes of infinite numbers is nobody's promise.
        given = {n: grown.values[n] for n in node.input if n}
        try:
            arrays = computed(node, given, opset)
        except Misfit:
            return None
        if any(a.size > LARGEST for a in arrays):
            return None
        grown.values.update(zip((o for o in node.output if o), arrays, strict=True))
        grown.nodes.append(node)
        grown.reads[node.name] = list(given)
    return grown
