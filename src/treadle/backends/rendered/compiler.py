"""The `Compiler` of a device whose kernels are rendered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from treadle.backends.api import Support
from treadle.backends.object_cache import ObjectCache
from treadle.backends.program import Launch, Lowered, MapLayout, Program, runs_of
from treadle.backends.rendered.executable import RenderedExecutable, encode, restored
from treadle.backends.rendered.library import KernelBinaries
from treadle.backends.rendering import Renderer
from treadle.base.arithmetic import Rows, Words, evaluate
from treadle.base.array import Array
from treadle.base.env import cache_directory
from treadle.base.types import TensorType
from treadle.ops.op import Op


class RenderedCompiler:
    """See `treadle.backends.program.Compiler`."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        cache = ObjectCache(cache_directory() / renderer.name)
        self.library = KernelBinaries(renderer, cache)

    @property
    def target(self) -> str:
        return f"{self.renderer.name}/{self.renderer.fingerprint}"

    @property
    def is_open(self) -> bool:
        return True

    def evaluator(self, rows: Rows, /) -> Callable[[Words], int]:
        return partial(evaluate, rows)

    @property
    def layouts(self) -> tuple[MapLayout, ...]:
        return self.renderer.target.layouts

    def lower(
        self, op: Op, types: Sequence[TensorType], frozen: Sequence[bool] = (), /
    ) -> Lowered | Support:
        from treadle.backends.rendered import generators

        found = generators.lower(op, types, frozen, self.renderer.target)
        if isinstance(found, Support):
            return found
        for launch in (*found.launches, *found.prelude):
            able = self.renderer.supports(launch.kernel)
            if not able:
                return able
        return found

    def keeps(self, name: str, /) -> bool:
        from treadle.backends.rendered import generators

        return name in generators.LOWERINGS

    def build(self, program: Program, /) -> RenderedExecutable:
        from treadle.backends.rendered import generators

        symbol_of = generators.symbol_of
        kernels = [*(run.kernel for run in runs_of(program.steps)), *program.beside]
        self.library.add({symbol_of(k): k for k in kernels})
        return RenderedExecutable(
            encode(program, symbol_of, self.renderer.fingerprint), self.library
        )

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any], /) -> Array:
        return np.empty(shape, dtype)

    def restore(self, stored: bytes, /) -> RenderedExecutable | None:
        return restored(stored, self.library)

    def save(self, key: str, data: bytes, /) -> None:
        self.library.cache.put(key, data)

    def saved(self, key: str, /) -> bytes | None:
        return self.library.cache.get(key)

    def inspect(self, launch: Launch, form: Literal["kernel", "llvm", "assembly"], /) -> str:
        if form != "kernel":
            return f"// {self.renderer.name} shows no {form} of what it compiles\n"
        return self.renderer.render([launch.kernel])
