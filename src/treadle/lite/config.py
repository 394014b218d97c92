"""Configuration of loading and running a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle.lite.base import LiteBackend, LiteDeviceType, LiteIOType
from treadle.lite.tensor import LiteLayout


@dataclass
class LiteOptions:
    """Options of MegEngine's optimizer and runtime.

    Weights are packed once, fusion is chosen for the machine and memory is planned in any case;
    most fields are accepted so that configurations carry over. Those with an effect:

    Attributes:
        force_dynamic_alloc, force_output_dynamic_alloc: values do not share memory.
        force_output_use_user_specified_memory: results are written where `set_data_by_share` says,
            and it is an error if they do not fit there.
        enable_nchw44, enable_nchw88: maps are held with their channels in blocks.
        enable_nchw4, enable_nchw44_dot, enable_nchw32, enable_nchw64: in blocks of 4, 32 or 64.
        enable_nhwcd4: maps are held with their channels last.
    """

    weight_preprocess: bool = False
    fuse_preprocess: bool = False
    fake_next_exec: bool = False
    var_sanity_check_first_run: bool = True
    const_shape: bool = False
    force_dynamic_alloc: bool = False
    force_output_dynamic_alloc: bool = False
    force_output_use_user_specified_memory: bool = False
    no_profiling_on_shape_change: bool = False
    jit_level: int = 0
    comp_node_seq_record_level: int = 0
    graph_opt_level: int = 2
    async_exec_level: int = 1
    # layouts
    enable_nchw44: bool = False
    enable_nchw44_dot: bool = False
    enable_nchw88: bool = False
    enable_nhwcd4: bool = False
    enable_nchw4: bool = False
    enable_nchw32: bool = False
    enable_nchw64: bool = False


@dataclass(frozen=True, slots=True)
class CompileSettings:
    """Settings of a network's compilation that follow from its options.

    Attributes:
        layouts: orders of the axes of maps to choose from; empty for the file's, or the machine's.
        reuse_memory: values share memory.
        memory_limit: bytes for values and scratch memory; 0 for no limit.
        device: where it runs, such as `gpu0`; "" for the host.
    """

    layouts: tuple[str, ...] = ()
    reuse_memory: bool = True
    memory_limit: int = 0
    device: str = ""


AS_COMPILED = CompileSettings()
"""Settings that ask for nothing: native code of a file may run."""


def settings_of(options: LiteOptions) -> CompileSettings:
    """Return the settings that options ask for: `enable_nchw44` and the like choose
    orders of axes.
    """
    wanted = {
        "blocked": options.enable_nchw44 or options.enable_nchw88,
        "blocked-4": options.enable_nchw4 or options.enable_nchw44_dot,
        "blocked-32": options.enable_nchw32,
        "blocked-64": options.enable_nchw64,
        "channels-last": options.enable_nhwcd4,
    }
    reuse = not (options.force_dynamic_alloc or options.force_output_dynamic_alloc)
    return CompileSettings(tuple(name for name, yes in wanted.items() if yes), reuse)


class LiteConfig:
    """Device and options of a network.

    Args:
        device_type: of the device that the network runs on.
        option: options of the optimizer; the attribute is `options`.
        device_id: number of the device.
        bare_model_cryption_name: of a method that `LiteGlobal.register_decryption_and_key` knows.
        has_compression: accepted.
        backend: there is one.
        auto_optimize_inference: accepted; the engine optimizes in any case.
        discrete_input_name: accepted; `get_discrete_tensor` gives parts of any input.
    """

    def __init__(
        self,
        device_type: LiteDeviceType = LiteDeviceType.LITE_CPU,
        option: LiteOptions | None = None,
        *,
        device_id: int = 0,
        bare_model_cryption_name: str | bytes = "",
        has_compression: bool = False,
        backend: LiteBackend = LiteBackend.LITE_DEFAULT,
        auto_optimize_inference: bool = False,
        discrete_input_name: str | bytes = "",
    ) -> None:
        self.device_type, self.device_id = device_type, device_id
        self.options = option or LiteOptions()
        self.bare_model_cryption_name = bare_model_cryption_name
        self.has_compression, self.backend = has_compression, backend
        self.auto_optimize_inference = auto_optimize_inference
        self.discrete_input_name = discrete_input_name

    @property
    def bare_model_cryption_name(self) -> str:
        """Name of the method of decryption, as text or UTF-8; "" for none."""
        return self._cryption

    @bare_model_cryption_name.setter
    def bare_model_cryption_name(self, name: str | bytes) -> None:
        self._cryption = _text(name)

    def __repr__(self) -> str:
        device = LiteDeviceType(self.device_type).name
        return f"LiteConfig({device}, {self.options}, device_id={self.device_id})"


def _text(name: str | bytes) -> str:
    return name.decode("utf-8") if isinstance(name, bytes) else name


@dataclass
class LiteExtraConfig:
    """`disable_configure_by_model_info`: options of a packed model do not win over these."""

    disable_configure_by_model_info: bool = False


class LiteIO:
    """One input or output. Those of one name are equal, also to the name itself.

    Args:
        name: in the model, as text or UTF-8.
        is_host: whether its memory is the host's; if not, it is that of the network's device.
        io_type: a value, or for outputs only the shape.
        layout: the layout to make the network for, where it is not the file's; the attribute is
            `config_layout`.
    """

    def __init__(
        self,
        name: str | bytes,
        is_host: bool = True,
        io_type: LiteIOType = LiteIOType.LITE_IO_VALUE,
        layout: LiteLayout | None = None,
    ) -> None:
        self.name = name
        self.is_host, self.io_type, self.config_layout = is_host, io_type, layout

    @property
    def name(self) -> str:
        """Name of the input or output in the model."""
        return self._name

    @name.setter
    def name(self, name: str | bytes) -> None:
        self._name = _text(name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LiteIO):
            return self.name == other.name
        return self.name == other if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        where = "host" if self.is_host else "device"
        return f"LiteIO({self.name!r}, {where}, {self.io_type.name}, {self.config_layout})"


def _ios(given: Sequence[Any] | None) -> list[LiteIO]:
    made = []
    for entry in given or ():
        if isinstance(entry, LiteIO):
            made.append(entry)
        elif isinstance(entry, str | bytes):
            made.append(LiteIO(entry))
        else:
            made.append(LiteIO(*entry))
    return made


@dataclass
class LiteNetworkIO:
    """Inputs and outputs to use; each a `LiteIO`, a name, or the arguments of a `LiteIO`."""

    inputs: list[LiteIO] = field(default_factory=list)
    outputs: list[LiteIO] = field(default_factory=list)

    def __init__(
        self, inputs: Sequence[Any] | None = None, outputs: Sequence[Any] | None = None
    ) -> None:
        self.inputs = _ios(inputs)
        self.outputs = _ios(outputs)

    def add_input(self, obj: Any, *args: Any, **kwargs: Any) -> None:
        """Add an input, given as a `LiteIO`, or as the arguments of one."""
        self.inputs.append(obj if isinstance(obj, LiteIO) else LiteIO(obj, *args, **kwargs))

    def add_output(self, obj: Any, *args: Any, **kwargs: Any) -> None:
        """Add an output, given as a `LiteIO`, or as the arguments of one."""
        self.outputs.append(obj if isinstance(obj, LiteIO) else LiteIO(obj, *args, **kwargs))


def wrap_async_callback(func: Callable[[], int]) -> Callable[[], int]:
    """A function that takes nothing and returns 0, as `async_with_callback` wants it."""
    return func


def start_finish_callback(func: Callable[[dict[LiteIO, Any]], int]) -> Callable[..., int]:
    """A function of a dict of tensors by `LiteIO`, as `set_start_callback` wants it."""
    return func


__all__ = [
    "AS_COMPILED",
    "CompileSettings",
    "LiteConfig",
    "LiteExtraConfig",
    "LiteIO",
    "LiteNetworkIO",
    "LiteOptions",
    "settings_of",
    "start_finish_callback",
    "wrap_async_callback",
]
