"""Models of other engines as layers (RuntimeOpr); `functional.external` runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.base.saved_objects import refuse
from treadle.functional import external
from treadle.module.module import Module
from treadle.tensor import Tensor


@refuse
class _Runtime(Module):
    """Holds a model in the form of another engine."""

    def __init__(self, data: Any, name: str | None = None) -> None:
        super().__init__(name)
        self._data = data

    @property
    def data(self) -> Any:
        """The serialized model."""
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        self._data = value


class ExternOprSubgraph(_Runtime):
    """A model that a loader of this process runs; see `functional.external.extern_opr_subgraph`.

    `forward(*inputs)` takes tensors, or one list of them, and returns a list.

    Args:
        output_shapes: one shape per result.
        dump_name: the name of the loader.
        dump_data: the model, as bytes.
        output_dtypes: one element type per result; float32 if left out.
        name: a name for messages and graphs.

    Raises:
        UnsupportedOp: when called: no loader of that name is registered.
    """

    def __init__(
        self,
        output_shapes: Sequence[tuple[int, ...]],
        dump_name: str,
        dump_data: bytes,
        output_dtypes: Sequence[Any] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dump_data, name)
        self.output_shapes = list(output_shapes)
        self.dump_name = dump_name
        self.output_dtypes = output_dtypes

    @property
    def dump_data(self) -> Any:
        """The model, as bytes."""
        return self._data

    def forward(self, *inputs: Any) -> list[Tensor]:
        alone = len(inputs) == 1 and isinstance(inputs[0], (list, tuple))
        given = inputs[0] if alone else inputs
        return external.extern_opr_subgraph(
            given, self.output_shapes, self.dump_name, self._data, self.output_dtypes
        )

    def _module_info_string(self) -> str:
        return f"output_shapes={self.output_shapes}, dump_name={self.dump_name}"


class OpenVINORuntimeSubgraph(_Runtime):
    """A ready OpenVINO model; see `functional.external.openvino_runtime_opr`.

    `forward(*inputs)` takes tensors, or one list of them, and returns a list.

    Raises:
        LoadError: when called: OpenVINO is not installed, or does not read the model.
    """

    def forward(self, *inputs: Any) -> list[Tensor]:
        alone = len(inputs) == 1 and isinstance(inputs[0], (list, tuple))
        return external.openvino_runtime_opr(inputs[0] if alone else inputs, data=self._data)


class TensorrtRuntimeSubgraph(_Runtime):
    """A TensorRT engine, serialized in `data`.

    Raises:
        UnsupportedOp: when called: no backend has TensorRT's runtime.
    """

    def forward(self, *inputs: Tensor) -> Any:
        external.tensorrt_runtime_opr(inputs, data=self._data)


class CambriconRuntimeSubgraph(_Runtime):
    """A Cambricon model.

    Args:
        data: the serialized model.
        symbol: the function in it.
        tensor_dim_mutable: whether extents may change.
        name: a name for messages and graphs.

    Raises:
        UnsupportedOp: when called: no backend has Cambricon's runtime.
    """

    def __init__(
        self, data: Any, symbol: str, tensor_dim_mutable: bool, name: str | None = None
    ) -> None:
        super().__init__(data, name)
        self.symbol = symbol
        self.tensor_dim_mutable = tensor_dim_mutable

    def forward(self, *inputs: Tensor) -> Any:
        external.cambricon_runtime_opr(inputs, self._data, self.symbol, self.tensor_dim_mutable)


class AtlasRuntimeSubgraph(_Runtime):
    """An Ascend (Atlas) model, serialized in `data`.

    Raises:
        UnsupportedOp: when called: no backend has Ascend's runtime.
    """

    def forward(self, *inputs: Tensor) -> Any:
        external.atlas_runtime_opr(inputs, self._data)


class MagicMindRuntimeSubgraph(_Runtime):
    """A MagicMind model, serialized in `data`.

    Raises:
        UnsupportedOp: when called: no backend has MagicMind's runtime.
    """

    def forward(self, *inputs: Tensor) -> Any:
        external.magicmind_runtime_opr(inputs, self._data)
