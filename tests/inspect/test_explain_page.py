"""The picture of the compiler: what its page says is so, and names in it do no harm."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins
from tests.backends.toy_backend import elementwise
from tests.engine.workloads import mlp_step

import treadle as mge
import treadle.functional as F
from treadle.base.errors import EngineError
from treadle.engine.devices.names import CompNode
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.graph.layered import arrange
from treadle.graph.parser import parse
from treadle.inspect import Inspected
from treadle.inspect.boxes import KnownFacts, sheet
from treadle.inspect.columns import in_columns, in_order
from treadle.inspect.families import FAMILIES, family_of
from treadle.inspect.origins import whereabouts
from treadle.inspect.timeline import flows, groups_of, held_bytes, live_bytes, moments
from treadle.ops.constant import Constant

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = "</script><img src=x onerror=\"document.title='taken over'\">\u2028&amp;'"


class Elements(HTMLParser):
    """Names of elements, and all attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs


def written(stages: Inspected, path: Path) -> tuple[str, dict[str, Any]]:
    """The page, and the data in it."""
    stages.picture(path)
    text = path.read_text(encoding="utf-8")
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert block is not None
    return text, json.loads(block[1])


def rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


@pytest.fixture(scope="module")
def step() -> Inspected:
    stages = Inspected(Stages(mlp_step(4, (6, 5, 3))))
    stages.planned()
    return stages


@pytest.fixture(scope="module")
def hostile() -> Inspected:
    """A program in which every name there is says something that a browser might run."""

    @mge.jit.compile
    def program(x: mge.Tensor) -> mge.Tensor:
        with mge.jit.fuse(HOSTILE):
            y = F.exp(x * 2) + x
        return F.matmul(y, y).sum()

    stages = program.lower(F.ones((8, 8)))
    stages.report.name = HOSTILE
    return stages


# -- what the page says ------------------------------------------------------------------------


def test_every_node_of_every_stage_is_there(step: Inspected, tmp_path: Path) -> None:
    _, data = written(step, tmp_path / "a.html")
    sheets = {s["name"]: s for s in data["sheets"]}
    assert list(sheets) == ["captured", "prepared", "partitioned", "optimized", "plan"]
    assert sheets["partitioned"]["like"] == "prepared"
    for name in ("captured", "prepared", "optimized"):
        graph = getattr(step, name)
        nodes = sum(not isinstance(n.op, Constant) for n in graph.nodes)
        boxes = rows(sheets[name]["boxes"])
        assert sheets[name]["nodes"] == nodes
        assert sum(b["role"] == "node" for b in boxes) + sheets[name]["folded"] == nodes
        assert {b["family"] for b in boxes} <= {*FAMILIES, "end"}
    assert sheets["plan"]["nodes"] == len(step.planned().steps) == len(data["steps"]["rows"])


def test_boxes_lead_to_the_groups_that_compute_them(step: Inspected, tmp_path: Path) -> None:
    _, data = written(step, tmp_path / "a.html")
    found = whereabouts(step.captured, step.lower())
    for box in rows(data["sheets"][0]["boxes"]):
        if box["role"] == "node":
            assert tuple(box["groups"]) == found[step.captured.nodes[box["number"]]]
    groups = {g["number"] for g in rows(data["groups"])}
    told = {g for s in rows(data["steps"]) for g in s["groups"]}
    assert told == groups


def test_kernels_have_all_launches_and_their_text(step: Inspected, tmp_path: Path) -> None:
    _, data = written(step, tmp_path / "a.html")
    kernels = rows(data["kernels"])
    assert sum(k["launches"] for k in kernels) == sum(
        n for g in rows(data["groups"]) for _, n in g["kernels"]
    )
    assert all("function" in k["text"] or "kernel" in k["text"] for k in kernels)
    assert sum(k["seconds"] for k in kernels) == pytest.approx(data["streams"]["makespan"], 1e-3)
    assert [k["seconds"] for k in kernels] == sorted((k["seconds"] for k in kernels), reverse=True)


def test_measured_times_are_a_second_track(tmp_path: Path) -> None:
    stages = Inspected(Stages(mlp_step(4, (6, 5, 3))))
    _, before = written(stages, tmp_path / "a.html")
    assert before["measured"] is None
    assert {s["measured"] for s in rows(before["steps"])} == {-1.0}
    arrays = [np.ones(t.shape, t.dtype.numpy) for t in stages.captured.input_types]
    profile = stages.profile(arrays, 2)
    _, after = written(stages, tmp_path / "a.html")
    assert after["measured"] == pytest.approx(profile.seconds, 1e-3)
    steps = [s for s in rows(after["steps"]) if s["kernel"] not in ("jump", "stop")]
    assert steps and all(s["measured"] > 0 for s in steps)
    assert any(title == "measured" for title, *_ in after["facts"])


