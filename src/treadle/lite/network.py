"""`LiteNetwork`: a model that is loaded, filled and run."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from treadle.engine.options import Options
from treadle.engine.package import Model, Runner, read_models, write_models
from treadle.graph.ir import Graph, Value
from treadle.graph.retype import retyped
from treadle.lite.base import LiteAlgoSelectStrategy, LiteIOType, LiteTensorPhase
from treadle.lite.config import LiteConfig, LiteExtraConfig, LiteNetworkIO, LiteOptions
from treadle.lite.globals import decrypted
from treadle.lite.inspection import write_profile, write_values
from treadle.lite.packed import Packed, is_packed, unpack, use_choices
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
        self._options = engine_options(self.config.options)
        self._by_model = True

    # -- loading ---------------------------------------------------------------------------

    def load(self, path: str | os.PathLike[str] | IO[Any]) -> None:
        """Load a model file.

        Args:
            path: of the file, or a file object opened in binary mode.

        Raises:
            CheckpointError: the file is damaged, or holds no model.
            ValueError: `io` names an input or output that the model has not.
        """
        model, packed = _opened(path, self.config.bare_model_cryption_name)
        if packed is not None and self._by_model:
            self._options = engine_options(packed.options(self.config.options))
        self._take(model)

    def _take(self, model: Model) -> None:
        self._model, self._graph = model, model.graph
        if layouts_of(model) and not self._options.layouts:
            self._options = replace(self._options, layouts=layouts_of(model))
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
        """Say whether what a packed model says about itself wins over the configuration."""
        self._by_model = not extra_config.disable_configure_by_model_info

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
            known = self._runners[shapes] = Runner(fit, self._options)
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
        """Let values and scratch memory take so many bytes at most; 0: no limit.

        What does not fit is made again instead of being kept, where that helps.
        """
        self._options = replace(self._options, memory_budget=size_limit)
        self._runners.clear()

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
        """Choose among all layouts that the machine has, by modelled time."""
        self._options = replace(self._options, layouts=("channels-last", "blocked"))
        self._runners.clear()

    def dump_layout_transform_model(self, model_file: str) -> None:
        """Write the model with the layouts that it is to be held in where it is loaded."""
        model = self._loaded()
        chosen = {**model.options, "layouts": list(self._options.layouts)}
        write_models(model_file, [replace(model, options=chosen)], "LiteNetwork")


class LiteRunner(Runner):
    """A model that is run by a network: arrays in the order of its inputs, and of its outputs.

    Args:
        model: whose names the inputs and outputs have.
        graph: what it computes, for the shapes to come.
        options: of the engine.
    """

    def __init__(self, model: Model, graph: Graph, options: Options) -> None:
        super().__init__(graph, options)
        self._network = LiteNetwork()
        self._network._take(replace(model, graph=graph))
        self._network._options = options

    def __call__(self, arrays: Sequence[Any]) -> list[np.ndarray[Any, np.dtype[Any]]]:
        """Fill the inputs, run, wait, read the outputs."""
        network = self._network
        for name, array in zip(network.get_all_input_name(), arrays, strict=True):
            network.get_io_tensor(name).set_data_by_copy(array)
        network.forward()
        network.wait()
        return [network.get_io_tensor(n).to_numpy() for n in network.get_all_output_name()]


def _opened(path: Any, decryption: str) -> tuple[Model, Packed | None]:
    """The model of a file, and what a packed one says besides; its measurements are in use."""
    is_path = isinstance(path, str | os.PathLike)
    if is_path and not decryption:
        with Path(path).open("rb") as file:
            if not is_packed(file.read(4)):
                return read_models(path)[0], None  # mapped
    raw = Path(path).read_bytes() if is_path else path.read()
    raw = decrypted(raw, decryption) if decryption else raw
    if not is_packed(raw):
        return read_models(io.BytesIO(raw))[0], None
    packed = unpack(raw)
    use_choices(packed.cache)
    return read_models(io.BytesIO(packed.model))[0], packed


def layouts_of(model: Model) -> tuple[str, ...]:
    """The layouts that a model's file says it is to be held in; mostly none."""
    return tuple(str(name) for name in model.options.get("layouts", ()))


def engine_options(options: LiteOptions) -> Options:
    """What the engine makes of options: `enable_nchw44` and the like choose orders of axes."""
    wanted = {
        "blocked": options.enable_nchw44 or options.enable_nchw88,
        "channels-last": options.enable_nhwcd4,
    }
    reuse = not (options.force_dynamic_alloc or options.force_output_dynamic_alloc)
    return Options(layouts=tuple(n for n, yes in wanted.items() if yes), reuse_memory=reuse)


def _extents(value: Value) -> tuple[int, ...]:
    return tuple(int(d) for d in value.type.shape)


__all__ = ["LiteNetwork", "LiteRunner", "engine_options", "layouts_of"]
