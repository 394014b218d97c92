"""Base class of backends that have a `Renderer`."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle.backends.api import Backend, Support
from treadle.backends.program import Compiler
from treadle.backends.rendering import RecordingRenderer, Renderer
from treadle.base.types import TensorType
from treadle.ops.op import Op

if TYPE_CHECKING:
    from treadle.backends.rendered.compiler import RenderedCompiler


class RenderedBackend(Backend):
    """A device kind whose programs and ops run on generated kernels.

    A class that derives from it has `name`, `protocol`, `device_kinds`, `probe`, `open` and
    `renderer`; `serves` is its kinds.
    """

    serves: tuple[str, ...] = ()
    priority = 1

    @abstractmethod
    def renderer(self) -> Renderer:
        """Return the renderer that prints, compiles and launches its kernels; asked for once, after
        `probe`.
        """
        ...

    def compiler(self) -> Compiler:
        """Return the compiler that lowers ops and builds programs."""
        return self._compiler

    def prepare(self, op: Op, types: Sequence[TensorType], /) -> Callable[..., Any] | Support:
        """A launch on arrays of these types, or why there is none."""
        from treadle.backends.rendered import eager

        return eager.prepare(self._compiler, op, types)

    def counters(self) -> Mapping[str, int]:
        """Return how often its compiler was called, and what was recorded, where its devices can do
        that.
        """
        library = self._compiler.library
        found = {"sources compiled": library.compiled}
        if isinstance(library.renderer, RecordingRenderer):
            counts = library.recordings
            found |= {
                "launches recorded together": counts.recorded,
                "recordings replayed": counts.replayed,
                "submissions spared": counts.spared,
                "recordings refused": counts.refused,
            }
        return found

    @functools.cached_property
    def _compiler(self) -> RenderedCompiler:
        from treadle.backends.rendered.compiler import RenderedCompiler

        return RenderedCompiler(self.renderer())