def test_ops_in_another_layout_are_found() -> None:
    graph = parse("""
        graph g(%x: float32[1,8,6,6]) {
          %a = relu(%x) : float32[1,8,6,6]  # at net.py:1
          return %a
        }
    """)
    turned = parse("""
        graph g(%x: float32[1,6,6,8]) {
          %a = relu(%x) : float32[1,6,6,8]  # at net.py:1
          return %a
        }
    """)
    assert whereabouts(graph, turned) == {graph.nodes[0]: (0,)}


def test_branches_hosts_and_names_of_ends(tmp_path: Path) -> None:
    @mge.jit.compile(options=Options(force_fallback=("sort",)))
    def f(x: mge.Tensor) -> mge.Tensor:
        z = mge.jit.cond(x.sum() > 0, lambda: F.sin(x), lambda: x)
        return F.sort(z)[0]

    stages = f.lower(F.ones((4, 6)))
    stages.picture(tmp_path / "a.html", ["pixels"], ["sorted one"])
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    found = {b["lines"][0]: b for s in data["sheets"] if "boxes" in s for b in rows(s["boxes"])}
    assert found["sort on reference"]["family"] == "host"
    assert found["sort on reference"]["engine"] == "reference"
    assert found["cond"]["family"] == "control" and "sin" in found["cond"]["inside"]
    assert "%pixels" in found and "sorted one" in found
    assert any(s["kernel"] == "jump" for s in rows(data["steps"]))
    assert [row[0] for row in data["segments"]] == ["cpu", "reference"]


def test_what_needs_constants_alone_has_no_box() -> None:
    graph = parse("""
        graph g(%x: float32[2,3], %w: float32[6], %rate: float32[]) {
          %v = reshape{shape=(2, 3)}(%w) : float32[2,3]
          %n = neg(%v) : float32[2,3]
          %y = mul(%x, %n) : float32[2,3]
          %r = reshape{shape=(6,)}(%y) : float32[6]
          return %r
        }
    """)
    found = sheet("captured", graph, KnownFacts(held=[1]))
    assert (found.nodes, found.folded, found.unboxed) == (4, 2, 1)
    product = next(b for b in found.boxes if b.lines[0] == "mul")
    assert product.folded == ("neg", "reshape")
    assert [b.small for b in found.boxes if b.role == "node"] == [False, True]


def test_what_fusion_makes_is_colored_by_what_it_does() -> None:
    graph = Stages(mlp_step(4, (6, 5, 3))).lowered.graph
    kinds = {family_of(n) for n in graph.nodes if not isinstance(n.op, Constant)}
    assert {"product", "update"} <= kinds


def test_programs_that_run_op_by_op_have_no_picture(plugins: Plugins, tmp_path: Path) -> None:
    plugins.toy(kernels=elementwise())
    stages = Inspected(Stages(mlp_step(4, (6, 5, 3)), home=CompNode("toy0")))
    with pytest.raises(EngineError, match="no plan of its own: on toy0:0 it runs op by op") as e:
        stages.picture(tmp_path / "a.html")
    assert "test_explain_page.py" in str(e.value)  # The line of whoever asked for it.


# -- over time ---------------------------------------------------------------------------------


def test_steps_read_what_others_wrote_last(step: Inspected) -> None:
    plan, graph = step.planned(), step.lower()
    of: dict[int, set[int]] = {}
    for i, pair in enumerate(zip(plan.steps, plan.facts, strict=True)):
        for node in groups_of(*pair):
            of.setdefault(node, set()).add(i)
    found = set(flows(plan))
    assert all(a < b for a, b in found)
    number = {v: i for i, node in enumerate(graph.nodes) for v in node.outputs}
    direct = {(number[v], b) for b, n in enumerate(graph.nodes) for v in n.inputs if v in number}
    running = [(a, b) for a, b in direct if a in of and b in of and of[a] != of[b]]
    assert len(running) > 2
    for a, b in running:
        assert any((i, j) in found for i in of[a] for j in of[b])


def test_the_arena_is_told_as_it_was_planned(step: Inspected) -> None:
    plan = step.planned()
    held = held_bytes(plan, step.lower())
    assert max(h.offset + h.nbytes for h in held) <= plan.memory.peak
    assert len({h.offset for h in held}) > 1
    for a, b in combinations(held, 2):
        apart = a.last < b.first or b.last < a.first
        beside = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
        assert apart or beside, (a, b)
    live = live_bytes(held, len(plan.steps))
    assert max(live) <= plan.memory.bound


@pytest.mark.parametrize("streams", [1, 3])
def test_modelled_times_end_with_the_program(streams: int) -> None:
    stages = Inspected(Stages(mlp_step(512, (256, 256, 10)), options=Options(streams=streams)))
    plan = stages.planned()
    found = moments(plan)
    end = max(m.start + m.seconds for m in found)
    assert end == pytest.approx(plan.streams.makespan)
    for event in plan.streams.events:
        source, target = found[event.source], found[event.target]
        assert source.start + source.seconds <= target.start + 1e-12


# -- layout ------------------------------------------------------------------------------------


