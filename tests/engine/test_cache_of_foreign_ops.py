"""Programs with ops from elsewhere are not kept: their code may change unseen."""

from __future__ import annotations

import pytest

from treadle.engine.cache import key_of
from treadle.engine.devices.placement import find_compiler
from treadle.engine.options import Options
from treadle.engine.plan import Interface
from treadle.graph.ir import Graph
from treadle.graph.parser import parse
from treadle.ops.elementwise import Neg

PLAIN = """
graph plain(%x: float32[4]) {
  %y = neg(%x) : float32[4]
  return %y
}
"""
BRANCHES = """
graph branches(%p: bool[], %x: float32[4]) {
  %y = cond{
    then=graph a(%x: float32[4]) {
      %y = neg(%x) : float32[4]
      return %y
    },
    otherwise=graph b(%x: float32[4]) {
      %y = abs(%x) : float32[4]
      return %y
    }
  }(%p, %x) : float32[4]
  return %y
}
"""


def key(graph: Graph) -> str:
    return key_of(graph, Interface(), Options(), find_compiler(Options()))


@pytest.mark.parametrize("text", [PLAIN, BRANCHES], ids=["plain", "branches"])
def test_only_own_ops_have_a_key(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = parse(text)
    assert key(graph).endswith(".program")
    monkeypatch.setattr(Neg, "__module__", "somebody.else")
    assert key(graph) == ""
