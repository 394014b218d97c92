"""The fusion switch file: what it turns off is left out, and what it gets wrong is explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.engine.workloads import f32, gpt_step, mlp_step

from treadle.base.errors import EngineError
from treadle.engine import cache
from treadle.engine.devices import placement
from treadle.engine.fusion_switch import KINDS, graph_fusions
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.graph.builder import trace_body
from treadle.graph.ir import Graph
from treadle.inspect import Inspected
from treadle.ops.fused import Fused

SQUARE = "x * x => square(x)"


def written(folder: Path, switch: Any) -> str:
    path = folder / "switch.json"
    path.write_text(switch if isinstance(switch, str) else json.dumps({"Switch": switch}))
    return str(path)


def lowered(graph: Graph, path: str) -> tuple[Graph, Inspected]:
    program = Inspected(Stages(graph, options=Options(fusion_switch=path)))
    return program.lower(), program


def kinds(graph: Graph) -> set[str]:
    return {n.op.kind for n in graph.nodes if isinstance(n.op, Fused)}


@pytest.mark.parametrize("kind", ["contraction", "loop"])
def test_a_kind_of_groups_is_left_out(kind: str, tmp_path: Path) -> None:
    graph = mlp_step(8, (12, 10, 4))
    assert kind in kinds(lowered(graph, "")[0])
    optimized, program = lowered(graph, written(tmp_path, {"Fusion": {kind: "off"}}))
    assert kinds(optimized) == {"contraction", "loop"} - {kind}
    assert f"one {kind} kernel" not in str(program.report)


def test_attention_is_neither_found_nor_grouped(tmp_path: Path) -> None:
    graph = gpt_step(2, 8, 16, 1, 2, 5)
    found = [n.op.name for n in lowered(graph, "")[0].nodes]
    switch = {"GraphFusion": {"find_attention": "off"}, "Fusion": {"attention": "off"}}
    optimized, program = lowered(graph, written(tmp_path, switch))
    assert "find_attention" not in str(program.report)
    assert "attention" not in kinds(optimized)
    assert len(found) < len(optimized.nodes)


def test_a_rule_is_left_out(tmp_path: Path) -> None:
    graph = trace_body(lambda x: x * x, [f32(3)], "g")
    with_rule, program = lowered(graph, "")
    assert [n.op.name for n in with_rule.nodes] == ["square"]
    assert SQUARE in str(program.report)
    without, program = lowered(graph, written(tmp_path, {"GraphFusion": {SQUARE: "off"}}))
    assert [n.op.name for n in without.nodes] == ["mul"]
    assert SQUARE not in str(program.report)


def test_all_stands_for_what_is_not_named(tmp_path: Path) -> None:
    switch = {"GraphFusion": {"ALL": "off", SQUARE: "on"}, "Fusion": {"ALL": "off", "loop": "on"}}
    off = Options(fusion_switch=written(tmp_path, switch)).switched_off
    assert set(off) == (set(graph_fusions()) | set(KINDS)) - {SQUARE, "loop"}
    assert Options(fusion_switch=written(tmp_path, {"Fusion": {"ALL": "on"}})).switched_off == ()


def test_the_environment_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_FUSION_SWITCH", written(tmp_path, {"Fusion": {"loop": "off"}}))
    assert Options().switched_off == ("loop",)
    assert not Options().fuses("loop") and Options().fuses("contraction")


def test_contents_are_part_of_a_program_s_name(tmp_path: Path) -> None:
    graph, compiler = mlp_step(2, (3, 2)), placement.find_compiler(Options())
    names = set()
    for kind in KINDS:  # One path, other contents.
        options = Options(fusion_switch=written(tmp_path, {"Fusion": {kind: "off"}}))
        names.add(cache.key_of(graph, Interface(), options, compiler))
    assert len(names) == len(KINDS)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "is not JSON"),
        ("[]", "the file is not of the right form"),
        ("{}", "the file is not of the right form"),
        ('{"Switch": []}', "Switch is not of the right form"),
        ('{"Switch": {"UBFusion": {}}}', "there is no 'UBFusion'"),
        ('{"Switch": {"Fusion": ["loop"]}}', "Fusion is not of the right form"),
        ('{"Switch": {"Fusion": {"lop": "off"}}}', "did you mean 'loop'"),
        ('{"Switch": {"GraphFusion": {"x*x => square(x)": "off"}}}', SQUARE.replace("*", r"\*")),
        ('{"Switch": {"Fusion": {"loop": false}}}', "'loop' is neither on nor off"),
        ('{"Switch": {"Fusion": {"ALL": ["off"]}}}', "'ALL' is neither on nor off"),
    ],
)
def test_mistakes_are_explained(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=problem.replace("(", r"\(").replace(")", r"\)")):
        Options(fusion_switch=written(tmp_path, text))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        Options(fusion_switch=str(tmp_path / "none.json"))