def test_long_graphs_stand_in_columns() -> None:
    rng = np.random.default_rng(0)
    sizes = [(float(w), 40.0) for w in rng.integers(60, 160, 150)]
    edges = [(i, i + 1) for i in range(149)] + [(i, i + 3) for i in range(0, 140, 7)]
    flat = arrange(sizes, edges)
    found = in_columns(flat, sizes)
    assert flat.width / flat.height < 0.1 < 0.7 < found.width / found.height < 2.5
    for (a, b), route in zip(edges, found.routes, strict=True):
        (xa, ya), (xb, yb) = found.centers[a], found.centers[b]
        assert list(route[0]) == pytest.approx([xa, ya + 20])
        assert list(route[-1]) == pytest.approx([xb, yb - 20])
    for a, b in combinations(range(150), 2):
        (xa, ya), (xb, yb) = found.centers[a], found.centers[b]
        assert abs(xa - xb) >= (sizes[a][0] + sizes[b][0]) / 2 or abs(ya - yb) >= 40
    for (x, y), (w, h) in zip(found.centers, sizes, strict=True):
        assert w / 2 - 1e-6 <= x <= found.width - w / 2 + 1e-6
        assert h / 2 <= y <= found.height - h / 2


def test_a_graph_that_is_woven_closely_stays_whole() -> None:
    sizes = [(60.0, 40.0)] * 120
    edges = [(i, i + 1) for i in range(119)] + [(i, 119 - i) for i in range(59)]
    flat = arrange(sizes, edges)
    assert in_columns(flat, sizes) == flat


def test_steps_stand_in_order() -> None:
    found = in_order([(50.0, 20.0)] * 30, [(0, 29)])
    x, y = zip(*found.centers, strict=True)
    assert list(x) == sorted(x)
    assert all(b > a or v > u for a, b, u, v in zip(x, x[1:], y, y[1:], strict=False))
    assert in_order([], []).width == 0


# -- safety ------------------------------------------------------------------------------------


def test_the_page_needs_nothing_else(step: Inspected, tmp_path: Path) -> None:
    text, _ = written(step, tmp_path / "a.html")
    page = Elements(text)
    assert not {"link", "img", "iframe", "object", "base"} & set(page.names)
    assert not [v for n, v in page.attributes if n in ("src", "href") or n.startswith("on")]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    (policy,) = (v for n, v in page.attributes if v and v.startswith("default-src 'none'"))
    for kind in ("style", "script"):
        (own,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in unescape(policy)


def test_names_stay_names(hostile: Inspected, tmp_path: Path) -> None:
    text, data = written(hostile, tmp_path / "a.html")
    page = Elements(text)
    assert "img" not in page.names and page.names.count("script") == 2
    assert "onerror" not in dict(page.attributes)
    named = [g["name"] for g in rows(data["groups"]) if g["name"]]
    assert named == [HOSTILE]


# -- in a browser ------------------------------------------------------------------------------

in_a_browser = pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")


def document(page: Path, place: str) -> str:
    """The document that a browser makes of the page at an address; it must not complain."""
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=4000"]
    command += ["--enable-logging=stderr", "--window-size=1400,1000", "--dump-dom"]
    done = subprocess.run([*command, f"{page.as_uri()}#{place}"], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert complaints == [], complaints
    return done.stdout


@in_a_browser
def test_a_browser_draws_every_node(step: Inspected, tmp_path: Path) -> None:
    _, data = written(step, tmp_path / "a.html")
    for found in (data["sheets"][0], data["sheets"][3]):
        text = document(tmp_path / "a.html", f"graph/{found['name']}")
        assert len(re.findall(r'<g class="box node', text)) == found["nodes"] - found["folded"]
        assert f"{found['name']}: {found['nodes']} nodes" in text
        routes = re.search(r'class="edges" d="([^"]*)"', text)
        assert routes is not None and routes[1].count("M") == len(found["edges"])


@in_a_browser
@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("passes", "Ops by stage"),
        ("memory", "The arena, step by step"),
        ("time", "Steps, the longest first"),
        ("kernels/0", '<details class="kernel" id="kernel-0" open'),
    ],
)
def test_a_browser_opens_every_view(
    step: Inspected, tmp_path: Path, place: str, shown: str
) -> None:
    written(step, tmp_path / "a.html")
    text = document(tmp_path / "a.html", place)
    name = place.partition("/")[0]
    assert shown in text
    assert re.search(rf'id="tab-{name}"[^>]*aria-selected="true"', text)
    hidden = re.findall(r'<section id="view-(\w+)"[^>]* hidden', text)
    assert len(hidden) == 6 and name not in hidden


@in_a_browser
def test_a_browser_runs_no_names(hostile: Inspected, tmp_path: Path) -> None:
    written(hostile, tmp_path / "a.html")
    for place in ("graph/optimized", "passes"):
        text = document(tmp_path / "a.html", place)
        assert "<img" not in text
        assert "<title>taken over" not in text
        assert HOSTILE in unescape(re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))
