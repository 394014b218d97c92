"""`LiteNetwork`: a model that is loaded, filled and run."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from treadle.lite.base import LiteAlgoSelectStrategy, LiteIOType, LiteTensorPhase
from treadle.lite.config import LiteConfig, LiteExtraConfig, LiteNetworkIO, settings_of
from treadle.lite.model import LiteModel, opened
from treadle.lite.tensor import Array, LiteLayout, LiteTensor, on_host

Source = str | os.PathLike[str] | IO[Any]
Callback = Callable[[dict[str, LiteTensor]], int]
_LOOKED_INTO = "its values and times are looked into"


class LiteNetwork:
    """A network: load a file, get its tensors, fill the inputs, `forward`, `wait`, read.

    Where a file has native code for this machine, nothing is compiled, and the compiler is not
    even imported, as long as inputs have shapes that there is code for (`gears`). Others, and files
    without such code, are compiled when they are first met. Inputs are read, and outputs are
    written, where their tensors are; networks and threads that share a model share its weights.

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
        self._model: LiteModel | None = None
        self._inputs: dict[str, LiteTensor] = {}
        self._outputs: dict[str, LiteTensor] = {}
        self._run_lock, self._queue_lock = threading.RLock(), threading.Lock()
        self._worker: ThreadPoolExecutor | None = None
        self._worker_process = 0
        self._running: list[Future[None]] = []
        self._shapes_only: set[str] = set()
        self._start: Callback | None = None
        self._finish: Callback | None = None
        self._done: Callable[[], int] | None = None
        self._profile_path = ""
        self._dump: tuple[str, Path] | None = None
        self._stream_id = 0
        self._inplace = False
        self._settings = settings_of(self.config.options)
        self._by_model = True

    # -- loading ---------------------------------------------------------------------------

    def load(self, path: Source, *, allow_native: bool | None = None) -> None:
        """Load a model file.

        Args:
            path: of the file, or a file object opened in binary mode.
            allow_native: True runs the file's machine code whoever made it, False never; if left
                out, where this user or a trusted key made it (`treadle trust`).

        Raises:
            CheckpointError: the file is damaged, or holds no model.
            ValueError: `io` names an input or output that the model has not.
        """
        model, options = opened(path, self.config, allow_native)
        if options is not None and self._by_model:
            limit = self._settings.memory_limit
            self._settings = replace(settings_of(options), memory_limit=limit)
        self.use(model)

    def use(self, model: LiteModel) -> None:
        """Become a network of a model that was opened already; tensors are made anew.

        Raises:
            ValueError: `io` names an input or output that the model has not.
        """
        wanted = {i.name: i for i in self.network_io.inputs}
        chosen = [o.name for o in self.network_io.outputs] or [o.name for o in model.outputs]
        for names, ends in ((wanted, model.inputs), (chosen, model.outputs)):
            known = [end.name for end in ends]
            for name in names:
                if name not in known:
                    raise ValueError(f"LiteNetwork: the model has no {name!r}; it has {known}")
        self._model = model
        self._inputs, self._outputs = {}, {}
        for end in model.inputs:
            asked = wanted.get(end.name, end)
            self._inputs[end.name] = LiteTensor(asked.config_layout or end.config_layout)
        layouts = {end.name: end.config_layout for end in model.outputs}
        for name in chosen:
            self._outputs[name] = LiteTensor(layouts[name])
        asked_for = self.network_io.outputs
        self._shapes_only = {o.name for o in asked_for if o.io_type is LiteIOType.LITE_IO_SHAPE}

    def _loaded(self) -> LiteModel:
        if self._model is None:
            raise RuntimeError("LiteNetwork: no model is loaded; call load() first")
        return self._model

    def share_weights_with(self, src_network: LiteNetwork) -> None:
        """Become a network of the same model that shares its weights; tensors are its own."""
        self.use(src_network._loaded())

    def share_runtime_memroy(self, src_network: LiteNetwork) -> None:
        """Accepted: networks that share a model share the memory of runs, others keep their own.

        Raises:
            RuntimeError: the other network has no model.
        """
        src_network._loaded()

    def extra_configure(self, extra_config: LiteExtraConfig) -> None:
        """Say whether what a packed model says about itself wins over the configuration."""
        self._by_model = not extra_config.disable_configure_by_model_info

    # -- tensors ---------------------------------------------------------------------------

    def get_all_input_name(self) -> list[str]:
        """Names of the inputs, in order."""
        self._loaded()
        return list(self._inputs)

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
        with self._queue_lock:
            if self._worker is None or self._worker_process != os.getpid():  # a fork has no threads
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="lite")
                self._worker_process, self._running = os.getpid(), []
            # Whoever goes by callbacks alone never waits; the first failure is kept nevertheless.
            done = [run for run in self._running if run.done()]
            failed = [run for run in done if run.exception() is not None][:1]
            self._running = failed + self._running[len(done) :]
            self._running.append(self._worker.submit(self._run_and_tell))

    def wait(self) -> None:
        """Return when every `forward` so far is done; raises what the first that failed raised."""
        with self._queue_lock:
            running, self._running = self._running, []
        failures = [error for future in running if (error := future.exception()) is not None]
        if failures:
            raise failures[0]

    def _run_and_tell(self) -> None:
        self._run()
        if self._done is not None:
            self._done()

    def _run(self) -> None:
        with self._run_lock:
            model = self._loaded()
            if self._start is not None:
                self._start(dict(self._inputs))
            arrays = [tensor.get_data_by_share() for tensor in self._inputs.values()]
            results = model.run(arrays, self._settings, self._room)
            if self._shapes_only:
                for end, result in zip(model.outputs, results, strict=True):
                    if end.name in self._shapes_only:
                        self._outputs[end.name].set_data_by_share(np.array(result.shape, np.int32))
            self._look(model, arrays)
            if self._finish is not None:
                self._finish(dict(self._outputs))

    def _room(self, name: str, layout: LiteLayout) -> Array | None:
        """Where a result goes: to its tensor, if it has one."""
        if name not in self._outputs or name in self._shapes_only:
            return None
        keep = self.config.options.force_output_use_user_specified_memory
        return self._outputs[name].room_for(layout, keep)

    def _look(self, model: LiteModel, arrays: list[Array]) -> None:
        """Write down what was asked for about a run; the graph's ops are needed for that."""
        if self._profile_path:
            portable = model.portable_because(_LOOKED_INTO)
            portable.profile(self._profile_path, arrays, self._settings)
        if self._dump is not None:
            model.portable_because(_LOOKED_INTO).values(*self._dump, arrays, self._settings)

    @property
    def gears(self) -> list[dict[str, tuple[int, ...]]]:
        """Shapes of the inputs that there is native code for; none where all are compiled."""
        native = self._loaded().native
        if native is None:
            return []
        return [dict(zip(self._inputs, shapes, strict=True)) for shapes in native.gears]

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
        """How many threads share the work, of all networks in this process: they have one pool.

        At first as many as there are cores, or as `TREADLE_NUM_THREADS` says. Results do not depend
        on it.
        """
        return int(_pool().get_threads())

    @threads_number.setter
    def threads_number(self, nr_threads: int) -> None:
        _pool().set_threads(nr_threads)

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
        self._settings = replace(self._settings, memory_limit=size_limit)

    # -- looking inside --------------------------------------------------------------------

    def enable_profile_performance(self, profile_json_file: str) -> None:
        """Write a profile of kernels as JSON after every run, of the portable part."""
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
        portable = self._loaded().portable_because(_LOOKED_INTO)
        shapes = tuple(tensor.layout.shapes for tensor in self._inputs.values())
        text = portable.explained(shapes, self._settings)
        (folder / "static_memory.txt").write_text(text, encoding="utf-8")

    def enable_global_layout_transform(self) -> None:
        """Choose among all layouts that the machine has, by modelled time."""
        self._settings = replace(self._settings, layouts=("channels-last", "blocked"))

    def dump_layout_transform_model(self, model_file: str) -> None:
        """Write the model with the layouts that it is to be held in where it is loaded."""
        self._loaded().portable.write(model_file, self._settings)


def _pool() -> Any:
    """The process's threads, which the engine for the host starts."""
    return importlib.import_module("treadle.backends.cpu.pool")


__all__ = ["LiteNetwork"]
