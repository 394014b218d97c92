"""Diagrams: every op has its box, every value its arrow, and boxes do not overlap."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from tests.engine.workloads import mlp_step

import treadle as mge
import treadle.functional as F
from treadle.base.errors import EngineError
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.graph.layered import arrange
from treadle.graph.parser import parse
from treadle.inspect import Inspected
from treadle.inspect.diagram import save_diagram
from treadle.ops.constant import Constant

SVG = "{http://www.w3.org/2000/svg}"


def drawn(path: Path) -> ElementTree.Element:
    return ElementTree.fromstring(path.read_text(encoding="utf-8"))


def heads(picture: ElementTree.Element) -> list[str]:
    """The bold lines: titles, and what stands in boxes."""
    texts = picture.iter(f"{SVG}text")
    return [t.text or "" for t in texts if t.get("font-weight") == "bold"]


def test_a_training_step_before_and_after(tmp_path: Path) -> None:
    program = Inspected(Stages(mlp_step(4, (6, 5, 3))))
    program.diagram(tmp_path / "step.svg")
    found = heads(drawn(tmp_path / "step.svg"))
    captured = [n for n in program.captured.nodes if not isinstance(n.op, Constant)]
    compiled = [n for n in program.lower().nodes if not isinstance(n.op, Constant)]
    ends = len(program.captured.inputs) + len(program.captured.outputs)
    assert f"captured: {len(captured)} nodes" in found
    assert f"optimized: {len(compiled)} nodes" in found
    memory = program.planned().memory
    assert found[-1].startswith(f"memory: {memory.peak} bytes, at least {memory.bound};")
    assert len(found) == 3 + len(captured) + len(compiled) + 2 * ends
    assert sorted(n.op.name for n in captured) == sorted(
        name
        for name in found[: found.index(f"optimized: {len(compiled)} nodes")]
        if not name.startswith(("%", "output", "captured"))
    )


def test_groups_branches_hosts_and_names_are_shown(tmp_path: Path) -> None:
    @mge.jit.compile(options=Options(force_fallback=("sort",)))
    def f(x: mge.Tensor) -> mge.Tensor:
        with mge.jit.fuse("a < b"):
            y = F.exp(x * 2) + x
        z = mge.jit.cond(y.sum() > 0, lambda: F.sin(y), lambda: y)
        return F.sort(z)[0]

    f.lower(F.ones((4, 6))).diagram(tmp_path / "f.svg")
    found = heads(drawn(tmp_path / "f.svg"))
    assert 'loop "a < b"' in found and 'exp "a < b"' in found
    assert "cond" in found and "sort on reference" in found


def test_text_for_graphviz(tmp_path: Path) -> None:
    path = tmp_path / "step.dot"
    graph = parse('graph(%"a b": float32[2]) { %y = neg(%"a b") : float32[2] return %y }')
    save_diagram(path, {"one": graph})
    text = path.read_text(encoding="utf-8")
    assert text.count("neg") == 1
    assert re.search(r"n0_0 -> n0_1", text) and '%\\"a b\\"' in text


def test_another_ending_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no picture of the form '\.png'"):
        save_diagram(tmp_path / "x.png", {})


@pytest.mark.parametrize("seed", range(8))
def test_edges_go_down_and_boxes_do_not_overlap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 40
    sizes = [(float(w), 20.0) for w in rng.integers(20, 120, count)]
    pairs = {tuple(sorted(rng.choice(count, 2, replace=False).tolist())) for _ in range(60)}
    edges = [(int(a), int(b)) for a, b in sorted(pairs)]
    found = arrange(sizes, edges)
    for (a, b), route in zip(edges, found.routes, strict=True):
        assert found.centers[a][1] < found.centers[b][1]
        assert [y for _, y in route] == sorted(y for _, y in route)
    for a, b in combinations(range(count), 2):
        (xa, ya), (xb, yb) = found.centers[a], found.centers[b]
        apart = abs(xa - xb) >= (sizes[a][0] + sizes[b][0]) / 2 or abs(ya - yb) >= 20
        assert apart
    for (x, y), (w, h) in zip(found.centers, sizes, strict=True):
        assert w / 2 - 1e-6 <= x <= found.width - w / 2 + 1e-6
        assert h / 2 <= y <= found.height - h / 2


def test_a_chain_is_straight_and_nothing_is_drawn_of_nothing() -> None:
    chain = arrange([(30.0, 10.0), (80.0, 10.0), (50.0, 10.0)], [(0, 1), (1, 2)])
    assert {x for x, _ in chain.centers} == {40.0}
    assert arrange([], []).width == 0
