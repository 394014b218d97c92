"""Graphs of one op each, made from the samples of the registry."""

from treadle.base.dtype import DType, as_dtype
from treadle.base.types import TensorType
from treadle.graph.builder import GraphBuilder, trace_body
from treadle.graph.evaluate import substitute_attributes
from treadle.graph.ir import Graph
from treadle.ops.control import FunctionRegion
from treadle.ops.op import Op, Sample


def graph_of(sample: Sample, dtype: DType | None = None) -> Graph:
    """A graph of one op, on the types of a sample's arrays."""
    arrays = sample.arrays(dtype or sample.element_types()[0])
    builder = GraphBuilder("sample")
    inputs = [builder.input(TensorType(as_dtype(a.dtype), a.shape)) for a in arrays]
    builder.output(*builder.apply(with_graphs(sample.op), inputs))
    return builder.build()


def with_graphs(sampled: Op) -> Op:
    """The op with graphs in place of the Python functions that samples use as regions."""

    def change(value: object) -> object:
        if isinstance(value, FunctionRegion):
            return trace_body(value.function, value.input_types, value.name)
        return value

    return substitute_attributes(sampled, change)
