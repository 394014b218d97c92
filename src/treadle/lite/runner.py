"""`LiteRunner`: a model run as programs for Lite run it, for tools that compare ways to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from treadle.base.array import Array
from treadle.engine.devices.names import CompNode
from treadle.engine.options import Options
from treadle.engine.package.models import Model, Runner
from treadle.graph.ir import Graph
from treadle.lite.base import LiteDeviceType
from treadle.lite.config import CompileSettings, LiteConfig
from treadle.lite.model import LiteModel
from treadle.lite.network import LiteNetwork
from treadle.lite.portable import Portable


class _AsGiven(Portable):
    """A model whose options are those of a tool, not of a network."""

    def __init__(self, model: Model, options: Options) -> None:
        super().__init__(model)
        self._given = options

    def _options(self, settings: CompileSettings) -> Options:
        return self._given


class LiteRunner(Runner):
    """A model that is run by a network: arrays in the order of its inputs, and of its outputs.

    Args:
        model: whose names the inputs and outputs have.
        graph: what it computes, for the shapes to come.
        options: of the engine.
        home: the GPU that it runs on; None for the host.
    """

    def __init__(
        self, model: Model, graph: Graph, options: Options, home: CompNode | None = None
    ) -> None:
        super().__init__(graph, options, home=home)
        kind = LiteDeviceType.LITE_CPU if home is None else LiteDeviceType.LITE_CUDA
        self._network = LiteNetwork(LiteConfig(device_type=kind))
        fitting = replace(model, graph=graph)
        self._network.use(LiteModel(None, lambda: _AsGiven(fitting, options)))

    def __call__(self, arrays: Sequence[Any]) -> list[Array]:
        """Fill the inputs, run, wait, read the outputs."""
        network = self._network
        for name, array in zip(network.get_all_input_name(), arrays, strict=True):
            network.get_io_tensor(name).set_data_by_copy(array)
        network.forward()
        network.wait()
        return [network.get_io_tensor(n).to_numpy() for n in network.get_all_output_name()]


__all__ = ["LiteRunner"]
