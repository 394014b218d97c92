"""`LiteNetwork`: a model that is loaded, filled and run."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np

from treadle.base.errors import EngineError
from treadle.engine.package import Model, Runner, read_models
from treadle.graph.ir import Graph, Value
from treadle.graph.retype import retyped
from treadle.lite.base import LiteAlgoSelectStrategy, LiteIOType, LiteTensorPhase
from treadle.lite.config import LiteConfig, LiteExtraConfig, LiteNetworkIO
from treadle.lite.globals import decrypted
from treadle.lite.inspection import write_profile, write_values
from treadle.lite.tensor import LiteTensor, on_host

Shapes = tuple[tuple[int, ...], ...]
Callback = Callable[[dict[str, LiteTensor]], int]


class LiteNetwork:
    """A network: load a file, get its tensors, fill the inputs, `forward`, `wait`, read.

    Shapes of inputs may differ from run to run; each combination is compiled when first met.

    Args:
        config: where and how to run.
        io: inputs and outputs to use; all of the model's unless given.

    Raises:
        RuntimeError: the device is no host.
    """

    def __init__(self, config: LiteConfig | None = None, io: LiteNetworkIO | None = None) -> None:
        self.config = config or LiteConfig()
        self.network_io = io or LiteNetworkIO()
        on_host(self.config.device_type)
        self._model: Model | None = None
        self._graph: Graph | None = None
        self._runners: dict[Shapes, Runner] = {}
        self._inputs: dict[str, LiteTensor] = {}
        self._outputs: dict[str, LiteTensor] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None
        self._start: Callback | None = None
        self._finish: Callback | None = None
        self._done: Callable[[], int] | None = None
        self._profile_path = ""
        self._dump: tuple[str, Path] | None = None
        self._threads = 1
        self._stream_id = 0
        self._inplace = False

    # -- loading ---------------------------------------------------------------------------

    def load(self, path: str | os.PathLike[str] | IO[Any]) -> None:
        """Load a model file.

        Args:
            path: of the file, or a file object opened in binary mode.

        Raises:
            CheckpointError: the file is damaged, or holds no model.
            ValueError: `io` names an input or output that the model has not.
        """
        source: Any = path
        if self.config.bare_model_cryption_name:
            raw = Path(path).read_bytes() if isinstance(path, str | os.PathLike) else path.read()
            source = io.BytesIO(decrypted(raw, self.config.bare_model_cryption_name))
        self._take(read_models(source)[0])

    def _take(self, model: Model) -> None:
        self._model, self._graph = model, model.graph
        wanted = {i.name: i for i in self.network_io.inputs}
        chosen = [o.name for o in self.network_io.outputs] or list(model.outputs)
        for name in (*wanted, *chosen):
            known = model.inputs if name in wanted else model.outputs
            if name not in known:
                raise ValueError(f"LiteNetwork: the model has no {name!r}; it has {list(known)}")
        self._runners.clear()
        self._inputs = {}
        for value, name in zip(model.graph.inputs, model.inputs, strict=True):
            asked = wanted.get(name)
            layout = None if asked is None else asked.config_layout
            shape = _extents(value) if layout is None else layout.shapes
            self._inputs[name] = LiteTensor(shapes=shape, dtype=value.type.dtype.numpy)
        self._outputs = {name: LiteTensor() for name in chosen}
        for value, name in zip(model.graph.outputs, model.outputs, strict=True):
            if name in self._outputs:
                self._outputs[name] = LiteTensor(
                    shapes=_extents(value), dtype=value.type.dtype.numpy
                )

    def _loaded(self) -> Model:
        if self._model is None:
            raise RuntimeError("LiteNetwork: no model is loaded; call load() first")
        return self._model

    def share_weights_with(self, src_network: LiteNetwork) -> None:
        """Become a network of the same model that shares its weights; tensors are its own."""
        self._take(src_network._loaded())

    def share_runtime_memroy(self, src_network: LiteNetwork) -> None:
        """Share compiled programs with another network, and so the memory of their runs."""
        self._runners = src_network._runners

    def extra_configure(self, extra_config: LiteExtraConfig) -> None:
        """Accepted: files carry no settings that override the configuration."""

    # -- tensors ---------------------------------------------------------------------------

    def get_all_input_name(self) -> list[str]:
        """Names of the inputs, in order."""
        return list(self._loaded().inputs)

    def get_all_output_name(self) -> list[str]:
        """Names of the outputs, in order."""
        self._loaded()
        return list(self._outputs)

    def get_input_name(self, index: int) -> str:
        """Name of an input."""
        return self.get_all_input_name()[index]

    def get_output_name(self, index: int) -> str:
        """Name of an output."""
        return self.get_all_output_name()[index]

    def get_io_tensor(
        self, name: str, phase: LiteTensorPhase = LiteTensorPhase.LITE_IO
    ) -> LiteTensor:
        """The tensor of an input or output.

        Raises:
            ValueError: there is none of that name.
        """
        self._loaded()
        places = {
            LiteTensorPhase.LITE_IO: {**self._outputs, **self._inputs},
            LiteTensorPhase.LITE_INPUT: self._inputs,
            LiteTensorPhase.LITE_OUTPUT: self._outputs,
        }
        found = places[LiteTensorPhase(phase)]
        if name not in found:
            raise ValueError(f"LiteNetwork: there is no tensor {name!r}; there are {list(found)}")
        return found[name]

    def get_discrete_tensor(
        self,
        name: str,
        n_idx: int,
        phase: LiteTensorPhase = LiteTensorPhase.LITE_INPUT,
    ) -> LiteTensor:
        """Part `n_idx` along the first axis of a tensor, on the same memory."""
        whole = self.get_io_tensor(name, phase)
        extents = whole.layout.shapes
        return whole.slice((n_idx,), (n_idx + 1,)) if extents else whole

    # -- running ---------------------------------------------------------------------------

    def forward(self) -> None:
        """Run on what the inputs hold now; with `async_with_callback` it returns at once.

        Raises:
            TreadleError: an input has a shape that the model does not take.
        """
        self._loaded()
        if self._done is None:
            self._run()
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="lite")
        self._running = self._pool.submit(self._run_and_tell)

    def wait(self) -> None:
        """Return when the last `forward` is done; raises what it raised."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def _run_and_tell(self) -> None:
        self._run()
        if self._done is not None:
            self._done()

    def _run(self) -> None:
        model = self._loaded()
        if self._start is not None:
            self._start(dict(self._inputs))
        arrays = [self._inputs[name].get_data_by_share() for name in model.inputs]
        runner = self._runner(tuple(a.shape for a in arrays))
        began = time.perf_counter()
        results = dict(zip(model.outputs, runner(arrays), strict=True))
        shapes = {o.name for o in self.network_io.outputs if o.io_type is LiteIOType.LITE_IO_SHAPE}
        for name, tensor in self._outputs.items():
            found = results[name]
            tensor.set_data_by_share(np.array(found.shape, np.int32) if name in shapes else found)
        if self._profile_path:
            write_profile(self._profile_path, runner, arrays, time.perf_counter() - began)
        if self._dump is not None:
            write_values(*self._dump, runner.graph, arrays)
        if self._finish is not None:
            self._finish(dict(self._outputs))

    def _runner(self, shapes: Shapes) -> Runner:
        graph = self._graph
        if graph is None:
            raise RuntimeError("LiteNetwork: no model is loaded")
        known = self._runners.get(shapes)
        if known is None:
            as_traced = tuple(v.type.shape for v in graph.inputs)
            fit = graph if shapes == as_traced else retyped(graph, shapes)
            known = self._runners[shapes] = Runner(fit)
        return known

    # -- callbacks -------------------------------------------------------------------------

    def async_with_callback(self, async_callback: Callable[[], int]) -> None:
        """Let `forward` return at once, and call back when a run is done."""
        self._done = async_callback

    def set_start_callback(self, start_callback: Callback) -> None:
        """Call with the inputs by name before every run."""
        self._start = start_callback

    def set_finish_callback(self, finish_callback: Callback) -> None:
        """Call with the outputs by name after every run."""
        self._finish = finish_callback

    # -- settings --------------------------------------------------------------------------

    @property
    def device_id(self) -> int:
        """Number of the device."""
        return self.config.device_id

    @device_id.setter
    def device_id(self, device_id: int) -> None:
        self.config.device_id = device_id

    @property
    def stream_id(self) -> int:
        """Kept; the host runs one stream per thread."""
        return self._stream_id

    @stream_id.setter
    def stream_id(self, stream_id: int) -> None:
        self._stream_id = stream_id

    @property
    def threads_number(self) -> int:
        """Kept; all networks share one pool of threads (`TREADLE_NUM_THREADS`)."""
        return self._threads

    @threads_number.setter
    def threads_number(self, nr_threads: int) -> None:
        self._threads = nr_threads

    def is_cpu_inplace_mode(self) -> bool:
        """Whether `enable_cpu_inplace_mode` was called; runs are in the calling thread anyway."""
        return self._inplace

    def enable_cpu_inplace_mode(self) -> None:
        """Run in the calling thread, as is done without it."""
        self._inplace = True

    def use_tensorrt(self) -> None:
        """There is no TensorRT engine.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("LiteNetwork: there is no TensorRT engine here")

    def set_network_algo_policy(
        self,
        policy: LiteAlgoSelectStrategy,
        shared_batch_size: int = 0,
        binary_equal_between_batch: bool = False,
    ) -> None:
        """Accepted: kernels follow the engine's model and its record of measurements."""

    def set_network_algo_workspace_limit(self, size_limit: int) -> None:
        """Accepted: scratch memory is part of the plan, see `get_static_memory_alloc_info`."""

    # -- looking inside --------------------------------------------------------------------

    def enable_profile_performance(self, profile_json_file: str) -> None:
        """Write a profile of kernels as JSON after every run."""
        self._profile_path = profile_json_file

    def io_txt_dump(self, txt_file: str) -> None:
        """Write a line about the value of every op into a file, after every run."""
        self._dump = ("txt", Path(txt_file))

    def io_bin_dump(self, bin_dir: str) -> None:
        """Write the value of every op as a `.npy` file into a directory, after every run."""
        self._dump = ("bin", Path(bin_dir))

    def get_static_memory_alloc_info(self, log_dir: str = "logs/test") -> None:
        """Write how memory is planned: a text file in a directory."""
        folder = Path(log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        model = self._loaded()
        shapes = tuple(self._inputs[name].layout.shapes for name in model.inputs)
        text = self._runner(shapes).stages.explained(full=True)
        (folder / "static_memory.txt").write_text(text, encoding="utf-8")

    def enable_global_layout_transform(self) -> None:
        """Accepted: layouts are chosen for the whole program in any case."""

    def dump_layout_transform_model(self, model_file: str) -> None:
        """Layouts are chosen where a model is loaded, so there is no file to write.

        Raises:
            EngineError: always.
        """
        raise EngineError(
            "lite",
            "layouts are chosen for the machine that loads a model; a file holds none",
            hint="copy the model file itself",
        )


def _extents(value: Value) -> tuple[int, ...]:
    return tuple(int(d) for d in value.type.shape)


__all__ = ["LiteNetwork"]
