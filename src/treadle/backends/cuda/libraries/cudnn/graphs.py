"""Calls as graphs of cuDNN's frontend, and the choice among its plans.

Tensors are numbered in the order of a launch's arguments, from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treadle.backends.cuda.libraries.cudnn.calls import (
    Attention,
    AttentionGrad,
    Call,
    Convolution,
    CudnnOperand,
    named,
)
from treadle.base import dtype as dt

WORKSPACE = 256 << 20
"""Most bytes of scratch memory a plan may take."""
NOT_ITS_OWN = ("sdpa_", "frost")
"""Beginnings of names of engines that the frontend brings itself, where a compiler for them is
installed; they are newer than the library's and ask for more than addresses."""
_TYPES = {
    dt.float32: "FLOAT",
    dt.float64: "DOUBLE",
    dt.float16: "HALF",
    dt.bfloat16: "BFLOAT16",
}
TYPES = tuple(_TYPES)
"""Element types that the library has."""


def planned(module: Any, call: Call, fast: bool, **where: Any) -> Any:
    """A graph whose plans are found but not built.

    Plans whose results differ from run to run are left out, and, unless `fast`, those that round
    operands of float32 to fewer bits.

    Args:
        module: the frontend.
        call: what it computes.
        fast: whether tensor cores may be used for float32.
        where: a `handle`, or a `device_property` where there is no device.

    Raises:
        Exception: whatever the frontend raises for graphs that it has no plan for.
    """
    arrays = named(call)
    first = next(iter(arrays.values()))
    types = module.data_type
    widest = types.DOUBLE if first.type is dt.float64 else types.FLOAT
    graph = module.pygraph(
        name=type(call).__name__,
        io_data_type=_type(module, first),
        intermediate_data_type=widest,
        compute_data_type=widest,
        **where,
    )
    _Emitter(module, graph, arrays).emit(call)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([module.heur_mode.A, module.heur_mode.FALLBACK])
    notes = module.numerical_note
    refused = [notes.NONDETERMINISTIC, notes.REDUCED_PRECISION_REDUCTION]
    if first.type is dt.float32 and not fast:
        refused += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS]
    graph.deselect_numeric_notes(refused)
    graph.deselect_engines(list(NOT_ITS_OWN))
    graph.deselect_workspace_greater_than(WORKSPACE)
    graph.check_support()
    return graph


def _type(module: Any, array: CudnnOperand) -> Any:
    return getattr(module.data_type, _TYPES[array.type])


class _Emitter:
    """Adds one call to a graph; arrays go by the names of the call's fields."""

    def __init__(self, module: Any, graph: Any, arrays: Mapping[str, CudnnOperand]) -> None:
        self._module = module
        self._graph = graph
        self._arrays = arrays
        self._numbers = {name: number for number, name in enumerate(arrays, 1)}

    def emit(self, call: Call) -> None:
        """Add the operands, the operation and the results."""
        if isinstance(call, Convolution):
            self._convolution(call)
        elif isinstance(call, Attention):
            self._attention(call)
        else:
            self._attention_grad(call)

    def _given(self, name: str) -> Any:
        array = self._arrays[name]
        return self._graph.tensor(
            name=name,
            dim=list(array.shape),
            stride=list(array.strides),
            data_type=_type(self._module, array),
            uid=self._numbers[name],
        )

    def _made(self, name: str, tensor: Any) -> None:
        array = self._arrays[name]
        tensor.set_output(True)
        tensor.set_uid(self._numbers[name])
        tensor.set_dim(list(array.shape))
        tensor.set_stride(list(array.strides))
        tensor.set_data_type(_type(self._module, array))

    def _convolution(self, call: Convolution) -> None:
        graph = self._graph
        compute: dict[str, tuple[Callable[..., Any], str, str]] = {
            "forward": (graph.conv_fprop, "image", "weight"),
            "input": (graph.conv_dgrad, "loss", "filter"),
            "weight": (graph.conv_wgrad, "image", "loss"),
        }
        function, first, second = compute[call.side]
        result = function(
            **{first: self._given("first"), second: self._given("second")},
            pre_padding=list(call.before),
            post_padding=list(call.after),
            stride=list(call.strides),
            dilation=list(call.dilation),
        )
        self._made("result", result)

    def _attention(self, call: Attention) -> None:
        result, stats = self._graph.sdpa(
            q=self._given("q"),
            k=self._given("k"),
            v=self._given("v"),
            generate_stats=call.stats is not None,
            **self._weights(call),
        )
        self._made("result", result)
        if call.stats is not None:
            self._made("stats", stats)

    def _attention_grad(self, call: AttentionGrad) -> None:
        made = self._graph.sdpa_backward(
            q=self._given("q"),
            k=self._given("k"),
            v=self._given("v"),
            o=self._given("y"),
            dO=self._given("dy"),
            stats=self._given("stats"),
            use_deterministic_algorithm=True,
            **self._weights(call),
        )
        for name, tensor in zip(("dq", "dk", "dv"), made, strict=True):
            self._made(name, tensor)

    def _weights(self, call: Attention | AttentionGrad) -> dict[str, Any]:
        """Write the weights that follow from scores; a query sees the keys up to its own
        position.
        """
        given: dict[str, Any] = {"attn_scale": call.scale, "use_causal_mask": call.causal}
        if call.mask is not None:
            given["bias"] = self._given("mask")
        return given
