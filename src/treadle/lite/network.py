"""`LiteNetwork`: a model that is loaded, filled and run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from treadle.base.array import Array
from treadle.lite.background import Background
from treadle.lite.base import (
    LiteAlgoSelectStrategy,
    LiteDeviceType,
    LiteIOType,
    LiteTensorPhase,
    device_kind,
)
from treadle.lite.config import LiteConfig, LiteExtraConfig, LiteIO, LiteNetworkIO, settings_of
from treadle.lite.model import LiteModel, opened
from treadle.lite.tensor import LiteLayout, LiteTensor

Source = str | os.PathLike[str] | IO[Any]
Callback = Callable[[dict[LiteIO, LiteTensor]], int]
_LOOKED_INTO = "its values and times are looked into"


class LiteNetwork:
    """A network: load a file, get its tensors, fill the inputs, `forward`, `wait`, read.

    Where a file has native code for this machine, nothing is compiled, and the compiler is not
    even imported, as long as inputs have shapes that there is code for (`gears`). Others, and files
    without such code, are compiled when they are first met. Inputs are read, and outputs are
    written, where their tensors are; networks and threads that share a model share its weights.

    On a device that is not the host, the graph of the file is compiled for it. Arrays of the host
    are copied there and back, but for ends that `io` says are the device's (`is_host=False`): those
    are tensors there, which another network may share.

    Args:
        config: where and how to run.
        io: inputs and outputs to use; all of the model's unless given.

    Raises:
        RuntimeError: there is no such device.
    """

    def __init__(self, config: LiteConfig | None = None, io: LiteNetworkIO | None = None) -> None:
        self.config = config or LiteConfig()
        self.network_io = io or LiteNetworkIO()
        _place_of(self.config)
        self._model: LiteModel | None = None
        self._inputs: dict[str, LiteTensor] = {}
        self._outputs: dict[str, LiteTensor] = {}
        self._ends: dict[str, LiteIO] = {}
        self._shapes_only: set[str] = set()
        self._lock = threading.RLock()
        self._background = Background()
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
            ValueError: `io` names an input or output that the model does not have.
        """
        model, options = opened(path, self.config, allow_native)
        if options is not None and self._by_model:
            limit = self._settings.memory_limit
            self._settings = replace(settings_of(options), memory_limit=limit)
        self.use(model)

    def use(self, model: LiteModel) -> None:
        """Become a network of a model that was opened already; tensors are made anew.

        Raises:
            ValueError: `io` names an input or output that the model does not have.
            RuntimeError: there is no such device.
        """
        inputs = _asked(self.network_io.inputs, model.inputs)
        outputs = _asked(self.network_io.outputs, model.outputs)
        chosen = self.network_io.outputs or model.outputs
        self._model = model
        self._ends = {**outputs, **inputs}
        ends = {end.name: end.config_layout for end in (*model.outputs, *model.inputs)}
        made = {n: _tensor(io, self.config, ends[n]) for n, io in outputs.items()}
        self._outputs = {io.name: made[io.name] for io in chosen}
        self._inputs = {
            n: _tensor(io, self.config, io.config_layout or ends[n]) for n, io in inputs.items()
        }
        self._shapes_only = {o.name for o in chosen if o.io_type is LiteIOType.LITE_IO_SHAPE}
        self._settings = replace(self._settings, device=_place_of(self.config, self._stream_id))

    def _loaded(self) -> LiteModel:
        if self._model is None:
            raise RuntimeError("LiteNetwork: no model is loaded; call load() first")
        return self._model

    def share_weights_with(self, src_network: LiteNetwork) -> None:
        """Become a network of the same model that shares its weights; tensors are its own."""
        self.use(src_network._loaded())

    def clone(self) -> LiteNetwork:
        """Another network of the same model, configured like this one; they share the weights.

        Tensors, callbacks and runs are its own, so another thread may run it at the same time.

        Raises:
            RuntimeError: no model is loaded.
        """
        made = LiteNetwork(copy(self.config), self.network_io)
        made._settings, made._by_model = self._settings, self._by_model
        made._stream_id, made._inplace = self._stream_id, self._inplace
        made.use(self._loaded())
        return made

    def share_runtime_memroy(self, src_network: LiteNetwork) -> None:
        """Accepted: networks that share a model share the memory of runs, others keep their own.

        Raises:
            RuntimeError: the other network has no model.
        """
        src_network._loaded()

    def extra_configure(self, extra_config: LiteExtraConfig) -> None:
        """Choose whether what a packed model says of itself wins over the configuration."""
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
        self._background.submit(self._run_and_tell)

    def wait(self) -> None:
        """Return when every `forward` so far is done; raises what the first that failed raised."""
        self._background.wait()

    def _run_and_tell(self) -> None:
        self._run()
        if self._done is not None:
            self._done()

    def _run(self) -> None:
        with self._lock:
            model = self._loaded()
            if self._start is not None:
                self._start({self._ends[name]: t for name, t in self._inputs.items()})
            arrays = [tensor.held() for tensor in self._inputs.values()]
            results = model.run(arrays, self._settings, self._room)
            if self._settings.device or self._shapes_only:
                for end, result in zip(model.outputs, results, strict=True):
                    if (tensor := self._outputs.get(end.name)) is not None:
                        _keep(tensor, result, end.name in self._shapes_only)
            self._look(model, arrays)
            if self._finish is not None:
                self._finish({self._ends[name]: t for name, t in self._outputs.items()})

    def _room(self, name: str, layout: LiteLayout) -> Array | None:
        """Return the array that a result is written to: its tensor's, if it has one."""
        tensor = self._outputs.get(name)
        if tensor is None or name in self._shapes_only or device_kind(tensor.device_type):
            return None
        return tensor.room_for(layout, self.config.options.force_output_use_user_specified_memory)

    def _look(self, model: LiteModel, arrays: list[Array]) -> None:
        """Write down what was asked for about a run; the graph's ops are needed for that."""
        if path := self._profile_path:
            model.portable_because(_LOOKED_INTO).profile(path, arrays, self._settings)
        if self._dump is not None:
            model.portable_because(_LOOKED_INTO).values(*self._dump, arrays, self._settings)

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Least and largest extents by name, where there is native code for all of them."""
        return self._loaded().ranges

    @property
    def gears(self) -> list[dict[str, tuple[int, ...]]]:
        """Shapes of the inputs that there is native code for; none where all are compiled.

        Where there is code for `ranges`, one of those that it takes.
        """
        return [dict(zip(self._inputs, gear, strict=True)) for gear in self._loaded().gears]

    # -- callbacks -------------------------------------------------------------------------

    def async_with_callback(self, async_callback: Callable[[], int]) -> None:
        """Make `forward` return at once, and call back when a run is done."""
        self._done = _function("async_with_callback", async_callback)

    def set_start_callback(self, start_callback: Callback) -> None:
        """Call before every run with the inputs: a dict of tensors by `LiteIO`, or by name."""
        self._start = _function("set_start_callback", start_callback)

    def set_finish_callback(self, finish_callback: Callback) -> None:
        """Call after every run with the outputs: a dict of tensors by `LiteIO`, or by name."""
        self._finish = _function("set_finish_callback", finish_callback)

    # -- settings --------------------------------------------------------------------------

    @property
    def device_id(self) -> int:
        """Number of the device; it is set before `load`, or raises RuntimeError."""
        return self.config.device_id

    @device_id.setter
    def device_id(self, device_id: int) -> None:
        self._before_load("device_id")
        self.config.device_id = device_id

    def _before_load(self, what: str) -> None:
        if self._model is not None:
            raise RuntimeError(f"LiteNetwork: {what} is set before a model is loaded")

    @property
    def stream_id(self) -> int:
        """Stream of the device, set before `load`; the host runs one stream per thread."""
        return self._stream_id

    @stream_id.setter
    def stream_id(self, stream_id: int) -> None:
        self._before_load("stream_id")
        self._stream_id = stream_id

    @property
    def threads_number(self) -> int:
        """Number of threads that share the work, of all networks in this process: they have one
        pool.

        At first as many as there are cores, or as `TREADLE_NUM_THREADS` says. Results do not depend
        on it.
        """
        from treadle.engine.package.native_run import loader_of

        return loader_of("cpu").get_threads()

    @threads_number.setter
    def threads_number(self, nr_threads: int) -> None:
        from treadle.engine.package.native_run import loader_of

        loader_of("cpu").set_threads(nr_threads)

    def is_cpu_inplace_mode(self) -> bool:
        """Return whether `enable_cpu_inplace_mode` was called; runs are in the calling thread
        anyway.
        """
        return self._inplace

    def enable_cpu_inplace_mode(self) -> None:
        """Run in the calling thread, as is done without it."""
        self._inplace = True

    def use_tensorrt(self) -> None:
        """Raise RuntimeError: there is no TensorRT engine.

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
        """Limit the bytes of values and scratch memory; 0: no limit.

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


def _asked(asked: Sequence[LiteIO], ends: Sequence[LiteIO]) -> dict[str, LiteIO]:
    """Return a model's ends by name, with the settings asked for; ValueError for others."""
    there = {end.name: end for end in ends}
    for io in asked:
        if io.name not in there:
            raise ValueError(f"LiteNetwork: the model has no {io.name!r}; it has {list(there)}")
    return {**there, **{io.name: io for io in asked}}


def _keep(tensor: LiteTensor, result: Array, shape: bool) -> None:
    """Give a result to an output that is not memory of the host: a shape, a tensor on a device."""
    if shape:
        tensor.set_data_by_copy(np.array(result.shape, np.int32))
    elif device_kind(tensor.device_type):
        tensor.hold(result)


def _tensor(asked: LiteIO, config: LiteConfig, layout: LiteLayout | None) -> LiteTensor:
    """A tensor where an end was asked to be."""
    where = LiteDeviceType.LITE_CPU if asked.is_host else config.device_type
    return LiteTensor(layout, where, config.device_id)


def _function(method: str, given: Any) -> Any:
    if given is not None and not callable(given):
        raise TypeError(
            f"LiteNetwork.{method}: {type(given).__name__} cannot be called; give a function"
        )
    return given


def _place_of(config: LiteConfig, stream: int = 0) -> str:
    """The name of a configuration's device, "" for the host; RuntimeError where there is none."""
    if not device_kind(config.device_type):
        return ""
    # Devices are behind this import, which networks of the host do without.
    from treadle.lite.placed import place_of

    return str(place_of(config.device_type, config.device_id, stream))


__all__ = ["LiteNetwork"]
