"""Passes that a backend brings: seen by programs of its devices, listed, switched off, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.backends.plugins import Plugins
from tests.backends.toy_backend import Toy

import treadle as mge
import treadle.functional as F
from treadle.backends.api import Availability, no
from treadle.base.errors import GraphError
from treadle.engine.options import Options
from treadle.graph.ir import Graph, Value, remake
from treadle.jit import compile as compiled
from treadle.ops.unary import Exp, Tanh


@dataclass(frozen=True)
class SwapTanh:
    """Makes every tanh an exponential, so that results tell whether it ran."""

    name: ClassVar[str] = "toy.swap_tanh"

    def __call__(self, graph: Graph, /) -> Graph:
        instead: dict[Value, Value] = {}
        nodes = []
        for node in graph.nodes:
            op = Exp() if isinstance(node.op, Tanh) else node.op
            nodes.append(remake(node, op, tuple(instead.get(v, v) for v in node.inputs)))
            instead.update(zip(node.outputs, nodes[-1].outputs, strict=True))
        return graph.with_nodes(nodes, [instead.get(v, v) for v in graph.outputs])


@dataclass(frozen=True)
class Raising:
    """A pass with a defect."""

    name: ClassVar[str] = "toy.raising"

    def __call__(self, graph: Graph, /) -> Graph:
        raise KeyError("node")


@dataclass(frozen=True)
class Losing:
    """A pass that drops a node whose value is needed."""

    name: ClassVar[str] = "toy.losing"

    def __call__(self, graph: Graph, /) -> Graph:
        return graph.with_nodes(graph.nodes[:-1], graph.outputs)


class Rewriting(Toy):
    """The toy with passes."""

    def __init__(self, *passes: Any) -> None:
        super().__init__("toy")
        self.passes = passes


X = np.array([0.25, -1.0], np.float32)


def run(device: str, **options: Any) -> Any:
    step = compiled(options=Options(**options))(lambda x: F.tanh(x) + 1)
    with mge.fallback("silent"):
        return step(mge.tensor(X, device=device)).numpy()


def test_it_sees_programs_of_its_devices_alone(plugins: Plugins) -> None:
    plugins.offer("toy", Rewriting(SwapTanh()))
    np.testing.assert_allclose(run("toy0"), np.exp(X) + 1, rtol=1e-6)
    np.testing.assert_allclose(run("cpux"), np.tanh(X) + 1, rtol=1e-6)


def test_it_is_listed_and_switched_off_by_name(plugins: Plugins) -> None:
    plugins.offer("toy", Rewriting(SwapTanh()))
    row = plugins.row("toy")
    assert row["passes"] == "toy.swap_tanh" and "passes" in row["tiers"]
    off = run("toy0", disabled=("toy.swap_tanh",))
    np.testing.assert_allclose(off, np.tanh(X) + 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("broken", "words"), [(Raising(), "KeyError"), (Losing(), "broke the graph")]
)
def test_one_with_a_defect_is_named(plugins: Plugins, broken: Any, words: str) -> None:
    plugins.offer("toy", Rewriting(broken))
    with pytest.raises(GraphError, match=words) as told:
        run("toy0")
    assert broken.name in str(told.value)
    np.testing.assert_allclose(run("toy0", disabled=(broken.name,)), np.tanh(X) + 1, rtol=1e-6)


@dataclass(frozen=True)
class Versioned(SwapTanh):
    """The same; `seen` counts the graphs that it was given."""

    version: str = ""
    seen: ClassVar[list[Graph]] = []

    def __call__(self, graph: Graph, /) -> Graph:
        self.seen.append(graph)
        return super().__call__(graph)


class Helper:
    """An engine of the host that runs nothing, and has a pass."""

    name, protocol, device_kinds = "helper", (1, 1), ()
    serves, priority = ("cpu",), 1

    def __init__(self, version: str) -> None:
        self.passes = (Versioned(version),)

    def probe(self) -> Availability:
        return Availability(True)

    def prepare(self, op: Any, types: Any, /) -> Any:
        return no("policy", "it has a pass only")


def test_programs_are_kept_under_the_version_that_a_pass_states(
    plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    helper, seen = plugins.offer("helper", Helper("")), []
    for version in ("", "", "1", "1", "2"):
        helper.passes = (Versioned(version),)
        Versioned.seen.clear()
        np.testing.assert_allclose(run("cpux"), np.exp(X) + 1, rtol=1e-6)
        seen.append(bool(Versioned.seen))
    assert seen == [True, True, True, False, True]


def test_what_is_no_pass_is_refused_with_its_backend(plugins: Plugins) -> None:
    plugins.offer("toy", Rewriting(lambda graph: graph))
    row = plugins.row("toy")
    assert row["state"] == "failed" and "dataclass with a name" in row["detail"]
