"""PyTorch's caches of compiled graphs, and programs that it saves: what they keep of ours.

A graph is kept as AOTAutograd gave it, and taken apart again when it is read: the engine has its
programs on disk under keys of its own, so nothing is compiled anew where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._functorch import config
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._inductor.output_code import OutputCode
from torch._subclasses import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler, Options
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from treadle import __version__

Compile = Callable[..., Callable[[list[Any]], Any]]
_TRACES = ("nn_module_stack", "source_fn_stack", "example_value", "fwd_source_fn_stack")
"""Names of a node's metadata on its origin: objects that are not kept."""


def are_asked_for() -> bool:
    """Return whether PyTorch keeps what backends return: its bundled cache, or `aot_compile`."""
    return bool(config.bundled_autograd_cache or config.force_autograd_cache)


def named() -> Any:
    """Return a context in which PyTorch's keys name this backend, as they do not otherwise."""
    settings: Any = torch.compiler.config
    known = settings.cache_key_tag
    tag = f"treadle-{__version__}"
    given = known if tag in known else f"{known} {tag}".strip()
    return settings.patch(cache_key_tag=given)


def cacheable(compiles: Callable[..., Any]) -> Any:
    """A compiler whose graphs AOTAutograd looks for before it makes them."""
    return SerializableAOTDispatchCompiler(OutputCode, compiles)


@dataclass
class CachedGraph(OutputCode):  # type: ignore[misc, unused-ignore]  # torch may be missing
    """A compiled graph that PyTorch may write to disk.

    Attributes:
        compile: of a graph, with `arguments` behind it.
        graph: as it was given, in PyTorch's form for disks.
    """

    compile: Compile
    arguments: tuple[Any, ...]
    graph: bytes
    run: Callable[[list[Any]], Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._boxed_call = True

    def __call__(self, inputs: Any) -> Any:
        """Run the graph."""
        return (self.run or self._read())(inputs)

    def _read(self) -> Callable[[list[Any]], Any]:
        mode = FakeTensorMode(shape_env=ShapeEnv())
        module: Any = GraphPickler.loads(self.graph, mode)
        self.run = self.compile(module, *self.arguments)
        return self.run

    def prepare_for_serialization(self) -> None:
        """Leave out what belongs to this process."""
        self.run = None

    def post_compile(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the first call needs no preparation."""

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Do nothing: there are no kernels of Triton's."""


def kept(compile: Compile, module: fx.GraphModule, *arguments: Any) -> CachedGraph:
    """A compiled graph that can be kept."""
    for node in module.graph.nodes:
        for name in _TRACES:
            node.meta.pop(name, None)
    graph = GraphPickler.dumps(module, Options(ops_filter=None))
    return CachedGraph(compile, arguments, graph, compile(module, *arguments))
