"""Which group depends on which, against a search; what grows with the graph, by counting."""

from __future__ import annotations

import random

import pytest
from tests.engine.structural_compiler import StructuralCompiler

from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.engine.optimize import anchors
from treadle.engine.optimize.bodies import Trial
from treadle.engine.optimize.groups import Groups, NodeGroup
from treadle.engine.optimize.loops import loop_groups
from treadle.graph.builder import GraphBuilder, GraphOperand
from treadle.graph.ir import Graph
from treadle.ops.elementwise import Add, Mul
from treadle.ops.matmul import Matmul
from treadle.ops.unary import Tanh

SQUARE = TensorType(dt.float32, (8, 8))


def random_graph(rng: random.Random, nodes: int) -> Graph:
    builder = GraphBuilder("random")
    values: list[GraphOperand] = [builder.input(SQUARE)]
    for _ in range(nodes):
        values.append(Add()(rng.choice(values[-5:]), rng.choice(values)))
    builder.output(*values[1:])
    return builder.build()


def feeds(groups: Groups, group: NodeGroup) -> set[NodeGroup]:
    """The groups that read what a group makes, at once or by way of others."""
    found: set[NodeGroup] = set()
    waiting = [group]
    while waiting:
        for i in waiting.pop().members:
            for user in groups.users[groups.nodes[i].output]:
                reader = groups.owner[user]
                if reader is not group and reader not in found:
                    found.add(reader)
                    waiting.append(reader)
    return found


def closes(groups: Groups, a: NodeGroup, b: NodeGroup) -> bool:
    """Whether some third group needs one of the two and feeds the other."""
    below = {g: feeds(groups, g) for g in groups.all()}
    return any(
        g not in (a, b) and g in below[a] | below[b] and (a in below[g] or b in below[g])
        for g in groups.all()
    )


@pytest.mark.parametrize("seed", range(12))
def test_cycles_are_those_that_a_search_finds(seed: int) -> None:
    rng = random.Random(seed)
    groups = Groups(random_graph(rng, 24))
    splits = 0
    for _ in range(60):
        standing = groups.all()
        if len(standing) < 2:
            break
        a, b = rng.sample(standing, 2)
        # After a split more may be kept apart than must be, never less.
        said, found = groups.closes_cycle((a, b)), closes(groups, a, b)
        assert said or not found
        assert found or not said or splits
        if not said:
            groups.keep(groups.joined((a, b), "loop"))
        elif a.parts and seed % 2:
            groups.split(a)
            splits += 1
        assert all(g not in feeds(groups, g) for g in groups.all())


def gradients(terms: int) -> Graph:
    """A product, and what is added to it, one array after the other."""
    builder = GraphBuilder("sums")
    x, w = builder.input(SQUARE), builder.input(SQUARE)
    total = Matmul()(x, w)
    for _ in range(terms):
        total = Add()(total, builder.input(SQUARE))
    builder.output(total)
    return builder.build()


def test_a_long_sum_after_a_product_is_cut_in_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One addition was taken out a time; after 24 of them the product got no epilogue at all."""
    solved, solve = [], anchors.Cut.solve
    monkeypatch.setattr(anchors.Cut, "solve", lambda *given: (solved.append(1), solve(*given))[1])
    groups = Groups(gradients(40))
    anchors.contraction_groups(groups, Trial(StructuralCompiler()), lambda *_: None)
    assert groups.owner[0].members == [0, 1, 2] and len(solved) == 2


def layers(count: int) -> Graph:
    """Layers whose derivative is needed after all of them, in reverse."""
    builder = GraphBuilder("layers")
    x, w = builder.input(SQUARE), builder.input(SQUARE)
    slopes = []
    for _ in range(count):
        x = Tanh()(Matmul()(x, w))
        slopes.append(Mul()(x, x))
    for slope in reversed(slopes):
        x = Mul()(Matmul()(x, w), slope)
    builder.output(x)
    return builder.build()


def test_merges_tell_only_those_groups_that_learn_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each was told to all groups after it: 32 layers took 2,512 visits, 64 took 10,144."""
    told, uninformed = [], Groups._uninformed
    monkeypatch.setattr(
        Groups, "_uninformed", lambda *given: (g for g in uninformed(*given) if not told.append(g))
    )
    for count in (32, 64):
        told.clear()
        groups = Groups(layers(count))
        anchors.contraction_groups(groups, Trial(StructuralCompiler()), lambda *_: None)
        loop_groups(groups, Trial(StructuralCompiler()), lambda *_: None)
        assert len(told) < count
