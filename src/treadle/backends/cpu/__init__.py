"""The CPU engine: every kernel generated, one thread pool, programs as one native call.

Where to read: `compiler.py` (what the engine sees), `toolchain.py` (text to addresses),
`executable.py` with `executor_text.py` (how a program runs), `pool.py` with `pool_text.py`
(threads), `eager.py` (single ops), `allocator.py` (memory). LLVM is imported only where something
must be compiled.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle.backends.api import Availability, Backend, Support, no
from treadle.base.errors import CompileError
from treadle.base.estimates import estimate
from treadle.base.shape import product
from treadle.base.types import TensorType
from treadle.runtime.api import Device

if TYPE_CHECKING:  # Processes that run compiled code need neither.
    from treadle.backends.program import Compiler
    from treadle.ops.op import Op


_ASSEMBLED: list[Any] = []
"""Libraries that others have addresses of."""


class Cpu(Backend):
    """Generated code on the host's memory."""

    name = "cpu"
    protocol = (1, 0)
    serves = ("cpu", "multithread")
    priority = 1

    def probe(self) -> Availability:
        if importlib.util.find_spec("llvmlite") is None:
            return Availability(False, "llvmlite is not installed", lacks_library=True)
        return Availability(True, "generated code on the host")

    def open(self, index: int, /) -> Device:
        raise NotImplementedError("the host's device is the reference backend's")

    def compiler(self) -> Compiler:
        """Return the compiler that lowers ops and builds programs."""
        from treadle.backends.cpu import eager

        return eager.compiler()

    def prepare(self, op: Op, types: Sequence[TensorType], /) -> Callable[..., Any] | Support:
        from treadle.backends.cpu import policy

        least = policy.least_elements(op)
        if least is None:
            return no("policy", f"{op.name} of single tensors is left to NumPy")
        # Random ops have operands of four words, whatever they make.
        sized = types if op.shape_free else (*types, *op.infer(*types))
        largest = max((_size(t) for t in sized), default=0)
        if not op.shape_free and largest < least:
            return no("policy", f"below {least} elements NumPy is faster")
        from treadle.backends.cpu import eager

        try:
            found: Callable[..., Any] | Support
            if op.shape_free:
                found = eager.by_size(least, op.reference, eager.AnyShape(op, types))
            elif largest < eager.AT_ONCE:
                found = eager.AnyShape(op, types)
            else:
                found = eager.try_bind(op, types)
            return found
        except CompileError as error:
            return no("device-feature", str(error))

    def assemble(self, symbols: Sequence[str], text: str, /) -> Mapping[str, int]:
        """Return the addresses of a module's functions, compiled and loaded for good."""
        from treadle.backends.cpu.native import toolchain

        library = toolchain().load_module(symbols, text)
        _ASSEMBLED.append(library)
        return library.addresses

    def run_address(self) -> int:
        """Return the address of the executor's function that runs programs."""
        from treadle.backends.cpu.native import runtime

        return runtime().run_address

    def pool_address(self) -> int:
        """Return the address of the thread pool, which is started if it does not run."""
        from treadle.backends.cpu.pool import PROCESS, start

        return PROCESS.address or start()

    def counters(self) -> dict[str, int]:
        """Zeros where nothing has asked for generated code yet."""
        native = sys.modules.get("treadle.backends.cpu.native")
        made = native.toolchain() if native is not None else None
        return {
            "kernels compiled": getattr(made, "compiled", 0),
            "libraries built": getattr(made, "built", 0),
            "libraries from the cache": getattr(made, "found", 0),
        }


def _size(type_: TensorType) -> int:
    return estimate(product(type_.shape)) if type_.is_resolved else 0


backend = Cpu()
